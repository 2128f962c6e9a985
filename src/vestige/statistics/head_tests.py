"""Whether drawings say anything about the records behind their heads: one permutation test for all.

If an attack reads nothing, its drawings do not depend on which training set belongs to which head,
and all ways to assign the sets to the heads are equally likely, whatever the drawings are and
however much those of one head resemble each other. Hits of the true assignment are compared with
those of random ones (Fisher 1935, *The Design of Experiments*; Phipson and Smyth 2010,
"Permutation p-values should never be zero"). The threshold is the α-quantile of the errors of all
drawings to all sets, own ones included, so no assignment changes it.

Several statements share the permutations: the three counts, and every class. Each is compared with
the largest statistic of a permutation (Westfall and Young 1993, *Resampling-Based Multiple
Testing*, single-step max-T), so with probability 1 − u or more no p-value of a true null hypothesis
is u or less. Hits are put on a square-root scale first, where rare and frequent ones vary alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vestige.reports.heads import AssignmentTest
from vestige.statistics.head_pairs import PairErrors

PERMUTATIONS = 9_999
"""Random assignments of a study: the smallest p-value is 1 in 10,000."""

CHUNK = 2**24
"""Most hits that are looked up at once."""

ROUNDING = 1e-9
"""Statistics that differ by less count as ties."""


def assignment_tests(
    pairs: PairErrors,
    units: np.ndarray,
    alpha: float,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> tuple[AssignmentTest, ...]:
    """Test the counts (pooled, per class, class-normalised) and then every class, jointly.

    ``units`` (classes,) are what errors are divided by in the third count.
    """
    heads, classes = pairs.heads, pairs.classes
    pooled, normalised = (_hit_counts(one, alpha) for one in (pairs, pairs.in_units(units)))
    packed = _packed_hits(pairs, alpha)

    def totals(orders: np.ndarray) -> np.ndarray:
        """Hits (assignments, 3 + classes) when head i has the set ``orders[., i]``."""
        rows = np.arange(heads)
        each = np.unpackbits(packed[rows, orders], axis=2, count=classes).sum(1, dtype=np.int64)
        first, third = (o[rows, orders].sum(1, dtype=np.int64) for o in (pooled, normalised))
        return np.column_stack([first, each.sum(1), third, each])

    observed = totals(np.arange(heads)[None])[0]
    # Cyclic shifts meet every pair once.
    shifts = (np.roll(np.arange(heads), -shift)[None] for shift in range(heads))
    chance = np.mean([totals(order)[0] for order in shifts], axis=0)
    reached = _scale(observed) - _scale(chance)
    extreme = np.zeros(len(observed), dtype=np.int64)
    random = np.random.default_rng(seed)
    step = max(1, CHUNK // (heads * (classes + 7)))
    for start in range(0, permutations, step):
        number = min(step, permutations - start)
        orders = random.permuted(np.tile(np.arange(heads), (number, 1)), axis=1)
        largest = (_scale(totals(orders)) - _scale(chance)).max(1)
        extreme += (largest[:, None] >= reached - ROUNDING).sum(0)
    return tuple(
        AssignmentTest(
            hits=int(observed[place]),
            by_chance=float(chance[place]),
            permutations=permutations,
            as_extreme=int(extreme[place]),
        )
        for place in range(len(observed))
    )


def _scale(hits: np.ndarray) -> np.ndarray:
    """Hits on a scale on which Poisson ones have one variance (Anscombe 1948)."""
    return np.sqrt(hits + 0.375)


def _hits(pairs: PairErrors, alpha: float) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Which errors lie below the quantile of all, in blocks; ties do not."""
    total = pairs.classes * pairs.heads**2
    (limit,) = pairs.smallest([min(total, 1 + math.floor(alpha * total + 1e-9))], diagonal=True)
    for place, rows, errors in pairs.blocks(diagonal=True):
        yield place, rows, errors < limit


def _hit_counts(pairs: PairErrors, alpha: float) -> np.ndarray:
    """Classes (heads, heads) whose drawing lies below the quantile of all."""
    counts = np.zeros((pairs.heads, pairs.heads), dtype=np.uint16)
    for _, rows, hits in _hits(pairs, alpha):
        counts[rows] += hits
    return counts


def _packed_hits(pairs: PairErrors, alpha: float) -> np.ndarray:
    """Bits (heads, heads, bytes): whether drawings lie below the quantile of their class."""
    packed = np.zeros((pairs.heads, pairs.heads, -(-pairs.classes // 8)), dtype=np.uint8)
    for place in range(pairs.classes):
        bit = np.uint8(128 >> place % 8)
        for _, rows, hits in _hits(pairs.of_class(place), alpha):
            packed[rows, :, place // 8] |= hits * bit
    return packed
