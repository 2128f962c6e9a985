"""Studies of noise whose pictures do not depend on the release, and headlines of audits.

Pictures are the mean of the images, or images drawn at random; releases hold next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from null_sections.rates import report_rate
from sheet import Sheet, stream
from vestige import ImageSpace, Records
from vestige.priors import NoiseSchedule, clipping_factors, privatize
from vestige.reports.audit import AttackFindings, AuditFindings, Outcome
from vestige.reports.noise import Method, NoisePoint, SampleAgreement
from vestige.reports.parts import SpaceDescription, ThreatDescription, Verdict, VerdictKind
from vestige.reports.report import Report
from vestige.statistics.naming import names_secret
from vestige.studies.judge import judge
from vestige.studies.noise.judge import judge_points
from vestige.studies.noise.measure import (
    NoiseWorld,
    _measure,
    _rate,
    draw_candidates,
    draw_others,
    mean_of,
)
from vestige.studies.noise.plan import NoiseStudy
from vestige.studies.run import run

REPLICATES = 1000
RUNS = 200
SPACE = ImageSpace(1, 8, 8, ("patch",), noun="patch")
METHODS = (
    Method(name="Mean", kind="prior", summary="the mean of all images"),
    Method(name="Draws", kind="prior", summary="other images, drawn at random"),
)
LEVEL = 0.05
"""Share of studies that may say something false: 2.5% about pictures, 2.5% about naming."""


def draws(count: int, generator: torch.Generator) -> Tensor:
    """Smooth patches: SSIM between any two of them is neither 0 nor 1."""
    coarse = torch.rand((count, 1, 3, 3), generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(8, 8), mode="bilinear")


@dataclass(frozen=True, eq=False)
class BlindPrior:
    """A prior that returns one of its own images, whatever it is given."""

    images: Tensor
    generator: torch.Generator
    shape: tuple[int, ...] = (1, 8, 8)
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)

    def expected(self, noisy: Tensor, time: Tensor) -> Tensor:
        """Images of its own, at random."""
        places = torch.randint(len(self.images), (len(noisy),), generator=self.generator)
        return (2 * self.images[places] - 1).to(noisy)

    def noise(self, noisy: Tensor, time: Tensor) -> Tensor:
        """No noise: nothing here asks for it."""
        return torch.zeros_like(noisy)


def judged_pictures(seed: int, *, strengths: int = 2, images: int = 20) -> tuple[Verdict, int]:
    """One study by its statistics alone: pictures that read nothing, and how many were named."""
    generator = stream(seed)
    pool = draws(24, generator)
    near, own = draw_candidates(images, len(pool), 8, generator)
    joint = 1 - LEVEL / (strengths * len(METHODS))
    world = NoiseWorld(
        pool, near, own, draw_others(images, len(pool), generator), 0, 2, 0.95, joint
    )
    exact = pool.double()
    clipped = exact / clipping_factors(exact, 1.0)[:, None, None, None]
    points, hits = [], 0
    nothing = mean_of(torch.zeros(2), 0.95)
    for place in range(strengths):
        mu = 1e-9 / (1 + place)
        private = privatize(world.secrets, mu=mu, generator=generator)
        found = names_secret(private.released, clipped, near, own)
        hits += int(found.sum())
        pictures = (pool.mean(0).expand(images, -1, -1, -1), draws(images, generator))
        points.append(
            NoisePoint(
                mu=mu,
                epsilon=None,
                release_epsilon=None,
                measures=tuple(_measure(world, some, 1.0) for some in pictures),
                samples=SampleAgreement(images=2, samples=2, agreement=nothing, similarity=nothing),
                matched=_rate(found, 0.95),
                matched_error=nothing,
                weighted_error=nothing,
                bound=1 / 8,
                training_bound=1 / 8,
                no_prior_error=0.0,
                sights=(),
            )
        )
    return judge_points(points, METHODS, 8, images), hits


def studied(seed: int) -> Report:
    """One whole study of 16 patches with a prior that reads nothing, at two strengths."""
    generator = stream(seed)
    records = Records(draws(16, generator), torch.zeros(16, dtype=torch.int64), SPACE)
    prior = BlindPrior(draws(40, generator), generator)
    study = NoiseStudy(
        records, prior, mus=(0.2, 0.15), candidates=8, shown=1, sampled=2, classical={}
    )
    return run(study, seed=seed)


def tied_hits(seed: int) -> int:
    """How many of 10 secrets are named beside a darker copy that clipping makes equal to them."""
    generator = stream(seed)
    bright = draws(10, generator)
    shares = 0.1 + 0.8 * torch.rand((10, 1, 1, 1), generator=generator)
    pool = torch.cat([bright, bright * shares])
    private = privatize(bright, mu=50.0, clipping_norm=0.05, generator=generator)
    clipped = pool.double() / clipping_factors(pool.double(), 0.05)[:, None, None, None]
    near = torch.stack([torch.arange(10), torch.arange(10, 20)], 1)
    return int(
        names_secret(private.released, clipped, near, torch.zeros(10, dtype=torch.int64)).sum()
    )


def blind_audit(
    world: np.random.Generator, trials: int, decoys: int, attacks: int
) -> AuditFindings:
    """An audit of attacks that draw records of the prior, and a guess that draws class means."""
    secrets = world.normal(0, 1, (trials, decoys + 1, 6))

    def attack(name: str, drawings: np.ndarray, *, guess: bool = False) -> AttackFindings:
        errors = ((secrets - drawings[:, None]) ** 2).mean(2)
        ranks = 1 + (errors[:, 1:] <= errors[:, :1]).sum(1)
        outcomes = tuple(
            Outcome(
                trial=trial,
                rank=int(ranks[trial]),
                distance=float(errors[trial, 0]),
                decoy_distance=float(errors[trial, 1]),
                nearest_decoy=float(errors[trial, 1:].min()),
                mse=float(errors[trial, 0]),
            )
            for trial in range(trials)
        )
        return AttackFindings(
            name=name, summary="", cites="", guess=guess, settings={}, outcomes=outcomes
        )

    blind = [attack(f"A{i}", world.normal(0, 1, (trials, 6))) for i in range(attacks)]
    return AuditFindings(
        title="Null",
        release="a shared gradient",
        space=SpaceDescription(kind="image", shape=(1, 2, 3), noun="patch", class_names=("a",)),
        threat=ThreatDescription(
            attacker="training server", who="", sees="", told="", not_told="", prior=""
        ),
        seed=0,
        trials_planned=trials,
        trials_finished=trials,
        batch_size=1,
        decoys=decoys,
        false_positive_rate=1 / (decoys + 1),
        confidence=0.95,
        distance="mean squared error",
        attacks=(*blind, attack("Guess", np.zeros((trials, 6)), guess=True)),
    )


def measure(sheet: Sheet) -> None:
    """Count false statements of noise studies, and headlines that say redraw."""
    verdicts, hits = zip(*(judged_pictures(seed) for seed in range(REPLICATES)))
    shown = [v for v in verdicts if v.kind is VerdictKind.DEMONSTRATED]
    seen = sum("resemble" in v.headline for v in shown)
    told = sum("told apart" in v.headline for v in verdicts)
    report_rate(sheet, "pictures resemble their secret (judged)", seen, REPLICATES, LEVEL / 2)
    report_rate(sheet, "images told apart (judged)", told, REPLICATES, LEVEL / 2)
    invalid = sum(v.kind is VerdictKind.INVALID for v in verdicts)
    report_rate(sheet, "more named than the noise allows (judged)", invalid, REPLICATES, 1e-4)
    report_rate(sheet, "named among 8 candidates, μ = 1e-9", sum(hits), 40 * REPLICATES, 1 / 8)
    tied = sum(tied_hits(seed) for seed in range(REPLICATES))
    report_rate(sheet, "named beside an equal candidate", tied, 10 * REPLICATES, 0.0)
    world = np.random.default_rng(0)
    audits = [judge(blind_audit(world, 30, 9, 2)).verdict for _ in range(REPLICATES)]
    redrawn = sum("can redraw" in v.headline for v in audits)
    report_rate(sheet, "an audit says redraw (judged)", redrawn, REPLICATES, LEVEL / 2)
    runs = [studied(10_000 + seed).verdict for seed in range(RUNS)]
    said = sum(v.kind is VerdictKind.DEMONSTRATED for v in runs)
    report_rate(sheet, "whole noise studies: DEMONSTRATED", said, RUNS, LEVEL)
    invalid = sum(v.kind is VerdictKind.INVALID for v in runs)
    report_rate(sheet, "whole noise studies: INVALID", invalid, RUNS, 1e-4)
