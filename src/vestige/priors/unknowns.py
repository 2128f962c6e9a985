"""What the attacker was not told, noise level or clipping factor, found under the prior.

Schwethelm et al. 2025 estimate the noise with a wavelet (appendix D) and try clipping factors by
eye (appendix A). A diffusion prior can do better, because it knows how likely noisy images are.
With D(x) = E[x₀ | x] at noise σ, Tweedie gives ∇log p_σ(x) = (D − x)/σ², its divergence gives
Δ log p_σ = (tr J − N)/σ² with J the Jacobian of D, and the heat equation ∂p/∂(σ²/2) = Δp turns both
into slopes of the likelihood:

    noise    d log p_σ(x) / d log σ           = ‖x − D‖²/σ² + tr J − N
    factor   d log p(x_priv; λ) / d log λ     = tr J − ⟨D, x − D⟩/σ²,   x = λ·x_priv, σ = λCσ_DP

The first vanishes where the residual has the size that the noise leaves to it, the second where it
has no share of the image left in it. tr J comes from random probes (Hutchinson).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vestige.errors import BadInput, NotFound, extra
from vestige.priors.denoising import posterior_mean
from vestige.priors.diffusion import ImagePrior
from vestige.priors.private_images import PrivateImages

PROBE = 0.1
"""Length of a probe of the Jacobian in each pixel, in units of the noise."""

JUDGED_MU = 50.0
"""Factors are judged at this μ at most. The slope divides the network's own errors by σ²: with less
noise they outweigh what the image says. Chosen on training images of Fashion-MNIST."""


def wavelet_deviation(noisy: Tensor) -> Tensor:
    """Noise deviation (n,) of images by their finest wavelets (Donoho and Johnstone 1994).

    What the paper uses. It takes edges for noise and is far too large where there is little noise.
    """
    from skimage.restoration import estimate_sigma

    try:
        deviations = [
            estimate_sigma(np.asarray(image.detach().cpu()), channel_axis=0, average_sigmas=True)
            for image in noisy
        ]
    except ImportError as error:
        raise NotFound(f"Estimating noise needs PyWavelets: {extra('diffusion')}.") from error
    return torch.as_tensor(np.array(deviations), dtype=noisy.dtype, device=noisy.device)


def likeliest_deviation(
    prior: ImagePrior, noisy: Tensor, *, generator: torch.Generator, rounds: int = 8
) -> Tensor:
    """Noise deviation (n,) under which images are likeliest, starting from the wavelet's.

    σ² ← ‖x − D‖²/(N − tr J) has the same fixed point as expectation maximisation and reaches it
    sooner. A round changes σ by a factor of four at most.
    """
    count = noisy[0].numel() if len(noisy) else 1
    least, most = prior.schedule.smallest / 2, prior.schedule.largest / 2
    sigma = wavelet_deviation(noisy).clamp(least, most)
    for _ in range(rounds):
        clean, trace = _mean_and_trace(prior, noisy, sigma, generator)
        residual = (noisy - clean).flatten(1).square().sum(1)
        estimate = (residual / (count - trace).clamp(min=0.05 * count)).sqrt()
        sigma = torch.minimum(torch.maximum(estimate, sigma / 4), sigma * 4).clamp(least, most)
    return sigma


@dataclass(frozen=True, eq=False)
class FactorTrial:
    """Clipping factors that were tried (k,) and the log-likelihood (k, n) of each image under them.

    Only differences between the rows of a column mean something.
    """

    factors: Tensor
    log_likelihood: Tensor

    @property
    def best(self) -> Tensor:
        """The likeliest factor (n,) of each image, between the tried ones by a parabola."""
        rows, logs = self.log_likelihood, self.factors.log()
        top = rows.argmax(0)
        inner = top.clamp(1, len(rows) - 2)
        low, mid, high = (rows.gather(0, (inner + o)[None])[0] for o in (-1, 0, 1))
        curve = low - 2 * mid + high
        shift = torch.where(curve < 0, (low - high) / (2 * curve), 0.0).clamp(-1, 1)
        spacing = logs[1] - logs[0]
        interpolated = (logs[inner] + shift * spacing).exp()
        return torch.where(top == inner, interpolated, self.factors[top])


def try_factors(
    prior: ImagePrior,
    private: PrivateImages,
    *,
    generator: torch.Generator,
    smallest: float = 1.0,
    largest: float | None = None,
    trials: int = 24,
) -> FactorTrial:
    """Try clipping factors over a range (appendix A), judged without the secret.

    The range is that of the paper unless given: from 1 to the factor of an all-white image. The
    slope of the likelihood is integrated over log λ by the trapezoidal rule. A release with less
    noise than ``JUDGED_MU`` stands for is judged with noise added to it.
    """
    largest = private.largest_factor if largest is None else largest
    if not 1 <= smallest < largest:
        raise BadInput("Clipping factors are tried from 1 or more up to a larger one.")
    if trials < 3:
        raise BadInput("Trying factors needs at least three of them: raise trials.")
    factors = torch.logspace(0, 1, trials, base=largest / smallest, dtype=torch.float64) * smallest
    judged, slopes = _with_enough_noise(private, generator), []
    for factor in factors.tolist():
        noisy, sigma = judged.rescale(torch.full((len(judged.released),), factor))
        clean, trace = _mean_and_trace(prior, noisy, sigma, generator)
        share = (clean * (noisy - clean)).flatten(1).sum(1) / sigma.square()
        slopes.append((trace - share).cpu().double())
    slope = torch.stack(slopes)
    steps = factors.log().diff()[:, None] * (slope[1:] + slope[:-1]) / 2
    return FactorTrial(factors, torch.cat([torch.zeros_like(slope[:1]), steps.cumsum(0)]))


def _with_enough_noise(private: PrivateImages, generator: torch.Generator) -> PrivateImages:
    missing = JUDGED_MU**-2 - private.noise_multiplier**2
    if missing <= 0:
        return private
    noise = torch.randn(private.released.shape, generator=generator).to(private.released)
    noisier = private.released + private.clipping_norm * math.sqrt(missing) * noise
    return PrivateImages(noisier, private.clipping_norm, 1 / JUDGED_MU)


def _mean_and_trace(
    prior: ImagePrior, noisy: Tensor, sigma: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """D(x) and an unbiased estimate of the trace of its Jacobian (n,), from one probe."""
    signs = torch.randint(0, 2, noisy.shape, generator=generator).to(noisy) * 2 - 1
    length = (PROBE * sigma).to(noisy.dtype)[:, None, None, None]
    clean = posterior_mean(prior, noisy, sigma)
    moved = posterior_mean(prior, noisy + length * signs, sigma)
    trace = (signs * (moved - clean) / length).flatten(1).sum(1)
    return clean, trace
