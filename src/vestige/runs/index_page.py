"""One static page of many runs: redacted, sortable, without a server and without requests.

Sets of records are numbered: equal numbers are equal digests, which the page withholds.

The rows are in the page, newest first; the script sorts, filters, and, where ``vestige view``
serves the page, asks for the rows again while runs progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from vestige.files import save
from vestige.pages import templates
from vestige.pages.shell import STAMPS, Stamp
from vestige.reports import numbers
from vestige.reports.parts import VerdictKind
from vestige.runs.summaries import DAMAGED, UNFINISHED, RunSummary, summaries

INDEX = "index.html"
DIGITS = 10
"""Digits of a digest that a row shows; the whole one is its title."""

STATES = {
    **{kind.value: stamp for kind, stamp in STAMPS.items()},
    UNFINISHED: Stamp("Unfinished", "dashed", "muted"),
    DAMAGED: Stamp("Damaged", "dashed", "caution"),
}


@dataclass(frozen=True)
class Row:
    """One run as the template draws it; ``keys`` are what its columns are sorted by."""

    run: RunSummary
    stamp: Stamp
    link: str
    lower: str
    guess: str
    count: str
    date: str
    cpu: str
    data: str
    keys: tuple[str, ...]


def row_of(run: RunSummary, sets: Mapping[str, int]) -> Row:
    """A run as the template draws it; ``sets`` are the numbers of the digests of data."""
    stamp = STATES.get(run.verdict, STATES[VerdictKind.INVALID.value])
    finished = run.done is None or (run.done == run.planned and run.verdict != UNFINISHED)
    count = "" if run.done is None else f"{run.done:,}"
    count += "" if finished else f" of {run.planned:,}"
    return Row(
        run,
        stamp,
        quote(f"{run.folder}/page.html") if run.page else "",
        "" if run.lower is None else f"at least {numbers.at_least(run.lower)}",
        "" if run.guess is None else numbers.share(run.guess),
        count,
        "" if not run.date else f"{run.date[:10]} {run.date[11:16]}",
        "" if run.cpu_seconds is None else numbers.seconds(run.cpu_seconds),
        f"set {sets[run.data]:,}" if run.data else "",
        (
            stamp.word,
            (run.title or run.folder).lower(),
            run.kind,
            _number(run.lower),
            _number(run.guess),
            _number(run.done),
            run.model,
            _number(sets.get(run.data)),
            run.date or "9",
            _number(run.cpu_seconds),
        ),
    )


def _number(value: float | None) -> str:
    return "-1" if value is None else f"{value:.6g}"


def render_rows(runs: Sequence[RunSummary]) -> Markup:
    """The rows of the table alone, for a page that is open already."""
    oldest_first = (run.data for run in reversed(runs) if run.data)
    sets = {digest: number for number, digest in enumerate(dict.fromkeys(oldest_first), 1)}
    rows = [row_of(run, sets) for run in runs]
    return templates.fragment("index_rows.html", "rows", rows, DIGITS)


def render_index(runs: Sequence[RunSummary], *, live: bool = False) -> str:
    """The page of all runs; ``live`` lets it ask its server for new rows, and nobody else."""
    style = templates.text("page.css") + templates.text("index.css")
    script = templates.text("page.js") + templates.text("index.js")
    policy = templates.policy(style, script)
    return (
        templates.environment()
        .get_template("index.html")
        .render(
            policy=f"{policy}; connect-src 'self'" if live else policy,
            style=Markup(style),
            script=Markup(script),
            live=live,
            count=len(runs),
            rows_html=render_rows(runs),
        )
    )


def write_index(folder: str | Path, out: str | Path | None = None) -> tuple[Path, int]:
    """Write the page of all runs below a folder into it; return its path and their number.

    Elsewhere than in the folder, the page has no links to the pages of the runs.
    """
    base, runs = Path(folder), summaries(folder)
    path = base / INDEX if out is None else Path(out)
    if path.parent.resolve() != base.resolve():
        runs = [RunSummary(**{**vars(run), "page": False}) for run in runs]
    save(path, render_index(runs).encode())
    return path, len(runs)
