"""The statistics of a comparison against brute force, closed forms and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student
from sklearn.isotonic import IsotonicRegression

from vestige.comparison_figures import (
    Curve,
    drawn_means,
    interpolated,
    isotonic,
    limited_mean,
    pareto_front,
    weakest_protection,
)
from vestige.noise_study import Mean

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
    found = interpolated(costs[None], protections[None], at)
    assert found[0] == pytest.approx(np.interp(at, costs, protections), abs=1e-9)


def test_of_points_at_one_cost_the_strongest_counts():
    costs = np.array([[0.0, 0.0, 1.0, 1.0, 2.0]])
    protections = np.array([[1.0, 3.0, 5.0, 4.0, 8.0]])
    assert interpolated(costs, protections, 0.0)[0] == 3
    assert interpolated(costs, protections, 0.5)[0] == 4
    assert interpolated(costs, protections, 1.0)[0] == 4
    assert interpolated(costs, protections, 1.5)[0] == 6


def test_limits_of_a_mean_are_students():
    values = np.array([0.1, 0.4, 0.2, 0.3])
    found = limited_mean(values, 0.9)
    reach = student.ppf(0.95, 3) * values.std(ddof=1) / 2
    assert (found.lower, found.upper) == pytest.approx((0.25 - reach, 0.25 + reach))
    cut = limited_mean(values, 0.999, low=0.0, high=0.5)
    assert (cut.lower, cut.upper) == (0.0, 0.5)


def test_the_weakest_protection_takes_the_least_of_everything():
    means = [Mean(value=3, lower=1, upper=5), Mean(value=2, lower=1.5, upper=6)]
    assert weakest_protection(means) == Mean(value=2, lower=1, upper=5)


def test_draws_have_students_limits_and_the_columns_own_dependence():
    generator = np.random.default_rng(0)
    first = generator.normal(size=4)
    values = np.stack([first, -2 * first, generator.normal(size=4)], axis=1)
    drawn = drawn_means(values, 200_000, generator)
    exact = limited_mean(values[:, 0], 0.95)
    np.testing.assert_allclose(
        np.quantile(drawn[:, 0], [0.025, 0.975]), [exact.lower, exact.upper], atol=0.02
    )
    left = drawn - values.mean(0)
    np.testing.assert_allclose(left[:, 1], -2 * left[:, 0], atol=1e-9)


TRUE_COSTS = np.array([0.0, 0.01, 0.02, 0.06])
TRUE_ERRORS = np.array([[0.05, 0.2], [0.1, 0.2], [0.2, 0.25], [0.4, 0.3]])


def simulated_curve(generator: np.random.Generator, seeds: int, trials: int) -> Curve:
    """Costs that share the luck of a seed, errors that share the secret of a trial."""
    luck = generator.normal(0, 0.01, (seeds, 1))
    costs = TRUE_COSTS + luck * (TRUE_COSTS > 0) + generator.normal(0, 0.004, (seeds, 4))
    costs[:, 0] = 0
    secret = generator.normal(0, 0.05, (trials, 1))
    errors = tuple(row + secret + generator.normal(0, 0.04, (trials, 2)) for row in TRUE_ERRORS)
    return Curve(costs, errors)


@pytest.mark.parametrize("cost", [0.005, 0.03])
def test_limits_at_equal_cost_hold_as_often_as_they_say(cost):
    """Of 250 worlds 95% should be covered; a sound method fails this with probability 0.1%."""
    truth = np.interp(cost, TRUE_COSTS, TRUE_ERRORS.min(1))
    covered = 0
    for world in range(250):
        generator = np.random.default_rng(world)
        found = simulated_curve(generator, 4, 20).at(cost, 0.95, generator)
        covered += found.lower <= truth <= found.upper
    assert covered / 250 >= 0.95 - 3.1 * (0.95 * 0.05 / 250) ** 0.5, covered


def test_limits_of_the_weakest_protection_hold():
    """Joint limits over two attacks cover the smaller mean in at least 95% of 2,000 worlds."""
    covered = 0
    for world in range(2000):
        generator = np.random.default_rng(world)
        errors = np.array([0.3, 0.31]) + generator.normal(0, 0.05, (10, 2))
        found = weakest_protection([limited_mean(column, 0.975) for column in errors.T])
        covered += found.lower <= 0.3 <= found.upper
    assert covered / 2000 >= 0.95 - 3.1 * (0.95 * 0.05 / 2000) ** 0.5, covered


def test_costs_are_made_monotone_from_no_defence_on():
    errors = tuple(np.full((3, 1), value) for value in (0.1, 0.2, 0.3, 0.4))
    costs = np.array([[0.0, -0.02, 0.05, 0.03]] * 3)
    curve = Curve(costs, errors)
    np.testing.assert_allclose(curve.mean_costs, [0, 0, 0.04, 0.04])
    found = curve.at(0.02, 0.95, np.random.default_rng(0))
    assert found.value == pytest.approx(0.25)
