"""Prior inversion: its slope against closed forms, its samples, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from priors.gaussian import GaussianPrior as PixelPrior
from vestige import invert
from vestige.archive import reconstruction_of, reconstruction_parts
from vestige.attacks import PriorInversion
from vestige.attacks.gradient_matching.search import EXPLAINED, Found
from vestige.attacks.gradient_matching.smoothness import LAST, variation_slope
from vestige.attacks.prior_inversion import ALIKE, FRESH_NOISE, REFRESH, DenoisingGuide, _alike
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public, Reconstruction
from vestige.priors import GaussianImages
from vestige.records import Column, ImageSpace, Prior, Records, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import SPACE, draws, linear_network

GREY = ImageSpace(1, 8, 8, ("a", "b"))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seen(network: nn.Module, secret: Records, known: Records) -> tuple[Public, Observation]:
    victim = SharedGradient(network)
    release = victim.release(secret, generator=stream())
    public = HonestServer().public(victim, Prior(known))
    return public, Observation(release, Hints(len(secret), secret.y))


def guide_of(prior: PixelPrior, smooth_share: float = 0.0) -> DenoisingGuide:
    return DenoisingGuide(prior, (2.0, 3.0), (0.4, 0.1), smooth_share, stream(1))


def test_residual_is_that_of_the_posterior_mean():
    prior = PixelPrior(mean=-0.3, deviation=0.25)
    x = torch.rand((2, 3, 1, 8, 8), generator=stream(), dtype=torch.float64)
    found = guide_of(prior).denoised(x, 0.2)
    # Noise of deviation σ in [−1, 1] is σ/2 in [0, 1].
    noise = torch.randn((6, 1, 8, 8), generator=stream(1))
    noisy = x.flatten(0, 1) + FRESH_NOISE * 0.1 * noise
    expected = prior.posterior_mean(noisy, torch.full((6,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(found.flatten(0, 1), expected, rtol=1e-5, atol=1e-6)


def test_slopes_are_balanced_at_every_step():
    prior = PixelPrior()
    guide, twin = guide_of(prior), guide_of(prior)
    steps, likely = 9, None
    for step in range(steps):
        x = torch.rand((2, 1, 1, 8, 8), generator=stream(step))
        slope = torch.randn(x.shape, generator=stream(50 + step))
        part = step / (steps - 1)
        if step % REFRESH == 0:
            likely = twin.denoised(x, 0.4 ** (1 - part) * 0.1**part)
        found = guide(slope.clone(), x, step, steps)
        for row in range(2):
            residual = x[row] - likely[row]
            expected = slope[row] / slope[row].abs().mean()
            expected = expected + 2 * LAST**part * residual / residual.abs().mean()
            torch.testing.assert_close(found[row], expected)


def test_total_variation_guides_first():
    guide = guide_of(PixelPrior(), smooth_share=0.5)
    x = torch.rand((1, 1, 1, 8, 8), generator=stream())
    slope = torch.randn(x.shape, generator=stream(1))
    found, other = guide(slope.clone(), x, 0, 10), variation_slope(x)
    expected = slope / slope.abs().mean() + 3 * other / other.abs().mean()
    torch.testing.assert_close(found, expected)
    assert guide.likely is None
    guide(slope, x, 5, 10)
    assert guide.likely is not None


def test_gaussian_images_are_wieners_filter():
    """Against the dense formula m + C(C + σ²)⁻¹(y − m), with the covariance that was fitted."""
    records = draws(60, 3)
    prior = GaussianImages.fitted(records, torch.zeros((), dtype=torch.float64))
    assert prior is not None
    fit = prior.gaussian
    rooted = fit.rooted(torch.eye(16, dtype=torch.float64))
    covariance, mean = rooted.T @ rooted, fit.means[0]
    torch.testing.assert_close(mean, 2 * records.x.flatten(1).double().mean(0) - 1)
    sigma = 0.3
    noisy = torch.randn((5, 16), generator=stream(), dtype=torch.float64)
    gain = covariance @ torch.linalg.inv(covariance + sigma**2 * torch.eye(16).double())
    expected = mean + (noisy - mean) @ gain.T
    time = prior.schedule.time(torch.full((5,), sigma))
    scaled = (noisy / (1 + sigma**2) ** 0.5).reshape(5, 1, 4, 4)
    found = prior.expected(scaled, time).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_samples_start_apart_and_the_best_is_returned():
    public, observation = seen(linear_network(), draws(2, 8), draws(60, 7))
    attack = PriorInversion(iterations=40, samples=4, polish=0.0)
    found = attack.prepare(public, generator=stream())(observation, stream(1))
    assert found.info["restarts"] == 4
    assert found.samples is not None
    assert found.samples.shape[1:] == found.candidates.shape
    for sample in found.samples:
        assert not torch.equal(sample, found.candidates)
    other = attack.prepare(public, generator=stream())(observation, stream(2))
    assert not torch.equal(other.candidates, found.candidates)


def test_samples_that_explain_less_are_left_out():
    x = torch.arange(4.0).reshape(4, 1, 1, 1, 1)
    objective = torch.tensor([0.3, 0.1, 0.1 * ALIKE, float("inf")])
    alike = _alike(Found(x, objective, True, False))
    assert alike is not None
    assert alike.flatten().tolist() == [2.0]
    assert _alike(Found(x[:2], objective[:2], True, False)) is None
    exact = torch.tensor([EXPLAINED / 2, 0.0, 2 * EXPLAINED, 1.0])
    alike = _alike(Found(x, exact, True, False))
    assert alike is not None
    assert alike.flatten().tolist() == [0.0]


class LeftHalf(nn.Module):
    """Sees the left half of its images only."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.layers = nn.Sequential(
                nn.Linear(8, 12), nn.Sigmoid(), nn.Linear(12, len(SPACE.class_names))
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x[..., :2].flatten(1))


