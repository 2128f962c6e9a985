"""Permutation tests: whether releases say anything about the records that are behind them.

Captured releases exist before their audit, so the audit cannot draw a secret for each: the records
behind them and other records of the same classes are one finite pool, and every trial shares it.
Ranks of several trials are then dependent. A picture that is grey for every release is close to
the same few records in all trials, and hits come together or not at all.

If no release says anything about an audited record beyond its label, and which record of a class
sits behind which release was left to chance, then all ways to put records of the pool behind the
releases are equally likely, whatever the reconstructions are. The observed way is compared with
random ones (Fisher 1935, *The Design of Experiments*; with random permutations Phipson and Smyth
2010, "Permutation p-values should never be zero"): p = (1 + c)/(1 + B), where c of B
random ones give a statistic at least as large. Under the null hypothesis p ≤ u has probability at
most u for any attack and any number of trials.

The statistic is the number of hits to be expected over all ways to draw the decoys of every trial
from its pool. It is a sum over trials of a function of the rank of the audited record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.stats import hypergeom

from vestige.reports.audit import PermutationTest

PERMUTATIONS = 9_999
"""Random permutations of an audit: the smallest p-value is 1 in 10,000."""

CHUNK = 500
"""Permutations that are evaluated at once."""

ROUNDING = 1e-9
"""Sums of equal terms in another order differ by less; they count as ties."""


@dataclass(frozen=True)
class ClassPool:
    """The trials of one class, and the records of that class that could be behind their releases.

    ``distances`` has an array (trials, records) for each attack: how far the reconstruction of a
    trial is from each record in the place of the audited one. Record t is the audited record of
    trial t; the others follow. ``shared`` (trials, trials) says in row t which audited records of
    other trials are also in the batch of trial t: they are not compared with its own.
    """

    distances: Mapping[str, np.ndarray]
    shared: np.ndarray

    @property
    def trials(self) -> int:
        """Trials of the class."""
        return len(self.shared)

    @property
    def size(self) -> int:
        """Records of the class."""
        return next(iter(self.distances.values())).shape[1]


@cache
def hit_probabilities(pool: int, decoys: int, allowed: int) -> np.ndarray:
    """Probability of a hit (pool + 1,) by rank in the pool, over all draws of the decoys.

    A record of rank r has r − 1 others before it. It is a hit if fewer than ``allowed`` of them
    are among its decoys, which are drawn without replacement. Entry 0 is not used.
    """
    before = np.arange(-1, pool)
    probabilities = hypergeom.cdf(allowed - 1, pool - 1, np.maximum(before, 0), decoys)
    probabilities[0] = 0.0
    return probabilities


def expected_hits(
    pool: ClassPool, attack: str, orders: np.ndarray, decoys: int, allowed: int
) -> np.ndarray:
    """The statistic (permutations,) when record ``orders[p, t]`` is the audited one of trial t."""
    totals = np.zeros(len(orders))
    for trial, row in enumerate(pool.distances[attack]):
        # Ties count against the audited record.
        ranks = np.searchsorted(np.sort(row), row, side="right")[orders[:, trial]]
        mates = np.nonzero(pool.shared[trial])[0]
        if len(mates):
            own = row[orders[:, trial]]
            ranks = ranks - (row[orders[:, mates]] <= own[:, None]).sum(1)
        totals += hit_probabilities(pool.size - len(mates), decoys, allowed)[ranks]
    return totals


def permutation_tests(
    pools: Sequence[ClassPool],
    decoys: int,
    allowed: int,
    *,
    seed: int,
    permutations: int = PERMUTATIONS,
) -> dict[str, PermutationTest]:
    """Test every attack against random permutations of the records within their classes.

    Classes are permuted apart, because decoys have the label of their secret. All attacks are
    tested against the same permutations.
    """
    names = list(pools[0].distances)
    random = np.random.default_rng(seed)
    observed = {
        name: sum(
            float(expected_hits(pool, name, np.arange(pool.trials)[None], decoys, allowed)[0])
            for pool in pools
        )
        for name in names
    }
    extreme = dict.fromkeys(names, 0)
    for start in range(0, permutations, CHUNK):
        count = min(CHUNK, permutations - start)
        totals = {name: np.zeros(count) for name in names}
        for pool in pools:
            orders = _random_orders(pool.size, pool.trials, count, random)
            for name in names:
                totals[name] += expected_hits(pool, name, orders, decoys, allowed)
        for name in names:
            extreme[name] += int((totals[name] >= observed[name] - ROUNDING).sum())
    trials = sum(pool.trials for pool in pools)
    return {
        name: PermutationTest(
            expected_hits=observed[name],
            by_chance=trials * allowed / (decoys + 1),
            permutations=permutations,
            as_extreme=extreme[name],
        )
        for name in names
    }


def _random_orders(size: int, places: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Records for the first places of random permutations (count, places), by Fisher and Yates."""
    orders = np.tile(np.arange(size), (count, 1))
    rows = np.arange(count)
    for place in range(places):
        other = random.integers(place, size, count)
        swapped = orders[:, place].copy()
        orders[:, place] = orders[rows, other]
        orders[rows, other] = swapped
    return orders[:, :places]
