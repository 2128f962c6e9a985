"""Audits to which trials are added after a look, where no attack reads anything.

A plan of 20 or 100 trials is judged as planned, then trials are added four times, up to 400 in
all, and every report is judged as an extended one. A statement is false if any of the five reports
makes it, the first one included. Ranks are those of exchangeable records: one attack, also with a
claim that is just true, and three attacks by two distances. Ranks go through the code that
judges. Below them the rates are those of the form before, which gave additions the full level.
Whole: ``run`` in one folder with 20, 30 and 45 trials.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from null_sections.drafts import (
    DECOYS,
    FALSE_POSITIVE_RATE,
    GUESSES,
    NOMINAL,
    draft,
    further_outcomes,
)
from null_sections.null_attacks import Blind, blind_audit, patches
from null_sections.rates import report_rate
from sheet import Sheet
from vestige import run
from vestige.reports.audit import AuditFindings, Claim, FurtherDistance
from vestige.reports.parts import VerdictKind
from vestige.reports.report import Report
from vestige.statistics.rates import limited_rate
from vestige.studies.judge import report_on

REPLICATES, WHOLE_RUNS, LONGEST = 1000, 100, 400
PLANS = (20, 100)
LOOKS = 5
WHOLE_SIZES = (20, 30, 45)
WORLDS = ((1, 1), (3, 2))
"""How many attacks and distances."""

FURTHER = FurtherDistance(name="another distance")
SAID = (VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)


def measure(sheet: Sheet) -> None:
    """Print the shares of audits that say something false at any look."""
    for attacks, distances in WORLDS:
        for planned in PLANS:
            _looks(sheet, attacks, distances, planned)
    for planned in PLANS:
        _claims(sheet, planned)
    whole = [_whole(number) for number in range(WHOLE_RUNS)]
    _report(sheet, f"added trials, whole runs of {WHOLE_SIZES} trials", whole)


def _sizes(planned: int) -> list[int]:
    return np.linspace(planned, LONGEST, LOOKS).astype(int).tolist()


def _looks(sheet: Sheet, attacks: int, distances: int, planned: int) -> None:
    random, sizes = np.random.default_rng([attacks, distances, planned]), _sizes(planned)
    audits, before = [], 0
    for _ in range(REPLICATES):
        # Attacks and distances depend on each other in half of the trials.
        ranks = random.integers(1, DECOYS + 2, (attacks, distances, LONGEST))
        same = random.random(LONGEST) < 0.5
        ranks[:, :, same] = ranks[:1, :1, same]
        audits.append([_judged(ranks[:, :, :size], sizes[:place]) for place, size in _each(sizes)])
        confidence = 1 - 0.05 / attacks / distances
        hits = (ranks == 1).reshape(-1, LONGEST)
        before += any(
            limited_rate(int(row[:size].sum()), size, confidence, anytime=place > 0).lower
            > FALSE_POSITIVE_RATE
            for place, size in _each(sizes)
            for row in hits
        )
    where = f"added trials, {attacks} × {distances} attacks and distances, from {planned}"
    _report(sheet, where, audits)
    share = 100 * before / REPLICATES
    sheet.figure(f"{where}: DEMONSTRATED, the full level at every look", share, None, "%")


def _claims(sheet: Sheet, planned: int) -> None:
    """Half of the secrets come back, as a claim allows."""
    random, sizes = np.random.default_rng([9, planned]), _sizes(planned)
    refuted = 0
    for _ in range(REPLICATES):
        ranks = np.where(random.random((1, 1, LONGEST)) < 0.5, 1, 5)
        refuted += any(
            _judged(ranks[:, :, :size], sizes[:place], claim=0.5).verdict.kind
            is VerdictKind.CLAIM_REFUTED
            for place, size in _each(sizes)
        )
    where = f"added trials, a claim that is just true, from {planned}"
    report_rate(sheet, f"{where}: CLAIM REFUTED", refuted, REPLICATES, NOMINAL)


def _each(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return list(enumerate(sizes))


def _report(sheet: Sheet, where: str, audits: Sequence[Sequence[Report[Any, Any]]]) -> None:
    said = sum(any(one.verdict.kind in SAID for one in looks) for looks in audits)
    shown = sum(any(_shown(one) for one in looks) for looks in audits)
    report_rate(sheet, f"{where}: DEMONSTRATED at any look", said, len(audits), NOMINAL)
    report_rate(sheet, f"{where}: ε > 0 at any look", shown, len(audits), 2 * NOMINAL)


def _shown(report: Report[Any, Any]) -> bool:
    shown = report.judgement.shown
    assert shown is not None
    assert not shown.refusal
    return max(shown.epsilon, shown.mu) > 0


def _judged(
    ranks: np.ndarray, earlier: Sequence[int], claim: float | None = None
) -> Report[AuditFindings, Any]:
    """A report on ranks (attacks, distances, trials) after earlier sizes."""
    attacks, distances, trials = ranks.shape
    names = [f"Blind {number + 1}" for number in range(attacks)]
    middle = [DECOYS] * trials  # guesses that hit nothing
    first = {name: ranks[n, 0].tolist() for n, name in enumerate(names)}
    first |= dict.fromkeys(GUESSES, middle)
    others = {
        name: further_outcomes([ranks[n, d].tolist() for d in range(1, distances)])
        for n, name in enumerate(names)
    }
    others |= dict.fromkeys(GUESSES, further_outcomes([middle] * (distances - 1)))
    found = draft(
        first,
        {name: [1.0] * trials for name in first},
        further=(FURTHER,) * (distances - 1),
        outcomes=others,
    )
    stated = None if claim is None else Claim(rate=claim, source="A claim")
    return report_on(found.model_copy(update={"earlier_trials": tuple(earlier), "claim": stated}))


def _whole(number: int) -> list[Report[AuditFindings, Any]]:
    """``run`` on one folder with more trials each time; the attacks do not look at releases."""
    secrets, prior = patches(45, 110_000 + number), patches(60, 120_000 + number)
    attacks = [Blind("grey"), Blind("draws", 3)]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        return [
            run(blind_audit(attacks, secrets, prior, size), seed=number, directory=folder)
            for size in WHOLE_SIZES
        ]
