"""The statistics of a comparison against brute force, closed forms and simulated truth."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student
from sklearn.isotonic import IsotonicRegression

from vestige.reports.noise import Mean
from vestige.statistics.tradeoff import (
    Contrasts,
    Curve,
    interpolate,
    is_larger,
    isotonic,
    least_trials,
    mean_with_limits,
    paired_contrasts,
    pareto_front,
    sign_flips,
    weakest_protection,
)

NUMBERS = st.floats(-5, 5, allow_nan=False, width=32)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=6, max_size=6), min_size=1, max_size=4))
def test_isotonic_rows_are_those_of_pooling(rows):
    values = np.array(rows)
    for row, found in zip(values, isotonic(values)):
        expected = IsotonicRegression().fit_transform(np.arange(6), row)
        np.testing.assert_allclose(found, expected, atol=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_by_sweeping_over_costs(points):
    """Sorted by cost, then protection: a point counts if it leaves more than all cheaper ones."""
    expected, best = set(), -1
    for cost in sorted({cost for cost, _ in points}):
        most = max(p for c, p in points if c == cost)
        if most > best:
            expected |= {i for i, pair in enumerate(points) if pair == (cost, most)}
            best = most
    assert set(pareto_front(*zip(*points))) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    st.lists(NUMBERS, min_size=6, max_size=6),
    st.floats(-1, 7),
)
def test_between_points_protection_is_linear(gaps, values, at):
    costs = np.cumsum([0.0, *gaps])[: len(gaps)]
    protections = np.array(values[: len(gaps)])
    found = interpolate(costs[None], protections[None], at)
    assert found[0] == pytest.approx(np.interp(at, costs, protections), abs=1e-9)


def test_of_points_at_one_cost_the_strongest_counts():
    costs = np.array([[0.0, 0.0, 1.0, 1.0, 2.0]])
    protections = np.array([[1.0, 3.0, 5.0, 4.0, 8.0]])
    assert interpolate(costs, protections, 0.0)[0] == 3
    assert interpolate(costs, protections, 0.5)[0] == 4
    assert interpolate(costs, protections, 1.0)[0] == 4
    assert interpolate(costs, protections, 1.5)[0] == 6


def test_limits_of_a_mean_are_students():
    values = np.array([0.1, 0.4, 0.2, 0.3])
    found = mean_with_limits(values, 0.9)
    reach = student.ppf(0.95, 3) * values.std(ddof=1) / 2
    assert (found.lower, found.upper) == pytest.approx((0.25 - reach, 0.25 + reach))
    cut = mean_with_limits(values, 0.999, low=0.0, high=0.5)
    assert (cut.lower, cut.upper) == (0.0, 0.5)


def test_the_weakest_protection_takes_the_least_of_everything():
    means = [Mean(value=3, lower=1, upper=5), Mean(value=2, lower=1.5, upper=6)]
    assert weakest_protection(means) == Mean(value=2, lower=1, upper=5)


TRUE_COSTS = np.array([0.0, 0.01, 0.02, 0.06])
TRUE_ERRORS = np.array([[0.05, 0.2], [0.1, 0.2], [0.2, 0.25], [0.4, 0.3]])


def simulated_curve(generator: np.random.Generator, seeds: int, trials: int) -> Curve:
    """Costs that share the luck of a seed, errors that share the secret of a trial."""
    luck = generator.normal(0, 0.01, (seeds, 1))
    costs = TRUE_COSTS + luck * (TRUE_COSTS > 0) + generator.normal(0, 0.004, (seeds, 4))
    costs[:, 0] = 0
    secret = generator.normal(0, 0.05, (trials, 1))
    errors = [row + secret + generator.normal(0, 0.04, (trials, 2)) for row in TRUE_ERRORS]
    return Curve(
        tuple(mean_with_limits(column, 0.95) for column in costs.T),
        tuple(weakest_protection([mean_with_limits(c, 0.975) for c in e.T]) for e in errors),
    )


@pytest.mark.parametrize("cost", [0.005, 0.03])
def test_limits_at_equal_cost_hold_as_often_as_they_say(cost):
    """Of 250 worlds 95% should be covered; a sound method fails this with probability 0.1%."""
    truth = np.interp(cost, TRUE_COSTS, TRUE_ERRORS.min(1))
    covered = 0
    for world in range(250):
        found = simulated_curve(np.random.default_rng(world), 4, 20).at(cost)
        covered += found.lower <= truth <= found.upper
    assert covered / 250 >= 0.95 - 3.1 * (0.95 * 0.05 / 250) ** 0.5, covered


def test_limits_of_the_weakest_protection_hold():
    """Joint limits over two attacks cover the smaller mean in at least 95% of 2,000 worlds."""
    covered = 0
    for world in range(2000):
        generator = np.random.default_rng(world)
        errors = np.array([0.3, 0.31]) + generator.normal(0, 0.05, (10, 2))
        found = weakest_protection([mean_with_limits(column, 0.975) for column in errors.T])
        covered += found.lower <= 0.3 <= found.upper
    assert covered / 2000 >= 0.95 - 3.1 * (0.95 * 0.05 / 2000) ** 0.5, covered


def point(value: float, reach: float = 0.0) -> Mean:
    return Mean(value=value, lower=value - reach, upper=value + reach)


def test_costs_are_made_monotone_from_no_defence_on():
    curve = Curve(
        tuple(map(point, (0.0, -0.02, 0.05, 0.03))), tuple(map(point, (0.1, 0.2, 0.3, 0.4)))
    )
    np.testing.assert_allclose(curve.mean_costs, [0, 0, 0.04, 0.04])
    assert curve.at(0.02).value == pytest.approx(0.25)


def test_a_cost_that_was_measured_has_the_limits_of_its_setting():
    curve = Curve(tuple(map(point, (0.0, 0.01, 0.02))), (point(0.1, 0.01), point(0.2, 0.03)) * 2)
    assert curve.at(0.01) == Mean(value=0.2, lower=0.17, upper=0.23)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.5)), min_size=2, max_size=4),
    st.floats(0.01, 1),
    st.integers(0, 10_000),
)
def test_limits_at_a_cost_hold_every_curve_within_the_limits(parts, cost, seed):
    """Curves drawn inside the boxes, interpolated by NumPy, lie between the limits."""
    ends = np.cumsum([0.05 + gap for gap, _ in parts])
    costs = (point(0.0), *(point(end, reach) for end, (_, reach) in zip(ends, parts)))
    kept = tuple(point(0.3 + 0.1 * place, 0.05) for place in range(len(costs)))
    curve = Curve(costs, kept)
    found = curve.at(cost)
    generator = np.random.default_rng(seed)
    for _ in range(20):
        drawn = np.array([generator.uniform(c.lower, c.upper) for c in costs])
        drawn = np.maximum(drawn, 0)
        if (np.diff(drawn) <= 0).any():
            continue
        left = [generator.uniform(k.lower, k.upper) for k in kept]
        truth = np.interp(cost, drawn, left)
        assert found.lower - 1e-9 <= truth <= found.upper + 1e-9


def naive_p_values(errors: dict[str, np.ndarray]) -> dict[tuple[str, str], float]:
    """Max-t by all patterns of signs, one Student statistic at a time."""
    trials = len(next(iter(errors.values())))
    names = list(errors)
    columns = [(n, a) for n in names for a in range(errors[n].shape[1])]
    duels = [(x, y) for x in columns for y in columns if x[0] != y[0]]

    def statistic(pair, signs) -> float:
        (n, a), (m, b) = pair
        values = signs * (errors[n][:, a] - errors[m][:, b])
        return values.mean() / (values.std(ddof=1) / trials**0.5)

    patterns = [np.array(signs) for signs in product([1, -1], repeat=trials)]
    largest = [max(statistic(pair, signs) for pair in duels) for signs in patterns]
    seen = {pair: statistic(pair, np.ones(trials)) for pair in duels}
    single = {p: np.mean([t >= value - 1e-9 for t in largest]) for p, value in seen.items()}
    single = {p: value if seen[p] > 0 else 1.0 for p, value in single.items()}
    return {
        (n, m): min(
            max(single[(n, a), (m, b)] for a in range(errors[n].shape[1]))
            for b in range(errors[m].shape[1])
        )
        for n in names
        for m in names
        if n != m
    }


@pytest.mark.parametrize("seed", range(3))
def test_contrasts_are_those_of_naive_enumeration(seed):
    generator = np.random.default_rng(seed)
    secret = generator.normal(size=(7, 1))
    errors = {
        "none": 0.2 + 0.1 * (secret + generator.normal(size=(7, 2))),
        "noise": 1.0 + 0.1 * (secret + generator.normal(size=(7, 2))),
        "pruning": 0.5 + 0.1 * (secret + generator.lognormal(size=(7, 1))),
    }
    expected = naive_p_values(errors)
    found = paired_contrasts(errors, combinations(errors, 2))
    assert found.p_values.keys() == expected.keys()
    for pair, value in expected.items():
        assert found.p_values[pair] == pytest.approx(value, abs=1e-12), pair


def test_few_trials_tell_nothing_apart():
    """All six differences have one sign in 2 of 64 patterns, all five in 2 of 32."""
    assert [least_trials(c) for c in (0.9, 0.95, 0.96, 0.99)] == [5, 6, 6, 8]
    for trials, told in ((5, False), (6, True)):
        steps = np.linspace(0, 0.001, trials)[:, None]
        errors = {"a": 1 + steps, "b": np.zeros((trials, 1))}
        found = paired_contrasts(errors, [("a", "b")])
        assert found.p_values["a", "b"] == 2.0 ** (1 - trials)
        assert found.larger("a", "b", 0.95) == told
        assert found.p_values["b", "a"] == 1.0


def test_equal_errors_and_unknown_pairs_are_not_told_apart():
    same = np.full((8, 2), 0.3)
    found = paired_contrasts({"a": same, "b": same}, [("a", "b")])
    assert set(found.p_values.values()) == {1.0}
    assert paired_contrasts({}, []) == Contrasts({})
    assert not found.larger("a", "c", 0.95)


def test_every_attack_on_the_one_must_leave_more():
    """A second attack that is as strong as the other's takes the protection away."""
    generator = np.random.default_rng(0)
    low, high = (m + 0.01 * generator.normal(size=(12, 1)) for m in (0.1, 0.3))
    also = 0.1 + 0.01 * generator.normal(size=(12, 1))
    errors = {"none": np.hstack([low, high]), "held": np.hstack([high, high + 0.1])}
    assert paired_contrasts(errors, [("none", "held")]).larger("held", "none", 0.95)
    errors["held"] = np.hstack([high, also])
    assert not paired_contrasts(errors, [("none", "held")]).larger("held", "none", 0.95)