def test_samples_disagree_where_the_release_says_nothing():
    secret = draws(1, 8)
    public, observation = seen(LeftHalf(), secret, draws(60, 7))
    attack = PriorInversion(iterations=150, samples=4)
    report = invert(observation, public, [attack], samples=1)
    (candidate,) = report.findings.candidates
    assert candidate.agreement is not None
    found = attack.prepare(public, generator=stream())(observation, stream(1))
    assert found.samples is not None
    spread = torch.cat([found.candidates[None], found.samples]).std(0, correction=0)[0, 0]
    assert float(spread[:, :2].max()) < 1e-3
    assert float(spread[:, 2:].min()) > 10 * float(spread[:, :2].max())


def test_one_sample_has_nothing_beside_it():
    public, observation = seen(linear_network(), draws(1, 8), draws(60, 7))
    attack = PriorInversion(iterations=5)
    assert attack.prepare(public, generator=stream())(observation, stream()).samples is None
    report = invert(observation, public, [attack], samples=1)
    assert report.findings.candidates[0].agreement is None


def test_samples_survive_a_file_and_are_checked():
    candidates = torch.rand((2, *SPACE.shape), generator=stream())
    found = Reconstruction(candidates, samples=torch.stack([candidates, candidates / 2]))
    again = reconstruction_of(*reconstruction_parts(found))
    assert again.samples is not None
    assert torch.equal(again.samples, found.samples)  # pyright: ignore[reportArgumentType]
    found.checked(SPACE)
    with pytest.raises(BadInput, match="samples that do not match"):
        dataclasses.replace(found, samples=candidates).checked(SPACE)


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 8, 8), (1, 4, 8)])
def test_prior_of_another_size_is_refused(shape):
    public, _ = seen(linear_network(), draws(1, 8), draws(60, 7))
    with pytest.raises(BadInput, match="4 × 4 pixels with 1 channel: train or load a prior"):
        PriorInversion(PixelPrior(shape=shape)).prepare(public, generator=stream())


def test_prior_of_the_right_size_is_used():
    public, observation = seen(linear_network(), draws(1, 8), draws(60, 7))
    found = [
        PriorInversion(PixelPrior(mean=mean, shape=SPACE.shape), iterations=20, polish=0.0)
        .prepare(public, generator=stream())(observation, stream(1))
        .candidates
        for mean in (-0.5, 0.5)
    ]
    assert not torch.equal(*found)


def test_what_it_cannot_use_is_refused_in_one_sentence():
    few, _ = seen(linear_network(), draws(1, 8), draws(5, 7))
    with pytest.raises(BadInput, match="16 records at least: give PriorInversion a prior"):
        PriorInversion().prepare(few, generator=stream())
    loud = PriorInversion(PixelPrior(shape=SPACE.shape), loudest=1000.0)
    with pytest.raises(BadInput, match="lower loudest"):
        loud.prepare(few, generator=stream())
    with pytest.raises(BadInput, match="not above the loudest"):
        PriorInversion(loudest=0.1, quietest=0.2)
    table = TableSpace((Column("a"), Column("b")), ("x", "y"))
    rows = Records(torch.rand((20, 2), generator=stream()), torch.arange(20) % 2, table)
    with torch.random.fork_rng():
        model = nn.Linear(2, 2)
    public = Public(GradientSimulator(model, mode="eval"), Prior(rows))
    with pytest.raises(BadInput, match="rows of a table: use InvertingGradients"):
        PriorInversion().prepare(public, generator=stream())
