"""Bounds on the error under defences, against closed forms and worlds where they are attained."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from vestige.bounds import (
    CorrelatedGaussianDensity,
    CosineDensity,
    GaussianDensity,
    ReleaseDefense,
    ReleaseSlopes,
    bound_errors,
    defended_jacobian,
    prior_deviation,
)
from vestige.errors import BadInput


def world(seed: int = 0, *, records: int = 1, released: int = 20, values: int = 4, **changes):
    """Slopes of a random release at one batch."""
    generator = np.random.default_rng(seed)
    gradients = generator.standard_normal((records, released))
    jacobians = generator.standard_normal((records, released, values))
    return ReleaseSlopes(gradients, jacobians, records, **changes)


def test_cramer_rao_is_its_closed_form_in_the_mean_over_batches():
    batches = [world(seed) for seed in range(3)]
    found = bound_errors(batches, ReleaseDefense(noise=0.3), GaussianDensity(1.0)).cramer_rao
    expected = [0.09 * np.trace(np.linalg.inv(w.jacobians[0].T @ w.jacobians[0])) for w in batches]
    assert found.total == pytest.approx(np.mean(expected))
    assert found.per_value == pytest.approx(np.mean(expected) / 4)


def test_averaging_a_batch_costs_its_square():
    noisy, prior = ReleaseDefense(noise=0.3), GaussianDensity(1e6)
    summed = bound_errors([world(records=3)], noisy, prior)
    averaged = bound_errors([world(records=3, averaged=True)], noisy, prior)
    assert averaged.cramer_rao.total == pytest.approx(9 * summed.cramer_rao.total)
    # So weak a prior leaves van Trees at Cramér–Rao, where one Jacobian serves for all.
    assert averaged.van_trees.total == pytest.approx(averaged.cramer_rao.total, rel=1e-6)
    assert averaged.van_trees.per_record == pytest.approx(averaged.van_trees.total / 3)
    assert averaged.van_trees.per_value == pytest.approx(averaged.van_trees.total / 12)


@pytest.mark.parametrize("correlated", [False, True])
def test_the_posterior_mean_of_a_linear_gaussian_world_attains_van_trees(correlated):
    """Release Ax + noise, masked: 20,000 draws; a right bound fails at 4.5 deviations, p < 1e-5.

    Masks differ among draws, and the mean error given a mask exceeds the bound made of their
    expectation; the masked case is therefore one-sided.
    """
    generator = np.random.default_rng(1)
    slopes, noise, count = world(2, released=12), 1.5, 20_000
    matrix = slopes.jacobians[0]
    if correlated:
        root = generator.standard_normal((4, 4))
        prior = CorrelatedGaussianDensity(root @ root.T + 0.1 * np.eye(4))
    else:
        prior = GaussianDensity(0.7)
    for dropout in (0.0, 0.5):
        bounds = bound_errors([slopes], ReleaseDefense(noise=noise, dropout=dropout), prior)
        x = prior.draw(count, 4, generator)
        kept = generator.random((count, 12)) >= dropout
        released = kept * (x @ matrix.T + noise * generator.standard_normal((count, 12)))
        information = np.einsum("pi,np,pj->nij", matrix, kept, matrix) / noise**2
        precision = information + prior.information(4)
        guess = np.linalg.solve(precision, (released @ matrix / noise**2)[..., None])[..., 0]
        errors = ((guess - x) ** 2).sum(1)
        deviations = (errors.mean() - bounds.van_trees.total) / (errors.std() / math.sqrt(count))
        assert deviations > -4.5
        if dropout == 0:
            assert deviations < 4.5
        assert errors.mean() < bounds.cramer_rao.total


def test_a_cosine_prior_bounds_the_exact_posterior_mean():
    """One value, release x + noise: the Bayes error by integration is above, and close."""
    prior, width = CosineDensity(1.0), 1.0
    slopes = ReleaseSlopes(np.zeros((1, 1)), np.ones((1, 1, 1)), 1)
    grid = np.linspace(-0.5, 0.5, 2001)
    weight = 2 / width * np.cos(np.pi * grid / width) ** 2
    for noise in (0.02, 0.1, 0.5):
        outcomes = np.linspace(-0.5 - 6 * noise, 0.5 + 6 * noise, 2001)
        likelihood = stats.norm.pdf(outcomes[:, None], grid[None], noise) * weight
        evidence = integrate.simpson(likelihood, x=grid)
        mean = integrate.simpson(likelihood * grid, x=grid) / evidence
        second = integrate.simpson(likelihood * grid**2, x=grid) / evidence
        bayes = integrate.simpson((second - mean**2) * evidence, x=outcomes)
        found = bound_errors([slopes], ReleaseDefense(noise=noise), prior).van_trees.total
        assert found <= bayes * (1 + 1e-6)
        assert found > 0.7 * bayes


def test_information_of_the_cosine_density_by_integration():
    width = 1.7
    for value, weigh in (
        (
            CosineDensity(width).information(1)[0, 0],
            lambda t: (2 * np.pi / width) ** 2 * 2 / width * np.sin(np.pi * t / width) ** 2,
        ),
        (
            CosineDensity(width).variance(1),
            lambda t: t**2 * 2 / width * np.cos(np.pi * t / width) ** 2,
        ),
    ):
        assert value == pytest.approx(integrate.quad(weigh, -width / 2, width / 2)[0])


def test_draws_follow_their_densities():
    """Kolmogorov–Smirnov at 1e-4 for each of 20,000 values, and their covariance within 4%."""
    generator = np.random.default_rng(3)
    cosine = CosineDensity(2.0).draw(20_000, 1, generator)[:, 0] / 2
    law = stats.kstest(cosine, lambda t: t + 0.5 + np.sin(2 * np.pi * t) / (2 * np.pi))
    assert law.pvalue > 1e-4
    covariance = np.array([[2.0, 0.6], [0.6, 1.0]])
    drawn = CorrelatedGaussianDensity(covariance).draw(20_000, 2, generator)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.08)
    drawn = GaussianDensity(0.3).draw(20_000, 2, generator)
    assert prior_deviation(drawn) == pytest.approx(0.3, rel=0.02)


def test_a_mask_keeps_its_share_of_the_information():
    """E[JᵀMJ] over 20,000 masks: entries within 5 standard errors of the bound's expectation."""
    generator = np.random.default_rng(4)
    slopes, noise, rate = world(5), 0.8, 0.7
    matrix, prior = slopes.jacobians[0], GaussianDensity(0.5)
    masks = generator.random((20_000, 20)) >= rate
    information = np.einsum("pi,np,pj->nij", matrix, masks, matrix)
    mean, spread = information.mean(0), information.std(0) / math.sqrt(len(masks))
    assert (np.abs(mean - (1 - rate) * matrix.T @ matrix) < 5 * spread).all()
    found = bound_errors([slopes], ReleaseDefense(noise=noise, dropout=rate), prior)
    by_masks = np.trace(np.linalg.inv(mean / noise**2 + np.eye(4) / 0.25))
    assert found.van_trees.total == pytest.approx(by_masks, rel=0.01)
    # Cramér–Rao given each mask is above the bound without looking at it (Jensen).
    many = [np.trace(np.linalg.inv(one)) for one in information[:500] if np.linalg.det(one) > 1e-3]
    assert noise**2 * np.mean(many) > found.cramer_rao.total


