"""Audits to which trials are added after a look, where no attack reads anything.

A plan of 20 or 50 trials is judged as planned, then trials are added three times, up to 200 in
all, and every report is judged as an extended one. A statement is false if any of the four reports
makes it, the first one included. Ranks are those of exchangeable records: one attack, also with a
claim that is just true, and three attacks by two distances. Ranks go through the code that
judges. Below them the rates are those of the form before, which gave additions the full level.
Whole: ``run`` in one folder with 20, 30 and 45 trials.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
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

REPLICATES, WHOLE_RUNS, LONGEST = 1000, 100, 200
PLANS = (20, 50)
LOOKS = 4
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
    whole = [_said(_whole(number)) for number in range(WHOLE_RUNS)]
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
        audits.append(_said(_reports(_findings(ranks), sizes)))
        confidence = 1 - 0.05 / attacks / distances
        hits = (ranks == 1).reshape(-1, LONGEST)
        before += any(
            limited_rate(int(row[:size].sum()), size, confidence, anytime=place > 0).lower
            > FALSE_POSITIVE_RATE
            for place, size in enumerate(sizes)
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
            one.verdict.kind is VerdictKind.CLAIM_REFUTED
            for one in _reports(_findings(ranks, claim=0.5), sizes)
        )
    where = f"added trials, a claim that is just true, from {planned}"
    report_rate(sheet, f"{where}: CLAIM REFUTED", refuted, REPLICATES, NOMINAL)


def _said(looks: Iterable[Report[Any, Any]]) -> tuple[bool, bool]:
    """Whether any look says DEMONSTRATED or more, and whether any shows an ε."""
    found = [(one.verdict.kind in SAID, _shown(one)) for one in looks]
    return any(said for said, _ in found), any(shown for _, shown in found)


def _report(sheet: Sheet, where: str, audits: Sequence[tuple[bool, bool]]) -> None:
    said, shown = (sum(one[place] for one in audits) for place in range(2))
    report_rate(sheet, f"{where}: DEMONSTRATED at any look", said, len(audits), NOMINAL)
    report_rate(sheet, f"{where}: ε > 0 at any look", shown, len(audits), 2 * NOMINAL)


def _shown(report: Report[Any, Any]) -> bool:
    shown = report.judgement.shown
    assert shown is not None
    assert not shown.refusal
    return max(shown.epsilon, shown.mu) > 0


def _findings(ranks: np.ndarray, claim: float | None = None) -> AuditFindings:
    """Findings of ranks (attacks, distances, trials), beside guesses that hit nothing."""
    attacks, distances, trials = ranks.shape
    names, nothing = [f"Blind {number + 1}" for number in range(attacks)], [DECOYS] * trials
    rows = {name: ranks[n].tolist() for n, name in enumerate(names)}
    rows |= dict.fromkeys(GUESSES, [nothing] * distances)
    found = draft(
        {name: by_distance[0] for name, by_distance in rows.items()},
        {name: [1.0] * trials for name in rows},
        further=(FURTHER,) * (distances - 1),
        outcomes={name: further_outcomes(by_distance[1:]) for name, by_distance in rows.items()},
    )
    stated = None if claim is None else Claim(rate=claim, source="A claim")
    return found.model_copy(update={"claim": stated})


def _reports(found: AuditFindings, sizes: Sequence[int]) -> Iterator[Report[AuditFindings, Any]]:
    """The report at every look."""
    for place, size in enumerate(sizes):
        attacks = tuple(
            one.model_copy(update={"outcomes": one.outcomes[:size]}) for one in found.attacks
        )
        held = {"trials_planned": size, "trials_finished": size, "attacks": attacks}
        yield report_on(found.model_copy(update={**held, "earlier_trials": tuple(sizes[:place])}))


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
