"""What a guarantee buys: success of reconstruction, of re-identification, of membership tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vestige.bounds.allowance import tightest
from vestige.bounds.success.finite_candidates import FiniteCandidatesBound
from vestige.mechanisms import Mechanism, require

if TYPE_CHECKING:
    from vestige.bounds.bound import ReconstructionBound

LEVELS = 2001
"""Levels at which the advantage is looked for; what lies between them is bounded, not ignored."""


@dataclass(frozen=True)
class Protection:
    """The most that any attacker reaches, each beside what it reaches without the release."""

    reconstruction: tuple[tuple[float, float], ...]
    """(κ, γ): prior success, and success with the release."""
    re_identification: tuple[tuple[int, float], ...]
    """(n, γ): naming the right one of n equally likely candidates."""
    membership: tuple[tuple[float, float], ...]
    """(false positive rate, true positive rate) of telling whether a record was used."""
    membership_advantage: float
    """Largest difference of the two rates."""


def protection_of(
    mechanism: Mechanism,
    *,
    prior_success: Sequence[float] = (0.0001, 0.001, 0.01, 0.1),
    candidates: Sequence[int] = (2, 10, 100, 1000),
    false_positive_rates: Sequence[float] = (0.001, 0.01, 0.1),
) -> Protection:
    """Read every risk off the tightest bounds of a mechanism.

    Membership is the same test: a power under the true release at a level under the reference
    (Yeom et al. 2018 for the advantage; Kairouz, Oh and Viswanath 2015 for the rates).
    """
    require(all(count >= 2 for count in candidates), "There are at least two candidates.")
    levels = np.linspace(0, 1, LEVELS)
    uniform = [1 / count for count in candidates]
    asked = np.array([*prior_success, *uniform, *false_positive_rates, *levels])
    allowed = np.array(tightest(mechanism, asked).success)
    ends = np.cumsum([len(prior_success), len(uniform), len(false_positive_rates)])
    first, second, third, whole = np.split(allowed, ends)
    named = [
        min(float(general), _named(mechanism, count)) for count, general in zip(candidates, second)
    ]
    return Protection(
        reconstruction=tuple(zip(prior_success, map(float, first))),
        re_identification=tuple(zip(candidates, named)),
        membership=tuple(zip(false_positive_rates, map(float, third))),
        membership_advantage=_advantage(levels, whole),
    )


def _named(mechanism: Mechanism, count: int) -> float:
    bound: ReconstructionBound = FiniteCandidatesBound(count)
    return bound(mechanism, 1 / count) if bound.supports(mechanism) else 1.0


def _advantage(levels: np.ndarray, powers: np.ndarray) -> float:
    """Largest power minus level of a concave curve of which some points are known.

    Between two points a concave curve lies below the neighbouring chords, prolonged; the power at
    the right end less the level at the left end is a limit as well.
    """
    largest = float((powers - levels).max())
    place = int((powers - levels).argmax())
    for left in (place - 1, place):
        if not 0 <= left < len(levels) - 1:
            continue
        width = levels[left + 1] - levels[left]
        limit = powers[left + 1] - levels[left]
        if left >= 1 and left + 2 < len(levels):
            before = (powers[left] - powers[left - 1]) / (levels[left] - levels[left - 1])
            after = (powers[left + 2] - powers[left + 1]) / (levels[left + 2] - levels[left + 1])
            if before > after:
                # Where the two prolonged chords meet.
                step = (powers[left + 1] - powers[left] - after * width) / (before - after)
                step = min(max(step, 0.0), width)
                limit = min(limit, powers[left] - levels[left] + (before - 1) * step)
        largest = max(largest, float(limit))
    return min(largest, 1.0) if math.isfinite(largest) else 1.0
