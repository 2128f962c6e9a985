"""The span of a layer's gradient: which vectors were among the layer's inputs.

The gradient of a linear layer Z = XW is Xᵀ·∂L/∂Z, so every column of it is a sum of rows of X.
While there are fewer tokens than inputs, a vector x is an input only if it lies in that span
(Petrov et al. 2024, DAGER, Section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SCREEN = 24
"""Directions outside the span that screen all tokens; those that pass are compared with all."""

PASSES = 0.2
"""What of a token's screened length may lie outside: far more than any member has."""


@dataclass(frozen=True)
class Span:
    """The span of a gradient: an orthonormal ``basis`` (width, rank) and how exact it is.

    ``floor`` is how far outside rounding alone can move a member, ``values`` are the singular
    values. ``full`` says that the gradient spans everything, so that nothing can be told.
    """

    basis: Tensor
    values: Tensor
    floor: float
    screen: Tensor
    precision: float

    @classmethod
    def of(cls, gradient: Tensor, precision: float) -> Span:
        """The span of a gradient (width, outputs) whose entries are exact to ``precision``."""
        left, values, _ = torch.linalg.svd(gradient.double(), full_matrices=True)
        width = gradient.shape[0]
        noise = precision * float(values[0]) if len(values) else 0.0
        rank = _rank(values, noise)
        smallest = float(values[rank - 1]) if rank else 1.0
        outside = left[:, rank:]
        if outside.shape[1] > SCREEN:
            generator = torch.Generator().manual_seed(0)
            mixing = torch.randn((outside.shape[1], SCREEN), generator=generator).double()
            outside = outside @ torch.linalg.qr(mixing.to(outside.device))[0]
        floor = min(1.0, noise * math.sqrt(width) / smallest)
        return cls(left[:, :rank], values, floor, outside, precision)

    @property
    def rank(self) -> int:
        """Dimensions of the span."""
        return self.basis.shape[1]

    @property
    def finest(self) -> float:
        """Shares outside the span below this are rounding."""
        return 5 * self.precision

    @property
    def loosest(self) -> float:
        """No member lies further outside than this share of its length."""
        return max(1e-3, 15 * self.precision)

    @property
    def full(self) -> bool:
        """Whether nothing lies outside."""
        return self.rank >= self.basis.shape[0]

    def outside(self, inputs: Tensor) -> Tensor:
        """How much of each vector (…, width) lies outside, as a share of its length."""
        vectors = inputs.double()
        rest = vectors - (vectors @ self.basis) @ self.basis.mT
        lengths = vectors.norm(dim=-1).clamp_min(1e-300)
        return rest.norm(dim=-1) / lengths

    def may_hold(self, inputs: Tensor) -> Tensor:
        """Whether vectors (…, width) pass the screen: every member does, and few others."""
        screen = self.screen.to(inputs.dtype)
        seen = (inputs @ screen).norm(dim=-1)
        usual = math.sqrt(self.screen.shape[1] / self.basis.shape[0])
        return seen < PASSES * usual * inputs.norm(dim=-1)


def _rank(values: Tensor, noise: float) -> int:
    """Where the singular values fall to the noise: the largest drop among those near it."""
    found = values.clamp_min(1e-300).log10()
    above = int((values > noise * math.sqrt(len(values))).sum())
    if above == 0 or above == len(values):
        return above
    # Values that fall off gradually have no clear end: then the noise decides.
    drops = found[:-1] - found[1:]
    near = range(max(1, above - 2), min(len(values), above + 3))
    best = max(near, key=lambda k: float(drops[k - 1]))
    return best if float(drops[best - 1]) > 1 else above
