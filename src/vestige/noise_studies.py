"""The study of noise: what a learned prior sees through DP-SGD's noise, between two bounds.

Schwethelm et al., "Visual Privacy Auditing with Diffusion Models" (2025), sections 4.2 to 4.4 and
Figure 10. The release is the image itself, clipped, plus noise (their equation 7): what a malicious
server gets from DP-SGD when it sends a network whose gradient is its input.

Where we deviate: μ is 1/σ (the paper's at C = 1); candidates are matched by likelihood and
reconstructions by squared error, where the paper takes dot products and LPIPS. The paper's floor is
the similarity between test images; a blurred average can be above that floor without any release,
so pictures are also held against an image that is not their secret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import t as student
from torch import Tensor

from vestige import denoisers, progress
from vestige.bounds import DPSGD, Gaussian, tightest
from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.bounds.no_prior import NoPriorReconstruction
from vestige.denoisers import Denoiser
from vestige.distances import ssim
from vestige.errors import BadInput
from vestige.noise_sentences import judge_noise, noise_limits, noise_threat
from vestige.noise_study import (
    Mean,
    Method,
    MethodMeasure,
    NoisePoint,
    NoiseStudy,
    SampleAgreement,
    Sight,
)
from vestige.numbers import count
from vestige.priors import (
    ImagePrior,
    PrivateImages,
    agreement,
    agreement_map,
    clipping_factors,
    ddim,
    ddpm,
    posterior_mean,
    privatized,
)
from vestige.rates import clopper_pearson
from vestige.record import Picture, Rate
from vestige.record_parts import environment, space_record
from vestige.records import ImageSpace, Records

CANDIDATES = 256
"""Images that the secret is to be told from, itself included, as in the paper."""

SAMPLES = 5
"""Random reconstructions of an image whose agreement is drawn, as in the paper."""

AT_ONCE = 64
"""Images that go through the prior together."""

CLASSICAL: Mapping[str, Denoiser] = {"Total variation": denoisers.total_variation}
"""Denoisers without a learned prior; total variation needs nothing that is not installed."""


@dataclass(frozen=True)
class _World:
    """Images, candidates for each attacked one (n, k) with the secret first, others (n,), settings.

    ``joint`` is the confidence of limits that hold for all methods and strengths together.
    """

    pool: Tensor
    near: Tensor
    others: Tensor
    shown: int
    sampled: int
    confidence: float
    joint: float

    @property
    def secrets(self) -> Tensor:
        return self.pool[: len(self.near)]

    @property
    def other_images(self) -> Tensor:
        return self.pool[self.others]


def study_noise(
    images: Records,
    prior: ImagePrior,
    *,
    mus: Sequence[float],
    clipping_norm: float = 1.0,
    steps: int = 1,
    sampling_rate: float = 1.0,
    delta: float = 1e-5,
    generator: torch.Generator,
    title: str = "",
    prior_name: str = "a diffusion model",
    attacked: int | None = None,
    shown: int = 4,
    sampled: int = 24,
    candidates: int = CANDIDATES,
    classical: Mapping[str, Denoiser] = CLASSICAL,
    confidence: float = 0.95,
) -> NoiseStudy:
    """Release images with noise of every strength μ and look through it with a prior.

    ``steps`` T and ``sampling_rate`` q are those of the training whose (ε, δ) is reported beside μ.
    The images are put in random order; the first ``attacked`` are attacked (all if None), of which
    the first ``sampled`` get random reconstructions, and the first ``shown`` are looked at. The
    others serve as candidates. No image of the prior's training may be among them.
    """
    strengths = _checked_strengths(mus)
    pool = _checked_pool(images, prior, candidates)
    attacked = len(pool) if attacked is None else min(attacked, len(pool))
    if attacked < 2:
        raise BadInput("Means over images need at least two: raise attacked.")
    order = torch.randperm(len(pool), generator=generator)
    ordered = pool.x[order].float().cpu()
    shown, sampled = min(shown, attacked), max(2, min(sampled, attacked), min(shown, attacked))
    methods = _methods(classical)
    world = _World(
        ordered,
        _candidates(attacked, len(pool), candidates, generator),
        _others(attacked, len(pool), generator),
        shown,
        sampled,
        confidence,
        1 - (1 - confidence) / (len(strengths) * len(methods)),
    )
    points = []
    for mu in strengths:
        training = DPSGD(1 / mu, sampling_rate, steps, clipping_norm)
        points.append(_point(world, prior, training, delta, classical, generator))
        progress.report(len(points), len(strengths))
    return NoiseStudy(
        title=title or "Images under noise",
        space=space_record(images.space),
        threat=noise_threat(images.space.noun, clipping_norm, prior_name, candidates),
        prior=prior_name,
        methods=methods,
        points=tuple(points),
        secrets=tuple(Picture.of(image.numpy()) for image in ordered[:shown]),
        images=attacked,
        candidates=candidates,
        clipping_norm=clipping_norm,
        steps=steps,
        sampling_rate=sampling_rate,
        delta=delta,
        confidence=confidence,
        floor_error=mean_of(_errors(world.other_images, world.secrets), confidence),
        floor_similarity=mean_of(ssim(world.other_images, world.secrets), confidence),
        limits=noise_limits(attacked, confidence),
        settings={
            "Images, attacked": f"{count(len(pool))}, {count(attacked)}",
            "Prior": prior_name,
            "Strengths μ": ", ".join(f"{mu:g}" for mu in strengths),
            "Clipping norm C": f"{clipping_norm:g}",
            "Training steps T, sampling rate q, δ": f"{count(steps)}, {sampling_rate:g}, {delta:g}",
            "Candidates": count(candidates),
            "Random reconstructions": f"{SAMPLES} of {count(sampled)} images",
            "Seed": str(generator.initial_seed()),
        },
        environment=environment(torch.device("cpu")),
        verdict=judge_noise(points, methods, candidates, attacked),
    )


def mean_of(values: Tensor, confidence: float) -> Mean:
    """A mean with Student's limits; errors and similarities of images are far from extremes."""
    values = values.double()
    spread = float(values.std()) / math.sqrt(len(values))
    reach = float(student.ppf((1 + confidence) / 2, len(values) - 1)) * spread
    value = float(values.mean())
    return Mean(value=value, lower=value - reach, upper=value + reach)


