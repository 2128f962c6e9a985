"""The statistics of a comparison: means with limits, contrasts, fronts, what holds at equal cost.

Liu, Wang, Chen and Lei 2025, Figure 3, compare defences at equal utility. Their utilities come from
single runs and are not monotone in a defence's strength. Here costs are means over seeds, made
monotone across strengths (isotonic regression), and protection is interpolated between strengths.
Which of many defences leaves a larger error than another is decided for all of them together, so
that choosing the best one first does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from scipy.stats import t as student

from vestige.reports.noise import Mean

ALL_FLIPS = 12
"""Trials with which all patterns of signs are tried: 2,048 up to the sign of the whole."""

DRAWN_FLIPS = 1999
"""Patterns drawn where there are more trials; with the identity 2,000, whose twentieth is 5%."""

FLIPS_AT_ONCE = 256

TIE = 1e-9
"""Statistics in [0, 1] that differ by less are equal: rounding must not decide for a claim."""

COST_SHARE = 0.2
"""Part of the error probability of a statement at equal cost that is spent on the costs."""


def mean_with_limits(
    values: np.ndarray, confidence: float, *, low: float = -np.inf, high: float = np.inf
) -> Mean:
    """A mean of at least two values with Student's limits, cut to what is possible."""
    count, value = len(values), float(np.mean(values))
    reach = _quantile((1 + confidence) / 2, count - 1) * float(np.std(values, ddof=1))
    reach /= math.sqrt(count)
    return Mean(value=value, lower=max(value - reach, low), upper=min(value + reach, high))


@cache
def _quantile(probability: float, freedom: int) -> float:
    """Student's quantile; a comparison asks for the same few again and again."""
    return float(student.ppf(probability, freedom))


def weakest_protection(means: Sequence[Mean]) -> Mean:
    """The smallest of several errors, each with limits that hold for all of them together.

    The true smallest lies above the least lower limit, and below every upper one.
    """
    return Mean(
        value=min(mean.value for mean in means),
        lower=min(mean.lower for mean in means),
        upper=min(mean.upper for mean in means),
    )


def sign_flips(trials: int) -> np.ndarray:
    """Patterns (r, trials) of signs, the identity first; of a pattern and its negative only one."""
    if trials <= ALL_FLIPS:
        patterns = np.arange(2 ** (trials - 1))
        return 1.0 - 2.0 * ((patterns[:, None] >> np.arange(trials)) & 1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(DRAWN_FLIPS, trials))
    return np.concatenate([np.ones((1, trials)), signs])


def least_trials(confidence: float) -> int:
    """Fewest trials with which any contrast can be significant: 2^(1 − trials) must not exceed 1 −
    c.
    """
    return 1 + math.ceil(-math.log2(1 - confidence) - TIE)


@dataclass(frozen=True)
class Contrasts:
    """Which protections are larger than which, for all pairs asked about together.

    ``p_values`` of an ordered pair (first, second) are for "the first is larger", adjusted for all
    pairs in both directions.
    """

    p_values: Mapping[tuple[Hashable, Hashable], float]

    def larger(self, first: Hashable, second: Hashable, confidence: float) -> bool:
        """Whether the first protection is shown to be larger than the second."""
        return self.p_values.get((first, second), 1.0) <= 1 - confidence


def paired_contrasts(
    errors: Mapping[Hashable, np.ndarray], pairs: Iterable[tuple[Hashable, Hashable]]
) -> Contrasts:
    """Compare protections, the least column means of errors (trials, attacks), paired by trial.

    The least mean of one setting exceeds that of another if, for some attack on the other, *every*
    attack on the one has a larger mean error. So all columns of a pair are contrasted, and a pair
    has the p-value min over the other's attacks of max over the one's. Whatever the true least
    column is, a false statement about the pair needs a false one about a contrast with it.

    All contrasts of all pairs are tested together by the maximum of their absolute Student
    statistics under flips of the signs of whole trials (Westfall and Young 1993, §2.3; Romano and
    Wolf 2005). The same signs serve all contrasts, which keeps their dependence. The probability of
    any false statement, in either direction, is at most the level, at any number of trials and
    whichever other settings differ, if differences of equal settings are distributed
    symmetrically; for one pair of settings that are alike trial by trial they always are. Student's
    statistic is an increasing function of mean / root mean square, whose denominator no flip
    changes.
    """
    asked = list(pairs)
    if not asked:
        return Contrasts({})
    trials = len(errors[asked[0][0]])
    differences = np.concatenate(
        [
            (errors[one][:, :, None] - errors[other][:, None, :]).reshape(trials, -1)
            for one, other in asked
        ],
        axis=1,
    )
    scale = np.sqrt((differences**2).mean(0))
    scaled = differences / np.where(scale > 0, scale, 1.0) / trials
    flips = sign_flips(trials)
    largest = np.concatenate(
        [
            np.abs(flips[start : start + FLIPS_AT_ONCE] @ scaled).max(1)
            for start in range(0, len(flips), FLIPS_AT_ONCE)
        ]
    )
    seen = scaled.sum(0)
    below = np.searchsorted(np.sort(largest), np.abs(seen) - TIE)
    p_values = (len(flips) - below) / len(flips)
    contrasts, stop = {}, 0
    for one, other in asked:
        shape = (errors[one].shape[1], errors[other].shape[1])
        own = slice(stop, stop + shape[0] * shape[1])
        stop = own.stop
        larger = np.where(seen[own] > 0, p_values[own], 1.0).reshape(shape)
        smaller = np.where(seen[own] < 0, p_values[own], 1.0).reshape(shape)
        contrasts[one, other] = float(larger.max(0).min())
        contrasts[other, one] = float(smaller.max(1).min())
    return Contrasts(contrasts)


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
    fit = np.full((rows, count), -np.inf)
    for start in range(count):
        stops = np.arange(start, count)
        means = (sums[:, stops + 1] - sums[:, [start]]) / (stops - start + 1)
        # The least mean over the stops from each place on.
        least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
        fit[:, start:] = np.maximum(fit[:, start:], least)
    return fit


