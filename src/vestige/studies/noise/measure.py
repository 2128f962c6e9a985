"""What a learned prior sees of images under noise of one strength, between two bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.stats import t as student
from torch import Tensor

from vestige.bounds import Gaussian, tightest
from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.bounds.errors.no_prior import NoPriorReconstruction
from vestige.distances import ssim
from vestige.mechanisms import DPSGD
from vestige.priors import (
    ImagePrior,
    PrivateImages,
    agreement,
    agreement_map,
    clipping_factors,
    ddim,
    ddpm,
    posterior_mean,
    privatize,
)
from vestige.priors import classical_denoisers as denoisers
from vestige.priors.classical_denoisers import Denoiser
from vestige.reports.noise import Mean, Method, MethodMeasure, NoisePoint, SampleAgreement, Sight
from vestige.reports.parts import Picture, Rate
from vestige.statistics.naming import names_secret
from vestige.statistics.rates import limited_rate
from vestige.studies.report_parts import finite

SAMPLES = 5
"""Random reconstructions of an image whose agreement is drawn, as in the paper."""

AT_ONCE = 64
"""Images that go through the prior together."""


@dataclass(frozen=True)
class NoiseWorld:
    """Images, candidates for each attacked one (n, k), others (n,), settings.

    ``own`` (n,) is the random place of the secret among its candidates. ``joint`` is the confidence
    of limits that hold for all methods and strengths together.
    """

    pool: Tensor
    near: Tensor
    own: Tensor
    others: Tensor
    shown: int
    sampled: int
    confidence: float
    joint: float

    @property
    def secrets(self) -> Tensor:
        """The attacked images."""
        return self.pool[: len(self.near)]

    @property
    def other_images(self) -> Tensor:
        """Another image for each attacked one."""
        return self.pool[self.others]


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
    entry the best guess. The squared length of the release is common to all candidates and left
    out: where there is much noise it would take all digits.
    """
    held = clipped.flatten(1).double()
    lengths = held.square().sum(1)
    found = []
    for released, places in zip(private.released.flatten(1).double(), near):
        exponents = held[places] @ released - lengths[places] / 2
        found.append(torch.softmax(exponents / private.noise_deviation**2, 0))
    return torch.stack(found)


def measure_point(
    world: NoiseWorld,
    prior: ImagePrior,
    training: DPSGD,
    delta: float,
    classical: Mapping[str, Denoiser],
    generator: torch.Generator,
) -> NoisePoint:
    """Release every attacked image with noise of one strength and look through the noise."""
    assert training.clipping_norm is not None
    mu, norm, secrets = 1 / training.noise_multiplier, training.clipping_norm, world.secrets
    private = privatize(secrets, mu=mu, clipping_norm=norm, generator=generator)
    noisy, deviation = private.rescale(clipping_factors(secrets, norm))
    few, learned = slice(0, world.sampled), "The prior"

    def run(who: str, denoise: Denoiser, *, of: slice = slice(None), each: int = 1) -> Tensor:
        where = f"{who} at μ = {mu:g}"
        return denoisers.run(where, denoise, noisy[of], deviation[of], each=each)

    found = [
        run(learned, lambda x, s: _in_parts(x, s, lambda y, t: posterior_mean(prior, y, t))),
        run(learned, lambda x, s: _in_parts(x, s, lambda y, t: ddim(prior, y, t))),
        *(run(f"The denoiser {name!r}", denoise) for name, denoise in classical.items()),
        denoisers.none(noisy, deviation),
    ]
    drawn = run(
        learned,
        lambda x, s: ddpm(prior, x, s, samples=SAMPLES, generator=generator).flatten(0, 1),
        of=few,
        each=SAMPLES,
    ).unflatten(0, (SAMPLES, -1))
    true = torch.stack([ssim(one, secrets[few]) for one in drawn]).mean(0)
    maps = agreement_map(drawn[:, : world.shown])
    exact = world.pool.double()
    clipped = exact / clipping_factors(exact, norm)[:, None, None, None]
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
        epsilon=finite(epsilon_by_privacy_loss(training, delta)),
        release_epsilon=finite(epsilon_by_privacy_loss(release, delta)),
        measures=tuple(_measure(world, images, norm) for images in found),
        samples=SampleAgreement(
            images=world.sampled,
            samples=SAMPLES,
            agreement=mean_of(agreement(drawn), world.confidence),
            similarity=mean_of(true, world.confidence),
        ),
        matched=_rate(
            names_secret(private.released, clipped, world.near, world.own), world.confidence
        ),
        matched_error=mean_of(squared_errors(chosen, secrets), world.confidence),
        weighted_error=mean_of(squared_errors(weighted, secrets), world.confidence),
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


