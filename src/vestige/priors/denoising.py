"""Noisy images seen through a diffusion prior (Schwethelm et al. 2025, section 3.2, Algorithm 1).

Images come in [0, 1] plus Gaussian noise of a known deviation σ̂, one for each image. The prior
lives in [−1, 1]: an image x becomes 2x − 1 and *its noise doubles*, σ_DM = 2σ̂; without the two the
chain starts at the wrong time. From there the chain is followed in the form x₀ + σ·ε, in which
deterministic steps (DDIM, Song et al. 2021) are y ← x̂₀ + (σ'/σ)(y − x̂₀) and random ones (DDPM, Ho
et al. 2020) shrink y − x̂₀ by (σ'/σ)² and add noise of variance σ'²(1 − σ'²/σ²). Both hold for any
falling sequence of deviations, so few steps suffice and no time needs to be whole.

Which one to use: the posterior mean has the least mean squared error an estimate can have under
the prior. Every deterministic step added to it moves the answer from the mean towards a likely
image: sharper, and further from the secret on average. A random chain ends in a draw from the
posterior, whose expected squared error is twice that of the mean; what several draws have in common
is what the release tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.distances import ssim
from vestige.errors import BadInput
from vestige.priors.diffusion import ImagePrior

FEW_STEPS = 4
"""Steps of deterministic denoising: more bring sharper images and a larger squared error."""


def posterior_mean(prior: ImagePrior, noisy: Tensor, deviation: Tensor | float) -> Tensor:
    """E[x | noisy] under the prior in one step (Tweedie's formula), images in [0, 1]."""
    start, sigma = _scale_in(prior, noisy, deviation)
    return _scale_out(denoise(prior, start, sigma))


def ddim(
    prior: ImagePrior,
    noisy: Tensor,
    deviation: Tensor | float,
    *,
    steps: int = FEW_STEPS,
    as_printed: bool = False,
) -> Tensor:
    """Denoise deterministically in few steps, images in [0, 1].

    ``as_printed`` starts at the smallest whole time with more noise than the image has, as
    Algorithm 1 does; otherwise at the fractional time with the very noise of the image.
    """
    start, sigma = _scale_in(prior, noisy, deviation)
    return _scale_out(follow(prior, start, _grid(prior, sigma, steps, as_printed=as_printed)))


@dataclass(frozen=True)
class PriorDenoiser:
    """A prior as the ``denoise`` of an attack: one step gives the posterior mean, more DDIM.

    Noise beyond the prior's schedule is taken for its largest: what is drawn is then the prior's.
    """

    prior: ImagePrior
    steps: int = 1

    def __post_init__(self) -> None:
        check_fields(self, counts=("steps",))

    def __call__(self, noisy: Tensor, deviation: Tensor, *, generator: torch.Generator) -> Tensor:
        """Denoise images (n, c, h, w) in [0, 1] with noise of a deviation for each (n,)."""
        most = 0.499 * self.prior.schedule.largest
        scale = (most / deviation).clamp(max=1.0).to(noisy)
        dimmed = 0.5 + (noisy - 0.5) * scale.reshape(-1, *(1,) * (noisy.dim() - 1))
        known = (deviation * scale.to(deviation)).float()
        if self.steps == 1:
            return posterior_mean(self.prior, dimmed.float(), known)
        return ddim(self.prior, dimmed.float(), known, steps=self.steps)


def ddpm(
    prior: ImagePrior,
    noisy: Tensor,
    deviation: Tensor | float,
    *,
    samples: int,
    generator: torch.Generator,
    steps: int = 20,
) -> Tensor:
    """Draw images (samples, n, c, h, w) from the posterior, in [0, 1]."""
    if samples < 1:
        raise BadInput("Sampling needs at least one sample: raise samples to 1 or more.")
    start, sigma = _scale_in(prior, noisy, deviation)
    grid = _grid(prior, sigma, steps).repeat(1, samples)
    many = start.repeat(samples, 1, 1, 1)
    return _scale_out(follow(prior, many, grid, generator)).reshape(samples, *noisy.shape)


def follow(
    prior: ImagePrior, start: Tensor, deviations: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Follow the chain through falling deviations (k, n) and on to the image, all in [−1, 1].

    ``start`` is x₀ plus noise of the first deviations. Without a generator the steps are DDIM's,
    with one DDPM's.
    """
    now, following = start, [*deviations[1:], torch.zeros_like(deviations[0])]
    for sigma, smaller in zip(deviations, following):
        clean = denoise(prior, now, sigma)
        ratio = smaller / sigma
        if generator is None:
            now = clean + _wide(ratio, now) * (now - clean)
        else:
            noise = torch.randn(now.shape, generator=generator, dtype=now.dtype).to(now.device)
            spread = smaller * (1 - ratio.square()).sqrt()
            now = clean + _wide(ratio.square(), now) * (now - clean) + _wide(spread, now) * noise
    return now


def agreement(samples: Tensor) -> Tensor:
    """Mean SSIM (n,) over all pairs of samples (k, n, c, h, w) of an image (section 4.4).

    An estimate of the SSIM between a sample and the secret that needs no secret.
    """
    if len(samples) < 2:
        raise BadInput("Agreement compares samples: draw two or more.")
    pairs = [ssim(one, other) for one, other in combinations(samples.cpu(), 2)]
    return torch.stack(pairs).mean(0)


def agreement_map(samples: Tensor) -> Tensor:
    """How far samples (k, n, c, h, w) agree at every pixel, (n, h, w): 1 if they are equal there.

    One minus twice their standard deviation, which is ½ at most for values in [0, 1].
    """
    if len(samples) < 2:
        raise BadInput("Agreement compares samples: draw two or more.")
    return 1 - 2 * samples.std(0, correction=0).mean(1)


def _scale_in(prior: ImagePrior, noisy: Tensor, deviation: Tensor | float) -> tuple[Tensor, Tensor]:
    """Images in the prior's units, and the deviations (n,) of their noise there."""
    if noisy.dim() != 4 or tuple(noisy.shape[1:]) != tuple(prior.shape):
        raise BadInput(
            f"The prior knows images of shape {tuple(prior.shape)} and these are "
            f"{tuple(noisy.shape[1:])}: train or load a prior of their size."
        )
    if not torch.isfinite(noisy).all():
        raise BadInput("A noisy image holds NaN or infinite values: read it out again.")
    sigma = torch.as_tensor(deviation).detach().cpu().double()
    sigma = 2 * sigma.expand(len(noisy)) if sigma.dim() == 0 else 2 * sigma
    if sigma.shape != noisy.shape[:1]:
        raise BadInput("Give one noise deviation, or one for each image.")
    if not (torch.isfinite(sigma) & (sigma > 0)).all():
        raise BadInput("The deviation of noise is positive and finite.")
    largest = prior.schedule.largest
    if len(sigma) and float(sigma.max()) > largest:
        least = math.sqrt(math.prod(prior.shape)) * 2 / largest
        raise BadInput(
            f"Noise of deviation {float(sigma.max()) / 2:.3g} is more than the {largest / 2:.3g} "
            f"that this prior's schedule reaches: it answers for every image from μ = {least:.2g} "
            "on, so take a larger μ or a prior with a longer schedule."
        )
    # Less noise than the schedule's first time has is treated as that much.
    return 2 * noisy - 1, sigma.clamp(min=prior.schedule.smallest)


def _scale_out(images: Tensor) -> Tensor:
    return ((images + 1) / 2).clamp(0, 1)


def _grid(prior: ImagePrior, sigma: Tensor, steps: int, *, as_printed: bool = False) -> Tensor:
    """Deviations (steps, n), evenly spaced in time from each image's own down to none."""
    if steps < 1:
        raise BadInput("Denoising takes at least one step: raise steps to 1 or more.")
    schedule = prior.schedule
    top = schedule.whole_time(sigma) if as_printed else schedule.time(sigma)
    left = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[:-1]
    times = left[:, None] * top
    return torch.stack([schedule.deviation(row) for row in times])


def denoise(prior: ImagePrior, now: Tensor, sigma: Tensor) -> Tensor:
    """E[x₀ | x₀ + σε] for images in [−1, 1]."""
    scale = 1 / (1 + sigma.square()).sqrt()
    return prior.expected(now * _wide(scale, now), prior.schedule.time(sigma))


def _wide(values: Tensor, images: Tensor) -> Tensor:
    return values.to(images.dtype).to(images.device)[:, None, None, None]
