"""A small study of every kind, whose run folders tests verify, spoil, list and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from captured_worlds import captured, one_by_one
from head_worlds import LeastSquares, digits, victim
from priors.gaussian import GaussianPrior
from vestige import (
    CapturedAudit,
    Comparison,
    HeadStudy,
    Inversion,
    NoiseStudy,
    Prior,
    RecordRisk,
    run,
)
from vestige.attacks import InvertingGradients
from vestige.defenses import GradientPruning
from vestige.interfaces import Run
from vestige.pages.saving import save_page
from vestige.records import ImageSpace, Records
from vestige.streams import stream
from vestige.studies import ComparedServer, Repeated, UtilityTraining
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import LabelOnly, draws, linear_network, small_audit

PATCHES = ImageSpace(1, 8, 8, ("noise",), noun="patch")


def audit(trials: int = 3, **changes: Any):
    return replace(
        small_audit([LabelOnly()], threat=HonestServer(labels=True), **changes), trials=trials
    )


def captured_audit():
    records = draws(36, 50_001)
    releases = captured(one_by_one(records[:6]), draws(30, 1), real=True)
    return CapturedAudit(releases, records[6:], [LabelOnly()], false_positive_rate=0.2)


def head_study():
    parts = digits()
    return HeadStudy(
        LeastSquares(20), victim(), parts.train, parts.prior, heads=4, false_positive_rate=0.25
    )


def noise_study():
    prior = GaussianPrior()
    images = prior.draws(24, torch.Generator().manual_seed(3)).clamp(0, 1).float()
    records = Records(images, torch.zeros(24, dtype=torch.int64), PATCHES)
    sizes = {"candidates": 8, "sampled": 2, "shown": 1}
    return NoiseStudy(records, prior, (50.0, 0.5), clipping_norm=10.0, **sizes)


def comparison():
    shared = SharedGradient(linear_network(), mode="eval")
    return Comparison(
        [ComparedServer("server", shared, [LabelOnly()], HonestServer(labels=True))],
        [GradientPruning(0.5)],
        draws(40, 1),
        Prior(draws(30, 2)),
        UtilityTraining(draws(30, 3), draws(20, 4), rounds=2, repeats=2),
        trials=2,
        false_positive_rate=0.1,
        title="Small comparison",
    )


def inversion():
    shared, secret, server = SharedGradient(linear_network()), draws(1, 8), HonestServer()
    release = shared.release(secret, generator=stream(0, "victim"))
    seen = server.observe(Run(secret, release))
    public = server.public(shared, Prior(draws(60, 7)))
    return Inversion(seen, public, [InvertingGradients(iterations=5)], samples=2, rehearsals=1)


def record_risk():
    """Few releases of few records, each with other companions."""
    return RecordRisk(audit(batch_size=2), records=2, outliers=1, repeats=2)


def repeated_audit():
    return Repeated(audit(2, title="Small audit"), repeats=2, release_context="partners")


STUDIES: dict[str, Callable[[], Any]] = {
    "audit": audit,
    "captured audit": captured_audit,
    "head study": head_study,
    "noise study": noise_study,
    "comparison": comparison,
    "inversion": inversion,
    "record risk": record_risk,
    "repeated audit": repeated_audit,
    "extended audit": audit,
}
"""A study of each kind, by its kind."""

EARLIER: dict[str, int] = {"extended audit": 2}
"""Sizes with which a run folder was planned before the study was run in it."""


def run_folder(kind: str, folder: Path, *, redact: bool = False) -> Path:
    """Run a study of a kind in a folder and write its page, as the command line does."""
    if kind in EARLIER:
        run(STUDIES[kind]().resized(EARLIER[kind]), directory=folder)
    save_page(run(STUDIES[kind](), directory=folder), folder / "page.html", redact=redact)
    return folder
