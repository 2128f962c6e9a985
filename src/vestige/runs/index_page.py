"""One static page of many runs: redacted, sortable, without a server and without requests.

Sets of records are numbered: equal numbers are equal digests, which the page withholds. Titles are
those of redacted reports unless they are asked for, which is so where ``vestige view`` serves it.

The rows are in the page, newest first; the script sorts, filters, and, where ``vestige view``
serves the page, asks for the rows again while runs progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from vestige.errors import NotFound
from vestige.files import save
from vestige.pages import templates
from vestige.pages.shell import STAMPS, Stamp
from vestige.reports import numbers
from vestige.reports.parts import VerdictKind
from vestige.runs.paths import given_path
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
    title: str
    lower: str
    guess_rate: str
    chance: str
    count: str
    date: str
    cpu: str
    data: str
    keys: tuple[str, ...]


def row_of(run: RunSummary, sets: Mapping[str, int], *, titles: bool = False) -> Row:
    """A run as the template draws it; ``sets`` are the numbers of the digests of data."""
    title = (run.title if titles else run.public_title) or run.folder
    stamp = STATES.get(run.verdict, STATES[VerdictKind.INVALID.value])
    asked = (run.planned or 0) + (run.added or 0)
    finished = run.done is None or (run.done == asked and run.verdict != UNFINISHED)
    count = "" if run.done is None else f"{run.done:,}"
    count += "" if finished else f" of {asked:,}"
    count += "" if run.done is None or run.unit == "trials" else f" {run.unit}"
    count += "" if run.added is None else f" ({run.added:,} added)"
    return Row(
        run,
        stamp,
        quote(f"{run.folder}/page.html") if run.page else "",
        title,
        "" if run.lower is None else f"at least {numbers.at_least(run.lower)}",
        "" if run.guess_rate is None else numbers.share(run.guess_rate),
        "" if run.chance is None else numbers.share(run.chance),
        count,
        "" if not run.date else f"{run.date[:10]} {run.date[11:16]}",
        "" if run.cpu_seconds is None else numbers.seconds(run.cpu_seconds),
        f"set {sets[run.data]:,}" if run.data else "",
        (
            stamp.word,
            title.lower(),
            run.kind,
            _number(run.lower),
            _number(run.chance),
            _number(run.guess_rate),
            _number(run.done),
            run.model,
            _number(sets.get(run.data)),
            run.date or "9",
            _number(run.cpu_seconds),
        ),
    )


def _number(value: float | None) -> str:
    return "-1" if value is None else f"{value:.6g}"


def render_rows(runs: Sequence[RunSummary], *, titles: bool = False) -> Markup:
    """The rows of the table alone, for a page that is open already."""
    oldest_first = (run.data for run in reversed(runs) if run.data)
    sets = {digest: number for number, digest in enumerate(dict.fromkeys(oldest_first), 1)}
    rows = [row_of(run, sets, titles=titles) for run in runs]
    return templates.fragment("index_rows.html", "rows", rows, DIGITS)


def render_index(runs: Sequence[RunSummary], *, live: bool = False, titles: bool = False) -> str:
    """The page of all runs; ``live`` lets it ask its server for new rows, and nobody else.

    ``titles`` shows those that users gave, which may name what nobody else should read.
    """
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
            tab=f"{len(runs)} runs · Vestige",
            live=live,
            titles=titles,
            count=len(runs),
            rows_html=render_rows(runs, titles=titles),
        )
    )


def write_index(
    folder: str | Path, out: str | Path | None = None, *, titles: bool = False
) -> tuple[Path, int]:
    """Write the page of all runs below a folder into it; return its path and their number.

    Elsewhere than in the folder, the page has no links to the pages of the runs.
    """
    runs = summaries(folder)
    base = Path(folder)
    if not runs:
        raise NotFound(
            f"{base} holds no run, so no list was written: give the folder above your runs."
        )
    path = base / INDEX if out is None else given_path(out, "The page of the list")
    if path.parent.resolve() != base.resolve():
        runs = [replace(run, page=False) for run in runs]
    save(path, render_index(runs, titles=titles).encode())
    return path, len(runs)
