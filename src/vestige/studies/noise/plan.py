"""The study of noise: what a learned prior sees through DP-SGD's noise, between two bounds.

Schwethelm et al., "Visual Privacy Auditing with Diffusion Models" (2025), sections 4.2 to 4.4 and
Figure 10. The release is the image itself, clipped, plus noise (their equation 7): what a malicious
server gets from DP-SGD when it sends a network whose gradient is its input.

Deviations: μ is 1/σ (the paper's at C = 1); candidates are matched by likelihood and
reconstructions by squared error, where the paper takes dot products and LPIPS. The paper's floor is
the similarity between test images; a blurred average can be above that floor without any release,
so pictures are also compared with an image that is not their secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from vestige.choices import check_fields, check_number, check_object, check_whole, describe_value
from vestige.content import code_digest, combined_digest
from vestige.distances import ssim
from vestige.errors import BadInput
from vestige.mechanisms import DPSGD
from vestige.priors import classical_denoisers as denoisers
from vestige.priors.classical_denoisers import Denoiser
from vestige.priors.diffusion import ImagePrior
from vestige.records import ImageSpace, Records, TextSpace
from vestige.reports.noise import NoiseFindings, NoisePoint
from vestige.reports.numbers import count
from vestige.reports.parts import Check, Picture
from vestige.streams import stream
from vestige.studies.declared import Declared
from vestige.studies.noise.judge import noise_limits, noise_threat
from vestige.studies.noise.measure import (
    SAMPLES,
    NoiseWorld,
    draw_candidates,
    draw_others,
    list_methods,
    mean_of,
    measure_point,
    squared_errors,
)
from vestige.studies.report_parts import describe_space, environment
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, parsed_unit, unit_bytes

CANDIDATES = 256
"""Images that the secret is to be told from, itself included, as in the paper."""

CLASSICAL: Mapping[str, Denoiser] = {"Total variation": denoisers.total_variation}
"""Denoisers without a learned prior; total variation needs nothing that is not installed."""


@dataclass(frozen=True)
class NoiseStudy(Declared):
    """Release images with noise of every strength μ and look through it with a prior.

    ``steps`` T and ``sampling_rate`` q are those of the training whose (ε, δ) is reported beside μ.
    The images are put in random order; the first ``attacked`` are attacked (all if None), of which
    the first ``sampled`` get random reconstructions, and the first ``shown`` are looked at. The
    others serve as candidates. No image of the prior's training may be among them. A unit of work
    is one strength.
    """

    images: Records
    prior: ImagePrior
    mus: Sequence[float]
    clipping_norm: float = 1.0
    steps: int = 1
    sampling_rate: float = 1.0
    delta: float = 1e-5
    title: str = ""
    prior_name: str = "a diffusion model"
    attacked: int | None = None
    shown: int = 4
    sampled: int = 24
    candidates: int = CANDIDATES
    classical: Mapping[str, Denoiser] = field(default_factory=lambda: dict(CLASSICAL))
    confidence: float = 0.95

    kind = "noise study"

    def __post_init__(self) -> None:
        if isinstance(self.images, Records) and isinstance(self.images.space, TextSpace):
            raise BadInput(
                f"A noise study looks at images, and these records are {self.images.space.noun}s: "
                "measure what noise hides of them by an Audit or a Comparison."
            )
        assert self.strengths
        check_fields(self, counts=("attacked", "steps", "candidates"))
        if not 0 < self.confidence < 1 or not 0 < self.delta < 1:
            raise BadInput("confidence and delta of NoiseStudy lie strictly between 0 and 1.")
        check_whole("shown of NoiseStudy", self.shown, 0)
        check_whole("sampled of NoiseStudy", self.sampled, 0)
        DPSGD(1.0, self.sampling_rate, self.steps, self.clipping_norm)  # checks the training
        if self.attacked is not None and min(self.attacked, len(self.pool)) < 2:
            raise BadInput("Means over images need at least two: raise attacked.")

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title or "Images under noise"

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths of noise, least noise first."""
        return checked_strengths(self.mus)

    @cached_property
    def pool(self) -> Records:
        """The different images."""
        return checked_pool(self.images, self.prior, self.candidates)

    def identity(self) -> str:
        """Digest of images, settings and of what the prior gives for two images."""
        some = self.pool.x[:2].float().cpu()
        times = torch.full((len(some),), float(len(self.prior.schedule.signal) // 2))
        with torch.no_grad():
            seen = self.prior.expected(2 * some - 1, times).flatten()
        given = [f"{value:.4g}" for value in seen[:: max(1, seen.numel() // 50)]]
        facts = [self.heading, self.strengths, self.clipping_norm, self.steps, self.sampling_rate]
        facts += [self.delta, self.prior_name, self.attacked, self.shown, self.sampled]
        facts += [self.candidates, list(self.classical), self.confidence, given]
        return combined_digest(
            self.kind, json.dumps(facts), "".join(self.pool.fingerprints()), str(self.images.space)
        )

    def code(self) -> dict[str, str]:
        """Digest of the prior's code."""
        return {"the prior": code_digest(self.prior)}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Nothing to suspect before the work: noise and bound are Vestige's own."""
        return ()

    def units(self) -> list[str]:
        """One unit for each strength."""
        return [f"μ = {mu:g}" for mu in self.strengths]

    def prepare(self, seed: int) -> NoiseWork:
        """Draw secrets and candidates, the same at every strength."""
        return NoiseWork(self, self._world(seed), seed)

    def _world(self, seed: int) -> NoiseWorld:
        generator = stream(seed, "images")
        size = len(self.pool)
        attacked = size if self.attacked is None else min(self.attacked, size)
        shown = min(self.shown, attacked)
        return NoiseWorld(
            self.pool.x[torch.randperm(size, generator=generator)].float().cpu(),
            *draw_candidates(attacked, size, self.candidates, generator),
            draw_others(attacked, size, generator),
            shown,
            max(2, min(self.sampled, attacked), shown),
            self.confidence,
            1 - (1 - self.confidence) / (len(self.strengths) * len(list_methods(self.classical))),
        )

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored strength is damaged."""
        parsed_unit(result, NoisePoint)

    def findings(self, results: Sequence[UnitResult], about: Header) -> NoiseFindings:
        """What the strengths that were measured hide."""
        world, methods = self._world(about.seed), list_methods(self.classical)
        points = tuple(parsed_unit(one, NoisePoint) for one in results)
        attacked = len(world.near)
        return NoiseFindings(
            title=self.heading,
            space=describe_space(self.images.space),
            threat=noise_threat(
                self.images.space.noun, self.clipping_norm, self.prior_name, self.candidates
            ),
            prior=self.prior_name,
            methods=methods,
            points=points,
            secrets=tuple(Picture.of(image.numpy()) for image in world.pool[: world.shown]),
            images=attacked,
            candidates=self.candidates,
            clipping_norm=self.clipping_norm,
            steps=self.steps,
            sampling_rate=self.sampling_rate,
            delta=self.delta,
            confidence=self.confidence,
            floor_error=mean_of(squared_errors(world.other_images, world.secrets), self.confidence),
            floor_similarity=mean_of(ssim(world.other_images, world.secrets), self.confidence),
            limits=noise_limits(attacked, self.confidence),
            settings={
                "Images, attacked": f"{count(len(self.pool))}, {count(attacked)}",
                "Prior": self.prior_name,
                "Strengths μ": ", ".join(f"{mu:g}" for mu in self.strengths),
                "Clipping norm C": f"{self.clipping_norm:g}",
                "Training steps T, sampling rate q, δ": f"{count(self.steps)}, "
                f"{self.sampling_rate:g}, {self.delta:g}",
                "Candidates": count(self.candidates),
                "Random reconstructions": f"{SAMPLES} of {count(world.sampled)} images",
                "Seed": str(about.seed),
            },
            environment=environment(torch.device("cpu")),
            failure=about.failure,
            seed=about.seed,
            preflight=about.preflight,
            times=about.times,
            strengths_planned=len(self.strengths),
        )


@dataclass(frozen=True)
class NoiseWork:
    """Measures one strength of noise; every strength has its own stream of randomness."""

    study: NoiseStudy
    world: NoiseWorld
    seed: int

    def __call__(self, number: int) -> bytes:
        """Release all attacked images at one strength and look through the noise."""
        study, mu = self.study, self.study.strengths[number]
        point = measure_point(
            self.world,
            study.prior,
            DPSGD(1 / mu, study.sampling_rate, study.steps, study.clipping_norm),
            study.delta,
            study.classical,
            stream(self.seed, "noise", number),
        )
        return unit_bytes(point.model_dump_json())


def checked_strengths(mus: Iterable[float]) -> tuple[float, ...]:
    """The strengths of noise, largest first."""
    if isinstance(mus, (str, bytes)) or not isinstance(mus, Iterable):
        raise BadInput(f"The mus of NoiseStudy must be a list, not {describe_value(mus)}.")
    found = tuple(mus)
    for mu in found:
        check_number("strength of noise μ", mu)
    if not found or len(set(found)) < len(found) or not all(mu > 0 for mu in found):
        raise BadInput("Give one strength of noise μ or more: positive, finite, each once.")
    return tuple(sorted((float(mu) for mu in found), reverse=True))


def checked_pool(images: Records, prior: ImagePrior, candidates: int) -> Records:
    """The distinct images, or one sentence why they cannot be told apart with this prior."""
    check_object("images of NoiseStudy", images, Records)
    check_object("prior of NoiseStudy", prior, ImagePrior)
    check_whole("candidates of NoiseStudy", candidates)
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
