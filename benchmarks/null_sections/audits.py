"""Audits (``run``) whose attack reads nothing.

Simulated: secrets without repetition and 9 decoys from one pool of ten classes, also the smallest
possible pool, uneven classes, every record of a pool audited, and three attacks at once. Ranks go
through the code that judges. Whole: ``run`` with 20 trials on gradients of other records; one
attack paints grey, another returns 400 records of the prior for one secret. The latter's errors
are compared with those of the guess that draws one, by a paired t test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from null_sections.drafts import (
    DECOYS,
    GUESSES,
    NOMINAL,
    class_world,
    draft,
    painted,
    squared,
)
from null_sections.null_attacks import Blind, blind_audit, patches
from null_sections.rates import report_rate, report_verdicts
from sheet import Sheet
from vestige import run
from vestige.reports.audit import AuditFindings
from vestige.reports.report import Report
from vestige.studies.audit.evidence import rank_among
from vestige.studies.judge import report_on

REPLICATES, WHOLE_RUNS = 1000, 100
CLASSES, PRIOR, CANDIDATES = 10, 20, 400
WORLDS: tuple[tuple[tuple[str, ...], int, int, bool], ...] = (
    (("grey",), 20, 10, False),
    (("grey",), 100, 10, False),
    (("grey",), 60, 30, True),
    (("mean",), 20, 20, False),
    (("constant",), 60, 20, False),
    (("grey", "constant", "draw"), 60, 20, False),
)


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements."""
    for kinds, trials, size, uneven in WORLDS:
        random = np.random.default_rng([trials, size, uneven, len(kinds), len(kinds[0])])
        records = [_simulated(kinds, trials, size, uneven, random) for _ in range(REPLICATES)]
        law = "uneven pools" if uneven else f"{size} a class"
        where = f"audit, {' + '.join(kinds)}, {trials} trials, {law}"
        report_verdicts(sheet, where, records)
    whole = [_whole(number) for number in range(WHOLE_RUNS)]
    report_verdicts(sheet, "audit, whole runs, grey + 400 candidates", whole)
    closer = sum(_closer_than_a_guess(report) for report in whole)
    report_rate(
        sheet, "audit, whole runs: 400 candidates beat a guess", closer, len(whole), NOMINAL
    )


def _simulated(
    kinds: Sequence[str], trials: int, size: int, uneven: bool, random: np.random.Generator
) -> Report[AuditFindings, Any]:
    """One audit, judged; pools hold ``size`` records of a class, or about that where uneven."""
    sizes = [max(DECOYS + 1, round(2 * size * 0.75**c)) if uneven else size for c in range(CLASSES)]
    pools = [class_world(random, count) for count in sizes]
    priors = [class_world(random, PRIOR) for _ in sizes]
    places = [(label, place) for label, count in enumerate(sizes) for place in range(count)]
    names = (*(f"Blind {kind}" for kind in kinds), *GUESSES)
    ranks: dict[str, list[int]] = {name: [] for name in names}
    distances: dict[str, list[float]] = {name: [] for name in names}
    for chosen in random.permutation(len(places))[:trials]:
        label, place = places[chosen]
        pool = pools[label]
        decoys = random.permutation(np.delete(np.arange(len(pool)), place))[:DECOYS]
        for name, kind in zip(names, (*kinds, "draw", "mean")):
            row = squared(painted(kind, priors[label], 1, random), pool)[0]
            ranks[name].append(rank_among(float(row[place]), row[decoys]))
            distances[name].append(float(row[place]))
    return report_on(draft(ranks, distances))


def _whole(number: int) -> Report[AuditFindings, Any]:
    """``run`` on the gradients of a small network; the attacks do not look at them."""
    attacks = [Blind("grey"), Blind("draws", CANDIDATES)]
    audit = blind_audit(attacks, patches(45, 20_000 + number), patches(60, 30_000 + number))
    return run(audit, seed=number)


def _closer_than_a_guess(report: Report[AuditFindings, Any]) -> bool:
    """Whether many candidates have a smaller error than one guess, one-sided at 2.5%."""
    errors = {
        attack.name: [o.mse or 0.0 for o in attack.outcomes] for attack in report.findings.attacks
    }
    test = ttest_rel(errors["Blind: draws"], errors[GUESSES[0]], alternative="less")
    return bool(test.pvalue < NOMINAL)
