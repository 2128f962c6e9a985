"""Denoisers that know nothing of the data: what an attacker without a learned prior can do.

Each takes noisy images (n, c, h, w) in [0, 1] and the noise deviations (n,) and returns images in
[0, 1]. Schwethelm et al. 2025 compare with wavelets and BM3D (appendix D). Settings are those that
scikit-image recommends for a known deviation, or were chosen on training images of Fashion-MNIST
where it recommends none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vestige.errors import BadInput, NotFound, VestigeError, extra

Denoiser = Callable[[Tensor, Tensor], Tensor]
Picture = NDArray[np.float64]

TOTAL_VARIATION_WEIGHT = 0.75
"""Weight of total variation, in units of the noise."""


def none(noisy: Tensor, deviation: Tensor) -> Tensor:
    """The noisy images themselves, brought into [0, 1]."""
    _check(noisy, deviation)
    return noisy.clamp(0, 1)


def wavelet(noisy: Tensor, deviation: Tensor) -> Tensor:
    """Soft thresholds on wavelet coefficients, adapted to each band (Chang et al. 2000)."""
    from skimage.restoration import denoise_wavelet

    def clean(picture: Picture, sigma: float) -> Picture:
        return denoise_wavelet(
            picture, sigma=sigma, method="BayesShrink", rescale_sigma=False, channel_axis=-1
        )

    try:
        return _each(noisy, deviation, clean)
    except ImportError as error:
        raise NotFound(f"Wavelets need PyWavelets: {extra('diffusion')}.") from error


def non_local_means(noisy: Tensor, deviation: Tensor) -> Tensor:
    """Averages over patches that look alike (Buades et al. 2005)."""
    from skimage.restoration import denoise_nl_means

    def clean(picture: Picture, sigma: float) -> Picture:
        cleaned = denoise_nl_means(
            picture,
            h=0.8 * sigma,
            sigma=sigma,
            patch_size=5,
            patch_distance=6,
            fast_mode=False,
            channel_axis=-1,
        ).reshape(picture.shape)
        # With little noise a patch can be unlike all others, which scikit-image answers with NaN.
        return np.where(np.isnan(cleaned), picture, cleaned)

    return _each(noisy, deviation, clean)


def total_variation(noisy: Tensor, deviation: Tensor) -> Tensor:
    """The image of least total variation near the noisy one (Chambolle 2004)."""
    from skimage.restoration import denoise_tv_chambolle

    def clean(picture: Picture, sigma: float) -> Picture:
        return denoise_tv_chambolle(picture, weight=TOTAL_VARIATION_WEIGHT * sigma, channel_axis=-1)

    return _each(noisy, deviation, clean)


def block_matching(noisy: Tensor, deviation: Tensor) -> Tensor:
    """BM3D (Dabov et al. 2007), where the package ``bm3d`` is installed.

    Its licence allows non-commercial use only, so it is an extra of its own, for comparison.
    """
    try:
        import bm3d  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotFound(
            "BM3D needs the package bm3d, whose licence is for non-commercial use only: "
            f"{extra('bm3d')} if you may."
        ) from error

    def clean(picture: Picture, sigma: float) -> Picture:
        # A single channel is to be given, and is given back, without its axis.
        cleaned = bm3d.bm3d(picture if picture.shape[-1] > 1 else picture[..., 0], sigma)
        return np.asarray(cleaned)

    return _each(noisy, deviation, clean)


def run(who: str, denoise: Denoiser, noisy: Tensor, deviation: Tensor, *, each: int = 1) -> Tensor:
    """Run a user's denoiser and check its output.

    ``who`` names it in that sentence. It returns as many images as it is given, ``each`` times.
    """
    try:
        cleaned = denoise(noisy, deviation)
    except VestigeError:
        raise
    except Exception as cause:
        reason = (str(cause).strip().splitlines() or [""])[0].rstrip(".")
        raise BadInput(
            f"{who} stopped with {type(cause).__name__} ({reason}): fix it, or leave it out."
        ) from cause
    shape = (each * len(noisy), *noisy.shape[1:])
    if not isinstance(cleaned, Tensor) or cleaned.shape != shape:
        given = (
            f"shape {tuple(cleaned.shape)}"
            if isinstance(cleaned, Tensor)
            else type(cleaned).__name__
        )
        raise BadInput(
            f"{who} returned {given} where a tensor of shape {shape} is needed: fix it, or leave "
            "it out."
        )
    cleaned = cleaned.detach().cpu().to(noisy.dtype)
    if not bool(torch.isfinite(cleaned).all()):
        raise BadInput(
            f"{who} returned NaN or infinite values: fix it, or leave out it or this strength."
        )
    return cleaned


def _each(noisy: Tensor, deviation: Tensor, clean: Callable[[Picture, float], Picture]) -> Tensor:
    """Clean picture by picture, with channels last as scikit-image has them."""
    _check(noisy, deviation)
    if not len(noisy):
        return noisy
    pictures = noisy.detach().cpu().double().permute(0, 2, 3, 1).numpy()
    # Some of the denoisers drop a single channel.
    cleaned = [
        np.asarray(clean(picture, float(sigma))).reshape(picture.shape)
        for picture, sigma in zip(pictures, deviation)
    ]
    images = torch.from_numpy(np.stack(cleaned)).permute(0, 3, 1, 2)
    return images.to(noisy).clamp(0, 1)


def _check(noisy: Tensor, deviation: Tensor) -> None:
    if noisy.dim() != 4:
        raise BadInput("Denoisers take images (n, channels, height, width): reshape them.")
    if deviation.shape != noisy.shape[:1] or not (deviation > 0).all():
        raise BadInput("Give one positive noise deviation for each image.")