def test_drawn_patterns_begin_with_the_identity():
    flips = sign_flips(40)
    assert flips.shape == (2000, 40)
    assert (flips[0] == 1).all()
    assert set(np.unique(flips)) == {-1.0, 1.0}


ERRORS = {
    "alike in every trial": lambda g, n, k: (
        0.3 + 0.05 * g.normal(size=(n, 1, 1)) + 0.02 * g.normal(size=(n, k, 1))
    ),
    "heavy tails": lambda g, n, k: 0.1 * g.lognormal(size=(n, k, 1)),
    "least of three": lambda g, n, k: (
        0.3 + 0.04 * g.normal(size=(n, 1, 1)) + 0.03 * g.normal(size=(n, k, 3))
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(("trials", "defenses"), [(6, 18), (12, 6)])
def test_equal_defences_are_told_apart_in_five_per_cent_of_worlds_at_most(kind, trials, defenses):
    """Of 200 worlds; at a true 5% more than 20 false ones have probability 0.1%."""
    false = 0
    for world in range(200):
        generator = np.random.default_rng([world, trials, defenses])
        drawn = ERRORS[kind](generator, trials, defenses + 1)
        errors = {place: drawn[:, place] for place in range(defenses + 1)}
        found = paired_contrasts(errors, combinations(errors, 2))
        false += min(found.p_values.values()) <= 0.05
    assert false <= 20, false


def test_mixtures_are_ordered_by_what_they_consist_of():
    larger = {("strong", "none"), ("strong", "weak"), ("other", "none")}
    none = {"none": 1.0}
    assert is_larger({"strong": 0.3, "none": 0.7}, none, larger)
    assert not is_larger(none, none, larger)
    assert not is_larger({"weak": 0.3, "strong": 0.7}, none, larger)
    assert not is_larger(none, {"strong": 0.3, "none": 0.7}, larger)
    # Half of the one moves down, half stays.
    assert is_larger({"strong": 0.5, "none": 0.5}, none, larger)
    assert is_larger({"strong": 0.6, "none": 0.4}, {"weak": 0.5, "none": 0.5}, larger)
    assert not is_larger({"strong": 0.4, "none": 0.6}, {"weak": 0.5, "none": 0.5}, larger)
    assert not is_larger({"strong": 0.6, "none": 0.4}, {"other": 0.5, "none": 0.5}, larger)


@settings(max_examples=200, deadline=None)
@given(
    st.permutations([0.1, 0.2, 0.3, 0.4]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sets(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"))),
)
def test_no_mixture_is_called_larger_that_is_not(values, weight, other, asked):
    """Whatever true pairs are known, the mixture that is said to be larger is larger."""
    truth = dict(zip("abcd", values))
    known = {(x, y) for x, y in asked if truth[x] > truth[y]}
    first, second = {"a": 1 - weight, "b": weight}, {"c": 1 - other, "b": other}
    if is_larger(first, second, known):
        assert sum(w * truth[n] for n, w in first.items()) > sum(
            w * truth[n] for n, w in second.items()
        )
