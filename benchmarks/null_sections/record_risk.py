"""Studies of single records (``RecordRisk``) whose attack reads nothing, and where a few leak.

Simulated: 16 records of four classes, 20 releases with each and 20 without. An attack that reads
nothing draws one picture of a class, so every record has a probability of a hit of its own, from
never to always, that is the same with and without it. Hits go through the code that judges. A
statement is false if a record is called exposed, if outliers are said to differ, or if the limits
of the average miss the mean probability. In the world where three records leak, these are hit in
80% of the releases that hold them. Whole: ``run`` on gradients of batches of two, whose attack
paints grey.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from null_sections.drafts import DECOYS, FALSE_POSITIVE_RATE, NOMINAL, class_world, squared
from null_sections.null_attacks import Blind, blind_audit, patches
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import RecordRisk, run
from vestige.reports.parts import AttackDescription, SpaceDescription, ThreatDescription
from vestige.reports.report import Report
from vestige.reports.risk import RecordHits, ReleasedRecord, RiskFindings
from vestige.studies.judge import report_on

REPLICATES, WHOLE_RUNS = 1000, 100
CLASSES, RECORDS, REPEATS, POOL = 4, 16, 20, 40
LEAKING, LEAKED_RATE = 3, 0.8


def measure(sheet: Sheet) -> None:
    """Print the shares of false statements, and how many leaking records are found."""
    random = np.random.default_rng(31)
    reports, means = zip(*(_simulated(random, 0) for _ in range(REPLICATES)))
    where = "record risk, constant pictures"
    _report(sheet, where, reports)
    differ = sum(one.judgement.attacks[0].groups.differ for one in reports)
    report_rate(sheet, f"{where}: outliers 'differ'", differ, REPLICATES, 2 * NOMINAL)
    missed = sum(
        not one.judgement.attacks[0].average.lower <= mean <= one.judgement.attacks[0].average.upper
        for one, mean in zip(reports, means)
    )
    report_rate(sheet, f"{where}: average missed", missed, REPLICATES, 2 * NOMINAL)
    leaking = [_simulated(random, LEAKING)[0] for _ in range(REPLICATES)]
    false = sum(
        any(one.exposed for one in report.judgement.attacks[0].rates[LEAKING:])
        for report in leaking
    )
    where = f"record risk, {LEAKING} of {RECORDS} records leak"
    report_rate(sheet, f"{where}: another one called exposed", false, REPLICATES, NOMINAL)
    found = sum(
        one.exposed for report in leaking for one in report.judgement.attacks[0].rates[:LEAKING]
    )
    power = 100 * found / REPLICATES / LEAKING
    sheet.figure(f"{where}: found", power, 80, "%", note=f"hit in {LEAKED_RATE:.0%} of releases")
    high = sum(
        one.rate.lower > LEAKED_RATE
        for report in leaking
        for one in report.judgement.attacks[0].rates[:LEAKING]
    )
    report_rate(sheet, f"{where}: 'at least' too high", high, LEAKING * REPLICATES, NOMINAL)
    _report(sheet, "record risk, whole runs, grey", [_whole(n) for n in range(WHOLE_RUNS)])


def _report(sheet: Sheet, where: str, reports: Any) -> None:
    false = sum(report.judgement.attacks[0].exposed > 0 for report in reports)
    report_rate(sheet, f"{where}: a record called exposed", false, len(reports), NOMINAL)


def _simulated(
    random: np.random.Generator, leaking: int
) -> tuple[Report[RiskFindings, Any], float]:
    """One study, judged, and the mean probability of a hit of a random record.

    The first half of the records are drawn at random, the others are outliers: those farthest from
    their nearest neighbour.
    """
    records, rates = [], []
    for _ in range(CLASSES):
        pool, picture = class_world(random, POOL), class_world(random, 1)
        order = squared(picture, pool)[0].argsort().argsort()
        between = squared(pool, pool) + np.diag(np.full(POOL, np.inf))
        far = between.min(1).argsort()[::-1][: RECORDS // CLASSES // 2]
        rest = np.setdiff1d(np.arange(POOL), far)
        chosen = [*random.permutation(rest)[: RECORDS // CLASSES // 2], *far]
        rates.append(np.mean([_hit_rate(order[place]) for place in rest]))
        # Controls of all chosen records of the class are shared: common decoys, common hits.
        decoys = [
            random.permutation(np.delete(np.arange(POOL), chosen))[:DECOYS]
            for _ in range(REPEATS * len(chosen))
        ]
        for number, place in enumerate(chosen):
            own = sum(
                (
                    order[random.permutation(np.delete(np.arange(POOL), chosen))[:DECOYS]]
                    > order[place]
                ).all()
                for _ in range(REPEATS)
            )
            without = sum((order[ones] > order[place]).all() for ones in decoys)
            records.append((number >= len(chosen) // 2, int(own), int(without), len(decoys)))
    records.sort(key=lambda one: one[0])
    hits = [
        int(random.binomial(REPEATS, LEAKED_RATE)) if number < leaking else own
        for number, (_, own, _, _) in enumerate(records)
    ]
    findings = _draft([(o, h, w, c) for (o, _, w, c), h in zip(records, hits)])
    return report_on(findings), float(np.mean(rates))


def _hit_rate(place: int) -> float:
    """Probability that no decoy lies closer to a constant picture than the record at a place."""
    farther, others = POOL - 1 - place, POOL - 1
    return (
        float(np.prod([(farther - i) / (others - i) for i in range(DECOYS)]))
        if (farther >= DECOYS)
        else 0.0
    )


def _draft(records: list[tuple[bool, int, int, int]]) -> RiskFindings:
    """Findings from whether a record is an outlier, its hits, and hits of so many controls."""
    return RiskFindings(
        title="A null world",
        release="a shared gradient",
        space=SpaceDescription(kind="table", shape=(4,), noun="row", class_names=("a",)),
        threat=ThreatDescription(
            attacker="server", who="", sees="", told="", not_told="", prior=""
        ),
        seed=0,
        batch_size=2,
        decoys=DECOYS,
        false_positive_rate=FALSE_POSITIVE_RATE,
        confidence=0.95,
        distance="mean squared error",
        repeats=REPEATS,
        controls=1,
        releases_planned=REPEATS * len(records),
        releases_finished=REPEATS * len(records),
        attacks=(AttackDescription(name="Blind", summary="", cites=""),),
        records=tuple(
            ReleasedRecord(
                name=f"{number:08x}",
                label="a",
                group="outlier" if outlier else "random",
                found=(
                    RecordHits(
                        hits=hits, releases=REPEATS, control_hits=without, controls=controls
                    ),
                ),
            )
            for number, (outlier, hits, without, controls) in enumerate(records)
        ),
    )


def _whole(number: int) -> Report[RiskFindings, Any]:
    """``run`` on gradients of batches of two; the attack draws grey and does not look at them."""
    secrets, prior = patches(60, 80_000 + number), patches(60, 90_000 + number)
    audit = blind_audit([Blind("grey")], secrets, prior, batch_size=2)
    return run(RecordRisk(audit, records=3, outliers=3, repeats=10), seed=number)
