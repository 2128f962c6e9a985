"""Bounds on the error of a reconstruction: no prior, Fisher information, two-layer orders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vestige.bounds import (
    DPSGD,
    Gaussian,
    Neighbouring,
    NonPrivate,
    NoPriorReconstruction,
    RenyiDP,
    RenyiErrorBound,
    ZeroConcentratedDP,
    batch_jacobian,
    clipped_jacobian,
    cramer_rao,
    cramer_rao_from_norm,
    pruned_jacobian,
    van_trees,
    with_known_dropout,
)
from vestige.errors import BadInput
from vestige.experimental.monte_carlo import monte_carlo_estimate
from vestige.experimental.two_layer import TwoLayerNetwork

REPLACE = Neighbouring.REPLACE_ONE


def test_published_values_without_a_prior():
    image, noise = NoPriorReconstruction(3072, norm=20.0), Gaussian(0.01)
    assert image.noise_variance(noise) == pytest.approx(0.04)
    assert image.psnr(noise) == pytest.approx(13.980814, abs=6e-7)
    assert image.success(noise, 0.95 * 0.04) == pytest.approx(0.023589, abs=6e-7)
    digit, noise = NoPriorReconstruction(784, norm=9.0), Gaussian(0.05)
    assert digit.noise_variance(noise) == pytest.approx(0.2025)
    assert digit.psnr(noise) == pytest.approx(6.941292, abs=6e-7)
    other = NoPriorReconstruction(784, norm=10.0, standard_deviation=0.3)
    assert other.shrinkage == pytest.approx(0.1)
    assert other.correlation(Gaussian(0.02)) == pytest.approx(0.832302, abs=6e-7)
    assert other.correlation_success(Gaussian(0.02), 0.8) == pytest.approx(0.999692, abs=6e-7)


def test_errors_without_a_prior_are_those_of_simulated_releases():
    # 4,000 releases: standard errors are below a quarter of the tolerances.
    generator = np.random.default_rng(0)
    record = generator.random(60)
    norm, noise = float(np.linalg.norm(record)), 0.3
    bound = NoPriorReconstruction(
        60, norm=norm, clipping_norm=2.0, standard_deviation=float(record.std())
    )
    release = bound.shrinkage * record + 2.0 * noise * generator.standard_normal((4000, 60))
    plain = ((release - record) ** 2).mean(1)
    assert bound.mean_squared_error(Gaussian(noise)) == pytest.approx(plain.mean(), rel=0.02)
    error = ((release / bound.shrinkage - record) ** 2).mean(1)
    assert bound.noise_variance(Gaussian(noise)) == pytest.approx(error.mean(), rel=0.02)
    assert bound.psnr(Gaussian(noise)) == pytest.approx((-10 * np.log10(error)).mean(), abs=0.05)
    threshold = float(np.quantile(error, 0.3))
    assert bound.success(Gaussian(noise), threshold) == pytest.approx(0.3, abs=0.03)
    correlations = np.array([np.corrcoef(row, record)[0, 1] for row in release])
    assert bound.correlation(Gaussian(noise)) == pytest.approx(correlations.mean(), abs=0.01)
    assert bound.correlation_success(Gaussian(noise), 0.2) == pytest.approx(
        (correlations >= 0.2).mean(), abs=0.035
    )


def test_averaging_steps_divides_the_noise():
    bound = NoPriorReconstruction(100, norm=3.0)
    assert bound.noise_variance(Gaussian(1.0, 25)) == pytest.approx(
        bound.noise_variance(Gaussian(0.2))
    )


def test_a_biased_attacker_goes_below_and_the_bound_says_unbiased():
    # James and Stein at the origin, N = 64, record of norm √(64·0.45): error well below v = 1.
    generator = np.random.default_rng(1)
    record = math.sqrt(0.45) * np.ones(64)
    release = record + generator.standard_normal((4000, 64))
    shrunk = (1 - 62 / (release**2).sum(1, keepdims=True)) * release
    error = ((shrunk - record) ** 2).mean()
    bound = NoPriorReconstruction(64, norm=float(np.linalg.norm(record)), clipping_norm=1e-9)
    sigma = 1 / bound.norm  # v = σ²‖x‖² = 1
    assert bound.noise_variance(Gaussian(sigma)) == pytest.approx(1.0)
    assert error < 0.4
    assert any("unbiased" in sentence for sentence in bound.assumptions)


def test_no_prior_refusals():
    bound = NoPriorReconstruction(100, norm=3.0)
    assert not bound.supports(DPSGD(1, 0.1, 5))
    assert bound.supports(DPSGD(1, 1, 5))
    with pytest.raises(BadInput, match="sampled"):
        bound.psnr(DPSGD(1, 0.1, 5))
    with pytest.raises(BadInput, match="add or remove one"):
        bound.psnr(Gaussian(1.0, relation=REPLACE))
    with pytest.raises(BadInput, match="clip"):
        bound.psnr(DPSGD(1, 1, 5, 2.0))
    with pytest.raises(BadInput, match="standard deviation"):
        bound.correlation(Gaussian(1.0))
    with pytest.raises(BadInput, match="three"):
        NoPriorReconstruction(2, norm=1.0)


def test_published_values_of_the_renyi_error_bound():
    unit = RenyiErrorBound((1.0,) * 12)
    assert unit(RenyiDP((2.0,), (1.0,), REPLACE)) == pytest.approx(0.145494, abs=6e-7)
    assert unit(RenyiDP((2.0,), (2.0,), REPLACE)) == pytest.approx(0.0391294, abs=6e-8)
    # Under replacement ε(2) of Gaussian noise is 4T/σ²: T = 1 and σ = 2 is ε = 1.
    assert unit(Gaussian(2.0, 1, REPLACE)) == pytest.approx(0.145494, abs=6e-7)
    assert unit(ZeroConcentratedDP(0.5, REPLACE)) == pytest.approx(0.145494, abs=6e-7)


def test_renyi_error_bound_holds_for_the_mean_of_a_gaussian():
    # One value in [0, 1], noise σC with C = ½: two records are at most 2C = 1 apart. The release
    # itself is an unbiased attack with error (σC)².
    for noise in (0.5, 1.0, 3.0, 10.0):
        assert RenyiErrorBound((1.0,))(Gaussian(noise, 1, REPLACE)) <= (noise * 0.5) ** 2


def test_renyi_error_bound_with_a_bias():
    one = RenyiDP((2.0,), (1.0,), REPLACE)
    shrinking = RenyiErrorBound((1.0, 1.0), sensitivities=(0.5, 0.5), squared_bias=0.2)
    assert shrinking(one) == pytest.approx(0.25 * 0.145494 + 0.1, abs=1e-6)
    assert RenyiErrorBound((1.0,))(RenyiDP((2.0,), (0.0,), REPLACE)) == math.inf
    assert RenyiErrorBound((1.0,))(RenyiDP((2.0,), (5000.0,), REPLACE)) == 0.0


@pytest.mark.parametrize(
    ("mechanism", "word"),
    [
        (Gaussian(1.0), "replace one"),
        (RenyiDP((3.0,), (1.0,), REPLACE), "order 2"),
        (NonPrivate("no noise"), "Rényi"),
        (DPSGD(1.0, 0.1, 5, None, REPLACE), "Rényi"),
    ],
)
def test_renyi_error_bound_refusals(mechanism, word):
    bound = RenyiErrorBound((1.0,))
    assert not bound.supports(mechanism)
    with pytest.raises(BadInput, match=word):
        bound(mechanism)


def test_least_squares_reaches_cramer_rao_and_the_posterior_mean_reaches_van_trees():
    # 20,000 linear releases: standard errors near 1%.
    generator = np.random.default_rng(2)
    jacobian, noise, prior = generator.standard_normal((9, 5)), 0.7, 0.4
    secrets = prior * generator.standard_normal((20_000, 5))
    release = secrets @ jacobian.T + noise * generator.standard_normal((20_000, 9))
    least_squares = release @ np.linalg.pinv(jacobian).T
    error = ((least_squares - secrets) ** 2).sum(1).mean()
    assert error == pytest.approx(cramer_rao(jacobian, noise), rel=0.04)
    precision = jacobian.T @ jacobian / noise**2 + np.eye(5) / prior**2
    mean = release @ jacobian @ np.linalg.inv(precision).T / noise**2
    error = ((mean - secrets) ** 2).sum(1).mean()
    assert error == pytest.approx(van_trees([jacobian], noise, prior), rel=0.04)
    # With a prior the unbiased bound does not hold, which is why it is not the default.
    assert error < 0.8 * cramer_rao(jacobian, noise)
    assert cramer_rao_from_norm(jacobian, noise) <= cramer_rao(jacobian, noise)


def test_error_bounds_at_their_ends():
    jacobian = np.random.default_rng(3).standard_normal((6, 4))
    assert cramer_rao(jacobian, 0.0) == 0
    assert cramer_rao_from_norm(jacobian, 0.0) == 0
    assert van_trees([jacobian], 0.0, 1.0) == 0
    assert cramer_rao(jacobian[:3], 1.0) == math.inf
    assert cramer_rao(np.zeros((6, 4)), 1.0) == math.inf
    assert van_trees([np.zeros((6, 4))], 1.0, 0.5) == pytest.approx(4 * 0.25)
    assert van_trees([jacobian], 1e9, 0.5) == pytest.approx(4 * 0.25)
    with pytest.raises(BadInput, match="matrix"):
        cramer_rao(np.zeros(3), 1.0)
    with pytest.raises(BadInput, match="noise"):
        cramer_rao(jacobian, -1.0)


def test_clipping_matches_finite_differences_and_raises_the_bound():
    generator = np.random.default_rng(4)
    weights, point, limit = generator.standard_normal((8, 3)), generator.standard_normal(3), 0.9

    def gradient(x):
        return np.tanh(weights @ x) + 0.3

    def clipped(x):
        found = gradient(x)
        return found * min(1.0, limit / np.linalg.norm(found))

    def differences(function):
        step = 1e-6 * np.eye(3)
        return np.stack(
            [(function(point + row) - function(point - row)) / 2e-6 for row in step], axis=1
        )

    jacobian = differences(gradient)
    found = clipped_jacobian(jacobian, gradient(point), limit)
    assert np.linalg.norm(gradient(point)) > limit
    assert found == pytest.approx(differences(clipped), abs=1e-7)
    excess = np.linalg.norm(gradient(point)) / limit
    assert cramer_rao(found, 1.0) >= excess**2 * cramer_rao(jacobian, 1.0)
    assert clipped_jacobian(jacobian, gradient(point), 100.0) is not None
    assert np.array_equal(clipped_jacobian(jacobian, gradient(point), 100.0), jacobian)


def test_batches_dropout_and_pruning():
    generator = np.random.default_rng(5)
    jacobians = [generator.standard_normal((40, 3)) for _ in range(4)]
    summed = cramer_rao(batch_jacobian(jacobians, averaged=False), 1.0)
    averaged = cramer_rao(batch_jacobian(jacobians, averaged=True), 1.0)
    assert averaged == pytest.approx(16 * summed)
    alone = sum(cramer_rao(jacobian, 1.0) for jacobian in jacobians)
    assert summed >= alone
    kept = np.arange(40) < 10
    assert cramer_rao(pruned_jacobian(jacobians[0], kept), 1.0) == pytest.approx(
        cramer_rao(jacobians[0][:10], 1.0)
    )
    # Jensen: the mean bound over known masks is at least the bound over 1 − p.
    masks = generator.random((400, 40)) >= 0.5
    mean = np.mean([cramer_rao(pruned_jacobian(jacobians[0], mask), 1.0) for mask in masks])
    assert mean >= with_known_dropout(cramer_rao(jacobians[0], 1.0), 0.5)


def test_two_layer_orders():
    network = TwoLayerNetwork(inputs=400, hidden=100, batch=3, measurement_noise=0.5)
    plain = network.undefended()
    assert (plain.upper, plain.lower, plain.upper_holds) == (6.0, 1.0, True)
    assert network.local_aggregation() == plain
    assert network.noise(2.0).upper == pytest.approx((3 + 2) * 2)
    assert network.noise(2.0).lower == plain.lower
    clipped = network.clipping(gradient_norm=4.0, clipping_norm=1.0)
    assert (clipped.upper, clipped.lower) == (plain.upper, 4 * plain.lower)
    assert network.clipping(0.5, 1.0) == plain
    private = network.dp_sgd(2.0, gradient_norm=4.0, clipping_norm=1.0)
    assert (private.upper, private.lower) == ((3 + 8) * 2, 4 * plain.lower)
    dropped = network.dropout(0.75)
    assert (dropped.upper, dropped.lower) == (2 * plain.upper, 2 * plain.lower)
    pruned = network.pruning(0.75)
    assert (pruned.upper, pruned.lower) == (None, 2 * plain.lower)
    assert not TwoLayerNetwork(400, 100, batch=5).undefended().upper_holds
    with pytest.raises(BadInput, match="dropout"):
        network.dropout(1.0)


def test_numbers_that_are_none_are_refused():
    record = NoPriorReconstruction(10, 1.0)
    with pytest.raises(BadInput, match="at least 0"):
        record.success(Gaussian(1.0), math.nan)
    with pytest.raises(BadInput, match="finite"):
        NoPriorReconstruction(10, 1.0, standard_deviation=math.nan)
    with pytest.raises(BadInput, match="finite"):
        clipped_jacobian(np.eye(2), np.array([math.nan, 1.0]), 1.0)
    generator = np.random.default_rng(0)
    for kappa, samples in ((math.nan, 10), (2.0, 10), (0.1, 0)):
        with pytest.raises(BadInput):
            monte_carlo_estimate(DPSGD(1.0, 0.5, 2), kappa, samples=samples, generator=generator)
