"""Limits and e-values that may be looked at after every trial."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import comb
from scipy.stats import beta, betabinom

from vestige.errors import BadInput
from vestige.statistics.anytime import (
    SHAPE,
    anytime_limits,
    anytime_lower,
    anytime_upper,
    e_value,
    log_e_value,
    log_mixture,
    mean_log_e_value,
    unspent_doubt,
)
from vestige.statistics.rates import limited_rate, lower_limit

REPLICATES = 2_000
LONGEST = 400


def _exceeded(hits: np.ndarray, rate: float, doubt: float) -> np.ndarray:
    """Whether the lower limit exceeds a rate, for counts (replicates, trials) after every trial.

    It does where the evidence against the rate reaches 1/doubt, for that falls with the rate.
    """
    sizes = np.broadcast_to(np.arange(1, hits.shape[1] + 1), hits.shape)
    counts, place = np.unique(np.stack([hits, sizes]).reshape(2, -1), axis=1, return_inverse=True)
    evidence = np.array([log_e_value(int(h), int(n), rate) for h, n in counts.T])
    return (evidence >= -math.log(doubt))[place].reshape(hits.shape)


def test_the_mixture_has_its_closed_form() -> None:
    """Under π = Beta(a, a) the mixture is the beta-binomial probability over the binomial one."""
    for hits, trials, rate in ((0, 5, 0.3), (3, 10, 0.1), (40, 40, 0.9), (17, 400, 0.01)):
        mixed = betabinom.logpmf(hits, trials, SHAPE, SHAPE)
        plain = math.log(comb(trials, hits)) + hits * math.log(rate)
        plain += (trials - hits) * math.log1p(-rate)
        assert log_mixture(hits, trials, rate) == pytest.approx(mixed - plain, abs=1e-8)


@pytest.mark.parametrize(("hits", "trials", "rate"), [(0, 4, 0.2), (3, 12, 0.1), (9, 10, 0.5)])
def test_the_one_sided_mixture_is_its_integral(hits: int, trials: int, rate: float) -> None:
    def ratio(q: float) -> float:
        return (q / rate) ** hits * ((1 - q) / (1 - rate)) ** (trials - hits)

    inside = quad(lambda q: ratio(q) * beta.pdf(q, SHAPE, SHAPE), rate, 1, limit=400)[0]
    assert e_value(hits, trials, rate) == pytest.approx(
        inside / beta.sf(rate, SHAPE, SHAPE), rel=1e-4
    )


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_an_e_value_has_mean_one_at_its_null_and_less_below(rate: float) -> None:
    """Exactly, by summing over all counts."""
    trials = 60
    hits = np.arange(trials + 1)
    logs = np.array([log_e_value(int(h), trials, rate) for h in hits])
    counted = np.log(comb(trials, hits))
    for truth in (rate, rate / 2):
        law = counted + hits * math.log(truth) + (trials - hits) * math.log1p(-truth)
        mean = float(np.exp(law + logs).sum())
        assert mean == pytest.approx(1.0, abs=1e-6) if truth == rate else mean < 1


@given(st.integers(1, 300), st.data())
def test_limits_are_ordered_and_wider_than_those_of_a_fixed_size(
    trials: int, data: st.DataObject
) -> None:
    hits = data.draw(st.integers(0, trials))
    lower, upper = anytime_limits(hits, trials)
    assert 0 <= lower <= hits / trials <= upper <= 1
    assert lower <= lower_limit(hits, trials, 0.025) + 1e-12
    assert upper == pytest.approx(1 - anytime_lower(trials - hits, trials, 0.025))
    if 0 < lower < hits / trials:  # the limit is where the evidence reaches 1/doubt
        assert log_e_value(hits, trials, lower) == pytest.approx(-math.log(0.025), abs=1e-6)


@given(st.integers(1, 200), st.data())
def test_evidence_falls_with_the_null_rate(trials: int, data: st.DataObject) -> None:
    """So that one crossing is the only one, and halving intervals finds it."""
    hits = data.draw(st.integers(1, trials))
    grid = np.linspace(1e-3, hits / trials, 60)[:-1]
    values = [log_e_value(hits, trials, float(p)) for p in grid]
    assert np.all(np.diff(values) < 1e-9)


def test_nothing_is_known_without_trials() -> None:
    assert anytime_limits(0, 0) == (0.0, 1.0)
    assert e_value(0, 0, 0.1) == pytest.approx(1.0)
    assert anytime_upper(0, 1, 0.05) <= 1.0
    with pytest.raises(BadInput, match="finite pool"):
        limited_rate(1, 2, 0.95, 1.5, anytime=True)


@pytest.mark.slow
@pytest.mark.parametrize("doubt", [0.05, 0.2])
def test_coverage_under_continuous_monitoring(doubt: float) -> None:
    """Limits are looked at after every one of 400 trials; Clopper and Pearson's fail there."""
    random, sizes = np.random.default_rng(31), np.arange(1, LONGEST + 1)
    for rate in (0.01, 0.1, 0.5, 0.95):
        hits = (random.random((REPLICATES, LONGEST)) < rate).cumsum(1)
        failed = _exceeded(hits, rate, doubt).any(1).mean()
        # Three deviations above the stated error rate of so many replicates.
        assert failed <= doubt + 3 * math.sqrt(doubt * (1 - doubt) / REPLICATES)
        above = _exceeded(sizes - hits, 1 - rate, doubt).any(1).mean()
        assert above <= doubt + 3 * math.sqrt(doubt * (1 - doubt) / REPLICATES)
        if rate == 0.5:
            fixed = beta.ppf(doubt, np.maximum(hits, 1e-9), sizes - hits + 1)
            assert (fixed > rate).any(1).mean() > 2 * doubt


