"""Reports and verdicts as a notebook shows them: short, without scripts, shut in.

What is shown stands in a frame of its own that runs nothing and loads nothing, so that neither the
notebook's style nor a hostile title reaches across. The whole page is ``vestige.save_page``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from typing import Any

from markupsafe import Markup

from vestige.pages import templates
from vestige.pages.audit import front
from vestige.pages.comparison.tables import beside_none
from vestige.pages.inversion.page import candidate_views, stamp_of
from vestige.pages.pictures import Frame, data_uri
from vestige.pages.shell import STAMPS, Stamp
from vestige.pages.tables import Column, Row, Table
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.comparison_words import error_with_limits, lost_with_limits, runs_behind
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.parts import Verdict, VerdictKind, spoken
from vestige.reports.repeated import RepeatedReport
from vestige.reports.report import Report
from vestige.reports.risk import RiskReport

MOST_TRIALS = 3
MOST_DRAWN = 6
MOST_ROWS = 24
"""Rows of a table that are shown: a notebook keeps every output it has shown."""


@singledispatch
def notebook_html(document: object) -> str | None:
    """The HTML that a notebook shows of a document; None for types that no view is registered for.

    Another package adds its own type with ``notebook_html.register``.
    """
    return None


@notebook_html.register
def verdict_html(verdict: Verdict) -> str:
    """A verdict alone."""
    return _framed(verdict, "A verdict", height=150)


@notebook_html.register
def audit_html(report: AuditReport) -> str:
    """Verdict, rates with limits, and the trials that the page shows; nothing of a failed audit."""
    shown = report.without_secrets() if report.findings.redacted else report
    failed = shown.verdict.kind is VerdictKind.INVALID
    trials = () if failed else front.triplets(shown, batches=False)[:MOST_TRIALS]
    pictures = _pictures((trial.name, trial.frames) for trial in trials)
    rows = tuple(
        Row(
            attack.name,
            "",
            (
                f"{numbers.count(rate.hits)} of {numbers.count(rate.trials)}",
                f"{numbers.at_least(rate.lower)} to {numbers.at_most(rate.upper)}",
            ),
        )
        for attack in shown.findings.attacks
        if (rate := shown.judgement.rates_of(attack).rate) is not None and not failed
    )
    rate = numbers.share(shown.findings.false_positive_rate)
    titles = (f"Hits at FPR = {rate}", f"{shown.findings.confidence:.0%} limits")
    table = Table("Attack", tuple(Column(title, number=False) for title in titles), rows)
    height = 210 + 24 * len(rows) + (190 if pictures else 0)
    return _report(shown, table=table if rows else None, pictures=pictures, height=height)


@notebook_html.register
def inversion_html(report: InversionReport) -> str:
    """Verdict and candidates; nothing of a failed inversion."""
    shown = report.without_secrets() if report.findings.redacted else report
    failed = shown.verdict.kind is VerdictKind.INVALID
    views = () if failed else candidate_views(shown.findings, agreement=False)[:MOST_DRAWN]
    pictures = _pictures((f"{view.title}: {view.facts}", view.frames) for view in views)
    height = 210 + (190 if pictures else 0)
    return _report(shown, pictures=pictures, height=height, stamp=stamp_of(shown))


@notebook_html.register
def study_html(report: HeadReport | NoiseReport | RiskReport | RepeatedReport) -> str:
    """The verdict of heads, noise, single records or a repeated audit; the rest is on its page."""
    return _report(report, height=210)


Pictures = tuple[tuple[str, tuple[Frame, ...]], ...]
"""What is drawn in a row, by its title."""


def _pictures(rows: Iterable[tuple[str, Sequence[Frame]]]) -> Pictures:
    shown = ((name, tuple(one for one in frames if one.source)) for name, frames in rows)
    return tuple(pair for pair in shown if pair[1])


def _report(
    report: Report[Any, Any],
    *,
    height: int,
    table: Table | None = None,
    pictures: Pictures = (),
    stamp: Stamp | None = None,
) -> str:
    return _framed(
        report.verdict,
        report.findings.title,
        table=table,
        pictures=pictures,
        redacted=report.findings.redacted,
        height=height,
        stamp=stamp,
    )


@notebook_html.register
def comparison_html(report: ComparisonReport) -> str:
    """What each defence costs and what it leaves, one row for each strength and server."""
    report = report.without_secrets() if report.findings.redacted else report
    shown = report.findings
    rows = []
    for point in shown.points:
        for cell in point.cells:
            lost = point.utility.accuracy_lost
            error, hits = cell.protection, cell.most_hits
            drawn = next((picture for picture in cell.pictures if picture is not None), None)
            name = point.label if len(shown.servers) == 1 else f"{point.label}, {cell.server}"
            if drawn is not None and drawn.pixels is not None:
                image = Markup('<img src="{}" alt="Reconstruction"> {}')
                name = image.format(data_uri(drawn), name)
            rows.append(
                Row(
                    name,
                    "",
                    (
                        "–" if lost is None else lost_with_limits(lost, runs_behind(point)),
                        "–" if error is None else error_with_limits(error),
                        "–" if error is None else beside_none(shown, point, cell),
                        "–" if hits is None else numbers.rate_with_limits(hits),
                        cell.problem or spoken(cell.verdict),
                    ),
                )
            )
    left = len(rows) - MOST_ROWS
    columns = ("Accuracy lost, points", "Error left", "Beside no defence", "Most hits", "")
    table = Table(
        "Defence",
        tuple(Column(title, number=False) for title in columns),
        tuple(rows[:MOST_ROWS]),
    )
    notes = [
        f"{r.server}: {r.sentence} {r.equal_cost}".rstrip()
        for r in report.judgement.recommendations
    ]
    notes += [f"{numbers.plural(left, 'more row')} in the comparison."] if left > 0 else []
    return _framed(
        report.verdict,
        shown.title,
        table=table,
        notes=tuple(notes),
        redacted=shown.redacted,
        height=min(900, 240 + 40 * len(table.rows) + 40 * len(notes)),
    )


def _framed(
    verdict: Verdict,
    title: str,
    *,
    table: Table | None = None,
    pictures: Pictures = (),
    notes: tuple[str, ...] = (),
    redacted: bool = False,
    height: int,
    stamp: Stamp | None = None,
) -> str:
    style = templates.text("notebook.css")
    document = (
        templates.environment()
        .get_template("notebook.html")
        .render(
            policy=templates.policy(style, ""),
            style=Markup(style),
            title=title,
            verdict=verdict,
            stamp=stamp or STAMPS[verdict.kind],
            table=table,
            pictures=pictures,
            notes=notes,
            redacted=redacted,
        )
    )
    return (
        f'<iframe sandbox="" srcdoc="{escape(document)}" title="{escape(title)}" '
        f'style="width:100%;height:{height}px;border:1px solid #8888"></iframe>'
    )
