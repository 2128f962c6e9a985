"""Datasets of the library ``datasets`` become records, or one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vestige.datasets import from_huggingface
from vestige.datasets import huggingface as room
from vestige.errors import BadInput
from vestige.records import ImageSpace, TableSpace

huggingface = pytest.importorskip("datasets")

Dataset, Features = huggingface.Dataset, huggingface.Features
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = [0, 1, 2, 2, 1, 0]


def pictures(images=None, labels=None, names=("ant", "bee", "cow")):
    images = [Image.fromarray(p) for p in PIXELS] if images is None else images
    features = Features(
        {"image": huggingface.Image(), "label": huggingface.ClassLabel(names=list(names))}
    )
    return Dataset.from_dict(
        {"image": images, "label": LABELS if labels is None else labels}, features=features
    )


def columns(**held):
    return Dataset.from_dict(held)


def test_pictures_with_class_labels():
    records = from_huggingface(pictures(), noun="animal")
    assert records.space == ImageSpace(1, 5, 4, ("ant", "bee", "cow"), "animal")
    assert torch.equal(records.x[:, 0] * 255, torch.from_numpy(PIXELS).float())
    assert records.y.tolist() == LABELS


def test_formats_and_transforms_are_set_aside():
    plain = from_huggingface(pictures())
    for other in (
        pictures().with_format("torch"),
        pictures().with_format("numpy"),
        pictures().with_transform(lambda batch: {"image": [0] * 1, "label": [0] * 1}),
    ):
        assert torch.equal(from_huggingface(other).x, plain.x)


def test_one_coloured_picture_makes_all_coloured():
    images = [Image.fromarray(p) for p in PIXELS]
    images[3] = images[3].convert("RGB")
    records = from_huggingface(pictures(images))
    assert records.space.shape == (3, 5, 4)
    assert torch.equal(records.x[0, 0], records.x[0, 2])


def test_pictures_of_different_sizes_need_a_size():
    images = [Image.fromarray(p) for p in PIXELS]
    images[2] = images[2].resize((7, 8))
    with pytest.raises(BadInput, match="Item 2 of 'image' is a picture of 8 × 7 pixels"):
        from_huggingface(pictures(images))
    assert from_huggingface(pictures(images), size=(3, 2)).space.shape == (1, 3, 2)
    assert from_huggingface(pictures(images), size=6).space.shape == (1, 6, 6)


def test_array_features_and_words_as_labels():
    values = np.random.default_rng(1).random((6, 3, 4, 4)).astype("float32")
    features = Features(
        {"pixels": huggingface.Array3D((3, 4, 4), "float32"), "kind": huggingface.Value("string")}
    )
    held = Dataset.from_dict({"pixels": values, "kind": list("babcab")}, features=features)
    records = from_huggingface(held, image="pixels", label="kind")
    torch.testing.assert_close(records.x, torch.from_numpy(values))
    assert records.space.class_names == ("a", "b", "c")
    assert records.y.tolist() == [1, 0, 1, 2, 0, 1]


def test_rows_of_numbers_are_a_table():
    rows = np.random.default_rng(2).random((6, 3))
    records = from_huggingface(columns(row=rows.tolist(), label=LABELS), image="row")
    assert isinstance(records.space, TableSpace)
    assert records.x.shape == (6, 3)
    torch.testing.assert_close(records.x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)


def test_limits_are_spread_and_streams_need_one():
    assert from_huggingface(pictures(), limit=3).y.tolist() == [LABELS[i] for i in (0, 2, 4)]
    stream = pictures().to_iterable_dataset()
    assert from_huggingface(stream, limit=4).y.tolist() == LABELS[:4]
    with pytest.raises(BadInput, match="pass limit="):
        from_huggingface(stream)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (lambda: {"train": pictures(), "test": pictures()}, {}, "parts 'train', 'test'"),
        (lambda: [1, 2], {}, "A list is no dataset"),
        (pictures, {"image": "img"}, "no column 'img', it has 'image', 'label': name one"),
        (pictures, {"label": "fine"}, "no column 'fine'"),
        (pictures, {"limit": 0}, "at least 1"),
        (pictures, {"size": (0, 3)}, "at least 1"),
        (lambda: pictures(labels=[0, 1, -1, 0, 1, 2]), {}, "not labelled"),
        (lambda: pictures(labels=[0, 1, None, 0, 1, 2]), {}, "Item 2 of 'label' is missing"),
        (lambda: pictures(images=[None, *([Image.fromarray(PIXELS[0])] * 5)]), {}, "is missing"),
        (lambda: pictures().cast_column("image", huggingface.Image(decode=False)), {}, "decoded"),
        (lambda: pictures().select([]), {}, "empty"),
        (lambda: columns(image=["a", "b"], label=[0, 1]), {}, "neither a picture nor numbers"),
        (lambda: columns(image=[1.0, 2.0], label=[0, 1]), {}, "single numbers"),
        (lambda: columns(image=[[1.0], [1.0, 2.0]], label=[0, 1]), {}, "shape"),
        (lambda: columns(image=[[[1.0], [1.0, 2.0]]] * 2, label=[0, 1]), {}, "one shape"),
        (lambda: columns(image=[[[2.5]]] * 2, label=[0, 1]), {}, "values from 2.5"),
        (lambda: columns(image=[[1.0]] * 2, label=[[0], [1, 2]]), {}, "single label"),
        (lambda: columns(image=[[1.0]] * 2, label=[0.5, 1.0]), {}, "whole numbers"),
        (lambda: columns(image=[[1.0]] * 2, label=[0, 1]), {"size": 3}, "not resized"),
    ],
)
def test_what_does_not_fit_is_one_sentence(given, options, said):
    with pytest.raises(BadInput, match=said):
        from_huggingface(given(), **options)


def test_what_would_not_fit_into_memory_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(room, "MOST_RECORD_BYTES", 15 * 20 * 2)
    with pytest.raises(BadInput, match="pass limit=2 or fewer"):
        from_huggingface(pictures())
    assert len(from_huggingface(pictures(), limit=2)) == 2
