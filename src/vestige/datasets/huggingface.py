"""Records from a dataset of the Hugging Face library ``datasets``, which need not be installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image

from vestige.datasets.formats import MOST_RECORD_BYTES
from vestige.datasets.own import from_tensors
from vestige.datasets.pictures import channels_first, eight_bit
from vestige.datasets.texts import from_texts
from vestige.errors import BadInput
from vestige.files.memory import memory_limit, refuse_memory
from vestige.records import Records


def from_huggingface(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    limit: int | None = None,
    size: int | tuple[int, int] | None = None,
    class_names: Sequence[str] | None = None,
    noun: str | None = None,
    text_column: str | None = None,
    tokenizer: Any = None,
    length: int | None = None,
) -> Records:
    """Make records from a ``datasets.Dataset``, or from the first items of a streamed one.

    Formats and transforms of the dataset are set aside: pictures must lie in [0, 1], and
    normalisation belongs into the audit.

    Parameters
    ----------
    dataset
        One part of a dataset, such as ``load_dataset(...)["train"]``.
    image
        The column of pictures (``Image``), of arrays (``Array2D``, ``Array3D``, nested lists) as
        ``from_tensors`` takes them, or of rows of numbers. If any picture has colour, all are read
        as colour; transparency is dropped.
    label
        The column of labels: a ``ClassLabel``, whole numbers from 0, or words, whose classes are
        then numbered in alphabetical order.
    limit
        How many items to take at most: evenly spread, since many datasets are sorted by class; the
        first ones of a streamed dataset, which needs a limit.
    size
        (height, width), or one number for both, to resize pictures to; proportions are not kept.
    class_names, noun
        As in ``from_tensors``; names are by default those of the ``ClassLabel``, or the words.
    text_column
        The column of texts, where records are texts; ``image`` is then not read. A dataset without
        the column ``label`` is one for language modelling.
    tokenizer, length
        As in ``from_texts``.
    """
    if text_column is not None:
        return _from_text_column(
            dataset, text_column, label, limit, class_names, noun, tokenizer, length
        )
    features = _features(dataset, image, label)
    if limit is not None and limit < 1:
        raise BadInput(f"The limit is at least 1, not {limit}.")
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and (len(wanted) != 2 or min(wanted) < 1):
        raise BadInput(f"A size is (height, width), both at least 1, not {size}.")
    pictures: list[Image.Image] = []
    arrays: list[np.ndarray] = []
    labels: list[Any] = []
    items, count = _items(dataset, limit, (image, label))
    for index, item in items:
        value = _value(item[image], index, image, wanted)
        first = (pictures or arrays or [value])[0]
        if type(value) is not type(first) or _shape(value) != _shape(first):
            raise BadInput(
                f"Item {index} of {image!r} is {_words(value)} where the first one is "
                f"{_words(first)}: pass size=(height, width) for pictures, or make arrays equal."
            )
        if not labels:
            _check_size(value, count)
        (pictures if isinstance(value, Image.Image) else arrays).append(value)  # pyright: ignore[reportArgumentType]
        labels.append(item[label])
    if not labels:
        raise BadInput("The dataset is empty: give at least one item.")
    numbers, names = _labels(labels, getattr(features.get(label), "names", None), label)
    if any(picture.mode == "RGB" for picture in pictures):
        pictures = [picture.convert("RGB") for picture in pictures]
    stacked = np.stack([channels_first(p) for p in pictures] if pictures else arrays)
    pictures.clear()
    arrays.clear()
    return from_tensors(
        torch.from_numpy(stacked),
        torch.from_numpy(numbers),
        class_names=names if class_names is None else class_names,
        noun=noun,
    )


def _from_text_column(
    dataset: Any,
    column: str,
    label: str,
    limit: int | None,
    class_names: Sequence[str] | None,
    noun: str | None,
    tokenizer: Any,
    length: int | None,
) -> Records:
    """Records from a column of texts, and their labels where there are any."""
    held = getattr(dataset, "column_names", None) or getattr(dataset, "features", None) or ()
    labelled = label in held
    features = _features(dataset, column, label if labelled else column, option="text_column")
    items, _ = _items(dataset, limit, (column, label if labelled else column))
    texts, labels = [], []
    for index, item in items:
        if not isinstance(item[column], str):
            raise BadInput(f"Item {index} of {column!r} is no text: filter the dataset first.")
        texts.append(item[column])
        labels.append(item[label] if labelled else 0)
    if not texts:
        raise BadInput("The dataset is empty: give at least one item.")
    numbers, names = None, class_names
    if labelled:
        numbers, known = _labels(labels, getattr(features.get(label), "names", None), label)
        numbers, names = torch.from_numpy(numbers), known if class_names is None else class_names
    return from_texts(
        texts, numbers, tokenizer=tokenizer, length=length, class_names=names, noun=noun
    )


def _features(dataset: Any, image: str, label: str, *, option: str = "image") -> dict[str, Any]:
    """The columns of a dataset, after a look whether the wanted ones are there."""
    if isinstance(dataset, dict):
        parts = ", ".join(map(repr, dataset)) or "none"
        raise BadInput(f"The dataset has the parts {parts}: choose one, dataset['train'].")
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "features"):
        raise BadInput(
            f"A {type(dataset).__name__} is no dataset of the library datasets: pass a "
            "datasets.Dataset, or use from_dataset or from_tensors."
        )
    features = dict(dataset.features or {})
    columns = list(dataset.column_names or features)
    for name, named in ((image, option), (label, "label")):
        # A stream may not know its columns before it is read.
        if columns and name not in columns:
            raise BadInput(
                f"The dataset has no column {name!r}, it has {', '.join(map(repr, columns))}: "
                f"name one with {named}=."
            )
    if getattr(features.get(image), "decode", True) is False:
        raise BadInput(
            f"The column {image!r} holds files that are not decoded: pass "
            f"dataset.cast_column({image!r}, datasets.Image())."
        )
    return features


def _items(dataset: Any, limit: int | None, columns: tuple[str, str]) -> tuple[Any, int]:
    """Items with their indices, and how many there will be at most."""
    if not hasattr(dataset, "__len__"):
        if limit is None:
            raise BadInput("A streamed dataset has no end that is known: pass limit=.")
        return enumerate(islice(dataset, limit)), limit
    count = len(dataset)
    taken = count if limit is None else min(limit, count)
    indices = [position * count // taken for position in range(taken)]
    plain = dataset.with_format(None).select_columns(list(dict.fromkeys(columns)))
    return ((index, plain[index]) for index in indices), taken


def _value(
    value: Any, index: int, column: str, size: tuple[int, int] | None
) -> Image.Image | np.ndarray:
    if value is None:
        raise BadInput(f"Item {index} of {column!r} is missing: filter the dataset first.")
    if isinstance(value, Image.Image):
        picture = eight_bit(value, f"Item {index} of {column!r}")
        return picture if size is None else picture.resize((size[1], size[0]))
    if size is not None:
        raise BadInput(f"{column!r} holds arrays, which are not resized: leave size out.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BadInput(f"Item {index} of {column!r} is no array of one shape: pad it.") from error
    if array.dtype.kind not in "biuf":
        raise BadInput(
            f"Item {index} of {column!r} is {_words(value)}, neither a picture nor numbers: name "
            "another column with image=."
        )
    if array.ndim == 0:
        raise BadInput(
            f"{column!r} holds single numbers: put the columns of a table together into one list "
            "column, or use from_tensors."
        )
    return array


def _shape(value: Image.Image | np.ndarray) -> tuple[int, ...]:
    return value.size if isinstance(value, Image.Image) else value.shape


def _words(value: Any) -> str:
    if isinstance(value, Image.Image):
        return f"a picture of {value.height} × {value.width} pixels"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}"


def _check_size(value: Image.Image | np.ndarray, count: int) -> None:
    """Compare what all items will take with the limit, by the first one."""
    if isinstance(value, Image.Image):
        # Three channels as uint8, beside PIL's four bytes or beside float32.
        each = value.width * value.height * (3 + 12)
    else:
        each = value.size * 2 * max(4, value.itemsize)
    fits = max(1, memory_limit(MOST_RECORD_BYTES) // each)
    refuse_memory(
        count * each,
        MOST_RECORD_BYTES,
        f"{count:,} records of this size",
        f"pass limit={fits} or fewer, or a smaller size=(height, width)",
    )


def _labels(
    labels: list[Any], named: Sequence[str] | None, column: str
) -> tuple[np.ndarray, Sequence[str] | None]:
    """Labels as whole numbers (n,), and names of their classes where some are known."""
    if any(value is None for value in labels):
        missing = labels.index(None)
        raise BadInput(f"Item {missing} of {column!r} is missing: filter the dataset first.")
    if all(isinstance(value, str) for value in labels):
        names = sorted(set(labels))
        numbers = {name: number for number, name in enumerate(names)}
        return np.array([numbers[value] for value in labels], dtype=np.int64), names
    try:
        values = np.asarray(labels)
    except ValueError:
        values = np.asarray(labels, dtype=object)
    if values.dtype.kind not in "biuf" or values.ndim != 1:
        raise BadInput(
            f"{column!r} holds no single label for each item: name another column with label=."
        )
    if named is not None and values.min() < 0:
        raise BadInput(
            f"Some items of {column!r} have the label {int(values.min())}, which stands for none: "
            "this part of the dataset is not labelled, choose another."
        )
    return values, named
