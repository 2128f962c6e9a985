"""Denoising: schedule matching, closed forms on a Gaussian prior, equality with diffusers."""

from __future__ import annotations

import math

import pytest
import torch

from priors.gaussian import GaussianPrior
from vestige.distances import ssim
from vestige.errors import BadInput
from vestige.priors import (
    NoiseSchedule,
    agreement,
    agreement_map,
    ddim,
    ddpm,
    posterior_mean,
)
from vestige.priors.denoising import follow

PRIOR = GaussianPrior()


def noisy_images(count: int, deviation: torch.Tensor, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    images = PRIOR.draws(count, generator)
    noise = torch.randn(images.shape, generator=generator, dtype=torch.float64)
    return images, images + deviation[:, None, None, None] * noise


def naive_whole_time(signal: list[float], deviation: float) -> int:
    for time, kept in enumerate(signal):
        if math.sqrt(1 / kept - 1) > deviation:
            return time
    raise AssertionError


@pytest.mark.parametrize("deviation", [1e-4, 0.011, 0.3, 1.0, 4.0, 100.0])
def test_whole_times_are_those_of_a_naive_search(deviation):
    schedule = NoiseSchedule.linear()
    found = schedule.whole_time(torch.tensor([deviation]))
    assert found.item() == naive_whole_time(schedule.signal.tolist(), deviation)


def test_fractional_times_have_exactly_the_noise_asked_for():
    schedule = NoiseSchedule.linear()
    wanted = torch.logspace(-1.9, 2.1, 50, dtype=torch.float64)
    times = schedule.time(wanted)
    torch.testing.assert_close(schedule.deviation(times), wanted)
    whole = torch.arange(1000, dtype=torch.float64)
    torch.testing.assert_close(schedule.time(schedule.deviations), whole)
    assert ((schedule.whole_time(wanted) - times) <= 1).all()
    assert ((schedule.whole_time(wanted) - times) >= 0).all()


def test_weights_at_whole_times_are_those_of_the_chain():
    schedule = NoiseSchedule.linear()
    signal, noise = schedule.weights(torch.arange(1000, dtype=torch.float64))
    torch.testing.assert_close(signal, schedule.signal.sqrt())
    torch.testing.assert_close(noise, (1 - schedule.signal).sqrt())


@pytest.mark.parametrize("signal", [[0.9], [0.5, 0.6], [1.0, 0.5], [[0.9, 0.8]]])
def test_schedules_that_do_not_fall_are_refused(signal):
    with pytest.raises(BadInput, match="schedule"):
        NoiseSchedule(torch.tensor(signal))


def test_the_posterior_mean_is_the_closed_form_with_a_deviation_for_each_image():
    # Forgetting that noise doubles in [−1, 1] would use a quarter of the noise's variance here.
    deviation = torch.tensor([0.02, 0.1, 0.1, 0.4, 2.0], dtype=torch.float64)
    _, noisy = noisy_images(5, deviation)
    expected = PRIOR.posterior_mean(noisy, deviation).clamp(0, 1)
    torch.testing.assert_close(posterior_mean(PRIOR, noisy, deviation), expected)
    torch.testing.assert_close(ddim(PRIOR, noisy, deviation, steps=1), expected)


def test_many_deterministic_steps_follow_the_probability_flow():
    # The flow keeps quantiles: it scales by the ratio of deviations, not by that of variances.
    deviation = torch.tensor([0.05, 0.1, 0.3], dtype=torch.float64)
    _, noisy = noisy_images(3, deviation)
    mean, own = (PRIOR.mean + 1) / 2, PRIOR.deviation / 2
    scale = (own / (own**2 + deviation**2).sqrt())[:, None, None, None]
    found = ddim(PRIOR, noisy, deviation, steps=2000)
    torch.testing.assert_close(
        found, (mean + scale * (noisy - mean)).clamp(0, 1), atol=2e-3, rtol=0
    )


def test_two_deterministic_steps_are_the_formula_by_hand():
    sigma, smaller = 0.8, 0.3
    start = torch.full((1, 1, 8, 8), 0.9, dtype=torch.float64)
    grid = torch.tensor([[sigma], [smaller]], dtype=torch.float64)

    def mean(y, s):
        return (PRIOR.deviation**2 * y + s**2 * PRIOR.mean) / (PRIOR.deviation**2 + s**2)

    middle = mean(0.9, sigma) + smaller / sigma * (0.9 - mean(0.9, sigma))
    wanted = torch.full_like(start, mean(middle, smaller))
    torch.testing.assert_close(follow(PRIOR, start, grid), wanted)


def test_random_chains_draw_from_the_posterior():
    # 300 draws × 64 pixels: the mean's standard error is 1/139 of the posterior's deviation, the
    # variance's relative one 1/98; tolerances are beyond four of each plus the steps' own error.
    deviation = torch.tensor([0.1], dtype=torch.float64)
    noisy = torch.full((1, 1, 8, 8), 0.6, dtype=torch.float64)
    drawn = ddpm(
        PRIOR, noisy, deviation, samples=300, steps=300, generator=torch.Generator().manual_seed(1)
    )
    variance = 0.01 * 0.01 / 0.02
    wanted = PRIOR.posterior_mean(noisy, deviation).mean()
    assert drawn.mean().item() == pytest.approx(wanted.item(), abs=5 / 139 * variance**0.5)
    assert drawn.var().item() == pytest.approx(variance, rel=0.08)


def test_random_chains_are_repeated_by_their_generator():
    noisy = torch.full((2, 1, 8, 8), 0.6)
    one, same, other = (
        ddpm(PRIOR, noisy, 0.1, samples=2, steps=3, generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def diffusers_chain(scheduler, prior, start, generator=None):
    """The library's own loop, in its own units, over its own grid."""
    now = start
    for time in scheduler.timesteps:
        said = prior.noise(now, time.double().expand(len(now)))
        if generator is None:
            now = scheduler.step(said, time, now).prev_sample
        else:
            now = scheduler.step(said, time, now, generator=generator).prev_sample
    return now


def our_start(scheduler, prior, start):
    times = scheduler.timesteps.double()
    grid = prior.schedule.deviation(times)[:, None].expand(-1, len(start))
    signal = prior.schedule.weights(times[:1])[0]
    return start / signal[:, None, None, None], grid


@pytest.mark.parametrize("steps", [3, 20, 1000])
def test_deterministic_steps_equal_those_of_diffusers(steps):
    diffusers = pytest.importorskip("diffusers")
    # beta_end is theirs and ours; their ᾱ is in float32.
    scheduler = diffusers.DDIMScheduler(clip_sample=False, beta_schedule="linear")
    prior = GaussianPrior(schedule=NoiseSchedule(scheduler.alphas_cumprod.double()))
    scheduler.set_timesteps(steps)
    start = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(0)).double()
    y, grid = our_start(scheduler, prior, start)
    theirs = diffusers_chain(scheduler, prior, start)
    torch.testing.assert_close(follow(prior, y, grid), theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("steps", [5, 50])
def test_random_steps_equal_those_of_diffusers(steps):
    diffusers = pytest.importorskip("diffusers")
    scheduler = diffusers.DDPMScheduler(clip_sample=False, beta_schedule="linear")
    prior = GaussianPrior(schedule=NoiseSchedule(scheduler.alphas_cumprod.double()))
    scheduler.set_timesteps(steps)
    start = torch.randn((2, 1, 8, 8), generator=torch.Generator().manual_seed(0)).double()
    theirs = diffusers_chain(scheduler, prior, start, torch.Generator().manual_seed(7))
    y, grid = our_start(scheduler, prior, start)
    ours = follow(prior, y, grid, torch.Generator().manual_seed(7))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_the_printed_algorithm_overstates_the_noise_and_the_matched_one_does_not():
    # With σ̂ just above a time's deviation the printed start takes the next time.
    schedule = PRIOR.schedule
    deviation = schedule.deviations[3:4] / 2 * 1.001
    _, noisy = noisy_images(1, deviation)
    taken = schedule.deviations[4:5] / 2
    torch.testing.assert_close(
        ddim(PRIOR, noisy, deviation, steps=1, as_printed=True),
        PRIOR.posterior_mean(noisy, taken).clamp(0, 1),
    )


def test_agreement_is_the_mean_over_pairs_and_one_for_equal_samples():
    generator = torch.Generator().manual_seed(0)
    samples = torch.rand((3, 2, 1, 9, 9), generator=generator)
    first, second, third = samples
    wanted = (ssim(first, second) + ssim(first, third) + ssim(second, third)) / 3
    torch.testing.assert_close(agreement(samples), wanted)
    same = first.expand(4, *first.shape)
    torch.testing.assert_close(agreement(same), torch.ones(2, dtype=torch.float64))


def test_the_map_of_agreement_is_one_where_samples_agree_and_zero_where_they_are_opposite():
    samples = torch.zeros(2, 1, 1, 4, 4)
    samples[1, 0, 0, 0, 0] = 1
    found = agreement_map(samples)
    assert found.shape == (1, 4, 4)
    assert found[0, 0, 0] == 0
    assert found.sum() == 15


@pytest.mark.parametrize(
    ("noisy", "deviation", "sentence"),
    [
        (torch.zeros(1, 1, 9, 8), 0.1, "train or load a prior of their size"),
        (torch.zeros(1, 3, 8, 8), 0.1, "train or load a prior of their size"),
        (torch.zeros(8, 8), 0.1, "train or load a prior of their size"),
        (torch.full((1, 1, 8, 8), math.nan), 0.1, "NaN"),
        (torch.zeros(2, 1, 8, 8), torch.tensor([0.1, 0.1, 0.1]), "one for each image"),
        (torch.zeros(1, 1, 8, 8), 0.0, "positive and finite"),
        (torch.zeros(1, 1, 8, 8), math.inf, "positive and finite"),
        (torch.zeros(1, 1, 8, 8), 100.0, "from μ = 0.1 on"),
    ],
)
def test_bad_input_is_one_sentence(noisy, deviation, sentence):
    for method in (posterior_mean, ddim):
        with pytest.raises(BadInput, match=sentence) as caught:
            method(PRIOR, noisy, deviation)
        assert str(caught.value).count(". ") == 0


def test_the_smallest_mu_named_is_answered():
    # μ = 0.102 at C = 1 for a white image of 8 × 8: λ = 8.
    white = torch.ones(1, 1, 8, 8)
    assert posterior_mean(PRIOR, white, 8 / 0.103).shape == white.shape
    with pytest.raises(BadInput):
        posterior_mean(PRIOR, white, 8 / 0.101)


def test_bad_counts_are_refused():
    noisy = torch.zeros(1, 1, 8, 8)
    with pytest.raises(BadInput, match="step"):
        ddim(PRIOR, noisy, 0.1, steps=0)
    with pytest.raises(BadInput, match="sample"):
        ddpm(PRIOR, noisy, 0.1, samples=0, generator=torch.Generator())
    for function in (agreement, agreement_map):
        with pytest.raises(BadInput, match="two or more"):
            function(noisy[None])
