"""How well candidates explain a captured release: matched, in part, not, or undecided.

Whether a release was matched is decided by what the candidates leave
of it, in units of what random candidates leave. d unknowns explain d of P entries of anything, and
noise of a known size σ leaves Pσ² of the squared norm to the truth itself (give or take √(2P)σ²),
so with the median residual r of random candidates

    excess = (residual − noise limit) / (r(1 − d/P) − noise limit),

which is 0 at the truth and about 1 for candidates that follow a wrong description. Where the
denominator is not positive, a match cannot be told from chance, and that is what is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from vestige.reports.inversion import Fit, RehearsedRelease
from vestige.reports.numbers import percent

MATCHED_BELOW = 0.02
"""Largest excess of a match.

Chosen between the batches that were solved and the hardest mistake, one record told where there
were two: see ``docs/findings.md`` for how often the choice errs.
"""

PART_BELOW = 0.3
"""Largest excess of a match in part; wrong weights, modes and labels leave more."""

NOISE_SLACK = 3.0
"""Standard deviations of a χ² that noise may exceed its expectation by."""

CLOSE = 0.5
"""A rehearsed record came back if its error is at most this share of the class mean's."""


class Match(StrEnum):
    """Whether a captured release was matched."""

    MATCHED = "matched"
    IN_PART = "matched in part"
    UNDECIDED = "undecided"
    NOT_MATCHED = "not matched"


def excess(fit: Fit) -> float | None:
    """What is left above the noise, as a share of what random candidates leave; None: unknown."""
    if fit.residual is None or fit.random_residual is None or fit.entries < 1:
        return None
    limit = noise_limit(fit)
    room = fit.random_residual * (1 - fit.unknowns / fit.entries) - limit
    return max(fit.residual - limit, 0.0) / room if room > 0 else None


def noise_limit(fit: Fit) -> float:
    """The largest share of the squared norm that noise of the stated size leaves to the truth."""
    return fit.noise * (1 + NOISE_SLACK * math.sqrt(2 / max(fit.entries, 1)))


def match_of(fit: Fit) -> Match:
    """Whether the candidates of one attack match the release."""
    found = excess(fit)
    if found is None:
        return Match.UNDECIDED
    if found <= MATCHED_BELOW:
        return Match.MATCHED
    return Match.IN_PART if found <= PART_BELOW else Match.NOT_MATCHED


def best_fit(fits: Sequence[Fit]) -> Fit | None:
    """The fit of the attack that matched best; the first of them on a tie."""
    order = list(Match)
    return min(
        fits,
        key=lambda f: (order.index(match_of(f)), math.inf if f.residual is None else f.residual),
        default=None,
    )


def is_unmatched(fits: Sequence[Fit]) -> bool:
    """Whether not one attack matched a captured release, be it in part."""
    fit = best_fit(fits)
    return fit is not None and match_of(fit) is Match.NOT_MATCHED


def came_back(one: RehearsedRelease) -> bool:
    """Whether a rehearsed batch came back: much closer than its class means."""
    return one.error is not None and one.error <= CLOSE * one.guess_error


def left_unexplained(fit: Fit) -> str:
    """What is left of the release, as a share; small ones with their digits."""
    if fit.residual is None:
        return "an unknown share"
    if fit.residual < 1e-5:
        return "less than 0.001%"
    return f"{100 * fit.residual:.1g}%" if fit.residual < 0.001 else percent(fit.residual)
