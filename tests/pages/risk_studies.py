"""Reports on single records, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vestige.reports.parts import (
    AttackDescription,
    Check,
    Failure,
    Picture,
    SpaceDescription,
    ThreatDescription,
    Times,
)
from vestige.reports.risk import RecordHits, ReleasedRecord, RiskFindings, RiskReport
from vestige.studies.risk.judge import judge_risk


def record(number: int, hits: int, control_hits: int) -> ReleasedRecord:
    """One record with hits by two attacks, the second at its controls."""
    random = np.random.default_rng(number)
    secret, drawn = (Picture.of(random.random((1, 6, 6))) for _ in range(2))
    return ReleasedRecord(
        name=f"{number * 0x1357913 + 0x3F2A91C0:08x}"[-8:],
        label="ab"[number % 2],
        group="random" if number < 4 else "outlier",
        neighbor_distance=0.0123456 * (number + 1),
        found=tuple(
            RecordHits(hits=h, releases=20, control_hits=control_hits, controls=20)
            for h in (hits, control_hits)
        ),
        secret=secret,
        reconstructions=(drawn, None),
    )


COUNTS = ((1, 1), (19, 2), (9, 8), (2, 0), (20, 0), (18, 1), (3, 2), (0, 0))
"""Hits of eight records in 20 releases with and 20 without them."""


def risk(
    counts: tuple[tuple[int, int], ...] = COUNTS, failure: Failure | None = None
) -> RiskReport:
    """Eight records, three of which come back in nearly every release."""
    findings = RiskFindings(
        title="Risk of single records",
        release="a shared gradient",
        space=SpaceDescription(
            kind="image", shape=(1, 6, 6), noun="patch", class_names=("Ada", "Bob")
        ),
        threat=ThreatDescription(
            attacker="server", who="w", sees="s", told="t", not_told="n", prior="p"
        ),
        seed=7,
        failure=failure,
        digests={"model": "1" * 64, "data": "2" * 64, "prior": "3" * 64},
        preflight=(Check.passed("Releases of one record differ."),),
        batch_size=4,
        decoys=19,
        false_positive_rate=0.05,
        confidence=0.95,
        distance="mean squared error",
        repeats=20,
        controls=1,
        releases_planned=160,
        releases_finished=160,
        attacks=(
            AttackDescription(name="First", summary="reads", cites="a"),
            AttackDescription(name="Second", summary="reads less", cites="b"),
        ),
        records=tuple(record(number, *pair) for number, pair in enumerate(counts)),
        limits=("Other records may be at higher risk.",),
        times=Times(started="2026-01-02T03:04:05+00:00", finished="2026-01-02T03:05:05+00:00"),
    )
    return RiskReport(findings=findings, judgement=judge_risk(findings))


def risk_not_shown() -> RiskReport:
    """No record is exposed."""
    return risk(((1, 1), (2, 2), (9, 8), (0, 0), (1, 0), (2, 3), (3, 2), (0, 1)))


def risk_invalid() -> RiskReport:
    """An attack that stopped."""
    failure = Failure(attack="First", trial=3, message="out of memory", remedy="Use fewer records.")
    return risk(failure=failure)


RISKS: dict[str, Callable[[], RiskReport]] = {
    f.__name__: cache(f) for f in (risk, risk_not_shown, risk_invalid)
}
