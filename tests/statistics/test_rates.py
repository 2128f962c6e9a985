"""Rates against their closed forms, anchor values and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from vestige.statistics.rates import (
    NOTHING,
    allowed_rank,
    clopper_pearson,
    decoys_needed,
    matched_curve,
    matched_rate,
    nulls_needed,
    pooled_rate,
    threshold_rank,
)


@pytest.mark.parametrize(
    ("hits", "trials", "lower", "upper"),
    [(0, 100, 0.0, 0.036217), (10, 100, 0.049005, 0.176223)],
)
def test_clopper_pearson_anchors(hits, trials, lower, upper):
    assert clopper_pearson(hits, trials) == pytest.approx((lower, upper), abs=5e-7)


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_clopper_pearson_covers(trials, truth):
    """The interval misses the truth in at most 5% of draws, computed exactly."""
    limits = [clopper_pearson(k, trials) for k in range(trials + 1)]
    missed = sum(
        binom.pmf(k, trials, truth)
        for k, (lower, upper) in enumerate(limits)
        if not lower <= truth <= upper
    )
    assert missed <= 0.05 + 1e-9


@pytest.mark.parametrize(("nulls", "place"), [(298, 0), (299, 1), (1000, 5), (10000, 84)])
def test_threshold_rank_anchors(nulls, place):
    assert threshold_rank(nulls, 0.01, 0.05) == place


def test_nulls_needed_anchors():
    assert nulls_needed(0.01, 0.05) == 299
    assert nulls_needed(0.001, 0.05) == 2995
    assert nulls_needed(0.01, 0.025) == 368


@given(st.integers(1, 3000), st.sampled_from([0.001, 0.01, 0.05, 0.3]), st.floats(0.001, 0.3))
def test_threshold_rank_is_the_largest(nulls, alpha, doubt):
    """The share that the k-th smallest null passes exceeds α with probability at most the doubt."""
    place = threshold_rank(nulls, alpha, doubt)

    def exceeds(k: int) -> float:
        # P(share of nulls below the k-th smallest > α) = P(fewer than k of n uniforms ≤ α)
        return float(binom.cdf(k - 1, nulls, alpha))

    if place:
        assert exceeds(place) <= doubt + 1e-9
    if place < nulls:
        assert exceeds(place + 1) > doubt - 1e-9


def test_naive_threshold_breaks_its_promise():
    """k = αn exceeds α in about 45% of runs: why the honest rank is smaller."""
    assert binom.cdf(9, 1000, 0.01) == pytest.approx(0.457, abs=0.01)
    assert threshold_rank(1000, 0.01, 0.025) < 10


def test_pooled_rate_covers_the_truth():
    """In 400 simulated audits the lower limit exceeds the true TPR in at most 5% (+ 3 sd)."""
    rng = np.random.default_rng(0)
    shift, alpha, n = 1.5, 0.05, 400
    from scipy.stats import norm

    truth = norm.cdf(norm.ppf(alpha) + shift)
    above = below = 0
    for _ in range(400):
        found = pooled_rate(rng.normal(-shift, 1, n), rng.normal(0, 1, n), alpha, 0.95)
        above += found.lower > truth
        below += found.upper < truth
    allowed = 0.05 * 400 + 3 * np.sqrt(400 * 0.05 * 0.95)
    assert above <= allowed
    assert below <= allowed


def test_pooled_rate_says_when_decoys_are_too_few():
    found = pooled_rate([0.1] * 40, [0.5] * 40, 0.01, 0.95)
    assert found.threshold is None
    assert found.lower is None
    assert found.needed == 368


def test_pooled_rate_counts_lost_trials_as_misses():
    nulls = list(np.linspace(1, 2, 500))
    found = pooled_rate([NOTHING] * 250 + [0.0] * 250, nulls, 0.01, 0.95)
    assert found.true_positive_rate == 0.5


def test_allowed_rank_and_decoys_agree():
    for alpha in (0.5, 0.1, 0.05, 0.02, 0.01, 0.001, 1 / 3):
        needed = decoys_needed(alpha)
        assert allowed_rank(alpha, needed) >= 1
        assert needed == 0 or allowed_rank(alpha, needed - 1) == 0


@given(st.lists(st.integers(1, 100), min_size=1, max_size=80))
def test_matched_curve_is_monotone_and_bracketed(ranks):
    curve = matched_curve(ranks, 99, 0.95)
    rates = [p.true_positive_rate for p in curve]
    assert rates == sorted(rates)
    assert curve[-1].true_positive_rate == 1.0
    assert curve[0].false_positive_rate == pytest.approx(0.01)
    for point in curve:
        assert point.lower <= point.true_positive_rate <= point.upper


def test_matched_rate_is_exact_under_the_null():
    """Uniform ranks hit with probability α: over all outcomes a verdict has at most 2.5%."""
    trials, allowed, alpha = 40, 1, 0.01
    raised = sum(
        binom.pmf(k, trials, alpha)
        for k in range(trials + 1)
        if matched_rate([1] * k + [50] * (trials - k), allowed, 0.95).lower > alpha
    )
    assert 0 < raised <= 0.025
