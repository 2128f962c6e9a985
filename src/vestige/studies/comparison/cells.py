"""The cells of a comparison: what the audit of a defence before a server measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vestige.attacks.guess import Guess
from vestige.records import Space
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.comparison import AttackMeasure, Cell
from vestige.reports.parts import Picture, Times, VerdictKind
from vestige.reports.report import Report
from vestige.statistics.rates import allowed_rank, matched_rate
from vestige.statistics.tradeoff import mean_with_limits, weakest_protection
from vestige.studies.audit.exhibits import picture
from vestige.studies.audit.trial_files import TrialResult, trial_of
from vestige.studies.comparison.error_floors import error_floor
from vestige.studies.comparison.units import PlannedAudit, PlannedCell, Results, problem_of
from vestige.studies.judge import report_on
from vestige.studies.study import Header

if TYPE_CHECKING:
    from vestige.reports.noise import Mean
    from vestige.studies.comparison.plan import ComparedServer, Comparison

BASELINE = Guess("mean")
"""The guess that joins the attacks of every cell: the mean of the secret's class."""

SHOWN = 4
"""Trials whose secrets and reconstructions a comparison shows: its first."""


@dataclass(frozen=True)
class MeasuredCell:
    """A cell, the errors (trials, attacks) behind it (None with a problem), and its secrets.

    ``static_errors`` are those of attackers who were not told of the defence, None without any.
    ``claim_refuted`` is the headline of an audit that exceeded what its mechanism allows.
    """

    cell: Cell
    errors: np.ndarray | None = None
    static_errors: np.ndarray | None = None
    secrets: tuple[Picture | None, ...] = ()
    claim_refuted: str = ""

    @property
    def guess_error(self) -> Mean:
        """The mean error of the guess, with the limits that the cell gives it."""
        return next(m.error for m in self.cell.measures if m.attack == BASELINE.name)


def measure_cell(plan: Comparison, cell: PlannedCell, held: Results, seed: int) -> MeasuredCell:
    """What the trials of a defence before a server found, or why there are none."""
    if cell.told is None:
        return MeasuredCell(Cell(server=cell.server.name, problem=cell.problem))
    told = _audited(cell.told, held, seed)
    static = None if cell.static is None else _audited(cell.static, held, seed)
    if isinstance(told, str):
        return MeasuredCell(Cell(server=cell.server.name, problem=told))
    if isinstance(static, str):
        problem = f"With an attacker who is not told of the defence: {static}"
        return MeasuredCell(Cell(server=cell.server.name, problem=problem))
    shown = [trial_of(one) for one in cell.told.results(held)[:SHOWN]]
    return _measured(plan, cell, told, static, shown)


def _audited(planned: PlannedAudit, held: Results, seed: int) -> Report[AuditFindings, Any] | str:
    """The report of an audit whose trials are all there, or why it says nothing."""
    results = planned.results(held)
    problem = problem_of(results)
    if problem:
        return problem
    report = report_on(planned.audit.findings(results, Header(seed, (), None, Times())))
    return _why_invalid(report) if report.verdict.kind is VerdictKind.INVALID else report


def errors_of(findings: AuditFindings, names: list[str]) -> np.ndarray:
    """Root mean squared errors (trials, attacks) of the audited records; of texts, shares of
    differing tokens.

    An attack that drew nothing finite in a trial is left with the guess, whose error counts: a
    trial is never dropped, and failing is no better for the attacker than not looking.
    """
    by_name = {attack.name: attack for attack in findings.attacks}
    texts = findings.space.kind == "text"

    def measured(name: str) -> list[float | None]:
        return [one.distance if texts else one.mse for one in by_name[name].outcomes]

    guesses = measured(BASELINE.name)
    columns = [
        [guess if own is None else own for own, guess in zip(measured(name), guesses)]
        for name in names
    ]
    found = np.array(columns, dtype=float).T
    return found if texts else np.sqrt(found)


def measured_names(server: ComparedServer, findings: AuditFindings) -> list[str]:
    """Names of the server's own attacks in findings, and of the guess."""
    own = [attack.name for attack in findings.attacks[: len(server.attacks)]]
    return own if BASELINE.name in own else [*own, BASELINE.name]


def _measured(
    plan: Comparison,
    cell: PlannedCell,
    report: Report[AuditFindings, Any],
    static: Report[AuditFindings, Any] | None,
    shown: Sequence[TrialResult],
) -> MeasuredCell:
    server = cell.server
    findings, unaware = report.findings, None if static is None else static.findings
    names = measured_names(server, findings)
    joint = 1 - (1 - plan.confidence) / len(names)
    errors = errors_of(findings, names)
    allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
    measures = []
    for place, name in enumerate(names):
        found = _named(findings, name)
        other = None if unaware is None else _named(unaware, name)
        measures.append(
            AttackMeasure(
                attack=name,
                guess=found.guess,
                error=mean_with_limits(errors[:, place], joint, low=0.0),
                rate=matched_rate([o.rank for o in found.outcomes], allowed, joint),
                static_error=None
                if unaware is None
                else mean_with_limits(errors_of(unaware, [name])[:, 0], joint, low=0.0),
                static_rate=None
                if other is None
                else matched_rate([o.rank for o in other.outcomes], allowed, joint),
                diverged=sum(outcome.diverged for outcome in found.outcomes),
            )
        )
    # An attack that always fell back on the guess is as strong as the guess, and is not named.
    ordered = sorted(range(len(names)), key=lambda place: names[place] != BASELINE.name)
    strongest = names[min(ordered, key=lambda place: errors[:, place].mean())]
    secrets, pictures = _shown(shown, strongest, plan.secrets.space)
    refuted = report.verdict.kind is VerdictKind.CLAIM_REFUTED
    return MeasuredCell(
        Cell(
            server=server.name,
            measures=tuple(measures),
            strongest=strongest,
            protection=weakest_protection([measure.error for measure in measures]),
            most_hits=max((m.rate for m in measures), key=lambda rate: rate.hits),
            floor=error_floor(plan, server, cell.defense),
            pictures=pictures,
            verdict=report.verdict.kind.value,
        ),
        errors,
        None if unaware is None else errors_of(unaware, names),
        secrets,
        report.verdict.headline if refuted else "",
    )


def _shown(
    results: Sequence[TrialResult], attack: str, space: Space
) -> tuple[tuple[Picture | None, ...], tuple[Picture | None, ...]]:
    """Secrets of some trials, and what an attack drew of them."""
    secrets, drawn = (
        tuple(picture(result.tensors[name][result.slot], space) for result in results)
        for name in ("secret/x", f"matched/{attack}")
    )
    return secrets, drawn


def _named(findings: AuditFindings, name: str) -> AttackFindings:
    return next(attack for attack in findings.attacks if attack.name == name)


def _why_invalid(report: Report[AuditFindings, Any]) -> str:
    checks = (*report.findings.preflight, *report.judgement.checks)
    failed = [c.sentence for c in checks if c.outcome == "failed"]
    return failed[0] if failed else report.verdict.headline
