"""Errors of every drawing to the records of every head, and what passes a threshold by chance.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Definition 1: a false positive is a drawing of one head that
matches the training set of another. One other head for each head makes a noisy threshold, so all
ordered pairs of heads with disjoint training sets are counted.

Pairs that share a head are dependent. The share of pairs that pass is a U-statistic (Hoeffding
1948, "A class of statistics with asymptotically normal distribution"): its variance is estimated
from what each head adds as a drawing and as a set of records, and pairs count for as many
independent trials as that variance leaves (Korn and Graubard 1998). Everything is read in blocks,
so that memory does not grow with the square of the number of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t

from vestige.reports.parts import Rate
from vestige.statistics.rates import lower_limit, upper_limit

BLOCK = 2**22
"""Most pairs that are handled at once."""

BINS = 2**16
"""Values of half the bits of a 32-bit number."""


@dataclass(frozen=True)
class PairErrors:
    """Errors (classes, heads, heads) as 32-bit numbers: drawing of head i to records of head j.

    The diagonal holds a head's errors to its own records. ``divisors`` (classes,) are units in
    which errors are counted. ``shared`` (heads, heads) marks heads whose sets share a record: such
    pairs count as neither true nor false positives.
    """

    values: np.ndarray
    divisors: np.ndarray | None = None
    shared: np.ndarray | None = None

    @property
    def classes(self) -> int:
        """Drawings of one head."""
        return self.values.shape[0]

    @property
    def heads(self) -> int:
        """Heads that were attacked."""
        return self.values.shape[1]

    @property
    def partners(self) -> np.ndarray:
        """How many heads' sets (heads,) each drawing is compared with by chance."""
        others = np.full(self.heads, self.heads - 1)
        return others if self.shared is None else others - self._overlaps().sum(1)

    @property
    def count(self) -> int:
        """Pairs of a drawing and the set of another head."""
        return self.classes * int(self.partners.sum())

    @property
    def own(self) -> np.ndarray:
        """Errors (heads, classes) of each head's drawings to its own records."""
        errors = np.stack([self._scaled(c, np.diagonal(self.values[c])) for c in self._range], 1)
        return errors.astype(float)

    def of_class(self, place: int) -> PairErrors:
        """The pairs of one class."""
        units = None if self.divisors is None else self.divisors[place : place + 1]
        return replace(self, values=self.values[place : place + 1], divisors=units)

    def in_units(self, divisors: np.ndarray) -> PairErrors:
        """The same pairs with errors divided by a number for each class."""
        return replace(self, divisors=np.asarray(divisors, dtype=np.float32))

    def blocks(self, *, diagonal: bool = False) -> Iterator[tuple[int, slice, np.ndarray]]:
        """Class, rows and errors (rows, heads) of all pairs, NaN where a pair does not count.

        With ``diagonal`` every entry counts: own errors, and heads that share a record.
        """
        step = max(1, BLOCK // self.heads)
        overlaps = None if self.shared is None or diagonal else self._overlaps()
        for place in self._range:
            for start in range(0, self.heads, step):
                rows = slice(start, min(start + step, self.heads))
                errors = np.array(self._scaled(place, self.values[place, rows]))
                if not diagonal:
                    numbers = np.arange(rows.start, rows.stop)
                    errors[numbers - start, numbers] = np.nan
                if overlaps is not None:
                    errors[overlaps[rows]] = np.nan
                yield place, rows, errors

    def smallest(self, places: Sequence[int], *, diagonal: bool = False) -> list[float]:
        """The k-th smallest errors, k from 1, exactly, in two readings of all pairs.

        Numbers that are not negative have the order of their bits: the first reading counts the
        upper 16 bits, the second the lower ones among those that agree in the upper.
        """
        upper = np.zeros(BINS, dtype=np.int64)
        for _, _, errors in self.blocks(diagonal=diagonal):
            upper += np.bincount(_bits(errors) >> 16, minlength=BINS)
        reached = upper.cumsum()
        bins = [int(np.searchsorted(reached, place)) for place in places]
        lower = {one: np.zeros(BINS, dtype=np.int64) for one in bins}
        for _, _, errors in self.blocks(diagonal=diagonal):
            bits = _bits(errors)
            for one, counts in lower.items():
                counts += np.bincount(bits[bits >> 16 == one] & (BINS - 1), minlength=BINS)
        found = []
        for place, one in zip(places, bins):
            left = place - int(reached[one] - upper[one])
            bits = (one << 16) + int(np.searchsorted(lower[one].cumsum(), left))
            found.append(float(np.array(bits, dtype=np.uint32).view(np.float32)))
        return found

    def passing(self, threshold: float, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """How many pairs of each head (heads,) pass: by its drawings, and by its records."""
        limit = np.float64(threshold)
        drawings, records = (np.zeros(self.heads, dtype=np.int64) for _ in range(2))
        for _, rows, errors in self.blocks():
            hits = errors <= limit if ties else errors < limit
            drawings[rows] += hits.sum(1)
            records += hits.sum(0)
        return drawings, records

    def sample(self, most: int) -> np.ndarray:
        """Errors of pairs, every one if there are no more than ``most``, else shifts of all heads.

        A shift compares each head with the head so many places on, so that all count alike.
        """
        shifts = max(1, min(self.heads - 1, most // (self.heads * self.classes)))
        heads = np.arange(self.heads)
        found = []
        for place in self._range:
            for shift in np.unique(np.linspace(1, self.heads - 1, shifts).round().astype(int)):
                others = (heads + shift) % self.heads
                errors = self._scaled(place, self.values[place, heads, others])
                fair = slice(None) if self.shared is None else ~self.shared[heads, others]
                found.append(errors[fair])
        return np.concatenate(found).astype(float)

    @property
    def _range(self) -> range:
        return range(self.classes)

    def _overlaps(self) -> np.ndarray:
        assert self.shared is not None
        return self.shared & ~np.eye(self.heads, dtype=bool)

    def _scaled(self, place: int, errors: np.ndarray) -> np.ndarray:
        return errors if self.divisors is None else errors / self.divisors[place]


def _bits(errors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(errors, dtype=np.float32).view(np.uint32).ravel()


def effective_pairs(pairs: PairErrors, drawings: np.ndarray, records: np.ndarray) -> float:
    """How many independent trials the pairs are worth, given how many of each head pass.

    Head i adds the share of its drawings and the share of its records that pass; the spread of the
    sum over heads gives the variance (Hoeffding 1948), which is too large rather than too small
    for few heads (Efron and Stein 1981, "The jackknife estimate of variance"). Pairs that are all
    alike show no spread: then every head is one trial.
    """
    heads, count = pairs.heads, pairs.count
    share = drawings.sum() / count
    if share in (0, 1) or heads < 2:
        return float(heads)
    parts = (drawings + records) * (heads / count)
    variance = parts.var(ddof=1) / heads
    if variance == 0:
        return float(count)
    worth = share * (1 - share) / variance
    # Few heads estimate the variance badly: Student's quantiles say how badly.
    few = t.ppf(0.975, count - 1) / t.ppf(0.975, heads - 1)
    return float(min(count, worth * few**2))


def false_positive_rate_at(pairs: PairErrors, threshold: float, doubt: float) -> Rate:
    """Share of pairs within a threshold with limits, each at ``doubt`` (Definition 1)."""
    drawings, records = pairs.passing(threshold, ties=True)
    hits, count = int(drawings.sum()), pairs.count
    worth = effective_pairs(pairs, drawings, records)
    scaled = hits * worth / count
    return Rate(
        hits=hits,
        trials=count,
        lower=0.0 if hits == 0 else lower_limit(scaled, worth, doubt),
        upper=1.0 if hits == count else upper_limit(scaled, worth, doubt),
    )
