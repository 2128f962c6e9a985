"""Weights of shadow networks in units of their own spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput

ROUNDING_MARGIN = 16
"""A coordinate with a spread of so few units of rounding is constant: it tells nothing."""

LIMIT = 10.0
"""Standardised weights are cut to this. A pixel that no stand-in used but the secret does would
otherwise stand thousands of deviations away from all that a reconstructor ever saw."""

MOVEMENT_LIMIT = 30.0
"""As ``LIMIT``; a gradient's larger parts are several times its unit's spread."""


@dataclass(frozen=True)
class Standardization:
    """(w − mean) / deviation where weights vary, cut to ±10; fitted to shadows and nothing else.

    A statistic that saw the networks under attack would carry information from one to the other.
    """

    mean: Tensor
    deviation: Tensor
    varying: Tensor

    @classmethod
    def fitted(cls, weights: Tensor) -> Standardization:
        """Mean and deviation of weights (s, size), coordinate by coordinate."""
        if len(weights) < 2:
            raise BadInput("Statistics of shadow weights need at least two shadows.")
        diverged = int((~weights.isfinite()).any(1).sum())
        if diverged:
            raise BadInput(
                f"{diverged} of {len(weights)} shadow networks ended with NaN or infinite weights: "
                "audit a training that does not diverge, with a smaller learning rate."
            )
        deviation, mean = torch.std_mean(weights, 0)
        rounding = torch.finfo(weights.dtype).eps * weights.abs().amax(0)
        varying = torch.nonzero(deviation > ROUNDING_MARGIN * rounding).flatten()
        if not len(varying):
            raise BadInput(
                "All shadow networks are equal: the stand-ins leave no trace in the weights."
            )
        return cls(mean[varying], deviation[varying], varying)

    @property
    def size(self) -> int:
        """How many coordinates vary."""
        return len(self.varying)

    def __call__(self, weights: Tensor) -> Tensor:
        """Standardise weights (s, size) → (s, varying coordinates)."""
        standard = (weights[:, self.varying] - self.mean) / self.deviation
        return standard.clamp_(-LIMIT, LIMIT)


@dataclass(frozen=True)
class FirstLayer:
    """Where a row of weights holds the first layer's: ``units`` × ``inputs`` from ``start`` on."""

    start: int
    units: int
    inputs: int

    def of(self, weights: Tensor) -> Tensor:
        """The first layer's weights (s, units, inputs) out of rows (s, size)."""
        part = weights[:, self.start : self.start + self.units * self.inputs]
        return part.reshape(-1, self.units, self.inputs)


@dataclass(frozen=True)
class Movement:
    """How far each unit's weights are from the shadows' mean, in units of that unit's spread.

    One spread for all inputs of a unit: unlike ``Standardization`` this keeps a gradient's shape,
    which is the record's.
    """

    layer: FirstLayer
    mean: Tensor
    deviation: Tensor

    @classmethod
    def fitted(cls, layer: FirstLayer, weights: Tensor) -> Movement:
        """Mean of each weight and spread of each unit, from the weights (s, size) of shadows."""
        first = layer.of(weights)
        mean = first.mean(0)
        spread = (first - mean).square().mean((0, 2)).sqrt()
        return cls(layer, mean, spread.clamp_min(torch.finfo(weights.dtype).tiny)[:, None])

    def __call__(self, weights: Tensor) -> Tensor:
        """Movement (s, units, inputs) of weights (s, size)."""
        moved = (self.layer.of(weights) - self.mean) / self.deviation
        return moved.clamp_(-MOVEMENT_LIMIT, MOVEMENT_LIMIT)
