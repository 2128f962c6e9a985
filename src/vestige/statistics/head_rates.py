"""True and false positive rates of reconstructions of many heads, with limits.

Nulls are here one error for each image, as for draws from the prior; those of all pairs of heads
are counted by :mod:`vestige.statistics.head_counts`.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 2 and Algorithms 2 and 3. Images of one head are not
independent, so limits use as many trials as the spread between heads allows (Korn and Graubard
1998, "Confidence intervals for proportions with small expected number of positive counts estimated
from survey data").
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta, t

from vestige.reports.heads import OperatingPoint
from vestige.reports.parts import Rate
from vestige.statistics.head_roc import counted_rate
from vestige.statistics.rates import nulls_needed, threshold_rank


def clustered_rate(hits: np.ndarray, doubt: float) -> Rate:
    """Share of hits (heads, classes) with Clopper–Pearson limits, each at ``doubt``.

    Images of one head are a cluster: the number of trials is divided by the design effect that
    their spread shows (Korn and Graubard 1998). Hits and trials are as counted.
    """
    total, count = int(hits.sum()), hits.size
    trials = effective_trials(hits)
    scaled = total * trials / count
    lower = 0.0 if total == 0 else float(beta.ppf(doubt, scaled, trials - scaled + 1))
    upper = 1.0 if total == count else float(beta.ppf(1 - doubt, scaled + 1, trials - scaled))
    return Rate(hits=total, trials=count, lower=lower, upper=upper)


def effective_trials(hits: np.ndarray) -> float:
    """How many independent trials clustered hits (heads, classes) are worth; never more than all.

    Hits that are all alike show no spread: then every head is one trial.
    """
    heads, count = hits.shape[0], hits.size
    share = hits.mean()
    if count == heads or share in (0, 1) or heads < 2:
        return float(heads)
    variance = hits.mean(1).var(ddof=1) / heads
    if variance == 0:
        return float(count)
    worth = share * (1 - share) / variance
    # Few heads estimate the variance badly: Student's quantiles say how badly.
    few = t.ppf(0.975, count - 1) / t.ppf(0.975, heads - 1)
    return float(min(count, worth * few**2))


def honest_rank(nulls: np.ndarray, false_positive_rate: float, doubt: float) -> int:
    """Largest k whose k-th smallest null (heads, classes) passes at most a share α, surely.

    As :func:`vestige.statistics.rates.threshold_rank`, with the nulls counted for what they are
    worth around the threshold; 0 where they are too few.
    """
    ordered = np.sort(nulls, axis=None)
    about = math.floor(false_positive_rate * nulls.size + 1e-9)
    worth = effective_trials(nulls < ordered[min(about, nulls.size - 1)])
    place = threshold_rank(math.floor(worth + 1e-9), false_positive_rate, doubt)
    return 0 if place == 0 else 1 + math.floor((place - 1) * nulls.size / worth + 1e-9)


def operating_point(
    own: np.ndarray, nulls: np.ndarray, false_positive_rate: float, confidence: float
) -> OperatingPoint:
    """TPR at FPR = α for errors (heads, classes), one threshold for all.

    The value is the counted one; of the doubt, half goes to where the threshold lies and half to
    how many own errors pass it, as in :func:`vestige.statistics.rates.pooled_rate`.
    """
    half = (1 - confidence) / 2
    place = honest_rank(nulls, false_positive_rate, half)
    lower = upper = None
    if place:
        ordered = np.sort(nulls, axis=None)
        lower = clustered_rate(passing(own, ordered[place - 1]), half).lower
        upper = _upper_limit(own, ordered, nulls, false_positive_rate, half)
    return OperatingPoint(
        false_positive_rate=false_positive_rate,
        true_positive_rate=float(counted_rate(own.ravel(), nulls.ravel(), false_positive_rate)),
        lower=lower,
        upper=upper,
        needed=nulls_needed(false_positive_rate, half),
    )


def passing(own: np.ndarray, threshold: float) -> np.ndarray:
    """Which own errors a null score as the threshold lets pass: those that are smaller.

    A tie does not pass. Nulls with equal scores share the place of the threshold, so that letting
    them all pass would pass more than the place allows.
    """
    return (own < threshold) & np.isfinite(own)


def _upper_limit(
    own: np.ndarray, ordered: np.ndarray, nulls: np.ndarray, alpha: float, half: float
) -> float:
    """Upper limit: own errors below a null that surely passes more than a share α."""
    about = math.floor(alpha * nulls.size + 1e-9)
    worth = math.floor(effective_trials(nulls < ordered[min(about, nulls.size - 1)]) + 1e-9)
    places = np.arange(1, worth + 1)
    beyond = places[beta.cdf(alpha, places, worth - places + 1) <= half]
    if len(beyond) == 0:
        return 1.0
    place = min(nulls.size, math.ceil(int(beyond[0]) * nulls.size / worth))
    reaching = (own <= ordered[place - 1]) & np.isfinite(own)
    return clustered_rate(reaching, half).upper


def point_by_class(
    own: np.ndarray, nulls: np.ndarray, false_positive_rate: float, confidence: float
) -> OperatingPoint:
    """TPR at FPR = α where every class (columns) has a threshold of its own.

    The doubt about thresholds is shared by the classes, so that all hold together.
    """
    half, classes = (1 - confidence) / 2, own.shape[1]
    values = [counted_rate(own[:, c], nulls[:, c], false_positive_rate) for c in range(classes)]
    low, high = np.zeros_like(own, dtype=bool), np.zeros_like(own, dtype=bool)
    limited = True
    for c in range(classes):
        ordered = np.sort(nulls[:, c])
        place = threshold_rank(len(ordered), false_positive_rate, half / classes)
        limited &= place > 0
        low[:, c] = passing(own[:, c], ordered[max(place, 1) - 1])
        places = np.arange(1, len(ordered) + 1)
        sure = beta.cdf(false_positive_rate, places, len(ordered) - places + 1) <= half / classes
        high[:, c] = own[:, c] <= ordered[int(places[sure][0]) - 1] if sure.any() else True
    return OperatingPoint(
        false_positive_rate=false_positive_rate,
        true_positive_rate=float(np.mean(values)),
        lower=clustered_rate(low, half).lower if limited else None,
        upper=clustered_rate(high, half).upper if limited else None,
        needed=nulls_needed(false_positive_rate, half / classes),
    )
