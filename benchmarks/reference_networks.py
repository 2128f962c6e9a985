"""Image classifiers in common use, built without pretrained weights, for 3 channels and 10 classes.

timm's definitions are used where it is installed; otherwise those of transformers, from
configurations with the published sizes; otherwise the definitions in this file. Nothing is
downloaded. Parameters are drawn from one seed, and torch's global random state stays as it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 10


@dataclass(frozen=True)
class Reference:
    """One network: its name in timm, and how it is built where timm is not installed."""

    name: str
    timm_name: str
    build: Callable[[int], nn.Module]
    source: str = "transformers"

    def __call__(self, side: int, *, seed: int = 0) -> nn.Module:
        """The network for pictures of side × side pixels."""
        timm = _timm()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            if timm is None:
                return self.build(side)
            sized = {"img_size": side} if self.timm_name.startswith(("vit", "swin")) else {}
            return timm.create_model(self.timm_name, num_classes=CLASSES, **sized)

    @property
    def definition(self) -> str:
        """Where the definition comes from."""
        return self.source if _timm() is None else "timm"


def _timm() -> Any:
    """timm, or None where it is missing or does not import, as without a working torchvision."""
    try:
        return importlib.import_module("timm")
    except Exception:
        return None


def _from_transformers(kind: str, **settings: Any) -> nn.Module:
    """A classifier of transformers from its configuration."""
    transformers = importlib.import_module("transformers")
    configuration = getattr(transformers, f"{kind}Config")(num_labels=CLASSES, **settings)
    return getattr(transformers, f"{kind}ForImageClassification")(configuration)


def _he_initialised(network: nn.Module) -> nn.Module:
    """The network with convolutions of deviation √(2 / fan-out), as the authors and timm draw them.

    transformers draws some with deviation 0.02: their outputs vanish before training, and the
    gradient then does not depend on the picture.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.weight[0, 0].numel() * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=(2 / fan_out) ** 0.5)
    return network


def _resnet18(side: int) -> nn.Module:
    return _from_transformers(
        "ResNet", layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]
    )


def _resnet50(side: int) -> nn.Module:
    return _from_transformers("ResNet")


def _vit_tiny(side: int) -> nn.Module:
    return _from_transformers(
        "ViT",
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=side,
    )


def _convnext_atto(side: int) -> nn.Module:
    return _from_transformers(
        "ConvNext", depths=[2, 2, 6, 2], hidden_sizes=[40, 80, 160, 320], image_size=side
    )


def _mobilenet_v2(side: int) -> nn.Module:
    return _he_initialised(_from_transformers("MobileNetV2", image_size=side))


def _efficientnet_b0(side: int) -> nn.Module:
    return _he_initialised(
        _from_transformers(
            "EfficientNet",
            width_coefficient=1.0,
            depth_coefficient=1.0,
            hidden_dim=1280,
            dropout_rate=0.2,
            image_size=side,
        )
    )


def _regnet_y_200mf(side: int) -> nn.Module:
    return _from_transformers(
        "RegNet", depths=[1, 1, 4, 7], hidden_sizes=[24, 56, 152, 368], groups_width=8
    )


def _swin_tiny(side: int) -> nn.Module:
    # transformers needs windows that fit the last stage, which has 1/32 of the side.
    return _from_transformers("Swin", image_size=side, window_size=min(7, side // 32))


def _convolution(
    before: int, after: int, size: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the side, or divides it by the stride, and its batch norm."""
    convolution = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after)]


class SqueezeExcite(nn.Module):
    """Gate of each channel by its mean: a hard sigmoid, as in MobileNetV3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = _multiple_of_8(channels / 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, channels, 1),
            nn.Hardsigmoid(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply channels with their gates."""
        return x * self.gate(x)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze-excite, projection (Howard et al. 2019, Fig. 4)."""

    def __init__(
        self,
        before: int,
        after: int,
        *,
        size: int,
        hidden: int,
        excited: bool,
        hard: bool,
        stride: int,
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if hard else nn.ReLU
        layers = []
        if hidden != before:
            layers += [*_convolution(before, hidden, 1), activation(inplace=True)]
        layers += _convolution(hidden, hidden, size, stride=stride, groups=hidden)
        layers.append(activation(inplace=True))
        if excited:
            layers.append(SqueezeExcite(hidden))
        self.block = nn.Sequential(*layers, *_convolution(hidden, after, 1))
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Add the block to its input where the shapes agree."""
        return x + self.block(x) if self.shortcut else self.block(x)


def _multiple_of_8(channels: float) -> int:
    return max(8, int(channels + 4) // 8 * 8)


# Howard et al. 2019, Table 2: kernel, expansion, output, squeeze-excite, hard swish, stride.
MOBILENET_V3_SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def _mobilenet_v3_small(side: int) -> nn.Module:
    """Howard et al. 2019, "Searching for MobileNetV3", Table 2."""
    layers: list[nn.Module] = [*_convolution(3, 16, 3, stride=2), nn.Hardswish(inplace=True)]
    before = 16
    for size, hidden, after, excited, hard, stride in MOBILENET_V3_SMALL:
        layers.append(
            InvertedResidual(
                before,
                after,
                size=size,
                hidden=hidden,
                excited=excited,
                hard=hard,
                stride=stride,
            )
        )
        before = after
    return nn.Sequential(
        *layers,
        *_convolution(before, 576, 1),
        nn.Hardswish(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(576, 1024),
        nn.Hardswish(inplace=True),
        nn.Dropout(0.2, inplace=True),
        nn.Linear(1024, CLASSES),
    )


class DenseLayer(nn.Module):
    """New features of all features so far, joined to them (Huang et al. 2017, Eq. 2)."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            nn.Conv2d(before, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features with ``growth`` more channels."""
        return torch.cat([x, self.layers(x)], 1)


def _densenet121(side: int) -> nn.Module:
    """Huang et al. 2017, "Densely Connected Convolutional Networks", Table 1."""
    growth, channels = 32, 64
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, 2, 3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for block, depth in enumerate((6, 12, 24, 16)):
        if block:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
                nn.AvgPool2d(2),
            ]
            channels //= 2
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    return nn.Sequential(
        *layers,
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, CLASSES),
    )


REFERENCES = {
    reference.name: reference
    for reference in (
        Reference("ResNet-18", "resnet18", _resnet18),
        Reference("ResNet-50", "resnet50", _resnet50),
        Reference("ViT-tiny", "vit_tiny_patch16_224", _vit_tiny),
        Reference("ConvNeXt-atto", "convnext_atto", _convnext_atto),
        Reference("MobileNetV2", "mobilenetv2_100", _mobilenet_v2),
        Reference("MobileNetV3-small", "mobilenetv3_small_100", _mobilenet_v3_small, "benchmarks"),
        Reference("EfficientNet-B0", "efficientnet_b0", _efficientnet_b0),
        Reference("RegNetY-200MF", "regnety_002", _regnet_y_200mf),
        Reference("Swin-tiny", "swin_tiny_patch4_window7_224", _swin_tiny),
        Reference("DenseNet-121", "densenet121", _densenet121, "benchmarks"),
    )
}
