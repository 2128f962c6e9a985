"""The page of a repeated audit, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from dataclasses import replace

from vestige.pages.marks import interval
from vestige.pages.shell import (
    Front,
    Panel,
    Section,
    complete_settings,
    failed_checks,
    render_page,
    surroundings,
)
from vestige.pages.tables import Cell, Column, Row, Table
from vestige.pages.templates import fragment
from vestige.reports import numbers
from vestige.reports.parts import VerdictKind
from vestige.reports.repeated import RepeatedFindings, RepeatedReport, spread


def render_repeated(report: RepeatedReport, *, redact: bool = False) -> str:
    """Render the report of a repeated audit as one HTML page; equal reports give equal pages."""
    report = report.without_secrets() if redact or report.findings.redacted else report
    shown = report.findings
    title = "What did every seed give?"
    label, invalid = "Rates by attack and seed", report.verdict.kind is VerdictKind.INVALID
    drawn = fragment("parts.html", "table", rate_table(shown), "", "rates", label)
    front = Front.of(report.verdict)
    return render_page(
        title=shown.title,
        date=numbers.date(shown.times.finished) if shown.times.finished else "",
        redacted=shown.redacted,
        front=replace(front, failed=failed_checks(report.judgement.checks)) if invalid else front,
        threat=Panel(shown.threat, shown.release, defense=shown.defense),
        body=[] if invalid else [Section("seeds", "Seeds", title, drawn)],
        checks=report.judgement.checks,
        limits=shown.limits,
        settings=complete_settings(shown.settings),
        environment=surroundings(shown.environment, shown.times.cpu_seconds, "vestige report RUN"),
        source="a study",
        report=report,
    )


def rate_table(findings: RepeatedFindings) -> Table:
    """A row for every seed and attack, then the spread of each attack; guesses are among them."""
    chance, rows = findings.false_positive_rate, []
    names = [*((name, False) for name in findings.attacks)]
    names += [(name, True) for name in findings.guesses]
    for name, guess in names:
        for place, run in enumerate(findings.runs, 1):
            rate = run.rates.get(name)
            seed = "seed withheld" if run.seed is None else f"seed {run.seed}"
            cells: tuple[Cell, ...] = (numbers.EN_DASH,) * 3
            if rate is not None:
                bar = interval(rate, chance, guess=guess)
                cells = (numbers.hits_of(rate), numbers.rate_with_limits(rate), bar)
            rows.append(Row(f"{name}, repetition {place}", seed, cells))
        found = spread(findings.rates_of(name))
        if found is not None:
            low, middle, high = map(numbers.percent, found)
            text = f"{low} to {high}, median {middle}" if low != high else f"{low}, all alike"
            rows.append(Row(f"{name}, spread", "smallest to largest", ("", text, ""), lead=True))
    level = numbers.share(findings.confidence)
    columns = (
        Column("Hits"),
        Column("Rate (limits)", number=False),
        Column(f"Limits at {level}, joint over attacks and seeds", number=False),
    )
    return Table("Attack and seed", columns, tuple(rows))