def matched_candidates(private: PrivateImages, clipped: Tensor, near: Tensor) -> Tensor:
    """Likelihoods (n, k) of the clipped candidates ``near`` (n, k) of each released image.

    Candidates are equally likely before the release, so this is the posterior, and its largest
    entry the best guess.
    """
    found = []
    for released, places in zip(private.released, near):
        distance = (clipped[places] - released).flatten(1).double().square().sum(1)
        found.append(torch.softmax(-distance / (2 * private.noise_deviation**2), 0))
    return torch.stack(found)


def _point(
    world: _World,
    prior: ImagePrior,
    training: DPSGD,
    delta: float,
    classical: Mapping[str, Denoiser],
    generator: torch.Generator,
) -> NoisePoint:
    assert training.clipping_norm is not None
    mu, norm, secrets = 1 / training.noise_multiplier, training.clipping_norm, world.secrets
    private = privatized(secrets, mu=mu, clipping_norm=norm, generator=generator)
    noisy, deviation = private.rescaled(clipping_factors(secrets, norm))
    found = [
        _in_parts(noisy, deviation, lambda x, s: posterior_mean(prior, x, s)),
        _in_parts(noisy, deviation, lambda x, s: ddim(prior, x, s)),
        *(denoise(noisy, deviation) for denoise in classical.values()),
        denoisers.none(noisy, deviation),
    ]
    few = slice(0, world.sampled)
    drawn = ddpm(prior, noisy[few], deviation[few], samples=SAMPLES, generator=generator)
    true = torch.stack([ssim(one, secrets[few]) for one in drawn]).mean(0)
    maps = agreement_map(drawn[:, : world.shown])
    clipped = world.pool / clipping_factors(world.pool, norm)[:, None, None, None]
    posterior = matched_candidates(private, clipped, world.near)
    best = posterior.argmax(1)
    chosen = world.pool[world.near.gather(1, best[:, None])[:, 0]]
    weighted = torch.stack(
        [
            torch.einsum("k,kchw->chw", weights.float(), world.pool[places])
            for weights, places in zip(posterior, world.near)
        ]
    )
    release = DPSGD(training.noise_multiplier, 1.0, 1, norm)
    kappa = 1 / world.near.shape[1]
    return NoisePoint(
        mu=mu,
        epsilon=_finite(epsilon_by_privacy_loss(training, delta)),
        release_epsilon=_finite(epsilon_by_privacy_loss(release, delta)),
        measures=tuple(_measure(world, images) for images in found),
        samples=SampleAgreement(
            images=world.sampled,
            samples=SAMPLES,
            agreement=mean_of(agreement(drawn), world.confidence),
            similarity=mean_of(true, world.confidence),
        ),
        matched=_rate(best == 0, world.confidence),
        matched_error=mean_of(_errors(chosen, secrets), world.confidence),
        weighted_error=mean_of(_errors(weighted, secrets), world.confidence),
        bound=float(tightest(release, kappa).success[0]),
        training_bound=float(tightest(training, kappa).success[0]),
        no_prior_error=_no_prior_error(secrets, mu, norm),
        sights=tuple(
            Sight(
                left=Picture.of(noisy[place].numpy()),
                reconstructions=tuple(Picture.of(images[place].numpy()) for images in found),
                agreement=Picture.of(maps[place][None].numpy()),
            )
            for place in range(world.shown)
        ),
    )


