"""Audits of captured releases (``CapturedAudit``) whose attack reads nothing.

Simulated: ten classes, secrets and non-members of one law, 9 decoys; all pictures grey, class
means, one constant record of the prior, or random ones. Distances go through the permutation tests
and the code that judges; in two worlds there are three of them, of which one is constant. Whole:
``CapturedAudit`` on 20 releases of one or two records, half of the worlds with two rounds of the
same batches, by one distance and by three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    further_outcomes,
    painted,
    squared,
)
from null_sections.null_attacks import Blind, patches, small_victim
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import Prior
from vestige.distances import Distance, EmbeddingDistance, SignTolerant, mean_squared_error
from vestige.interfaces import Hints, Observation, Public
from vestige.reports.audit import AuditFindings, FurtherDistance
from vestige.reports.parts import VerdictKind
from vestige.reports.report import Report
from vestige.statistics.permutation_tests import ClassPool, permutation_tests
from vestige.studies.audit.evidence import rank_among
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease
from vestige.studies.judge import report_on
from vestige.studies.run import run

REPLICATES, WHOLE_RUNS, PERMUTATIONS = 1000, 100, 199
CLASSES, PRIOR = 10, 20
WORLDS = (
    ("grey", 20, 10, False, 1),
    ("grey", 60, 10, False, 1),
    ("grey", 200, 10, False, 1),
    ("grey", 60, 100, False, 1),
    ("grey", 60, 10, True, 1),
    ("mean", 20, 10, False, 1),
    ("constant", 60, 10, False, 1),
    ("grey", 60, 10, False, 3),
    ("constant", 60, 10, True, 3),
)


def _first_value(pictures: np.ndarray, records: np.ndarray) -> np.ndarray:
    return squared(pictures[:, :1], records[:, :1])


def _same(pictures: np.ndarray, records: np.ndarray) -> np.ndarray:
    return np.zeros((len(pictures), len(records)))


SIMULATED = (squared, _first_value, _same)
WHOLE = (
    mean_squared_error,
    SignTolerant(),
    EmbeddingDistance(lambda records: torch.ones(len(records), 2), name="one point"),
)


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kind, trials, others, uneven, distances in WORLDS:
        random = np.random.default_rng([trials, others, uneven, len(kind)])
        records = (
            _simulated(kind, trials, others, uneven, distances, random) for _ in range(REPLICATES)
        )
        law = "uneven classes" if uneven else "equal classes"
        where = f"captured, {kind}, {trials} trials, {others} others a class, {law}"
        where += "" if distances == 1 else f", {distances} distances"
        _report(sheet, where, records, REPLICATES)
    for distances in (WHOLE[:1], WHOLE):
        where = "captured, whole runs, grey" + (", three distances" if distances[1:] else "")
        _report(sheet, where, (_whole(n, distances) for n in range(WHOLE_RUNS)), WHOLE_RUNS)


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
    kind: str,
    trials: int,
    others: int,
    uneven: bool,
    distances: int,
    random: np.random.Generator,
) -> Report[AuditFindings, Any]:
    """One audit: ranks and permutation tests of ten classes, judged."""
    weights = 0.7 ** np.arange(CLASSES) if uneven else np.ones(CLASSES)
    counts = Counter(random.choice(CLASSES, trials, p=weights / weights.sum()).tolist())
    names, used = ("Blind", *GUESSES), SIMULATED[:distances]
    ranks: dict[str, list[list[int]]] = {name: [[] for _ in used] for name in names}
    own: dict[str, list[list[float]]] = {name: [[] for _ in used] for name in names}
    pools: list[list[ClassPool]] = [[] for _ in used]
    for count in counts.values():
        pool, prior = class_world(random, count + others), class_world(random, PRIOR)
        pictures = {
            name: painted(way, prior, count, random)
            for name, way in zip(names, (kind, "draw", "mean"))
        }
        found = [{name: one(drawn, pool) for name, drawn in pictures.items()} for one in used]
        for place in range(count):
            free = np.delete(np.arange(len(pool)), place)
            decoys = random.permutation(free)[:DECOYS]
            for number, by_name in enumerate(found):
                for name, rows in by_name.items():
                    far = float(rows[place, place])
                    ranks[name][number].append(rank_among(far, rows[place, decoys]))
                    own[name][number].append(far)
        for held, by_name in zip(pools, found):
            held.append(ClassPool(by_name, np.zeros((count, count), dtype=bool)))
    seed = int(random.integers(2**62))
    primary, *further = (
        permutation_tests(held, DECOYS, 1, seed=seed, permutations=PERMUTATIONS) for held in pools
    )
    findings = draft(
        {name: rows[0] for name, rows in ranks.items()},
        {name: rows[0] for name, rows in own.items()},
        tests=primary,
        smallest_pool=min(pool.size for pool in pools[0]),
        further=tuple(FurtherDistance(name=f"distance {n}") for n in range(2, distances + 1)),
        outcomes={name: further_outcomes(ranks[name][1:], own[name][1:]) for name in names},
        further_tests={name: [tests[name] for tests in further] for name in names},
    )
    return report_on(findings)


def _whole(number: int, distances: Sequence[Distance]) -> Report[AuditFindings, Any]:
    """``CapturedAudit`` on releases of a small network; every second world has two rounds."""
    size, trials, rounds = 1 + number % 2, 20, 1 + number % 2
    trained = trials // rounds * size
    records = patches(trained + 30, 50_000 + number)
    victim = small_victim()
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
            releases,
            records[trained:],
            [Blind("grey")],
            false_positive_rate=FALSE_POSITIVE_RATE,
            distance=distances,
        ),
        seed=number,
    )
