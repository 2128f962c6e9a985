"""Bounds on the success of reconstruction: published values, refusals, order, simulated attacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from profiles import examples, slow_unless_quick
from vestige.bounds import (
    BOUNDS,
    DPSGD,
    ApproximateDP,
    ApproximateDPBound,
    FDPBound,
    FiniteCandidatesBound,
    Gaussian,
    GaussianBound,
    Laplace,
    LaplaceBound,
    LocalAggregation,
    Neighbouring,
    NonPrivate,
    PoissonGaussianBound,
    PrivacyLossBound,
    PrivacyProfile,
    PrivacyProfileBound,
    PureDP,
    PureDPBound,
    RenyiDP,
    RenyiDPBound,
    TradeOff,
    ZeroConcentratedDP,
    ZeroConcentratedDPBound,
    epsilon_by_privacy_loss,
    epsilon_by_renyi,
    tightest,
    to_renyi_dp,
)
from vestige.errors import BadInput
from vestige.experimental.monte_carlo import monte_carlo_estimate

REPLACE = Neighbouring.REPLACE_ONE
KAPPAS = np.array([1e-12, 1e-6, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0])


@pytest.mark.parametrize(
    ("bound", "mechanism", "kappa", "gamma"),
    [
        (PureDPBound(), PureDP(1), 0.01, 0.027183),
        (PureDPBound(), PureDP(3), 0.01, 0.200855),
        (PureDPBound(), PureDP(5), 0.01, 0.993329),
        (FiniteCandidatesBound(100), PureDP(3, REPLACE), 0.01, 0.168665),
        (FiniteCandidatesBound(10), PureDP(2, REPLACE), 0.1, 0.450853),
        (RenyiDPBound(), RenyiDP((2,), (1,)), 0.01, 0.164872),
        (RenyiDPBound(), RenyiDP((10,), (1,)), 0.01, 0.038982),
        (RenyiDPBound(), RenyiDP((2,), (0.5,)), 0.1, 0.406044),
        (ZeroConcentratedDPBound(), ZeroConcentratedDP(0.125), 0.01, 0.040246),
        (ZeroConcentratedDPBound(), ZeroConcentratedDP(0.5), 0.01, 0.126146),
        (ZeroConcentratedDPBound(), ZeroConcentratedDP(2), 0.01, 0.585399),
        (ZeroConcentratedDPBound(), ZeroConcentratedDP(0.5), 0.1, 0.518602),
        (ZeroConcentratedDPBound(), ZeroConcentratedDP(3), 0.1, 1.0),
        (ApproximateDPBound(), ApproximateDP(1, 1e-5), 0.01, 0.027193),
        (ApproximateDPBound(), ApproximateDP(3, 1e-5), 0.1, 0.955192),
        (LaplaceBound(), Laplace(3), 0.1, 0.875532),
        (LaplaceBound(), Laplace(1), 0.25, 0.632121),
        (GaussianBound(), Gaussian(1), 0.01, 0.092362),
        (GaussianBound(), Gaussian(4, 16), 0.1, 0.389144),
        (PoissonGaussianBound(), DPSGD(1, 0.1, 1), 0.01, 0.018236),
    ],
)
def test_published_values(bound, mechanism, kappa, gamma):
    assert bound(mechanism, kappa) == pytest.approx(gamma, abs=6e-7)


def test_all_orders_of_renyi_are_used():
    several = RenyiDP((2.0, 10.0), (1.0, 1.0))
    assert RenyiDPBound()(several, 0.01) == pytest.approx(0.038982, abs=6e-7)


def test_gaussian_noise_under_replacement_has_twice_the_sensitivity():
    assert GaussianBound()(Gaussian(2.0, relation=REPLACE), 0.01) == pytest.approx(0.092362, 1e-5)


@pytest.mark.parametrize(
    ("bound", "mechanism"),
    [
        (FiniteCandidatesBound(10), PureDP(1)),
        (PoissonGaussianBound(), DPSGD(1, 0.1, 1, None, REPLACE)),
    ],
)
def test_the_wrong_neighbouring_relation_is_refused(bound, mechanism):
    assert not bound.supports(mechanism)
    with pytest.raises(BadInput, match=r"under .* relation"):
        bound(mechanism, 0.1)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
@pytest.mark.parametrize("mechanism", [NonPrivate("no noise"), LocalAggregation(2)])
def test_heuristics_have_no_bound(bound, mechanism):
    assert not bound.supports(mechanism)
    with pytest.raises(BadInput, match="does not cover"):
        bound(mechanism, 0.1)


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
def test_every_bound_says_what_it_assumes(bound):
    assert bound.assumptions
    assert all(sentence.endswith(".") for sentence in bound.assumptions)
    assert bound.cites
    assert bound.relations
    assert type(bound).__doc__


@pytest.mark.parametrize("kappa", [-0.1, 1.1, float("nan")])
def test_a_prior_success_is_a_probability(kappa):
    with pytest.raises(BadInput, match="probability"):
        PureDPBound()(PureDP(1), kappa)


def test_fewer_than_uniform_prior_success_is_refused_for_finite_candidates():
    with pytest.raises(BadInput, match="candidates"):
        FiniteCandidatesBound(10)(PureDP(1, REPLACE), 0.01)


def test_nothing_is_promised_without_a_mechanism():
    allowed = tightest(NonPrivate("no noise"), [0.01, 0.1])
    assert allowed.success == (1.0, 1.0)
    assert allowed.names == ("nothing", "nothing")
    assert allowed.curves == ()


def test_tightest_names_the_smallest():
    allowed = tightest(Gaussian(1.0), 0.01)
    assert allowed.names == ("Gaussian noise",)
    assert allowed.success[0] == min(curve.success[0] for curve in allowed.curves)
    assert {curve.bound.name for curve in allowed.curves} == {
        *("Gaussian noise", "privacy loss distribution", "Rényi DP", "ρ-zCDP")
    }


EXAMPLES = (
    PureDP(0.7),
    ApproximateDP(1.5, 1e-4),
    PrivacyProfile((-0.5, 0.5, 2.0), (0.6, 0.3, 0.01)),
    TradeOff((0.0, 0.05, 0.3, 1.0), (1.0, 0.8, 0.4, 0.0)),
    RenyiDP((2.0, 8.0), (0.5, 3.0)),
    ZeroConcentratedDP(0.3),
    Gaussian(0.9, 2),
    Laplace(0.5, 3),
    Laplace(2.0),
    DPSGD(0.8, 0.1, 1),
    DPSGD(0.8, 0.1, 30),
    DPSGD(0.8, 0.1, 30, None, REPLACE),
)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=repr)
def test_curves_rise_from_the_prior_to_certainty(mechanism):
    curves = tightest(mechanism, KAPPAS).curves
    assert curves
    for curve in curves:
        success = np.array(curve.success)
        assert np.all(np.diff(success) >= 0)
        assert np.all(success >= KAPPAS)
        assert np.all(success <= 1)
        single = [curve.bound(mechanism, kappa) for kappa in KAPPAS]
        assert single == pytest.approx(success, rel=1e-3)


@pytest.mark.parametrize("bound", [b for b in BOUNDS if b.supports(Gaussian(2.0, 100_000))])
def test_logarithms_hold_where_no_float_does(bound):
    # κ of an image under a Gaussian prior, d = 3072; and 100,000 steps.
    logs = bound.log_curve(Gaussian(2000.0, 100_000), [-977.3, -27.6, -1.0])
    assert np.all(np.isfinite(logs))
    assert np.all(np.diff(logs) > 0)
    assert np.all(bound.log_curve(Gaussian(0.01, 100_000), [-977.3, -1.0]) <= 0)


def test_small_priors_keep_their_digits():
    kappa = 1e-12
    assert PureDPBound()(PureDP(1e-3), kappa) == pytest.approx(kappa * math.exp(1e-3), rel=1e-12)
    exact = norm.sf(norm.isf(kappa) - 1)
    assert GaussianBound()(Gaussian(1.0), kappa) == pytest.approx(exact, rel=1e-9)


def test_profile_of_gaussian_noise_reaches_its_trade_off_function():
    # κe^ε + δ(ε), minimised over ε by a general optimiser on Balle and Wang's δ(ε).
    mu, kappa = 0.8, 0.3

    def delta(epsilon):
        first, second = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        return first - np.exp(epsilon) * second

    best = minimize_scalar(lambda e: kappa * math.exp(e) + delta(e), bounds=(-5, 5)).fun
    epsilons = np.linspace(-3, 3, 2001)
    profile = PrivacyProfile(tuple(epsilons), tuple(np.clip(delta(epsilons), 0, 1)))
    found = PrivacyProfileBound()(profile, kappa)
    assert found == pytest.approx(best, abs=1e-6)
    assert found == pytest.approx(GaussianBound()(Gaussian(1 / mu), kappa), abs=1e-6)


def test_points_of_a_trade_off_function_never_promise_more_than_the_function():
    levels = np.array([0.0, 0.01, 0.05, 0.1, 0.3, 0.6, 1.0])
    errors = norm.cdf(norm.isf(levels) - 1.2)
    points = TradeOff(tuple(levels), tuple(errors))
    wanted = np.linspace(0, 1, 301)
    exact = 1 - norm.cdf(norm.isf(wanted) - 1.2)
    found = FDPBound().curve(points, wanted)
    assert np.all(found >= exact - 1e-12)
    assert found.max() <= 1
    assert FDPBound().curve(points, levels) == pytest.approx(1 - errors, abs=1e-12)
    # A chord would promise too much.
    assert np.any(np.interp(wanted, levels, 1 - errors) < exact - 1e-3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_laplace_bound_is_the_best_test_between_two_laplace_distributions(epsilon):
    # Likelihood ratio tests are thresholds on x: P(x > t) under centres 0 and ε.
    thresholds = np.linspace(-12, 12, 4001)

    def above(centre):
        low = thresholds < centre
        distance = np.exp(-np.abs(thresholds - centre)) / 2
        return np.where(low, 1 - distance, distance)

    found = LaplaceBound().curve(Laplace(epsilon), above(0.0))
    # At the plateau of the ratio any test is as good: the threshold need not be.
    assert np.all(found >= above(epsilon) - 1e-12)
    inside = (thresholds > 0) & (thresholds < epsilon)
    assert found[inside] == pytest.approx(above(epsilon)[inside], abs=1e-12)


@slow_unless_quick
@given(
    noise=st.floats(0.5, 8),
    steps=st.integers(1, 50),
    rate=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    log_kappa=st.floats(-20, -0.1),
)
@settings(max_examples=examples(40), deadline=None)
def test_bounds_are_ordered(noise, steps, rate, log_kappa):
    mechanism, kappa = DPSGD(noise, rate, steps), math.exp(log_kappa)
    by_loss = PrivacyLossBound()(mechanism, kappa)
    by_renyi = RenyiDPBound()(mechanism, kappa)
    slack = 1 + 1e-3  # of discretisation, which makes the sharper one larger
    assert by_loss <= slack * by_renyi + 2e-5
    for delta in (1e-6, 1e-3):
        with_loss = ApproximateDP(epsilon_by_privacy_loss(mechanism, delta), delta)
        assert by_loss <= slack * ApproximateDPBound()(with_loss, kappa) + 2e-5
        guarantee = to_renyi_dp(mechanism)
        # The conversion that loses most: ε(α) + ln(1/δ)/(α − 1) (Mironov 2017).
        converted = min(
            epsilon + math.log(1 / delta) / (order - 1)
            for order, epsilon in zip(guarantee.orders, guarantee.epsilons)
        )
        assert epsilon_by_renyi(mechanism, delta) <= converted
        assert by_renyi <= kappa * math.exp(min(converted, 300)) + delta + 1e-12


@given(
    noise=st.floats(0.6, 5),
    rate=st.floats(0.005, 1),
    steps=st.integers(1, 60),
    kappa=st.floats(1e-9, 0.9),
)
@settings(max_examples=40, deadline=None)
def test_risk_falls_with_noise_and_rises_with_steps_and_sampling(noise, rate, steps, kappa):
    bound, slack = PrivacyLossBound(), 2e-5
    gamma = bound(DPSGD(noise, rate, steps), kappa)
    assert gamma >= bound(DPSGD(1.3 * noise, rate, steps), kappa) - slack
    assert gamma <= bound(DPSGD(noise, rate, steps + 5), kappa) + slack
    assert gamma >= bound(DPSGD(noise, rate / 2, steps), kappa) - slack
    replaced = bound(DPSGD(noise, rate, steps, None, REPLACE), kappa)
    assert gamma <= replaced + slack


def test_no_attack_on_gaussian_noise_exceeds_the_bound():
    # Ten orthogonal candidates of norm 1: the nearest is the best answer. 40,000 attacks have a
    # standard error below 0.0025, so 4 of them is wrong once in 30,000 runs.
    generator, count, trials = np.random.default_rng(0), 10, 40_000
    for noise in (0.5, 1.0, 2.0):
        secret = generator.integers(count, size=trials)
        release = noise * generator.standard_normal((trials, count))
        release[np.arange(trials), secret] += 1
        rate = (release.argmax(1) == secret).mean()
        assert rate <= GaussianBound()(Gaussian(noise), 1 / count) + 0.01
        assert rate > 1 / count


def test_the_likelihood_ratio_attack_on_dp_sgd_is_near_the_bound_and_below():
    # 20,000 attacks: standard error 0.0028; 4 of them is wrong once in 15,000 runs.
    generator = np.random.default_rng(1)
    count, rate, noise, steps, trials = 10, 0.1, 1.0, 10, 20_000
    secret = generator.integers(count, size=trials)
    score = np.zeros((trials, count))
    for _ in range(steps):
        release = noise * generator.standard_normal((trials, count))
        release[np.arange(trials), secret] += generator.random(trials) < rate
        score += np.log(1 - rate + rate * np.exp((release - 0.5) / noise**2))
    success = (score.argmax(1) == secret).mean()
    assert success == pytest.approx(0.179, abs=0.011)
    assert success <= PrivacyLossBound()(DPSGD(noise, rate, steps), 1 / count)


def test_randomised_response_reaches_the_bound_for_finite_candidates():
    # The true candidate with probability e^ε/(n − 1 + e^ε), any other with 1/(n − 1 + e^ε).
    count, epsilon = 7, 1.3
    truthful = math.exp(epsilon) / (count - 1 + math.exp(epsilon))
    bound = FiniteCandidatesBound(count)(PureDP(epsilon, REPLACE), 1 / count)
    assert bound == pytest.approx(truthful, rel=1e-12)


def test_the_monte_carlo_estimate_lies_near():
    for mechanism, kappa in ((DPSGD(1, 0.1, 10), 0.1), (DPSGD(0.5, 0.02, 200), 0.1)):
        exact = PrivacyLossBound(1e-6)(mechanism, kappa)
        estimate = monte_carlo_estimate(
            mechanism, kappa, samples=20_000, generator=np.random.default_rng(3)
        )
        assert estimate == pytest.approx(exact, abs=0.02)


def test_monte_carlo_estimate_refuses_replacement():
    with pytest.raises(BadInput, match="add or remove one"):
        monte_carlo_estimate(
            DPSGD(1, 0.1, 2, None, REPLACE), 0.1, samples=9, generator=np.random.default_rng(0)
        )


def test_the_central_limit_theorem_is_no_bound():
    # μ = q√(T(e^(1/σ²) − 1)) of Bu et al. 2020 lies below what an attack reaches; none of the
    # bounds offers it.
    noise, rate, steps, kappa = 0.6, 0.01, 100, 0.01
    mu = rate * math.sqrt(steps * math.expm1(noise**-2))
    central = norm.cdf(norm.ppf(kappa) + mu)
    assert central == pytest.approx(0.026313, abs=2e-6)
    mechanism = DPSGD(noise, rate, steps)
    assert PrivacyLossBound()(mechanism, kappa) == pytest.approx(0.033794, abs=1e-4)
    assert tightest(mechanism, kappa).success[0] > central + 0.007
    assert not GaussianBound().supports(mechanism)
    assert not ZeroConcentratedDPBound().supports(mechanism)
