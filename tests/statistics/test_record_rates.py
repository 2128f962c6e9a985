"""Tests and limits of single records against enumeration and simulated truth."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import fisher_exact, ttest_ind

from vestige.statistics.rates import clopper_pearson
from vestige.statistics.record_risk import average_rate, difference_test, holm, with_and_without


@given(st.integers(1, 12), st.integers(1, 12), st.data())
@settings(max_examples=60, deadline=None)
def test_with_and_without_counts_all_assignments_of_hits(releases, controls, data):
    hits = data.draw(st.integers(0, releases))
    control_hits = data.draw(st.integers(0, controls))
    total = hits + control_hits
    ways = sum(
        comb(releases, k) * comb(controls, total - k)
        for k in range(hits, min(total, releases) + 1)
        if total - k <= controls
    )
    found = with_and_without(hits, releases, control_hits, controls)
    assert found == pytest.approx(ways / comb(releases + controls, total))
    table = [[hits, releases - hits], [control_hits, controls - control_hits]]
    assert found == pytest.approx(fisher_exact(table, alternative="greater").pvalue)


def test_nothing_released_shows_nothing():
    assert with_and_without(0, 0, 0, 5) == 1
    assert with_and_without(5, 5, 0, 0) == 1


def naive_holm(p_values: list[float], level: float) -> list[bool]:
    """Adjusted p-values: the running maximum of (m − k)·p over the sorted ones."""
    order = np.argsort(p_values, kind="stable")
    adjusted, largest = np.empty(len(p_values)), 0.0
    for k, place in enumerate(order):
        largest = max(largest, (len(p_values) - k) * p_values[place])
        adjusted[place] = largest
    return [bool(one <= level) for one in adjusted]


@given(st.lists(st.sampled_from([0.001, 0.004, 0.011, 0.02, 0.2, 1.0]), max_size=8))
@settings(max_examples=60, deadline=None)
def test_holm_agrees_with_adjusted_p_values(p_values):
    assert list(holm(p_values, 0.05)) == naive_holm(p_values, 0.05)


def test_difference_is_a_permutation_test_of_welch():
    random = np.random.default_rng(2)
    left, right = random.normal(size=4), random.normal(size=5) + 1.0
    values = np.concatenate([left, right])
    statistic = abs(ttest_ind(left, right, equal_var=False).statistic)
    extreme = 0
    for rows in combinations(range(9), 4):
        members = np.isin(np.arange(9), rows)
        found = abs(ttest_ind(values[members], values[~members], equal_var=False).statistic)
        extreme += found >= statistic - 1e-9
    assert difference_test(left.tolist(), right.tolist()) == pytest.approx(extreme / comb(9, 4))


def test_difference_of_many_records_is_sampled_and_repeatable():
    random = np.random.default_rng(3)
    left, right = random.normal(size=15).tolist(), (random.normal(size=15) + 2).tolist()
    assert difference_test(left, right) == difference_test(left, right) < 0.01


def test_equal_or_single_records_do_not_differ():
    assert difference_test([0.5, 0.5], [0.5, 0.5]) == 1
    assert difference_test([1.0], [0.0, 0.0]) == 1
    assert difference_test([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]) == pytest.approx(2 / 20)


def test_limits_of_the_average_count_records():
    assert average_rate([], 20, 0.95).upper == 1
    always = average_rate([20, 20, 0, 0, 0], 20, 0.95)
    assert (always.lower, always.upper) == clopper_pearson(2, 5, 0.95)
    assert (always.hits, always.trials) == (40, 100)


@pytest.mark.parametrize("law", [(0.05, 0.45), (0.3, 0.03), (2, 6), (0.5, 0.5)])
def test_limits_of_the_average_hold_where_records_differ(law):
    """600 studies of 8 records; where few records carry all risk, narrower limits fail."""
    random, missed = np.random.default_rng(5), 0
    mean = law[0] / sum(law)
    for _ in range(600):
        hits = random.binomial(20, random.beta(*law, size=8)).tolist()
        found = average_rate(hits, 20, 0.95)
        missed += not found.lower <= mean <= found.upper
    assert missed <= 30