def test_the_expectation_is_over_batches_and_its_error_shrinks():
    """Standard error against the spread of 200 repeated estimates: within a quarter of it."""
    noisy, prior = ReleaseDefense(noise=2.0), GaussianDensity(1.0)
    found = [
        bound_errors([world(1000 * k + i) for i in range(20)], noisy, prior) for k in range(200)
    ]
    spread = np.std([bounds.van_trees.total for bounds in found])
    stated = np.mean([bounds.van_trees_standard_error for bounds in found])
    assert stated == pytest.approx(spread, rel=0.25)
    assert bound_errors([world()], noisy, prior).van_trees_standard_error == math.inf


@given(
    st.floats(0.01, 10),
    st.floats(1.0, 5),
    st.floats(0, 0.9),
    st.sampled_from([None, 0.5, 3.0]),
    st.sampled_from([None, 0.5, 3.0]),
)
@settings(max_examples=60, deadline=None)
def test_more_noise_and_dropout_never_lower_a_bound(noise, factor, dropout, whole, each):
    batches, prior = [world(seed, records=2) for seed in range(2)], GaussianDensity(0.5)

    def bounds(noise: float, dropout: float):
        defense = ReleaseDefense(noise, dropout, whole, each)
        return bound_errors(batches, defense, prior)

    less, more = bounds(noise, dropout), bounds(noise * factor, dropout)
    dropped = bounds(noise, dropout + 0.09)
    for other in (more, dropped):
        assert other.van_trees.total >= less.van_trees.total * (1 - 1e-12)
        assert other.cramer_rao.total >= less.cramer_rao.total * (1 - 1e-12)
    assert less.van_trees.total <= less.cramer_rao.total
    assert more.van_trees.total <= more.prior_variance.total == pytest.approx(8 * 0.25)


