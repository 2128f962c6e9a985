"""Honest rates: intervals that hold for any number of trials, curves, thresholds.

α is the false positive rate, ``doubt`` the probability that a limit may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import beta

from vestige.errors import BadInput
from vestige.reports.audit import PooledRate
from vestige.reports.parts import CurvePoint, Rate
from vestige.statistics.anytime import anytime_limits

NOTHING = 1e30
"""Distance of a record to which no finite candidate was assigned."""

CURVE_POINTS = 120
"""Most points of a stored curve: enough for a page, whatever the number of decoys."""


@lru_cache(maxsize=20_000)
def lower_limit(hits: float, trials: float, doubt: float) -> float:
    """One-sided Clopper–Pearson lower limit of a success probability."""
    return 0.0 if hits == 0 else float(beta.ppf(doubt, hits, trials - hits + 1))


@lru_cache(maxsize=20_000)
def upper_limit(hits: float, trials: float, doubt: float) -> float:
    """One-sided Clopper–Pearson upper limit of a success probability."""
    return 1.0 if hits == trials else float(beta.ppf(1 - doubt, hits + 1, trials - hits))


def clopper_pearson(hits: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a success probability (Clopper and Pearson 1934)."""
    if trials == 0:
        return 0.0, 1.0
    doubt = (1 - confidence) / 2
    return lower_limit(hits, trials, doubt), upper_limit(hits, trials, doubt)


def allowed_rank(false_positive_rate: float, decoys: int) -> int:
    """Largest rank that counts as a hit: of m + 1 exchangeable records, α(m + 1) may pass.

    0 means that the decoys are too few for this rate.
    """
    return math.floor(false_positive_rate * (decoys + 1) + 1e-9)


def decoys_needed(false_positive_rate: float) -> int:
    """Fewest decoys per trial with which a rank can count as a hit at this rate."""
    return math.ceil(1 / false_positive_rate - 1e-9) - 1


def pool_design_effect(smallest_pool: int | None) -> float:
    """By how much more hits vary than independent ones where trials share one finite pool.

    Let a class have n records, put behind its releases at random, and let g_t(z) be the probability
    of a hit in trial t if record z is behind it. The variance of Σ g_t is 1/(n − 1) times the sum
    of squares of the doubly centred g_t(z) (Hoeffding 1951, "A combinatorial central limit
    theorem", Theorem 2), so that of the hits is at most n/(n − 1) times the binomial one,
    whatever the attack does. 1 where there is no such pool.
    """
    return 1.0 if smallest_pool is None else smallest_pool / (smallest_pool - 1)


def limited_rate(
    hits: int,
    trials: int,
    confidence: float,
    design_effect: float = 1.0,
    *,
    anytime: bool = False,
) -> Rate:
    """A share of trials with Clopper–Pearson limits.

    Limits count trials divided by the design effect (Korn and Graubard 1998). With ``anytime`` they
    hold at all numbers of trials at once, for runs that trials were added to.
    """
    if anytime:
        if design_effect != 1.0:
            raise BadInput("Trials of one finite pool have no limits that allow more to be added.")
        lower, upper = anytime_limits(hits, trials, confidence)
        return Rate(hits=hits, trials=trials, lower=lower, upper=upper)
    lower, upper = clopper_pearson(hits / design_effect, trials / design_effect, confidence)
    return Rate(hits=hits, trials=trials, lower=lower, upper=upper)


def matched_rate(
    ranks: Sequence[int],
    allowed: int,
    confidence: float,
    design_effect: float = 1.0,
    *,
    anytime: bool = False,
) -> Rate:
    """Share of trials whose secret ranks within the allowed places among its own decoys.

    Under the null hypothesis each trial hits with probability allowed / (decoys + 1), exactly, so
    no doubt is spent on a threshold and a few trials are enough for a limit.
    """
    hits = sum(rank <= allowed for rank in ranks)
    return limited_rate(hits, len(ranks), confidence, design_effect, anytime=anytime)


def matched_curve(
    ranks: Sequence[int],
    decoys: int,
    confidence: float,
    design_effect: float = 1.0,
    *,
    anytime: bool = False,
) -> tuple[CurvePoint, ...]:
    """Hits for every false positive rate that the decoys can resolve, thinned on a log scale."""
    places = np.unique(
        np.round(np.geomspace(1, decoys + 1, min(CURVE_POINTS, decoys + 1))).astype(int)
    )
    points = []
    for place in places:
        rate = matched_rate(ranks, int(place), confidence, design_effect, anytime=anytime)
        points.append(
            CurvePoint(
                false_positive_rate=place / (decoys + 1),
                true_positive_rate=rate.value,
                lower=rate.lower,
                upper=rate.upper,
            )
        )
    return tuple(points)


@lru_cache(maxsize=20_000)
def threshold_rank(nulls: int, false_positive_rate: float, doubt: float) -> int:
    """Largest k such that the k-th smallest of n null scores passes at most a share α of nulls.

    The share that the k-th smallest passes is Beta(k, n − k + 1); it exceeds α with probability
    at most ``doubt``. 0 means that there are too few nulls.
    """
    low, high = 0, nulls
    while low < high:
        middle = (low + high + 1) // 2
        if beta.cdf(false_positive_rate, middle, nulls - middle + 1) >= 1 - doubt:
            low = middle
        else:
            high = middle - 1
    return low


def nulls_needed(false_positive_rate: float, doubt: float) -> int:
    """Fewest null scores for which :func:`threshold_rank` is at least one."""
    return math.ceil(math.log(doubt) / math.log1p(-false_positive_rate))


def pooled_rate(
    distances: Sequence[float],
    nulls: Sequence[float],
    false_positive_rate: float,
    confidence: float,
) -> PooledRate:
    """TPR at FPR with one threshold for all trials, and limits that count both doubts.

    Half of the doubt goes to where the threshold lies, half to how many secrets pass it. Each
    limit holds with the confidence given. Null scores are independent: one decoy of each trial.
    """
    half = (1 - confidence) / 2
    needed = nulls_needed(false_positive_rate, half)
    ordered = np.sort(np.asarray(nulls, dtype=float))
    scores = np.asarray(distances, dtype=float)
    place = threshold_rank(len(ordered), false_positive_rate, half) if len(ordered) else 0
    if place == 0:
        return PooledRate(
            false_positive_rate=false_positive_rate,
            threshold=None,
            true_positive_rate=None,
            lower=None,
            upper=None,
            needed=needed,
        )
    threshold = float(ordered[place - 1])
    # A trial in which nothing was found is a miss, even where decoys found nothing either.
    finite = scores[scores < NOTHING]
    # A tie with the threshold does not pass: nulls of equal distance share its place.
    hits = int((finite < threshold).sum())
    # The upper limit needs a threshold that surely passes more than α of the nulls.
    ceiling = next(
        (
            k
            for k in range(place, len(ordered) + 1)
            if beta.cdf(false_positive_rate, k, len(ordered) - k + 1) <= half
        ),
        None,
    )
    most = len(scores) if ceiling is None else int((finite <= ordered[ceiling - 1]).sum())
    return PooledRate(
        false_positive_rate=false_positive_rate,
        threshold=threshold,
        true_positive_rate=hits / len(scores),
        lower=lower_limit(hits, len(scores), half),
        upper=upper_limit(most, len(scores), half),
        needed=needed,
    )
