"""Deconvolution with shared filters: a picture from features by running the body backwards.

Pan et al. 2020, "Exploring the Security Boundary of Data Reconstruction via Neuron Exclusivity
Analysis", Section 4, after Noh, Hong and Han 2015: every convolution is undone by the transposed
convolution with its own filters, every pooling by upsampling, from the last layer to the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.attacks.feature_inversion.body import Body

POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
PASSED = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True)
class _Step:
    """One layer of the body, and the shape (channels, height, width) of what it read."""

    layer: nn.Module
    read: tuple[int, ...]
    gave: tuple[int, ...]


def deconvolve(body: Body, features: Tensor, like: Tensor) -> Tensor:
    """Pictures (n, *shape) from features (n, d); ``like`` (m, *shape) are pictures of that kind.

    Where we deviate: a convolution's bias is subtracted first, where the paper says nothing, and
    since a transposed convolution inverts only up to scale, the result takes the mean and spread of
    ``like``.
    """
    value = features
    for step in reversed(_steps(body, like[:1])):
        value = value.reshape(len(value), *step.gave)
        value = _undone(step, value).reshape(len(value), *step.read)
    value = value.reshape(len(value), *like.shape[1:])
    axes = tuple(range(1, value.dim()))
    spread = value.std(axes, keepdim=True).clamp_min(1e-12)
    return (value - value.mean(axes, keepdim=True)) / spread * like.std() + like.mean()


def _undone(step: _Step, value: Tensor) -> Tensor:
    layer = step.layer
    if isinstance(layer, nn.Conv2d):
        if layer.bias is not None:
            value = value - layer.bias.detach()[:, None, None]
        padding = layer.padding
        if isinstance(padding, str):
            around = [d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size)]
            padding = tuple(around) if padding == "same" else (0, 0)
        plain = nn.functional.conv_transpose2d(
            value,
            layer.weight.detach(),
            stride=layer.stride,
            padding=padding,
            dilation=layer.dilation,
            groups=layer.groups,
        )
        # Strides that do not divide the size leave a border that no output saw.
        missing = [want - have for want, have in zip(step.read[1:], plain.shape[2:])]
        return nn.functional.pad(plain, (0, missing[1], 0, missing[0]))
    if isinstance(layer, POOLING):
        return nn.functional.interpolate(value, size=step.read[1:])
    return value


def _steps(body: Body, x: Tensor) -> list[_Step]:
    """Layers in the order of their calls, checked to be a chain that can be run backwards."""
    steps: list[_Step] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not isinstance(layer, (nn.Conv2d, *POOLING, *PASSED)):
            raise BadInput(
                f"Deconvolution knows no inverse of {type(layer).__name__}: use method='hybrid'."
            )
        steps.append(_Step(layer, tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    leaves = [m for m in body.network.modules() if not list(m.children())]
    hooks = [leaf.register_forward_hook(note) for leaf in leaves]
    try:
        with torch.no_grad():
            features = body(x)
    finally:
        for hook in hooks:
            hook.remove()
    shapes = [tuple(x.shape[1:]), *(step.gave for step in steps)]
    follows = [step.read for step in steps] + [tuple(features.shape[1:])]
    if any(_count(one) != _count(other) for one, other in zip(shapes, follows)):
        raise BadInput(
            "The body is not a chain of layers (it branches, or pools by a function), which "
            "deconvolution cannot run backwards: use method='hybrid'."
        )
    return steps


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
