"""Records, verdicts and comparisons as a notebook shows them: short, without scripts, shut in.

What is shown stands in a frame of its own that runs nothing and loads nothing, so that neither the
notebook's style nor a hostile title reaches across. The whole page is ``vestige.save_page``.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from vestige import numbers
from vestige.comparison import Comparison
from vestige.record import Record, Verdict, VerdictKind
from vestige.report import front, templates
from vestige.report.pictures import data_uri

MOST_TRIALS = 3
MOST_ROWS = 24
"""Rows of a table that are shown: a notebook keeps every output it has shown."""


@dataclass(frozen=True)
class Row:
    """One line of a table: its name, and what stands in each column."""

    name: str
    cells: tuple[str, ...]
    picture: str | None = None


@dataclass(frozen=True)
class Table:
    """A table with the title of its first column and of the others."""

    first: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def verdict_html(verdict: Verdict) -> str:
    """A verdict alone."""
    return _framed(verdict, "A verdict", height=150)


def record_html(record: Record) -> str:
    """Verdict, rates with limits, and the trials that the page shows; nothing of a failed audit."""
    shown = record.without_secrets() if record.redacted else record
    failed = shown.verdict.kind is VerdictKind.INVALID
    trials = () if failed else front.triplets(shown, batches=False)[:MOST_TRIALS]
    frames = tuple(
        (trial.name, tuple(one for one in trial.frames if one.source)) for trial in trials
    )
    drawn = tuple(
        (view.title, tuple(one for one in view.frames if one.source))
        for view in (() if failed else front.candidates(shown, agreement=False)[:6])
    )
    pictures = tuple(pair for pair in (*frames, *drawn) if pair[1])
    rows = tuple(
        Row(
            attack.name,
            (
                f"{numbers.count(attack.rate.hits)} of {numbers.count(attack.rate.trials)}",
                f"{numbers.at_least(attack.rate.lower)} to {numbers.at_most(attack.rate.upper)}",
            ),
        )
        for attack in shown.attacks
        if attack.rate is not None and not failed
    )
    rate = numbers.share(shown.false_positive_rate)
    table = Table("Attack", (f"Hits at FPR = {rate}", f"{shown.confidence:.0%} limits"), rows)
    height = 210 + 24 * len(rows) + (190 if pictures else 0)
    return _framed(
        shown.verdict,
        shown.title,
        table=table if rows else None,
        pictures=pictures,
        redacted=shown.redacted,
        height=height,
    )


def comparison_html(comparison: Comparison) -> str:
    """What each defence costs and what it leaves, one row for each strength and server."""
    shown = comparison.without_secrets() if comparison.redacted else comparison
    rows = []
    for point in shown.points:
        for cell in point.cells:
            lost = point.utility.accuracy_lost
            error, hits = cell.protection, cell.most_hits
            drawn = next((picture for picture in cell.pictures if picture is not None), None)
            rows.append(
                Row(
                    point.label if len(shown.servers) == 1 else f"{point.label}, {cell.server}",
                    (
                        "–" if lost is None else f"{lost.value:.3f}",
                        "–" if error is None else f"{error.value:.3f}",
                        "–" if hits is None else numbers.rate_with_limits(hits),
                        cell.problem or cell.verdict,
                    ),
                    None if drawn is None or drawn.pixels is None else data_uri(drawn),
                )
            )
    left = len(rows) - MOST_ROWS
    columns = ("Accuracy lost", "Error left", "Most hits", "")
    table = Table("Defence", columns, tuple(rows[:MOST_ROWS]))
    notes = [f"{r.server}: {r.sentence}" for r in shown.recommendations]
    notes += [f"{numbers.plural(left, 'more row')} in the comparison."] if left > 0 else []
    return _framed(
        shown.verdict,
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
    pictures: tuple[tuple[str, tuple[front.Frame, ...]], ...] = (),
    notes: tuple[str, ...] = (),
    redacted: bool = False,
    height: int,
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
            stamp=front.STAMPS[verdict.kind],
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
