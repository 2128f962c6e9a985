"""Activations with their first two derivatives, and what Gaussian weights see of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vestige.networks.gaussian_head import Polynomial, horner

# The trapezoid rule is exact to rounding for smooth functions under a normal density, and to 1e-5
# for a kink, where a Gauss–Hermite rule loses three more digits.
REACH, NODES = 12.0, 4001


@dataclass(frozen=True)
class Activation:
    """σ with σ′ and σ″, each a function of a tensor.

    ``homogeneous`` says that σ(t·z) = t·σ(z) for t > 0: without biases the length of a record
    cannot then be told from its residual. ``odd`` says that σ(−z) = −σ(z): nor can its sign.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor]
    homogeneous: bool = False
    odd: bool = False

    def hermite_coefficients(self, length: float, offset: float = 0.0, order: int = 4) -> Tensor:
        """E[σ(length·z + offset)·He_k(z)] for k = 0 … order and z standard normal.

        For length 1 and offset 0 these are E[σ⁽ᵏ⁾(z)], the weights of x⊗…⊗x in the k-th moment.
        """
        z = torch.linspace(-REACH, REACH, NODES, dtype=torch.float64)
        values = self.value(length * z + offset) * _normal(z) * (2 * REACH / (NODES - 1))
        hermite = [torch.ones_like(z), z]
        for k in range(1, order):
            hermite.append(z * hermite[k] - k * hermite[k - 1])
        return torch.stack([(values * one).sum() for one in hermite[: order + 1]])


def polynomial(coefficients: tuple[float, ...]) -> Activation:
    """Σ_k coefficients[k]·z^k: (0, 0, 1, 1) is z² + z³."""

    def derived(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(k * value for k, value in enumerate(values))[1:]

    first = derived(coefficients)
    used = [k for k, value in enumerate(coefficients) if value]
    return Activation(
        "polynomial",
        partial(horner, coefficients),
        partial(horner, first),
        partial(horner, derived(first)),
        homogeneous=used == [1],
        odd=all(k % 2 for k in used),
    )


def _normal(z: Tensor) -> Tensor:
    """Density of the standard normal."""
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def _tanh_slope(z: Tensor) -> Tensor:
    return 1 - torch.tanh(z).square()


RELU = Activation("ReLU", torch.relu, lambda z: (z > 0).to(z), torch.zeros_like, homogeneous=True)
TANH = Activation(
    "tanh", torch.tanh, _tanh_slope, lambda z: -2 * torch.tanh(z) * _tanh_slope(z), odd=True
)
GELU = Activation(
    "GELU",
    lambda z: z * torch.special.ndtr(z),
    lambda z: torch.special.ndtr(z) + z * _normal(z),
    lambda z: (2 - z.square()) * _normal(z),
)

# Hendrycks and Gimpel 2016, Section 2: z/2·(1 + tanh(√(2/π)·(z + 0.044715·z³))).
_FIRST, _THIRD = math.sqrt(2 / math.pi), 0.044715


def _inner(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Argument of the tanh with its two derivatives."""
    return (
        _FIRST * (z + _THIRD * z**3),
        _FIRST * (1 + 3 * _THIRD * z.square()),
        _FIRST * 6 * _THIRD * z,
    )


def _approximate_slope(z: Tensor) -> Tensor:
    u, first, _ = _inner(z)
    return (1 + torch.tanh(u)) / 2 + z / 2 * _tanh_slope(u) * first


def _approximate_curvature(z: Tensor) -> Tensor:
    u, first, second = _inner(z)
    bent = -2 * torch.tanh(u) * _tanh_slope(u) * first.square() + _tanh_slope(u) * second
    return _tanh_slope(u) * first + z / 2 * bent


APPROXIMATE_GELU = Activation(
    "GELU (tanh form)",
    lambda z: z / 2 * (1 + torch.tanh(_inner(z)[0])),
    _approximate_slope,
    _approximate_curvature,
)


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that a module is, or None if it is none of those known here."""
    if isinstance(module, Polynomial):
        return polynomial(module.coefficients)
    if isinstance(module, nn.GELU):
        return GELU if module.approximate == "none" else APPROXIMATE_GELU
    if isinstance(module, nn.ReLU):
        return RELU
    return TANH if isinstance(module, nn.Tanh) else None