def _measure(world: NoiseWorld, images: Tensor, norm: float) -> MethodMeasure:
    # The attacker is told how much the secret was clipped, which alone gives its brightness away.
    # Pictures are therefore compared with candidates as they are after clipping.
    factors = clipping_factors(world.pool, norm)[:, None, None, None]
    drawn = images / factors[: len(images)]
    own, other = ssim(images, world.secrets), ssim(images, world.other_images)
    return MethodMeasure(
        error=mean_of(squared_errors(images, world.secrets), world.confidence),
        similarity=mean_of(own, world.confidence),
        other_similarity=mean_of(other, world.confidence),
        closer=mean_of(own - other, world.joint),
        named=_rate(
            names_secret(drawn, world.pool / factors, world.near, world.own), world.confidence
        ),
    )


def squared_errors(images: Tensor, secrets: Tensor) -> Tensor:
    """Mean squared error (n,) of each image."""
    return (images - secrets).square().flatten(1).mean(1)


def _rate(hits: Tensor, confidence: float) -> Rate:
    return limited_rate(int(hits.sum()), len(hits), confidence)


def _in_parts(noisy: Tensor, deviation: Tensor, denoise: Denoiser) -> Tensor:
    parts = zip(noisy.split(AT_ONCE), deviation.split(AT_ONCE))
    return torch.cat([denoise(images, sigma) for images, sigma in parts])


def _no_prior_error(images: Tensor, mu: float, clipping_norm: float) -> float:
    """Mean over images of the variance that an unbiased attacker cannot avoid."""
    size = images[0].numel()
    norms = images.flatten(1).norm(dim=1).clamp_min(1e-12).tolist()
    bounds = [NoPriorReconstruction(size, norm, clipping_norm) for norm in norms]
    return sum(bound.noise_variance(Gaussian(1 / mu)) for bound in bounds) / len(bounds)


def draw_candidates(
    attacked: int, available: int, candidates: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The secret and others without repetition (attacked, k), and the secret's place (attacked,).

    The place is random, so that whatever picks the first of equal candidates gains nothing by it.
    """
    rows, own = [], []
    for secret in range(attacked):
        drawn = torch.randperm(available - 1, generator=generator)[: candidates - 1]
        others = drawn + (drawn >= secret).long()
        place = int(torch.randint(candidates, (), generator=generator))
        rows.append(torch.cat([others[:place], torch.tensor([secret]), others[place:]]))
        own.append(place)
    return torch.stack(rows), torch.tensor(own)


def draw_others(attacked: int, available: int, generator: torch.Generator) -> Tensor:
    """Another image for each attacked one (attacked,)."""
    shift = torch.randint(1, available, (attacked,), generator=generator)
    return (torch.arange(attacked) + shift) % available


def list_methods(classical: Mapping[str, Denoiser]) -> tuple[Method, ...]:
    """The methods that every image goes through, in the order of measures."""
    return (
        Method(name="Posterior mean", kind="prior", summary="learned prior, one step"),
        Method(name="DDIM", kind="prior", summary="learned prior, four steps"),
        *(Method(name=name, kind="classical", summary="no prior") for name in classical),
        Method(name="Noisy image", kind="nothing", summary="what the noise leaves, in [0, 1]"),
    )
