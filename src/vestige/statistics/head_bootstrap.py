"""Limits of TPR at FPR = α over all pairs of heads, by drawing heads again with replacement.

Heads are independent, their images and pairs are not: a replicate takes every head so many times,
finds the threshold again, among pairs of different heads, and counts own errors below it (Efron
1979, "Bootstrap methods: another look at the jackknife"). The spread of the replicates, threshold
included, says how many independent trials the own errors are worth, and Clopper–Pearson limits for
so many trials hold near 0 and 1 too, where quantiles of replicates do not (Korn and Graubard 1998).
A rate at a quantile of few nulls is too large on average: lower limits are taken at the value less
twice the bias of the replicates. ``benchmarks/null_sections/head_limits.py`` measures limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from vestige.reports.parts import Rate
from vestige.statistics.head_pairs import PairErrors, effective_pairs
from vestige.statistics.rates import lower_limit, upper_limit

REPLICATES = 400
"""Replicates of a bootstrap; fewer where pairs are many and replicates vary little."""

FEWEST = 100
"""Replicates that are drawn however many pairs there are."""

WORK = 4e8
"""Weights of pairs that are summed at most for more than the fewest replicates."""

CHUNK = 2**22
"""Most weights that are held at once."""


@dataclass(frozen=True)
class Resampled:
    """A share of own errors below the threshold, and the same share in each replicate.

    ``nulls`` is how many independent false positives determine the threshold.
    """

    value: float
    replicates: np.ndarray
    heads: int
    trials: int
    nulls: float

    @property
    def worth(self) -> float:
        """How many independent trials the own errors are worth."""
        spread = float(self.replicates.var(ddof=1))
        if self.value in (0, 1) or spread == 0:
            return float(self.heads)
        # Few heads estimate the variance badly: Student's quantiles say how badly.
        few = t.ppf(0.975, max(2, self.trials) - 1) / t.ppf(0.975, self.heads - 1)
        return float(min(self.trials, self.value * (1 - self.value) / spread * few**2))

    def limits(self, doubt: float) -> tuple[float, float] | None:
        """Lower and upper limit, each at ``doubt``; None where nulls are too few.

        Of n independent nulls none lies below the α-quantile with probability (1 − α)^n, about
        exp(−nα): a doubt below that cannot be met, whatever the replicates say.
        """
        if self.nulls < -math.log(doubt):
            return None
        worth, bias = self.worth, max(0.0, float(self.replicates.mean()) - self.value)
        hits = max(0.0, self.value - 2 * bias) * worth
        return lower_limit(hits, worth, doubt), upper_limit(self.value * worth, worth, doubt)

    def rate(self, doubt: float) -> Rate | None:
        """The share as a count with limits."""
        limits, hits = self.limits(doubt), round(self.value * self.trials)
        if limits is None:
            return None
        return Rate(hits=hits, trials=self.trials, lower=limits[0], upper=limits[1])

    @classmethod
    def mean(cls, parts: Sequence[Resampled]) -> Resampled:
        """The mean of rates of one study, as of classes with thresholds of their own."""
        return cls(
            float(np.mean([one.value for one in parts])),
            np.mean([one.replicates for one in parts], axis=0),
            parts[0].heads,
            sum(one.trials for one in parts),
            sum(one.nulls for one in parts),
        )


def head_weights(heads: int, pairs: int, alpha: float, seed: int = 0) -> np.ndarray:
    """How often each replicate (replicates, heads) takes each head."""
    count = int(np.clip(WORK / max(1.0, 2 * alpha * pairs), FEWEST, REPLICATES))
    random = np.random.default_rng(seed)
    return random.multinomial(heads, np.full(heads, 1 / heads), size=count).astype(float)


def resampled_rates(
    pairs: PairErrors, alpha: float, weights: np.ndarray, *eligible: np.ndarray
) -> tuple[Resampled, ...]:
    """Share of own errors below the threshold that a share α of pairs passes (Definition 1).

    Then the share of those that are also ``eligible`` (heads, classes). Ties with the threshold do
    not pass: it lies just below the first null that may not pass.
    """
    count = pairs.count
    (limit,) = pairs.smallest([1 + math.floor(alpha * count + 1e-9)])
    worth = effective_pairs(pairs, *pairs.passing(limit))
    # Thresholds of replicates lie among the smallest pairs; those beyond are never looked at.
    share = alpha + 6 * math.sqrt(alpha * (1 - alpha) / worth)
    tail = _Tail.of(pairs, min(count, math.ceil(share * count) + pairs.heads))
    thresholds = [limit, *tail.thresholds(alpha, weights)]
    every = np.vstack([np.ones(pairs.heads), weights])
    own, found = pairs.own, []
    for able in (np.ones_like(own, dtype=bool), *eligible):
        shares = _weighted_shares(np.where(able, own, math.inf), every, thresholds)
        found.append(Resampled(shares[0], shares[1:], pairs.heads, own.size, alpha * worth))
    return tuple(found)


@dataclass(frozen=True)
class _Tail:
    """The smallest errors of pairs in order, with drawing and set; ``last`` is the next one."""

    errors: np.ndarray
    drawings: np.ndarray
    records: np.ndarray
    last: float
    pairs: PairErrors

    @classmethod
    def of(cls, pairs: PairErrors, most: int) -> _Tail:
        (last,) = pairs.smallest([most])
        kept = []
        for _, rows, errors in pairs.blocks():
            drawing, record = np.nonzero(errors < last)
            kept.append((errors[drawing, record], drawing + rows.start, record))
        errors, drawings, records = (np.concatenate(part) for part in zip(*kept))
        order = np.argsort(errors, kind="stable")
        return cls(errors[order], drawings[order], records[order], last, pairs)

    def thresholds(self, alpha: float, weights: np.ndarray) -> list[float]:
        """The threshold of each replicate: a head is never paired with its own copies."""
        limits = np.append(self.errors, self.last)
        if self.pairs.shared is None:
            totals = weights.sum(1) ** 2 - (weights**2).sum(1)
        else:
            fair = ~(self.pairs.shared | np.eye(self.pairs.heads, dtype=bool))
            totals = ((weights @ fair) * weights).sum(1)
        allowed = alpha * self.pairs.classes * totals + 1e-9
        found: list[float] = []
        step = max(1, CHUNK // max(1, len(self.errors)))
        for start in range(0, len(weights), step):
            part = weights[start : start + step]
            passed = np.cumsum(part[:, self.drawings] * part[:, self.records], axis=1)
            places = (passed <= allowed[start : start + step, None]).sum(1)
            found.extend(limits[places].tolist())
        return found


def _weighted_shares(own: np.ndarray, weights: np.ndarray, thresholds: list[float]) -> np.ndarray:
    """Share of own errors (heads, classes) below each threshold, heads counted by weight."""
    limits = np.asarray(thresholds)[:, None, None]
    step = max(1, CHUNK // own.size)
    shares = []
    for start in range(0, len(weights), step):
        part = slice(start, start + step)
        passed = (own < limits[part]).sum(2)
        shares.append((weights[part] * passed).sum(1) / (own.shape[1] * weights[part].sum(1)))
    return np.concatenate(shares)
