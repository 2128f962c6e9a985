"""What a comparison prints: a table for every server, and what follows for a reader."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vestige.printable import terminal_text
from vestige.reports.comparison import Cell, ComparisonFindings, DefendedPoint
from vestige.reports.comparison_words import cost_words, error_with_limits, runs_behind
from vestige.reports.numbers import EN_DASH, rate_with_limits, share
from vestige.reports.parts import spoken
from vestige.reports.report import Report

WIDEST = 90
"""Characters of a problem that a table of the terminal shows; the page has all of it."""


def show_comparison(report: Report[ComparisonFindings, Any], kept: Path) -> None:
    """Print the cells of every server, what follows for a reader, and where it was written."""
    console = Console()
    for server in report.findings.servers:
        console.print(_table(report, server.name))
    for advice in report.judgement.recommendations:
        console.print(Text(terminal_text(advice.server), style="bold"))
        console.print(Text(terminal_text(advice.sentence)))
        if advice.equal_cost:
            console.print(Text(terminal_text(advice.equal_cost)))
        for detail in advice.details:
            console.print(Text(terminal_text(f"  {detail}"), style="dim"))
    console.print(Text(spoken(report.verdict.kind), style="bold"))
    console.print(Text(terminal_text(f"{report.verdict.headline} {report.verdict.lede}")))
    if report.verdict.remedy:
        console.print(Text(terminal_text(report.verdict.remedy)))
    console.print(
        Text(terminal_text(f"Written: {kept}"), no_wrap=True, overflow="ignore"), soft_wrap=True
    )


def _table(report: Report[ComparisonFindings, Any], server: str) -> Table:
    comparison, front = report.findings, report.judgement.front(server)
    table = Table(title=_shown(server), title_justify="left", box=None, padding=(0, 1))
    headings = ("defence", "accuracy lost", "error left", "than none", "hits", "strongest attack")
    for heading in ("", *headings):
        table.add_column(heading)
    for point in comparison.points:
        cell = comparison.cell(point, server)
        mark = "*" if point.label in front else ""
        left = _left(comparison, point, cell)
        table.add_row(mark, _shown(point.label), _lost(point), *map(_shown, left))
    level = share(comparison.confidence)
    table.caption = (
        "* by the means, no other one costs less and leaves more\n"
        f"limits: {level}, joint over the attacks of a setting; than none: {level}, all settings "
        "together"
    )
    table.caption_justify = "left"
    return table


def _lost(point: DefendedPoint) -> str:
    utility = point.utility
    if utility.diverged:
        return f"{utility.diverged} of {utility.repeats} diverged"
    return cost_words(utility.accuracy_lost, runs_behind(point))


def _left(
    comparison: ComparisonFindings, point: DefendedPoint, cell: Cell
) -> tuple[str, str, str, str]:
    if cell.protection is None or cell.most_hits is None:
        return EN_DASH, EN_DASH, EN_DASH, shorten(cell.problem, WIDEST, placeholder=" …")
    bare = next((one.label for one in comparison.points if one.undefended), "")
    return (
        error_with_limits(cell.protection),
        EN_DASH if point.undefended else comparison.beside(cell.server, point.label, bare),
        rate_with_limits(cell.most_hits),
        cell.strongest or "",
    )


def _shown(text: str) -> str:
    """Text of a table or a bar, where rich would read markup."""
    return escape(terminal_text(text))
