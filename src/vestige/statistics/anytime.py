"""Limits and evidence that hold at all sample sizes at once, so that trials may be added.

A limit of Clopper and Pearson holds for a number of trials that was fixed in advance. Looking at it
and then adding trials gives several chances to be wrong. The forms here may be looked at after
every trial. For hits X_1, X_2, … with P(X_t = 1 | past) ≤ p the mixture of likelihood ratios

    M_n(p) = ∫_p^1 (q/p)^S ((1 − q)/(1 − p))^(n − S) dπ(q | q > p),   S = X_1 + … + X_n,

is a nonnegative supermartingale that starts at 1, because every ratio with q > p increases with
X_t. So M_n(p) ≥ 1/u at any n at all has probability at most u (Ville 1939). M_n(p) is an e-value
against "hits have probability p at most", and the p that it never rejected are a confidence
sequence (Robbins 1970, "Statistical methods related to the law of the iterated logarithm"; Howard,
Ramdas, McAuliffe and Sekhon 2021; Waudby-Smith and Ramdas 2024, "Estimating means of bounded random
variables by betting"). With π = Beta(a, b) the integral is a ratio of incomplete beta functions.

Jeffreys' prior a = b = 1/2 gives weight to small and to large rates alike.

An audit has been looked at once before trials are added, with limits of Clopper and Pearson at its
full level. Because hits are whole numbers that look spends less than its level, and what it left
(``unspent_doubt``) is all that later looks may spend: then a rate is exceeded falsely at the first
look or at any later one with the probability of the level at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaln
from scipy.stats import beta, binom

SHAPE = 0.5
"""Both parameters of the mixing Beta distribution (Jeffreys)."""

STEPS = 60
"""Halvings of an interval: to the last digits of a float."""


def log_mixture(hits: int, trials: int, rate: float, shape: float = SHAPE) -> float:
    """The logarithm of ∫ (q/p)^S ((1 − q)/(1 − p))^(n − S) dBeta(a, a)(q) over all q in [0, 1].

    The beta-binomial mixture, two-sided: an e-value against "hits have probability p".
    """
    misses = trials - hits
    mixed = betaln(shape + hits, shape + misses) - betaln(shape, shape)
    return float(mixed) - _log_likelihood(hits, misses, rate)


def log_e_value(hits: int, trials: int, rate: float, shape: float = SHAPE) -> float:
    """The logarithm of M_n(p): evidence that hits have a probability above ``rate``."""
    if not 0 < rate < 1:
        return math.inf if rate <= 0 < hits else 0.0
    misses = trials - hits
    above = _log_upper_tail(rate, shape + hits, shape + misses) - _log_upper_tail(
        rate, shape, shape
    )
    return log_mixture(hits, trials, rate, shape) + above


def e_value(hits: int, trials: int, rate: float) -> float:
    """M_n(p), at most 1e300: under "hits have probability ``rate`` at most" its mean is at most 1.

    It may be looked at after every trial, and e-values of independent audits may be multiplied.
    """
    return math.exp(min(log_e_value(hits, trials, rate), 690.0))


@lru_cache(maxsize=20_000)
def anytime_lower(hits: int, trials: int, doubt: float) -> float:
    """Lower limit of a success probability that holds at all sample sizes with 1 − ``doubt``."""
    if hits == 0 or doubt <= 0:
        return 0.0
    needed = -math.log(doubt)
    low, high = 0.0, hits / trials
    if log_e_value(hits, trials, high) >= needed:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        if log_e_value(hits, trials, middle) >= needed:
            low = middle
        else:
            high = middle
    return low


def anytime_upper(hits: int, trials: int, doubt: float) -> float:
    """Upper limit that holds at all sample sizes: one minus the lower limit of misses."""
    return 1.0 - anytime_lower(trials - hits, trials, doubt)


def anytime_limits(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Both limits; at all sample sizes together each fails with half of 1 − confidence."""
    doubt = (1 - confidence) / 2
    if trials == 0:
        return 0.0, 1.0
    return anytime_lower(hits, trials, doubt), anytime_upper(hits, trials, doubt)


@lru_cache(maxsize=2_000)
def unspent_doubt(trials: int, rate: float, doubt: float) -> float:
    """What one look at a Clopper–Pearson lower limit at level ``doubt`` leaves of it at a rate.

    The limit of k hits exceeds p if P(at least k of n | p) < doubt, so for the smallest such k that
    probability is spent. By the union bound it and an anytime limit at the rest exceed p with the
    probability ``doubt`` at most, together: group sequential tests spend their error in this way
    (Lan and DeMets 1983).
    """
    tails = binom.sf(np.arange(trials + 1) - 1, trials, rate)
    # A tail that equals the doubt but for rounding counts as spent.
    spent = tails[tails <= doubt * (1 + 1e-9)].max(initial=0.0)
    return max(doubt - float(spent), 0.0)


def mean_log_e_value(hits: Sequence[int], trials: int, rates: Sequence[float]) -> float:
    """The logarithm of the mean of M_n over thresholds, with hits and a largest rate for each.

    A mean of e-processes is one, however they depend on each other, so all thresholds of a rank
    count at once without a correction.
    """
    logs = [log_e_value(count, trials, rate) for count, rate in zip(hits, rates, strict=True)]
    largest = max(logs)
    if math.isinf(largest):
        return largest
    return largest + math.log(sum(math.exp(one - largest) for one in logs) / len(logs))


def _log_likelihood(hits: int, misses: int, rate: float) -> float:
    found = hits * math.log(rate) if hits else 0.0
    return found + (misses * math.log1p(-rate) if misses else 0.0)


def _log_upper_tail(rate: float, first: float, second: float) -> float:
    """The logarithm of P(Beta(first, second) > rate), also where it is tiny."""
    above = float(betainc(second, first, 1 - rate))
    return math.log(above) if above > 1e-200 else float(beta.logsf(rate, first, second))