def test_clipping_raises_cramer_rao_by_the_square_of_what_it_cuts():
    slopes, prior = world(6), GaussianDensity(1.0)
    norm = float(np.linalg.norm(slopes.values[0]))
    plain = bound_errors([slopes], ReleaseDefense(noise=0.1), prior)
    clipped = bound_errors([slopes], ReleaseDefense(noise=0.1, clipping_norm=norm / 3), prior)
    assert clipped.cramer_rao.total >= 9 * plain.cramer_rao.total
    loose = bound_errors([slopes], ReleaseDefense(noise=0.1, clipping_norm=2 * norm), prior)
    assert loose.cramer_rao.total == pytest.approx(plain.cramer_rao.total)


def test_pruning_keeps_the_largest_rows_and_has_no_van_trees():
    slopes, prior = world(7), GaussianDensity(1.0)
    found = bound_errors([slopes], ReleaseDefense(noise=0.2, pruned_share=0.6), prior)
    order = sorted(range(20), key=lambda row: -abs(slopes.values[0][row]))[:8]
    rows = slopes.jacobians[0][sorted(order)]
    assert found.cramer_rao.total == pytest.approx(0.04 * np.trace(np.linalg.inv(rows.T @ rows)))
    assert found.van_trees is None
    assert any("depends on the records" in reason for reason in found.reasons)
    few = bound_errors([slopes], ReleaseDefense(noise=0.2, pruned_share=0.9), prior)
    assert few.cramer_rao.total == math.inf


def test_quantisation_and_jumps_say_why_there_is_no_bound():
    prior = GaussianDensity(1.0)
    found = bound_errors([world()], ReleaseDefense(noise=0.2, quantized=True), prior)
    assert found.cramer_rao is None
    assert found.van_trees is None
    assert any("rounded" in reason for reason in found.reasons)
    found = bound_errors([world(jumps=True)], ReleaseDefense(noise=0.2), prior)
    assert found.cramer_rao is not None
    assert found.van_trees is None
    assert any("ReLU" in reason for reason in found.reasons)


def test_without_noise_every_bound_is_zero():
    defense = ReleaseDefense(dropout=0.9, clipping_norm=0.1, record_clipping_norm=0.1)
    found = bound_errors([world(records=2)], defense, GaussianDensity(1.0))
    assert found.cramer_rao.total == found.van_trees.total == 0
    assert any("Without noise" in sentence for sentence in found.assumptions)
    assert found.reasons == ()


def test_assumptions_name_the_prior_and_the_limits():
    found = bound_errors(
        [world(records=2)], ReleaseDefense(noise=1.0, dropout=0.5), GaussianDensity(0.25)
    )
    said = " ".join(found.assumptions)
    for words in ("unbiased", "0.25", "not a guarantee", "mask", "share a label"):
        assert words in said


def test_bad_input_is_one_sentence():
    prior = GaussianDensity(1.0)
    for bad in (
        lambda: ReleaseDefense(noise=-1),
        lambda: ReleaseDefense(noise=math.nan),
        lambda: ReleaseDefense(dropout=1),
        lambda: ReleaseDefense(pruned_share=1),
        lambda: ReleaseDefense(clipping_norm=0),
        lambda: ReleaseDefense(record_clipping_norm=math.inf),
        lambda: GaussianDensity(0),
        lambda: CosineDensity(-1),
        lambda: CorrelatedGaussianDensity(np.ones((2, 3))),
        lambda: CorrelatedGaussianDensity(np.ones((2, 2))),
        lambda: bound_errors(
            [world()], ReleaseDefense(noise=1), CorrelatedGaussianDensity(np.eye(3))
        ),
        lambda: ReleaseSlopes(np.zeros(3), np.zeros((1, 3, 2)), 1),
        lambda: ReleaseSlopes(np.zeros((1, 3)), np.full((1, 3, 2), math.nan), 1),
        lambda: ReleaseSlopes(np.zeros((2, 3)), np.zeros((2, 3, 2)), 3),
        lambda: ReleaseSlopes(np.zeros((1, 3)), np.zeros((1, 3, 5)), 2),
        lambda: bound_errors([], ReleaseDefense(), prior),
        lambda: bound_errors([world(), world(values=3)], ReleaseDefense(), prior),
        lambda: defended_jacobian(
            ReleaseSlopes(np.ones((1, 3)), np.ones((1, 3, 4)), 2),
            ReleaseDefense(record_clipping_norm=1.0),
        ),
        lambda: prior_deviation(np.zeros((1, 3))),
    ):
        with pytest.raises(BadInput) as raised:
            bad()
        assert str(raised.value).count(". ") == 0
        assert str(raised.value).endswith(".")