def _measure(world: _World, images: Tensor) -> MethodMeasure:
    nearest = torch.tensor(
        [
            int((world.pool[places] - image).flatten(1).square().mean(1).argmin())
            for image, places in zip(images, world.near)
        ]
    )
    own, other = ssim(images, world.secrets), ssim(images, world.other_images)
    return MethodMeasure(
        error=mean_of(_errors(images, world.secrets), world.confidence),
        similarity=mean_of(own, world.confidence),
        other_similarity=mean_of(other, world.confidence),
        closer=mean_of(own - other, world.joint),
        named=_rate(nearest == 0, world.confidence),
    )


def _errors(images: Tensor, secrets: Tensor) -> Tensor:
    return (images - secrets).square().flatten(1).mean(1)


def _rate(hits: Tensor, confidence: float) -> Rate:
    found = int(hits.sum())
    lower, upper = clopper_pearson(found, len(hits), confidence)
    return Rate(hits=found, trials=len(hits), lower=lower, upper=upper)


def _in_parts(noisy: Tensor, deviation: Tensor, denoise: Denoiser) -> Tensor:
    parts = zip(noisy.split(AT_ONCE), deviation.split(AT_ONCE))
    return torch.cat([denoise(images, sigma) for images, sigma in parts])


def _no_prior_error(images: Tensor, mu: float, clipping_norm: float) -> float:
    """Mean over images of the variance that an unbiased attacker cannot avoid."""
    size = images[0].numel()
    norms = images.flatten(1).norm(dim=1).clamp_min(1e-12).tolist()
    bounds = [NoPriorReconstruction(size, norm, clipping_norm) for norm in norms]
    return sum(bound.noise_variance(Gaussian(1 / mu)) for bound in bounds) / len(bounds)


def _candidates(
    attacked: int, available: int, candidates: int, generator: torch.Generator
) -> Tensor:
    """The secret and others drawn without repetition (attacked, candidates), the secret first."""
    rows = []
    for secret in range(attacked):
        drawn = torch.randperm(available - 1, generator=generator)[: candidates - 1]
        rows.append(torch.cat([torch.tensor([secret]), drawn + (drawn >= secret).long()]))
    return torch.stack(rows)


def _others(attacked: int, available: int, generator: torch.Generator) -> Tensor:
    """Another image for each attacked one (attacked,)."""
    shift = torch.randint(1, available, (attacked,), generator=generator)
    return (torch.arange(attacked) + shift) % available


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _methods(classical: Mapping[str, Denoiser]) -> tuple[Method, ...]:
    return (
        Method(name="Posterior mean", kind="prior", summary="learned prior, one step"),
        Method(name="DDIM", kind="prior", summary="learned prior, four steps"),
        *(Method(name=name, kind="classical", summary="no prior") for name in classical),
        Method(name="Noisy image", kind="nothing", summary="what the noise leaves, in [0, 1]"),
    )


def _checked_strengths(mus: Sequence[float]) -> tuple[float, ...]:
    if not mus or len(set(mus)) < len(mus) or not all(0 < mu < math.inf for mu in mus):
        raise BadInput("Give one strength of noise μ or more: positive, finite, each once.")
    return tuple(sorted((float(mu) for mu in mus), reverse=True))


def _checked_pool(images: Records, prior: ImagePrior, candidates: int) -> Records:
    if not isinstance(images.space, ImageSpace) or tuple(images.space.shape) != tuple(prior.shape):
        raise BadInput(
            f"The prior knows images of shape {tuple(prior.shape)} and these records have "
            f"{tuple(images.space.shape)}: resize them, or train a prior of their size."
        )
    if candidates < 2:
        raise BadInput("Telling images apart needs at least two candidates.")
    pool = images.distinct()
    if len(pool) < candidates:
        raise BadInput(
            f"{len(pool)} different images are too few to tell one from {candidates - 1} others: "
            "give more images, or lower candidates."
        )
    return pool
