"""What the attacker was not told: noise and clipping factor, found under a known prior."""

from __future__ import annotations

import math

import pytest
import torch

from priors.gaussian import GaussianPrior
from vestige.errors import BadInput
from vestige.priors import (
    PrivateImages,
    clipping_factors,
    likeliest_deviation,
    privatize,
    try_factors,
    wavelet_deviation,
)

PRIOR = GaussianPrior(mean=-0.2, deviation=0.15, shape=(1, 16, 16))


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("clipping_norm", [1.0, 2.5])
def test_noise_and_mu_at_any_clipping_norm(clipping_norm):
    images = PRIOR.draws(40, stream(0))
    private = privatize(images, mu=20.0, clipping_norm=clipping_norm, generator=stream(1))
    assert private.mu == pytest.approx(20)
    assert private.noise_deviation == pytest.approx(clipping_norm / 20)
    factors = clipping_factors(images, clipping_norm)
    clipped = images / factors[:, None, None, None]
    torch.testing.assert_close(
        clipped.flatten(1).norm(dim=1), torch.full((40,), clipping_norm, dtype=torch.float64)
    )
    # 10,240 values: a relative standard error of 0.7%.
    assert (private.released - clipped).std().item() == pytest.approx(clipping_norm / 20, rel=0.03)
    noisy, deviation = private.rescale(factors)
    torch.testing.assert_close(deviation, factors * clipping_norm / 20)
    assert (noisy - images).std().item() == pytest.approx(deviation.mean().item(), rel=0.05)


def test_small_images_are_not_scaled_up():
    assert clipping_factors(torch.full((1, 1, 4, 4), 0.01), 1.0).item() == 1


def test_the_likeliest_noise_is_the_closed_form():
    # Under the Gaussian prior the total variance is estimated by ‖x − m‖²/N: no other estimate of
    # the noise is likelier. One probe of the Jacobian is exact there, because it is diagonal.
    deviation = torch.tensor([0.1, 0.2, 0.5], dtype=torch.float64)
    images = PRIOR.draws(3, stream(2))
    noise = torch.randn(images.shape, generator=stream(3), dtype=torch.float64)
    noisy = images + deviation[:, None, None, None] * noise
    mean, variance = 0.4, 0.075**2
    total = (noisy - mean).flatten(1).square().mean(1)
    found = likeliest_deviation(PRIOR, noisy, generator=stream(4), rounds=60)
    torch.testing.assert_close(found, (total - variance).sqrt(), rtol=1e-3, atol=0)


def test_the_wavelet_estimate_knows_white_noise():
    noise = 0.3 * torch.randn((4, 1, 64, 64), generator=stream(5))
    # About 1,000 coefficients for each image: a standard error of 4%, halved by the mean of four.
    assert wavelet_deviation(noise).mean().item() == pytest.approx(0.3, rel=0.08)


def test_tried_factors_have_the_likelihood_of_the_closed_form():
    images = PRIOR.draws(3, stream(6))
    private = privatize(images, mu=40.0, generator=stream(7))
    trial = try_factors(PRIOR, private, generator=stream(8), smallest=4.0, largest=12.0, trials=200)
    count, mean, own = 256, 0.4, 0.075

    def log_density(factor: float) -> torch.Tensor:
        x = factor * private.released
        total = own**2 + (factor / 40) ** 2
        square = (x - mean).flatten(1).square().sum(1)
        return count * math.log(factor) - square / (2 * total) - count / 2 * math.log(total)

    wanted = torch.stack([log_density(factor) for factor in trial.factors.tolist()])
    wanted = wanted - wanted[0]
    torch.testing.assert_close(trial.log_likelihood, wanted, atol=0.5, rtol=1e-2)
    true = clipping_factors(images, 1.0)
    # The mean brightness fixes the factor here: √(σ̂²/N)/mean, about 2%, is its standard error.
    torch.testing.assert_close(trial.best, true, rtol=0.08, atol=0)


def test_factors_are_found_where_there_is_hardly_any_noise():
    images = PRIOR.draws(4, stream(9))
    private = privatize(images, mu=5000.0, generator=stream(10))
    found = try_factors(PRIOR, private, generator=stream(11), smallest=2.0, largest=16.0).best
    torch.testing.assert_close(found, clipping_factors(images, 1.0), rtol=0.08, atol=0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"smallest": 0.5}, "from 1 or more"),
        ({"smallest": 3.0, "largest": 2.0}, "up to a larger one"),
        ({"trials": 2}, "at least three"),
    ],
)
def test_bad_ranges_are_refused(changes, sentence):
    private = PrivateImages(torch.zeros(1, 1, 16, 16), 1.0, 0.1)
    with pytest.raises(BadInput, match=sentence):
        try_factors(PRIOR, private, generator=stream(0), **changes)


@pytest.mark.parametrize(
    ("released", "norm", "noise", "sentence"),
    [
        (torch.zeros(3, 3), 1.0, 1.0, "reshape"),
        (torch.full((1, 1, 2, 2), math.nan), 1.0, 1.0, "NaN"),
        (torch.zeros(1, 1, 2, 2), 0.0, 1.0, "clipping_norm of PrivateImages"),
        (torch.zeros(1, 1, 2, 2), 1.0, math.inf, "noise"),
    ],
)
def test_bad_releases_are_refused(released, norm, noise, sentence):
    with pytest.raises(BadInput, match=sentence):
        PrivateImages(released, norm, noise)


def test_bad_factors_and_mu_are_refused():
    private = PrivateImages(torch.zeros(2, 1, 2, 2), 1.0, 0.1)
    for factors in (torch.ones(3), torch.tensor([1.0, 0.5])):
        with pytest.raises(BadInput, match="clipping factor"):
            private.rescale(factors)
    with pytest.raises(BadInput, match="μ"):
        privatize(torch.zeros(1, 1, 2, 2), mu=0.0, generator=stream(0))
