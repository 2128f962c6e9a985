"""Audits by several distances at once whose attack reads nothing.

Five distances are declared: mean squared error, 1 − SSIM, shift-tolerant, sign-tolerant, and a
random projection as an embedding. Simulated: three classes of small patches, 9 decoys, one blind
attack and three at once; ranks by every distance go through the code that judges. Whole: ``run``
with 20 trials on gradients, two attacks that do not look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from null_sections.drafts import DECOYS, GUESSES, draft, further_outcomes
from null_sections.null_attacks import Blind, blind_audit, patches
from null_sections.rates import report_verdicts
from sheet import Sheet
from vestige import Records, run
from vestige.distances import (
    Distance,
    EmbeddingDistance,
    ShiftTolerant,
    SignTolerant,
    distance_label,
    is_squared_error,
    mean_squared_error,
    structural_dissimilarity,
)
from vestige.reports.audit import AuditFindings, FurtherDistance
from vestige.reports.report import Report
from vestige.studies.audit.evidence import costs_between, rank_among
from vestige.studies.judge import report_on

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


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kinds in WORLDS:
        random = np.random.default_rng([5, len(kinds)])
        reports = [
            simulated(
                kinds, patches(45, 40_000 + n), patches(60, 50_000 + n), DISTANCES, TRIALS, random
            )
            for n in range(REPLICATES)
        ]
        where = f"audit, five distances, {' + '.join(kinds)}, {TRIALS} trials"
        report_verdicts(sheet, where, reports)
    whole = [_whole(number) for number in range(WHOLE_RUNS)]
    report_verdicts(sheet, "audit, five distances, whole runs", whole)


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


def simulated(
    kinds: Sequence[str],
    pool: Records,
    prior: Records,
    distances: Sequence[Distance],
    trials: int,
    random: np.random.Generator,
) -> Report[AuditFindings, Any]:
    """One audit, judged: secrets without repetition, decoys of their class from one pool."""
    audited = random.permutation(len(pool))[:trials]
    labels = pool.y[torch.from_numpy(audited)]
    decoys = []
    for secret, label in zip(audited, labels):
        others = np.flatnonzero((pool.y == label).numpy())
        decoys.append(random.permutation(others[others != secret])[:DECOYS])
    names = (*(f"Blind {kind}" for kind in kinds), *GUESSES)
    ranks: dict[str, list[list[int]]] = {}
    own: dict[str, list[list[float]]] = {}
    for name, kind in zip(names, (*kinds, "draw", "mean")):
        drawings = _pictures(kind, prior, labels, random)
        rows = [costs_between(distance, drawings, pool.x) for distance in distances]
        own[name] = [[float(row[t, s]) for t, s in enumerate(audited)] for row in rows]
        ranks[name] = [
            [rank_among(far[t], row[t, decoys[t]]) for t in range(trials)]
            for row, far in zip(rows, own[name])
        ]
    found = draft(
        {name: rows[0] for name, rows in ranks.items()},
        {name: rows[0] for name, rows in own.items()},
        further=described(distances[1:]),
        outcomes={name: further_outcomes(ranks[name][1:], own[name][1:]) for name in names},
    )
    return report_on(found)


def described(distances: Sequence[Distance]) -> tuple[FurtherDistance, ...]:
    """Further distances as findings name them."""
    return tuple(
        FurtherDistance(name=distance_label(one), squared_error=is_squared_error(one))
        for one in distances
    )


def _whole(number: int) -> Report[AuditFindings, Any]:
    """``run`` on the gradients of a small network; the attacks do not look at them."""
    attacks = [Blind("grey"), Blind("draws", 3)]
    secrets, prior = patches(45, 60_000 + number), patches(60, 70_000 + number)
    audit = blind_audit(attacks, secrets, prior, TRIALS, distance=DISTANCES)
    return run(audit, seed=number)
