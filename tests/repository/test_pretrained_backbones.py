"""benchmarks/pretrained_backbones.py: weights in TensorFlow.js's format, and the face network."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vestige.errors import BadInput

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def loaders(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("pretrained_backbones")
    sys.modules.pop("pretrained_backbones", None)


def write(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Write weights of these shapes as uint8, as face-api ships them; what they stand for."""
    random, entries, content, expected = np.random.default_rng(0), [], b"", {}
    for place, (name, shape) in enumerate(shapes.items()):
        values = random.integers(0, 256, shape, dtype=np.uint8)
        scale, least = 0.001 * (1 + place % 3), -0.1
        quantization = {"dtype": "uint8", "scale": scale, "min": least}
        entries.append(
            {"name": name, "shape": shape, "dtype": "float32", "quantization": quantization}
        )
        content += values.tobytes()
        expected[name] = values * scale + least
    manifest = [{"weights": entries, "paths": ["face_recognition_model.bin"]}]
    (folder / "face_recognition_model-weights_manifest.json").write_text(json.dumps(manifest))
    (folder / "face_recognition_model.bin").write_bytes(content)
    return expected


def convolution(name: str, size: int, before: int, after: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}/conv/filters": (size, size, before, after),
        f"{name}/conv/bias": (after,),
        f"{name}/scale/weights": (after,),
        f"{name}/scale/biases": (after,),
    }


def network_shapes() -> dict[str, tuple[int, ...]]:
    """The face network with 2, 3, 4 and 5 channels in place of 32, 64, 128 and 256."""
    shapes = convolution("conv32_down", 7, 3, 2)
    blocks = [(f"conv32_{i}", 2, 2) for i in (1, 2, 3)]
    blocks += [("conv64_down", 2, 3)] + [(f"conv64_{i}", 3, 3) for i in (1, 2, 3)]
    blocks += [("conv128_down", 3, 4)] + [(f"conv128_{i}", 4, 4) for i in (1, 2)]
    blocks += [("conv256_down", 4, 5)] + [(f"conv256_{i}", 5, 5) for i in (1, 2)]
    blocks += [("conv256_down_out", 5, 5)]
    for name, before, after in blocks:
        shapes |= convolution(f"{name}/conv1", 3, before, after)
        shapes |= convolution(f"{name}/conv2", 3, after, after)
    return shapes | {"fc": (5, 6)}


def files(folder: Path) -> tuple[Path, Path]:
    manifest = folder / "face_recognition_model-weights_manifest.json"
    return manifest, folder / "face_recognition_model.bin"


def test_quantised_weights_are_read(loaders, tmp_path):
    expected = write(tmp_path, {"a": (2, 3), "b": (4,)})
    found = loaders.read_manifest(*files(tmp_path))
    assert list(found) == ["a", "b"]
    for name, values in expected.items():
        assert np.allclose(found[name].numpy(), values, atol=1e-6)


@pytest.mark.parametrize(("change", "words"), [(-1, "ends before b"), (1, "1 bytes that")])
def test_other_sizes_are_refused(loaders, tmp_path, change, words):
    write(tmp_path, {"a": (2, 3), "b": (4,)})
    content = files(tmp_path)[1]
    whole = content.read_bytes()
    content.write_bytes(whole + b"0" if change > 0 else whole[:change])
    with pytest.raises(BadInput, match=words):
        loaders.read_manifest(*files(tmp_path))


def test_the_face_network_runs_at_every_size(loaders, tmp_path):
    """Sides of 131 to 150: the last stages have to be padded by a row, or not."""
    write(tmp_path, network_shapes())
    faces = torch.rand((2, 1, 64, 64), generator=torch.Generator().manual_seed(0))
    for side in (131, 140, 150):
        network = loaders.face_recognition(tmp_path, side)
        assert network(faces).shape == (2, 6)


def test_scaled_convolutions_are_what_the_source_computes(loaders, tmp_path):
    """relu-free layer of face-api: (conv(x) + bias)·scale + shift, filters as height, width, in."""
    expected = write(tmp_path, convolution("one", 3, 2, 4))
    layer = loaders.ScaledConvolution(loaders.read_manifest(*files(tmp_path)), "one", 2, 0)
    x = torch.rand((1, 2, 7, 7), generator=torch.Generator().manual_seed(1))
    parts = {name.split("/", 1)[1]: torch.tensor(value).float() for name, value in expected.items()}
    plain = nn.functional.conv2d(x, parts["conv/filters"].permute(3, 2, 0, 1), stride=2)
    plain = plain + parts["conv/bias"].view(-1, 1, 1)
    plain = plain * parts["scale/weights"].view(-1, 1, 1) + parts["scale/biases"].view(-1, 1, 1)
    assert torch.allclose(layer(x), plain, atol=1e-5)


def test_missing_weights_are_none(loaders, tmp_path):
    assert loaders.face_recognition(tmp_path) is None


def test_pictures_are_enlarged_centred_and_seen_a_few_at_a_time(loaders):
    """As all at once; the same pictures go into another network."""
    seen: list[int] = []

    class Corner(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return x[:, :, 0, 0]

    shape = (2 * loaders.AT_A_TIME + 3, 1, 5, 5)
    pictures = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    mean = (0.1, 0.2, 0.3)
    network = loaders.Enlarged(nn.Identity(), 9, mean, 0.5).around(Corner())
    wanted = (pictures[:, :, 0, 0] - torch.tensor(mean)) / 0.5
    assert torch.allclose(network(pictures), wanted, atol=1e-6)
    assert seen == [loaders.AT_A_TIME, loaders.AT_A_TIME, 3]
    assert not network.training
