"""The deep reference networks of reconstruction papers, in the form for small pictures.

As in ``networks``: plain modules from records (n, *shape) to logits (n, classes), every parameter
drawn from the given generator. Published for 224×224 pictures; here strides and pooling are those
usual for 32×32, so that enough of a small picture is left for the fully connected part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.networks.small import (
    _classes,
    _convolution,
    _dense,
    _he,
    _initialise,
    _pictures,
    check_sizes,
    residual_body,
)
from vestige.records import ImageSpace, Space

# Simonyan and Zisserman 2015, Table 1, column A; 0 is a pooling.
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)


def _pooled_body(
    picture: ImageSpace, plan: Sequence[int], *, batch_norm: bool
) -> tuple[list[nn.Module], int]:
    """3×3 convolutions of so many channels, 0 for a pooling; and how many features they leave.

    Poolings stop when the picture is down to one pixel.
    """
    layers: list[nn.Module] = []
    before, height, across = picture.channels, picture.height, picture.width
    for after in plan:
        if after:
            layers += [_convolution(before, after, 3, stride=1, batch_norm=batch_norm), nn.ReLU()]
            before = after
        elif min(height, across) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, across = height // 2, across // 2
    return [*layers, nn.Flatten()], before * height * across


def vgg11(
    space: Space,
    *,
    width: int = 64,
    hidden: Sequence[int] = (4096,),
    batch_norm: bool = False,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """VGG-11 of Simonyan and Zisserman, "Very Deep Convolutional Networks" (2015), column A.

    The fully connected part is that of Pan et al. (2020): one hidden layer of 4096 units where the
    original has two. Poolings stop when the picture is down to one pixel. No dropout.

    ``width`` is the number of channels of the first convolution; all others are multiples of it.
    """
    picture = _pictures(space, "vgg11", width)
    check_sizes("hidden of vgg11", hidden)

    def build() -> nn.Sequential:
        plan = [channels * width // 64 for channels in VGG11]
        body, features = _pooled_body(picture, plan, batch_norm=batch_norm)
        return nn.Sequential(*body, *_dense((features, *hidden, _classes(space)), nn.ReLU))

    return _initialise(build, _he, generator)


def alexnet(
    space: Space,
    *,
    width: int = 64,
    hidden: Sequence[int] = (4096,),
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """AlexNet of Krizhevsky, "One weird trick" (2014), with 3×3 filters for small pictures.

    Five convolutions of 1, 3, 6, 4 and 4 times the width, pooled after the first, second and fifth;
    the hidden layer of 4096 units is that of Pan et al. (2020). Parameters as in ``vgg11``.
    """
    picture = _pictures(space, "alexnet", width)
    check_sizes("hidden of alexnet", hidden)

    def build() -> nn.Sequential:
        plan = [times * width for times in (1, 0, 3, 0, 6, 4, 4, 0)]
        body, features = _pooled_body(picture, plan, batch_norm=False)
        return nn.Sequential(*body, *_dense((features, *hidden, _classes(space)), nn.ReLU))

    return _initialise(build, _he, generator)


def resnet18(
    space: Space,
    *,
    width: int = 64,
    hidden: Sequence[int] = (),
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """ResNet-18 of He et al., "Deep Residual Learning" (2016), Table 1, for small pictures.

    Four stages of two blocks with 1, 2, 4 and 8 times the width. The first convolution is 3×3 with
    stride 1 and no pooling follows it. The head is one linear layer, as in Pan et al. (2020),
    Section 8.6; ``hidden`` adds layers to it. Parameters as in ``vgg11``.
    """
    picture = _pictures(space, "resnet18", width)
    check_sizes("hidden of resnet18", hidden)

    def build() -> nn.Sequential:
        body, features = residual_body(picture.channels, width, 2, 4, batch_norm)
        return nn.Sequential(*body, *_dense((features, *hidden, _classes(space)), nn.ReLU))

    return _initialise(build, _he, generator)


class _Beside(nn.Module):
    """Layers beside the identity: (n, c, h, w) → (n, c, h, w)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the layers say of a picture to the picture."""
        return x + self.residual(x)


def resnet9(
    space: Space, *, width: int = 64, generator: torch.Generator | None = None
) -> nn.Sequential:
    """ResNet-9 with group norms, as private training uses it (Klause et al. 2022; Page 2019).

    Eight 3×3 convolutions of 1, 2, 2, 2, 4, 4, 4 and 4 times the width, two pairs of them beside a
    shortcut, and a linear layer. Group norms, of eight groups, see one record at a time, so that
    every record has a gradient of its own. Klause et al. normalise once more after each pair, which
    is left out, and activate by Mish, here ReLU. Parameters as in ``vgg11``; the width is a
    multiple of 8.
    """
    picture = _pictures(space, "resnet9", width)
    if width % 8:
        raise BadInput(f"The width of a resnet9 is a multiple of 8, not {width}.")
    if min(picture.height, picture.width) < 8:
        raise BadInput("A resnet9 halves pictures three times: give 8 × 8 pixels or more.")

    def layer(before: int, after: int, *, pooled: bool = False) -> nn.Sequential:
        parts = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        return nn.Sequential(*parts, *([nn.MaxPool2d(2)] if pooled else []))

    def build() -> nn.Sequential:
        double, quadruple = 2 * width, 4 * width
        return nn.Sequential(
            layer(picture.channels, width),
            layer(width, double, pooled=True),
            _Beside(layer(double, double), layer(double, double)),
            layer(double, quadruple, pooled=True),
            layer(quadruple, quadruple, pooled=True),
            _Beside(layer(quadruple, quadruple), layer(quadruple, quadruple)),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(quadruple, _classes(space)),
        )

    return _initialise(build, _he, generator)
