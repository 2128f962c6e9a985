"""What a command prints about a report, and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vestige.printable import terminal_text

if TYPE_CHECKING:
    from vestige.reports.audit import AuditReport
    from vestige.reports.report import Report

INVALID = 2
"""Exit code when the audit says nothing: a problem the user can fix."""

ABOVE = 3
"""Exit code when the measured rate is above --fail-above."""

NOT_MATCHED = 4
"""Exit code when the candidates do not explain the captured release."""

INTERRUPTED = 130
"""Exit code after ctrl-C, as shells expect it."""


def show_report(report: Any, page: Path, fail_above: float | None = None) -> None:
    """Print what a run found: for a comparison its tables, for any other study its verdict."""
    from vestige.cli.comparison import show_comparison
    from vestige.pages.saving import is_redacted
    from vestige.reports.comparison import ComparisonReport
    from vestige.reports.parts import VerdictKind

    if not isinstance(report, ComparisonReport):
        show_verdict(report, page, fail_above)
        return
    show_comparison(report.without_secrets() if is_redacted(page) else report, page)
    if report.verdict.kind is VerdictKind.INVALID:
        raise typer.Exit(INVALID)


def preflight_remarks(report: AuditReport) -> list[str]:
    """Remarks of an audit's preflight that a user can act on."""
    from vestige.reports.parts import CheckOutcome

    return [
        f"Remark: {check.sentence} {check.remedy}"
        for check in report.findings.preflight
        if check.outcome is CheckOutcome.REMARK and check.remedy
    ]


def show_verdict(report: Report[Any, Any], page: Path, fail_above: float | None = None) -> None:
    """Say the verdict, as redacted as the page, and where the page is; choose the exit code."""
    from vestige.pages.saving import is_redacted
    from vestige.reports.audit import AuditReport
    from vestige.reports.inversion import InversionReport
    from vestige.reports.parts import VerdictKind, spoken
    from vestige.reports.shown import shown_sentence
    from vestige.statistics.audit_rates import strongest
    from vestige.statistics.fits import is_unmatched
    from vestige.studies.inversion.judge import further_remarks

    redacted = is_redacted(page)
    shown = report.without_secrets() if redacted else report
    verdict = shown.verdict
    typer.secho(spoken(verdict.kind), bold=True)
    typer.echo(terminal_text(verdict.headline))
    lede = "" if verdict.lede.lower() in verdict.headline.lower() else verdict.lede
    remarks = further_remarks(shown) if isinstance(shown, InversionReport) else []
    if isinstance(shown, AuditReport):
        privacy = shown.judgement.shown
        remarks = [shown_sentence(privacy)] if privacy is not None else []
        remarks += [*preflight_remarks(shown), shown.findings.times.other_runs]
    for text in filter(None, (lede, verdict.remedy, *remarks)):
        typer.echo(terminal_text(text))
    typer.echo(terminal_text(f"Page: {page}"))
    if redacted:
        typer.echo("Only the page is redacted; other files of the run hold secrets.", err=True)
    if verdict.kind is VerdictKind.INVALID:
        failure = report.findings.failure
        stopped = failure is not None and failure.attack is None
        raise typer.Exit(INTERRUPTED if stopped else INVALID)
    if isinstance(report, InversionReport) and is_unmatched(report.findings.fits):
        raise typer.Exit(NOT_MATCHED)
    if not isinstance(report, AuditReport) or fail_above is None:
        return
    best = strongest(report.findings, report.judgement.rates)
    rate = None if best is None else report.judgement.rates_of(best).rate
    if rate is None:
        return
    further = (
        other.value
        for attack in report.findings.attacks
        for other in report.judgement.rates_of(attack).further
        if not attack.guess
    )
    highest = max((rate.value, *further))
    if highest > fail_above:
        typer.echo(f"Above the limit: {highest:.1%} of secrets, {fail_above:.1%} allowed.")
        raise typer.Exit(ABOVE)