def interpolate(costs: np.ndarray, protections: np.ndarray, at: float) -> np.ndarray:
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


Position = tuple[int, float]
"""A place between two points of a curve: the left one, and the weight of the next."""


@dataclass(frozen=True)
class Curve:
    """One defence before one server, no defence first, then its strengths from weak to strong.

    ``costs`` are accuracies lost and ``protections`` errors left, with the limits that a page shows
    of each. Costs are made monotone, limits and all: isotonic regression keeps order, so limits of
    costs that do not decrease stay limits.
    """

    costs: tuple[Mean, ...]
    protections: tuple[Mean, ...]

    @property
    def mean_costs(self) -> np.ndarray:
        """Costs (k,) that do not decrease; no defence costs nothing."""
        return self._monotone_costs[0]

    def at(self, cost: float) -> Mean:
        """Protection at a cost; its limits are the farthest that the points' limits allow."""
        values = np.array([[mean.value for mean in self.protections]])
        value = float(interpolate(self.mean_costs[None], values, cost)[0])

        def mixed(position: Position, parts: Sequence[float]) -> float:
            left, weight = position
            return (1 - weight) * parts[left] + weight * parts[min(left + 1, len(parts) - 1)]

        positions = self.positions(cost)
        lowest = [mean.lower for mean in self.protections]
        highest = [mean.upper for mean in self.protections]
        return Mean(
            value=value,
            lower=min(value, *(mixed(position, lowest) for position in positions)),
            upper=max(value, *(mixed(position, highest) for position in positions)),
        )

    def positions(self, cost: float) -> list[Position]:
        """The outermost places where a cost may lie, given the limits of costs.

        The weight of the right point of a segment falls with either cost, so it is least at both
        upper limits and most at both lower ones.
        """
        _, low, high = self._monotone_costs
        last = len(low) - 1
        places = [(last, 0.0)] if low[last] <= cost else []
        for left in range(last):
            right = left + 1
            if low[left] > cost or high[right] < cost:
                continue
            least = 0.0
            if high[left] < cost:
                least = (cost - high[left]) / (high[right] - high[left])
            most = 1.0
            if low[right] > cost:
                most = (cost - low[left]) / (low[right] - low[left])
            places += [(left, float(least)), (left, float(most))]
        return list(dict.fromkeys(places))

    @cached_property
    def _monotone_costs(self) -> np.ndarray:
        return _monotone(
            np.array(
                [
                    [mean.value for mean in self.costs],
                    [mean.lower for mean in self.costs],
                    [mean.upper for mean in self.costs],
                ]
            )
        )


def is_larger(
    first: Mapping[str, float], second: Mapping[str, float], larger: Iterable[tuple[str, str]]
) -> bool:
    """Whether a mixture of protections is larger than another, if single ones are.

    ``first`` and ``second`` are weights that sum to one. It is if the weight of the one can be
    moved onto that of the other so that every part moves from what is larger to what is smaller, or
    stays where it is, and some part moves (Hall's condition, subset by subset).
    """
    known = set(larger)
    one = {name: weight for name, weight in first.items() if weight > TIE}
    other = {name: weight for name, weight in second.items() if weight > TIE}
    if one.keys() == other.keys() and all(abs(one[n] - other[n]) <= TIE for n in one):
        return False
    names = list(one)
    for chosen in range(1, 2 ** len(names)):
        subset = [name for place, name in enumerate(names) if chosen >> place & 1]
        reached = {o for o in other for name in subset if o == name or (name, o) in known}
        if sum(one[n] for n in subset) > sum(other[o] for o in reached) + TIE:
            return False
    return True


def _monotone(costs: np.ndarray) -> np.ndarray:
    """Costs (r, k) of no defence and of strengths, which is 0 and what does not decrease from it.

    Isotonic regression with a floor is isotonic regression, cut off at the floor.
    """
    fitted = np.maximum(isotonic(costs[:, 1:]), 0.0)
    return np.concatenate([np.zeros((len(costs), 1)), fitted], axis=1)
