"""Reconstruction under f-differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.mechanisms import Mechanism, TradeOff


@dataclass(frozen=True)
class FDPBound(ReconstructionBound):
    """γ = 1 − f(κ) (Hayes, Mahloujifar and Balle 2023; f as in Dong, Roth and Su 2022).

    Between known points a convex function lies below its chord, so the chord would promise too
    much. We take the largest convex non-increasing lower limit instead: the chords next door,
    prolonged, and the value at the next point.
    """

    name = "f-DP"
    assumptions = (
        *INFORMED,
        "The trade-off function tests the reference against the release with the record.",
    )
    cites = "Hayes, Mahloujifar, Balle 2023; Dong, Roth, Su 2022"

    def covers(self, mechanism: Mechanism) -> bool:
        """Trade-off functions."""
        return isinstance(mechanism, TradeOff)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, TradeOff)
        errors = smallest_errors(
            np.asarray(mechanism.false_positive_rates),
            np.asarray(mechanism.false_negative_rates),
            np.exp(log_prior),
        )
        with np.errstate(divide="ignore"):
            return np.log1p(-errors)


def smallest_errors(levels: Array, errors: Array, wanted: Array) -> Array:
    """The smallest value at each wanted level of any trade-off function through the points."""
    # f ends at (1, 0), whatever was given.
    if levels[-1] < 1:
        levels, errors = np.append(levels, 1.0), np.append(errors, 0.0)
    slopes = np.diff(errors) / np.diff(levels)
    minima = []
    for level in wanted:
        after = int(np.searchsorted(levels, level))  # first point at or right of the level
        lines = [errors[after]]
        if after >= 2:
            lines.append(errors[after - 1] + slopes[after - 2] * (level - levels[after - 1]))
        if after < len(slopes):
            lines.append(errors[after] + slopes[after] * (level - levels[after]))
        minima.append(max(max(lines), 0.0))
    return np.asarray(minima)