@pytest.mark.slow
def test_coverage_where_secrets_are_not_repeated() -> None:
    """A grey picture hits the same records always; an audit takes each record once at most."""
    random, doubt, pool = np.random.default_rng(8), 0.05, LONGEST
    for rate in (0.01, 0.1, 0.5):
        near = np.zeros((REPLICATES, pool), dtype=bool)
        near[:, : round(rate * pool)] = True
        hits = random.permuted(near, axis=1).cumsum(1)
        assert _exceeded(hits, rate, doubt).any(1).mean() <= doubt


@pytest.mark.slow
def test_a_plan_and_all_additions_together_err_as_seldom_as_one_look() -> None:
    """First the limit of the plan, then, after every further trial, limits at what it left.

    At the full level both together err more often than one look may: the plan of 100 trials
    spends 2.1% of 2.5% at a rate of 10%.
    """
    random, planned, doubt, replicates = np.random.default_rng(5), 100, 0.025, 10_000
    allowed = doubt + 3 * math.sqrt(doubt * (1 - doubt) / replicates)
    for rate in (0.01, 0.1):
        hits = (random.random((replicates, LONGEST)) < rate).cumsum(1)
        first = np.array([lower_limit(int(h), planned, doubt) > rate for h in hits[:, planned - 1]])
        left = unspent_doubt(planned, rate, doubt)
        later = _exceeded(hits, rate, left)[:, planned:].any(1)
        assert (first | later).mean() <= allowed
        assert first.mean() == pytest.approx(doubt - left, abs=0.005)


@given(st.integers(1, 60), st.floats(0.001, 0.999), st.sampled_from([0.025, 0.05, 0.004]))
def test_what_a_look_leaves_is_its_level_minus_its_size(
    trials: int, rate: float, doubt: float
) -> None:
    """The size is that of a naive enumeration of counts whose limit exceeds the rate."""
    size = sum(
        comb(trials, k, exact=True) * rate**k * (1 - rate) ** (trials - k)
        for k in range(trials + 1)
        if lower_limit(k, trials, doubt) > rate
    )
    left = unspent_doubt(trials, rate, doubt)
    assert 0 <= left <= doubt
    # A count whose limit is the rate but for rounding may be counted as spent.
    assert left == pytest.approx(doubt - size, abs=1e-9) or left < 1e-9


def test_a_look_that_spent_everything_leaves_no_limit() -> None:
    assert unspent_doubt(1, 0.025, 0.025) == 0
    assert anytime_limits(40, 40, 1.0) == (0.0, 1.0)
    assert unspent_doubt(10, 0.0, 0.025) == unspent_doubt(10, 1.0, 0.025) == 0.025


def test_a_mean_over_thresholds_is_evidence_under_monitoring() -> None:
    random, doubt, trials = np.random.default_rng(77), 0.2, 60
    failed = 0
    for _ in range(300):
        ranks = random.integers(1, 21, trials)
        found = [(ranks <= place).cumsum() for place in (1, 5)]
        failed += any(
            mean_log_e_value([int(found[0][n]), int(found[1][n])], n + 1, [0.05, 0.25])
            >= -math.log(doubt)
            for n in range(trials)
        )
    assert failed / 300 <= doubt
    assert mean_log_e_value([3], 5, [0.1]) == pytest.approx(log_e_value(3, 5, 0.1))
