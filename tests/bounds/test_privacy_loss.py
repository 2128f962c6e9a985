"""The privacy loss distribution: anchors, closed forms, dp-accounting, far tails, rounding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as published
from scipy.stats import norm

from vestige.bounds import (
    DPSGD,
    Composition,
    Gaussian,
    GaussianBound,
    Laplace,
    LaplaceBound,
    Neighbouring,
    PoissonGaussianBound,
    PrivacyLossBound,
)
from vestige.bounds.success.dominating_pairs import SampledGaussianPair
from vestige.bounds.success.privacy_loss_distribution import privacy_loss_distribution
from vestige.errors import BadInput

REPLACE = Neighbouring.REPLACE_ONE
KAPPAS = np.array([1e-12, 1e-9, 1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9])


@pytest.mark.parametrize(
    ("kappa", "rate", "noise", "steps", "gamma"),
    [
        (0.01, 1, 1, 1, 0.092362),
        (0.1, 1, 4, 16, 0.389144),
        (0.01, 0.1, 1, 1, 0.018236),
        (0.1, 0.1, 1, 10, 0.195298),
        (0.01, 0.1, 1, 10, 0.033988),
        (1 / 256, 0.5, 2, 20, 0.069284),
        (0.1, 0.02, 0.5, 200, 0.494318),
        (0.5, 0.1, 1, 10, 0.634167),
        (0.001, 0.01, 1, 1000, 0.004068),
        (0.01, 0.01, 1, 1000, 0.02910),
        (0.1, 0.01, 1, 1000, 0.19418),
    ],
)
def test_published_values(kappa, rate, noise, steps, gamma):
    assert PrivacyLossBound()(DPSGD(noise, rate, steps), kappa) == pytest.approx(gamma, abs=1e-4)


@pytest.mark.parametrize(
    ("mechanism", "closed"),
    [
        (Gaussian(1.0, 4), GaussianBound()),
        (Gaussian(20.0, 400), GaussianBound()),
        (Gaussian(3.0, relation=REPLACE), GaussianBound()),
        (DPSGD(0.5, 0.02, 1), PoissonGaussianBound()),
        (DPSGD(2.0, 0.5, 1), PoissonGaussianBound()),
        (Laplace(0.2), LaplaceBound()),
        (Laplace(3.0), LaplaceBound()),
    ],
    ids=repr,
)
def test_closed_forms_are_reached_from_above_down_to_the_far_tail(mechanism, closed):
    exact, found = closed.curve(mechanism, KAPPAS), PrivacyLossBound().curve(mechanism, KAPPAS)
    assert np.all(found >= exact * (1 - 1e-12))
    assert found == pytest.approx(exact, rel=1e-3)
    assert found[4:] == pytest.approx(exact[4:], abs=2e-5)


@pytest.mark.parametrize("tilt", [0.0, 0.5, 3.0, 50.0, 2000.0, 20_000.0])
@pytest.mark.parametrize(
    ("mechanism", "closed"),
    [
        (Laplace(2.0), LaplaceBound()),
        (Gaussian(1.0), GaussianBound()),
        (DPSGD(0.5, 0.02, 1), PoissonGaussianBound()),
    ],
    ids=["Laplace", "Gaussian", "sampled"],
)
def test_every_tilt_gives_a_bound(tilt, mechanism, closed):
    logs = np.linspace(-60, -0.01, 200)
    curve = privacy_loss_distribution([mechanism]).power_curve(tilt)
    assert np.all(curve.log_success(logs) >= closed.log_curve(mechanism, logs) - 1e-9)


def test_many_small_gaussian_steps_compose_to_one():
    # Sampled at a rate just below one the steps are composed one by one, here 300 of them.
    stepwise = PrivacyLossBound().curve(DPSGD(20.0, 1 - 1e-12, 300), KAPPAS)
    exact = GaussianBound().curve(Gaussian(20.0, 300), KAPPAS)
    assert np.all(stepwise >= exact * (1 - 1e-7))
    assert stepwise == pytest.approx(exact, rel=1e-3)


def published_curve(noise: float, rate: float, steps: int, interval: float) -> np.ndarray:
    """The remove direction of dp-accounting, read off as a trade-off function."""
    whole = published.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=interval
    )
    pmf = whole._pmf_remove.to_dense_pmf().self_compose(steps)
    losses = (np.arange(pmf.size) + pmf._lower_loss)[::-1] * interval
    masses = pmf._probs[::-1]
    powers = pmf._infinity_mass + np.append(0, np.cumsum(masses))
    levels = np.append(0, np.cumsum(masses * np.exp(-losses)))
    return np.interp(KAPPAS[3:], levels, powers, right=1.0)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(1.0, 0.01, 1000), (0.6, 0.01, 100), (2.0, 0.2, 50)]
)
def test_agrees_with_dp_accounting_in_the_same_direction(noise, rate, steps):
    found = PrivacyLossBound(1e-6).curve(DPSGD(noise, rate, steps), KAPPAS[3:])
    assert found == pytest.approx(published_curve(noise, rate, steps, 1e-4), abs=3e-6)


def test_finer_grids_give_smaller_bounds_that_converge():
    mechanism = DPSGD(0.8, 0.05, 100)
    curves = [PrivacyLossBound(accuracy).curve(mechanism, KAPPAS) for accuracy in (1e-4, 1e-5)]
    finest = PrivacyLossBound(1e-8).curve(mechanism, KAPPAS)
    for curve, allowed in zip(curves, (1e-4, 1e-5)):
        assert np.all(curve >= finest * (1 - 1e-8))
        assert np.all(curve - finest <= 2 * allowed)


def test_far_tails_agree_with_quadrature_over_two_steps():
    # κ = 1e-12 by direct integration: P(l(x) + l(y) > t) over a fine grid of x, exact in y.
    pair = SampledGaussianPair(1.0, 0.1, Neighbouring.ADD_OR_REMOVE_ONE)
    points = np.linspace(-12, 14, 40_001)
    width, losses = points[1] - points[0], pair.loss(points)
    null = norm.pdf(points)
    true = 0.9 * norm.pdf(points) + 0.1 * norm.pdf(points, 1)

    def tail(threshold, with_record):
        rest = pair.outcome(threshold - losses)
        if not with_record:
            return width * float(null @ norm.sf(rest))
        return width * float(true @ (0.9 * norm.sf(rest) + 0.1 * norm.sf(rest, 1)))

    for threshold in (2.0, 5.0, 8.0):
        kappa, gamma = tail(threshold, False), tail(threshold, True)
        found = PrivacyLossBound()(DPSGD(1.0, 0.1, 2), kappa)
        assert kappa < 0.01
        assert gamma <= found * (1 + 1e-6)
        assert found == pytest.approx(gamma, rel=1e-3)


def test_a_hundred_thousand_steps():
    curve = PrivacyLossBound().curve(DPSGD(2.0, 0.001, 100_000), KAPPAS)
    assert np.all(np.isfinite(curve))
    assert np.all(np.diff(curve) > 0)
    # Many steps of small rate are nearly Gaussian with this μ; the bound lies above at the tail.
    mu = 0.001 * math.sqrt(100_000 * math.expm1(0.25))
    assert curve[4:] == pytest.approx(norm.cdf(norm.ppf(KAPPAS[4:]) + mu), abs=2e-3)
    assert curve[0] > norm.cdf(norm.ppf(1e-12) + mu)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(0.01, 0.1, 3), (0.05, 1.0, 1000), (0.02, 0.5, 40), (0.3, 1e-4, 5)]
)
def test_little_noise_leaves_what_sampling_hides(noise, rate, steps):
    # Without noise the record shows in the steps that sample it; otherwise the attacker guesses.
    # Rates are those of silent sampling at most, and near it where noise hides nothing.
    unseen = (1 - rate) ** steps
    kappas = np.array([1e-6, 0.01, 0.3])
    found = PrivacyLossBound().curve(DPSGD(noise, rate, steps), kappas)
    silent = 1 - unseen * (1 - kappas)
    assert np.all(found <= silent + 1e-4)
    if noise < 0.1:
        assert np.all(found >= silent - 1e-9)


def test_order_of_composition_does_not_matter_and_parts_add_up():
    whole = DPSGD(1.0, 0.05, 100)
    parts = Composition((DPSGD(1.0, 0.05, 60), DPSGD(1.0, 0.05, 40)))
    assert PrivacyLossBound().curve(parts, KAPPAS) == pytest.approx(
        PrivacyLossBound().curve(whole, KAPPAS), rel=1e-6
    )
    mixed = Composition((DPSGD(1.0, 0.05, 60), Laplace(0.1, 3), Gaussian(5.0)))
    swapped = Composition(mixed.parts[::-1])
    assert PrivacyLossBound().curve(mixed, KAPPAS) == pytest.approx(
        PrivacyLossBound().curve(swapped, KAPPAS), rel=1e-9
    )
    alone = PrivacyLossBound().curve(DPSGD(1.0, 0.05, 60), KAPPAS)
    assert np.all(PrivacyLossBound().curve(mixed, KAPPAS) > alone)


def test_infinite_losses_count_for_the_attacker():
    # A Laplace release that is nearly exact, beside noise: γ is nearly 1 at once.
    assert PrivacyLossBound()(Composition((Laplace(60.0), Gaussian(3.0))), 1e-6) > 1 - 1e-12


@pytest.mark.parametrize("direction", [False, True])
def test_delta_and_epsilon_invert_each_other(direction):
    loss = privacy_loss_distribution([DPSGD(1.0, 0.05, 50)], record_added=direction)
    for delta in (0.1, 1e-3, 1e-6, 1e-9):
        assert loss.delta([loss.epsilon(delta)])[0] == pytest.approx(delta, rel=1e-5)
    assert loss.epsilon(0.999) == 0
    assert np.all(np.diff(loss.delta(np.linspace(-1, 5, 40))) <= 0)
    assert loss.epsilon(1e-30) == math.inf
    with pytest.raises(BadInput, match="δ"):
        loss.epsilon(0.0)


def test_inverse_of_the_loss():
    for rate in (0.01, 0.5, 1.0):
        for relation in Neighbouring:
            pair = SampledGaussianPair(0.7, rate, relation)
            points = np.linspace(-2, 4, 61)
            losses = pair.loss(points)
            # Losses near ln(1 − q) hardly change with x, so the inverse is checked through them.
            assert pair.loss(pair.outcome(losses)) == pytest.approx(losses, abs=1e-12)


@pytest.mark.parametrize("accuracy", [0.0, -1.0, float("nan")])
def test_accuracy_is_checked(accuracy):
    with pytest.raises(BadInput):
        PrivacyLossBound(accuracy)


GRID = 2e-3
"""Relative error of sums over the grid below, seen against grids of 961 and 2,401 points."""


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 0.6), (0.5, 1.0), (0.02, 0.4)])
def test_no_pair_of_gradients_in_the_plane_exceeds_opposite_ones(rate, noise):
    """The conjecture behind 'replace one' with sampling, by hockey-stick divergences on a grid.

    Gradients g and g' of norm at most one; what the others of the batch add is common to both.
    """
    axis = np.linspace(-1 - 7 * noise, 1 + 7 * noise, 321)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    cell = (axis[1] - axis[0]) ** 2

    def release(gradient):
        def normal(mean):
            squares = (x - mean[0]) ** 2 + (y - mean[1]) ** 2
            return np.exp(-squares / (2 * noise**2)) / (2 * np.pi * noise**2)

        return (1 - rate) * normal((0.0, 0.0)) + rate * normal(gradient)

    def divergences(upper, lower):
        return np.array([np.maximum(upper - a * lower, 0).sum() * cell for a in orders])

    orders = np.exp([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0, 4.0])
    with_record = release((1.0, 0.0))
    worst = divergences(with_record, release((-1.0, 0.0)))
    assert worst[-1] > 1e-12  # there is something to exceed at every order
    for angle in np.linspace(0, np.pi, 9):
        for length in (0.0, 0.5, 1.0):
            other = release((length * np.cos(angle), length * np.sin(angle)))
            assert np.all(divergences(with_record, other) <= worst * (1 + GRID))
            assert np.all(divergences(other, with_record) <= worst * (1 + GRID))
