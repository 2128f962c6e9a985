"""Audits of captured releases (``CapturedAudit``) whose attack reads nothing.

Simulated: ten classes, secrets and non-members of one law, 9 decoys; all pictures grey, class
means, one constant record of the prior, or random ones. Distances go through the permutation tests
and the code that judges. Whole: ``CapturedAudit`` on 20 releases of one or two records, half of
the worlds with two rounds of the same batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from null_sections.drafts import (
    DECOYS,
    FALSE_POSITIVE_RATE,
    GUESSES,
    NOMINAL,
    class_world,
    draft,
    painted,
    squared,
)
from null_sections.null_attacks import Blind, patches
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import Prior, networks
from vestige.interfaces import Hints, Observation, Public
from vestige.reports.audit import AuditFindings
from vestige.reports.parts import VerdictKind
from vestige.reports.report import Report
from vestige.statistics.permutation_tests import ClassPool, permutation_tests
from vestige.studies.audit.evidence import rank_among
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease
from vestige.studies.judge import report_on
from vestige.studies.run import run
from vestige.victims import SharedGradient

REPLICATES, WHOLE_RUNS, PERMUTATIONS = 1000, 100, 199
CLASSES, PRIOR = 10, 20
WORLDS = (
    ("grey", 20, 10, False),
    ("grey", 60, 10, False),
    ("grey", 200, 10, False),
    ("grey", 60, 100, False),
    ("grey", 60, 10, True),
    ("mean", 20, 10, False),
    ("constant", 60, 10, False),
)


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kind, trials, others, uneven in WORLDS:
        random = np.random.default_rng([trials, others, uneven, len(kind)])
        records = (_simulated(kind, trials, others, uneven, random) for _ in range(REPLICATES))
        law = "uneven classes" if uneven else "equal classes"
        where = f"captured, {kind}, {trials} trials, {others} others a class, {law}"
        _report(sheet, where, records, REPLICATES)
    _report(sheet, "captured, whole runs, grey", (_whole(n) for n in range(WHOLE_RUNS)), WHOLE_RUNS)


def _report(
    sheet: Sheet, where: str, reports: Iterator[Report[AuditFindings, Any]], count: int
) -> None:
    said: Counter[str] = Counter()
    for report in reports:
        lead = report.judgement.rates_of(report.findings.attacks[0]).rate
        assert lead is not None
        said["demonstrated"] += report.verdict.kind is VerdictKind.DEMONSTRATED
        said["invalid"] += report.verdict.kind is VerdictKind.INVALID
        said["lower"] += lead.lower > report.findings.false_positive_rate
        said["upper"] += lead.upper < report.findings.false_positive_rate
    report_rate(sheet, f"{where}: DEMONSTRATED", said["demonstrated"], count, NOMINAL)
    report_rate(sheet, f"{where}: INVALID by a guess", said["invalid"], count, NOMINAL)
    report_rate(sheet, f"{where}: limits without α", said["lower"] + said["upper"], count, 0.05)


def _simulated(
    kind: str, trials: int, others: int, uneven: bool, random: np.random.Generator
) -> Report[AuditFindings, Any]:
    """One audit: ranks and permutation tests of ten classes, judged."""
    weights = 0.7 ** np.arange(CLASSES) if uneven else np.ones(CLASSES)
    counts = Counter(random.choice(CLASSES, trials, p=weights / weights.sum()).tolist())
    names = ("Blind", *GUESSES)
    ranks: dict[str, list[int]] = {name: [] for name in names}
    distances: dict[str, list[float]] = {name: [] for name in names}
    pools = []
    for count in counts.values():
        pool, prior = class_world(random, count + others), class_world(random, PRIOR)
        found = {
            name: squared(painted(way, prior, count, random), pool)
            for name, way in zip(names, (kind, "draw", "mean"))
        }
        for place in range(count):
            free = np.delete(np.arange(len(pool)), place)
            decoys = random.permutation(free)[:DECOYS]
            for name, rows in found.items():
                own = float(rows[place, place])
                ranks[name].append(rank_among(own, rows[place, decoys]))
                distances[name].append(own)
        pools.append(ClassPool(found, np.zeros((count, count), dtype=bool)))
    tests = permutation_tests(
        pools, DECOYS, 1, seed=int(random.integers(2**62)), permutations=PERMUTATIONS
    )
    smallest = min(pool.size for pool in pools)
    return report_on(draft(ranks, distances, tests=tests, smallest_pool=smallest))


def _whole(number: int) -> Report[AuditFindings, Any]:
    """``CapturedAudit`` on releases of a small network; every second world has two rounds."""
    size, trials, rounds = 1 + number % 2, 20, 1 + number % 2
    trained = trials // rounds * size
    records = patches(trained + 30, 50_000 + number)
    network = networks.mlp(records.space, hidden=(4,), generator=torch.Generator().manual_seed(5))
    victim = SharedGradient(network)
    public = Public(victim.simulator, Prior(patches(30, 70_000 + number)))
    # Labels go round: a batch takes neighbours, so that its records differ in their class.
    batches = [records[start : start + size] for start in range(0, trained, size)] * rounds
    releases = [
        KnownRelease(
            Observation(
                victim.release(batch, generator=torch.Generator().manual_seed(place)),
                Hints(len(batch), batch.y),
            ),
            public,
            batch,
        )
        for place, batch in enumerate(batches)
    ]
    return run(
        CapturedAudit(
            releases, records[trained:], [Blind("grey")], false_positive_rate=FALSE_POSITIVE_RATE
        ),
        seed=number,
    )
