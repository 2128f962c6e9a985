"""Audits by several distances at once whose attack reads nothing.

Five distances are declared: mean squared error, 1 − SSIM, shift-tolerant, sign-tolerant, and a
random projection as an embedding. Simulated: three classes of small patches, 9 decoys, one blind
attack and three at once; ranks by every distance go through the code that judges. Whole: ``run``
with 20 trials on gradients, two attacks that do not look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from null_sections.drafts import DECOYS, FALSE_POSITIVE_RATE, GUESSES, NOMINAL, draft
from null_sections.null_attacks import Blind, patches
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import Audit, Prior, Records, networks, run
from vestige.distances import (
    EmbeddingDistance,
    ShiftTolerant,
    SignTolerant,
    distance_label,
    is_squared_error,
    mean_squared_error,
    structural_dissimilarity,
)
from vestige.reports.audit import AuditFindings, FurtherDistance, FurtherOutcome
from vestige.reports.parts import VerdictKind
from vestige.reports.report import Report
from vestige.studies.audit.evidence import rank_among
from vestige.studies.judge import report_on
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

REPLICATES, WHOLE_RUNS, TRIALS = 1000, 200, 20
WORLDS: tuple[tuple[str, ...], ...] = (("grey",), ("grey", "constant", "draw"))


def projected(records: Tensor) -> Tensor:
    """Six random directions of a patch."""
    directions = torch.randn((16, 6), generator=torch.Generator().manual_seed(7))
    return records.flatten(1) @ directions


DISTANCES = (
    mean_squared_error,
    structural_dissimilarity,
    ShiftTolerant(1),
    SignTolerant(),
    EmbeddingDistance(projected, name="random projection"),
)
FURTHER = tuple(
    FurtherDistance(name=distance_label(one), squared_error=is_squared_error(one))
    for one in DISTANCES[1:]
)


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kinds in WORLDS:
        random = np.random.default_rng([5, len(kinds)])
        reports = [_simulated(kinds, number, random) for number in range(REPLICATES)]
        where = f"audit, five distances, {' + '.join(kinds)}, {TRIALS} trials"
        _report(sheet, where, reports)
    _report(sheet, "audit, five distances, whole runs", [_whole(n) for n in range(WHOLE_RUNS)])


def _report(sheet: Sheet, where: str, reports: Sequence[Report[AuditFindings, Any]]) -> None:
    shown = [report.verdict for report in reports]
    demonstrated = sum(verdict.kind is VerdictKind.DEMONSTRATED for verdict in shown)
    redrawn = sum("can redraw" in verdict.headline for verdict in shown)
    report_rate(sheet, f"{where}: DEMONSTRATED", demonstrated, len(shown), NOMINAL)
    report_rate(sheet, f"{where}: 'can redraw'", redrawn, len(shown), NOMINAL)


def _pictures(kind: str, prior: Records, labels: Tensor, random: np.random.Generator) -> Tensor:
    """One picture (1, 4, 4) for each label, by an attack that saw no release."""
    if kind == "grey":
        return torch.full((len(labels), *prior.x.shape[1:]), 0.5)
    members = [torch.nonzero(prior.y == label).flatten() for label in labels]
    if kind == "mean":
        return torch.stack([prior.x[own].mean(0) for own in members])
    first = kind == "constant"
    places = [int(own[0 if first else random.integers(len(own))]) for own in members]
    return prior.x[places]


def _simulated(
    kinds: Sequence[str], number: int, random: np.random.Generator
) -> Report[AuditFindings, Any]:
    """One audit, judged: secrets without repetition, decoys of their class from one pool."""
    pool, prior = patches(45, 40_000 + number), patches(60, 50_000 + number)
    audited = random.permutation(len(pool))[:TRIALS]
    labels = pool.y[torch.from_numpy(audited)]
    decoys = []
    for secret, label in zip(audited, labels):
        others = np.flatnonzero((pool.y == label).numpy())
        decoys.append(random.permutation(others[others != secret])[:DECOYS])
    names = (*(f"Blind {kind}" for kind in kinds), *GUESSES)
    ranks: dict[str, list[int]] = {}
    own: dict[str, list[float]] = {}
    further: dict[str, list[tuple[FurtherOutcome, ...]]] = {}
    for name, kind in zip(names, (*kinds, "draw", "mean")):
        drawings = _pictures(kind, prior, labels, random)
        rows = [distance(drawings, pool.x).numpy() for distance in DISTANCES]
        seen = [
            [
                (rank_among(float(row[t, s]), row[t, decoys[t]]), float(row[t, s]))
                for t, s in enumerate(audited)
            ]
            for row in rows
        ]
        ranks[name] = [rank for rank, _ in seen[0]]
        own[name] = [distance for _, distance in seen[0]]
        further[name] = [
            tuple(
                FurtherOutcome(rank=rank, distance=d, decoy_distance=None, nearest_decoy=None)
                for rank, d in (one[t] for one in seen[1:])
            )
            for t in range(TRIALS)
        ]
    return report_on(draft(ranks, own, further=FURTHER, further_outcomes=further))


def _whole(number: int) -> Report[AuditFindings, Any]:
    """``run`` on the gradients of a small network; the attacks do not look at them."""
    secrets = patches(45, 60_000 + number)
    network = networks.mlp(secrets.space, hidden=(4,), generator=torch.Generator().manual_seed(5))
    audit = Audit(
        SharedGradient(network),
        secrets,
        Prior(patches(60, 70_000 + number)),
        [Blind("grey"), Blind("draws", 3)],
        threat=HonestServer(labels=True),
        false_positive_rate=FALSE_POSITIVE_RATE,
        distance=DISTANCES,
    )
    return run(replace(audit, trials=TRIALS), seed=number)
