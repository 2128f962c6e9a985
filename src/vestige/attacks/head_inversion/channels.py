"""What an estimator makes of features: the noise that a decoder has to learn to see through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.head_inversion.posterior import Posterior, silent_direction

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.groups import GroupStatistics


Channel = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Features (b, d) of public records of groups (b,) → as they would be estimated from a head."""


@dataclass(frozen=True)
class AnalyticChannel:
    """The posterior's own law, without a simulated head: x̃ = μ + g(x − μ) + √(g(1 − g)S)·ξ."""

    statistics: GroupStatistics
    gain: Tensor

    @classmethod
    def of(
        cls, estimate: Posterior, coefficients: Tensor, statistics: GroupStatistics
    ) -> AnalyticChannel:
        """From the posterior of a head that was trained on mean features.

        Where non-negativity resolves the shift, what the silent direction hides comes back: v².
        """
        gain = estimate.gain[0]
        if statistics.rectified and coefficients.shape[1] == coefficients.shape[2]:
            gain = gain + silent_direction(coefficients)[0].square()[:, None]
        return cls(statistics, gain.clamp(0, 1))

    def __call__(self, features: Tensor, groups: Tensor, generator: torch.Generator) -> Tensor:
        """Blur features (b, d) of groups (b,)."""
        known, mean = self.gain[groups], self.statistics.mean[groups]
        noise = torch.randn(features.shape, generator=generator)
        spread = (known * (1 - known) * self.statistics.variance[groups]).sqrt()
        blurred = mean + known * (features - mean) + spread * noise
        return blurred.relu() if self.statistics.rectified else blurred


@dataclass(frozen=True)
class MeasuredChannel:
    """The estimator's errors on simulated heads, drawn again: x̃ = μ + h(x − μ) + e.

    ``gain`` (g, d) is the slope of estimates on features, ``errors`` (g, s, d) what is left.
    """

    statistics: GroupStatistics
    gain: Tensor
    errors: Tensor

    @classmethod
    def of(
        cls, estimated: Tensor, features: Tensor, statistics: GroupStatistics
    ) -> MeasuredChannel:
        """From estimated and true features (s, g, d) of simulated heads."""
        away, estimate = features - statistics.mean, estimated - statistics.mean
        gain = (away * estimate).sum(0) / away.square().sum(0).clamp_min(1e-12)
        gain = gain.clamp(0, 1)
        return cls(statistics, gain, (estimate - gain * away).transpose(0, 1).contiguous())

    def __call__(self, features: Tensor, groups: Tensor, generator: torch.Generator) -> Tensor:
        """Blur features (b, d) of groups (b,)."""
        chosen = torch.randint(self.errors.shape[1], groups.shape, generator=generator)
        mean = self.statistics.mean[groups]
        blurred = mean + self.gain[groups] * (features - mean) + self.errors[groups, chosen]
        return blurred.relu() if self.statistics.rectified else blurred
