"""Reports of repeated audits, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from vestige.reports.parts import (
    Check,
    Failure,
    SpaceDescription,
    ThreatDescription,
    Times,
    VerdictKind,
)
from vestige.reports.repeated import RepeatedFindings, RepeatedReport, SeedRun
from vestige.statistics.rates import limited_rate
from vestige.studies.judge import judge

TRIALS = 40
CONFIDENCE = 1 - 0.05 / 3 / 2
"""Of one limit, where those of two attacks and three seeds hold together at 95%."""


def repeated(
    hits: tuple[tuple[int, int, int], ...] = ((21, 4, 1), (17, 2, 0), (25, 3, 1)),
    kind: VerdictKind = VerdictKind.DEMONSTRATED,
    failure: Failure | None = None,
) -> RepeatedReport:
    """Two attacks and a guess, with as many seeds as there are rows of hits."""
    names = ("First", "Second", "Class mean")
    runs = tuple(
        SeedRun(
            seed=90_071 + place,
            trials=TRIALS,
            verdict=kind,
            rates={n: limited_rate(h, TRIALS, CONFIDENCE) for n, h in zip(names, row)},
        )
        for place, row in enumerate(hits)
    )
    findings = RepeatedFindings(
        title="The same audit, repeated",
        release="a shared gradient",
        space=SpaceDescription(
            kind="image", shape=(1, 6, 6), noun="patch", class_names=("Ada", "Bob")
        ),
        threat=ThreatDescription(
            attacker="server", who="w", sees="s", told="t", not_told="n", prior="p"
        ),
        seed=90_071,
        preflight=(Check.passed("The simulator agrees with the victim."),),
        failure=failure,
        repeats=3,
        trials_planned=TRIALS,
        decoys=99,
        false_positive_rate=0.01,
        confidence=0.95,
        attacks=names[:2],
        guesses=names[2:],
        runs=runs,
        digests={"model": "1" * 64, "data": "2" * 64, "prior": "3" * 64},
        settings={"Repetitions": "3", "Trials, seeds": "40, 90071 … 90073"},
        limits=("The spread is that of this audit's own randomness.",),
        times=Times(started="2026-01-02T03:04:05+00:00", finished="2026-01-02T03:05:05+00:00"),
    )
    return RepeatedReport(findings=findings, judgement=judge(findings))


def repeated_at_chance() -> RepeatedReport:
    """No seed shows anything."""
    return repeated(((0, 1, 0), (1, 0, 1), (0, 0, 0)), VerdictKind.NOT_DEMONSTRATED)


def repeated_invalid() -> RepeatedReport:
    """An attack that stopped."""
    failure = Failure(attack="First", trial=3, message="out of memory", remedy="Use fewer trials.")
    return repeated(failure=failure)


REPEATED: dict[str, Callable[[], RepeatedReport]] = {
    f.__name__: cache(f) for f in (repeated, repeated_at_chance, repeated_invalid)
}
