"""The statistics of a comparison: means with limits, fronts, and what holds at equal cost.

Liu, Wang, Chen and Lei 2025, Figure 3, hold defences against each other at equal utility. Their
utilities come from single runs and are not monotone in a defence's strength. Here costs are means
over seeds, made monotone across strengths (isotonic regression), and protection is interpolated
between strengths, with limits that carry the doubt of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import t as student

from vestige.noise_study import Mean

DRAWS = 4000
"""Draws behind the limits of an interpolated protection: enough for two digits."""


def limited_mean(
    values: np.ndarray, confidence: float, *, low: float = -np.inf, high: float = np.inf
) -> Mean:
    """A mean of at least two values with Student's limits, cut to what is possible."""
    count, value = len(values), float(np.mean(values))
    reach = float(student.ppf((1 + confidence) / 2, count - 1) * np.std(values, ddof=1))
    reach /= np.sqrt(count)
    return Mean(value=value, lower=max(value - reach, low), upper=min(value + reach, high))


def weakest_protection(means: Sequence[Mean]) -> Mean:
    """The smallest of several errors, each with limits that hold for all of them together.

    The true smallest lies above the least lower limit, and below every upper one.
    """
    return Mean(
        value=min(mean.value for mean in means),
        lower=min(mean.lower for mean in means),
        upper=min(mean.upper for mean in means),
    )


def pareto_front(costs: Sequence[float], protections: Sequence[float]) -> list[int]:
    """Points that no other one equals or beats in both while beating it in one."""
    pairs = list(zip(costs, protections))
    return [
        index
        for index, (cost, protection) in enumerate(pairs)
        if not any(c <= cost and p >= protection and (c < cost or p > protection) for c, p in pairs)
    ]


def isotonic(values: np.ndarray) -> np.ndarray:
    """The non-decreasing rows closest to rows (r, k) in squares, equal weights.

    What pooling adjacent violators finds, by its max-min formula (Robertson, Wright and Dykstra
    1988, §1.4), which serves all rows at once: k is the number of a defence's strengths.
    """
    rows, count = values.shape
    sums = np.concatenate([np.zeros((rows, 1)), np.cumsum(values, axis=1)], axis=1)
    found = np.full((rows, count), -np.inf)
    for start in range(count):
        stops = np.arange(start, count)
        means = (sums[:, stops + 1] - sums[:, [start]]) / (stops - start + 1)
        # The least mean over the stops from each place on.
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        found[:, start:] = np.maximum(found[:, start:], least)
    return found


def interpolated(costs: np.ndarray, protections: np.ndarray, at: float) -> np.ndarray:
    """Protections (r,) at a cost, linear between points (r, k) whose costs do not decrease.

    Of several points at that very cost the last, strongest one counts. Beyond the last point its
    own protection is returned, below the first that of the first.
    """
    rows = np.arange(len(costs))
    left = np.maximum((costs <= at).sum(1) - 1, 0)
    right = np.minimum(left + 1, costs.shape[1] - 1)
    gap = costs[rows, right] - costs[rows, left]
    weight = np.where(gap > 0, (at - costs[rows, left]) / np.where(gap > 0, gap, 1.0), 0.0)
    weight = np.clip(weight, 0.0, 1.0)
    return (1 - weight) * protections[rows, left] + weight * protections[rows, right]


def drawn_means(values: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """Draws (r, k) around the means of columns (n, k), as Student's t has them, jointly.

    A bootstrap over few seeds is too narrow: resampled rows have the variance (n − 1)/n of what
    they should have, and no tails. Rows are weighted by normal numbers and divided by a χ² in
    place of being resampled, so that limits of a single mean are Student's.
    """
    count = len(values)
    centered = values - values.mean(0)
    weights = generator.standard_normal((draws, count)) / np.sqrt(count * (count - 1))
    spread = np.sqrt(generator.chisquare(count - 1, draws) / (count - 1))
    return values.mean(0) + (weights @ centered) / spread[:, None]


@dataclass(frozen=True)
class Curve:
    """One defence before one server, no defence first, then its strengths from weak to strong.

    ``costs`` (seeds, k) are accuracies lost, ``errors`` one array (trials, attacks) for each of the
    k points; trials and seeds are the same everywhere.
    """

    costs: np.ndarray
    errors: tuple[np.ndarray, ...]

    @property
    def mean_costs(self) -> np.ndarray:
        """Costs (k,) that do not decrease; no defence costs nothing."""
        return _monotone(self.costs.mean(0)[None])[0]

    @property
    def protections(self) -> np.ndarray:
        """Errors (k,) that the strongest attack leaves."""
        return np.array([errors.mean(0).min() for errors in self.errors])

    def at(self, cost: float, confidence: float, generator: np.random.Generator) -> Mean:
        """Protection at a cost, with limits by draws around the means of seeds and trials."""
        value = interpolated(self.mean_costs[None], self.protections[None], cost)[0]
        costs = _monotone(drawn_means(self.costs, DRAWS, generator))
        widths = [errors.shape[1] for errors in self.errors]
        means = drawn_means(np.concatenate(self.errors, axis=1), DRAWS, generator)
        ends = np.cumsum([0, *widths])
        least = [means[:, low:high].min(1) for low, high in pairwise(ends)]
        found = interpolated(costs, np.stack(least, axis=1), cost)
        lower, upper = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
        # The value is no mean of the draws; limits that miss it would puzzle for nothing.
        return Mean(
            value=float(value),
            lower=float(max(min(lower, value), 0.0)),
            upper=float(max(upper, value)),
        )


def _monotone(costs: np.ndarray) -> np.ndarray:
    """Costs (r, k) of no defence and of strengths, which is 0 and what does not decrease from it.

    Isotonic regression with a floor is isotonic regression, cut off at the floor.
    """
    fitted = np.maximum(isotonic(costs[:, 1:]), 0.0)
    return np.concatenate([np.zeros((len(costs), 1)), fitted], axis=1)
