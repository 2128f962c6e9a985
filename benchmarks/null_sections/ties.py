"""Audits by several distances with many ties, whose attack reads nothing.

Records take three values in every pixel, or each stands three times in its pool, or both. Of five
distances one embedding maps all records to one point, one does so but for rounding, and one keeps
a single bit; the constant one is the primary one in a third of the studies. Simulated: ranks of one
blind attack, or of three, go through the code that judges. Whole: ``run`` on gradients of batches
of one and two, two attacks that do not look at them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from null_sections.distances import simulated
from null_sections.null_attacks import Blind, blind_audit, patches
from null_sections.rates import report_verdicts
from sheet import Sheet
from vestige import Records, run
from vestige.distances import Distance, EmbeddingDistance, SignTolerant, mean_squared_error
from vestige.reports.audit import AuditFindings
from vestige.reports.report import Report

REPLICATES, WHOLE_RUNS, TRIALS = 1000, 300, 20
KINDS = ("few values", "duplicates", "duplicates of few values")
WORLDS = tuple(zip(KINDS, (("grey",), ("grey", "constant", "draw"), ("grey", "constant", "draw"))))
POOL, COPIES = 45, 3


def _one_point(records: Tensor) -> Tensor:
    return records.new_ones(len(records), 3)


def _one_bit(records: Tensor) -> Tensor:
    return (records.flatten(1).mean(1, keepdim=True) > 0.5).to(records)


def _saturated(records: Tensor) -> Tensor:
    """Hidden units that saturate: outputs differ by rounding alone."""
    generator = torch.Generator().manual_seed(11)
    first = torch.rand((16, 64), generator=generator)
    last = torch.randn((32, 64), generator=generator)
    hidden = torch.tanh(records.flatten(1) @ first + 500)
    return nn.functional.linear(hidden, last, last[:, 0])


POINT = EmbeddingDistance(_one_point, name="one point")
DISTANCES: tuple[Distance, ...] = (
    mean_squared_error,
    SignTolerant(),
    EmbeddingDistance(_saturated, name="one point but for rounding"),
    EmbeddingDistance(_one_bit, name="one bit"),
)


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kind, attacks in WORLDS:
        random = np.random.default_rng([17, KINDS.index(kind)])
        reports = [
            simulated(
                attacks,
                tied(kind, POOL, 130_000 + n),
                tied(kind, 60, 140_000 + n, apart=True),
                _ordered(n),
                TRIALS,
                random,
            )
            for n in range(REPLICATES)
        ]
        where = f"ties, {kind}, {' + '.join(attacks)}, {TRIALS} trials"
        report_verdicts(sheet, where, reports)
    whole = [_whole(number) for number in range(WHOLE_RUNS)]
    report_verdicts(sheet, "ties, whole runs", whole)


def tied(kind: str, count: int, seed: int, *, apart: bool = False) -> Records:
    """Patches with few values, or each of them three times; ``apart`` keeps a prior disjoint."""
    copies = COPIES if "duplicates" in kind else 1
    found = patches(count // copies, seed)
    x, y = found.x.repeat(copies, 1, 1, 1), found.y.repeat(copies)
    if "few" in kind:
        x = (2 * x).round() / 2
    return Records(0.01 + 0.97 * x if apart else x, y, found.space)


def _ordered(number: int) -> tuple[Distance, ...]:
    """Five distances; the primary one is the constant one in every third study."""
    first, *others = DISTANCES
    return (POINT, first, *others) if number % 3 == 0 else (first, POINT, *others)


def _whole(number: int) -> Report[AuditFindings, Any]:
    """``run`` on the gradients of a small network; the attacks do not look at them."""
    kind = KINDS[number // 3 % 3]
    audit = blind_audit(
        [Blind("grey"), Blind("draws", 3)],
        tied(kind, POOL, 150_000 + number),
        tied(kind, 60, 160_000 + number, apart=True),
        TRIALS,
        distance=_ordered(number),
        batch_size=1 + number % 2,
    )
    return run(audit, seed=number)
