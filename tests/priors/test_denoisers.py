"""Denoisers without a learned prior: each removes noise, each keeps to its contract."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from vestige.errors import BadInput, NotFound
from vestige.priors import classical_denoisers as denoisers

ALL = [
    denoisers.none,
    denoisers.wavelet,
    denoisers.non_local_means,
    denoisers.total_variation,
    denoisers.block_matching,
]


def ready(denoiser) -> None:
    if denoiser is denoisers.block_matching:
        pytest.importorskip("bm3d")
    if denoiser is denoisers.wavelet:
        pytest.importorskip("pywt")


def step_images(channels: int = 1) -> torch.Tensor:
    """Dark left, bright right, the edge elsewhere in each."""
    images = torch.full((2, channels, 24, 24), 0.2)
    images[0, ..., 12:] = 0.8
    images[1, ..., 8:] = 0.8
    return images


@pytest.mark.parametrize("denoiser", ALL)
@pytest.mark.parametrize("channels", [1, 3])
def test_noise_is_removed(denoiser, channels):
    ready(denoiser)
    images, deviation = step_images(channels), torch.tensor([0.1, 0.15])
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    noisy = images + deviation[:, None, None, None] * noise
    found = denoiser(noisy, deviation)
    assert found.shape == images.shape
    assert found.dtype == noisy.dtype
    assert 0 <= found.min() <= found.max() <= 1
    before, after = ((x - images).square().mean((1, 2, 3)) for x in (noisy, found))
    share = 1.01 if denoiser is denoisers.none else 0.7
    assert (after < share * before).all()


@pytest.mark.parametrize("denoiser", ALL)
def test_each_image_has_its_own_deviation(denoiser):
    ready(denoiser)
    images = step_images()
    noisy = images + 0.1 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    deviation = torch.tensor([0.05, 0.2])
    both = denoiser(noisy, deviation)
    alone = torch.cat([denoiser(noisy[i : i + 1], deviation[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(both, alone)


def test_pixels_unlike_all_others_are_kept():
    image = torch.zeros(1, 1, 24, 24)
    image[0, 0, 9:15, 9:15] = torch.rand((6, 6), generator=torch.Generator().manual_seed(0))
    found = denoisers.non_local_means(image, torch.tensor([0.001]))
    torch.testing.assert_close(found, image, atol=0.01, rtol=0)


@pytest.mark.parametrize("denoiser", ALL)
def test_bad_input_is_refused(denoiser):
    ready(denoiser)
    for noisy, deviation in (
        (torch.zeros(8, 8), torch.ones(8)),
        (torch.zeros(2, 1, 8, 8), torch.ones(3)),
        (torch.zeros(1, 1, 8, 8), torch.zeros(1)),
    ):
        with pytest.raises(BadInput):
            denoiser(noisy, deviation)


@pytest.mark.skipif(importlib.util.find_spec("bm3d") is not None, reason="bm3d is installed")
def test_without_bm3d_the_extra_is_named():
    with pytest.raises(NotFound, match="bm3d"):
        denoisers.block_matching(torch.zeros(1, 1, 16, 16), torch.ones(1))
