"""What ``vestige compare`` shows and keeps: two bars, a table, what follows, JSON and page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from vestige.comparison import Cell, Comparison, DefendedPoint
from vestige.comparison_plan import ComparisonPlan
from vestige.comparison_sentences import cost_words, error_words
from vestige.comparisons import ComparisonMoment, ComparisonWatcher, compare
from vestige.engines import Engine
from vestige.errors import Conflict, Interrupted
from vestige.files import explained, write_atomically
from vestige.numbers import EN_DASH, rate_with_limits
from vestige.pages import save_page
from vestige.terminal import PerSecond

NAME = "comparison.json"


def compare_and_keep(
    plan: ComparisonPlan,
    trials: int,
    seed: int,
    budget: float | None,
    folder: Path,
    *,
    redact: bool = False,
    engine: Engine | None = None,
) -> tuple[Comparison, Path]:
    """Run a comparison in a folder with progress bars; write it and its page, say which is there.

    A comparison that is redacted loses its pictures on the page; the JSON beside it keeps them, as
    a run's Record does.
    """
    if budget is not None:
        plan = replace(plan, budget=budget)
    _refuse_others(folder, plan.title)
    try:
        with _watching() as watcher:
            found = compare(
                plan, trials=trials, seed=seed, directory=folder, watcher=watcher, engine=engine
            )
    except KeyboardInterrupt as stopped:
        raise Interrupted(
            "Stopped; finished cells and trials are kept, and the same command goes on from there."
        ) from stopped
    kept = folder / NAME
    with explained(folder):
        write_atomically(kept, found.model_dump_json(indent=1).encode())
    page = folder / "comparison.html"
    save_page(found, page, redact=redact)
    return found, page


def _refuse_others(folder: Path, title: str) -> None:
    """Raise Conflict, before anything is written, if a folder holds something else.

    A comparison of the same title is written anew: its finished cells are found by content.
    """
    if (folder / "manifest.json").exists():
        raise Conflict(f"{folder} holds the run of an audit: name a new folder with --out.")
    try:
        held = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(held, dict) and held.get("title") != title:
        raise Conflict(
            f"{folder} holds another comparison, {held.get('title')!r}: name a new folder with "
            "--out, nothing was written here."
        )


def show_comparison(comparison: Comparison, kept: Path) -> None:
    """Print the cells of every server, what follows for a reader, and where it was written."""
    console = Console()
    for server in comparison.servers:
        console.print(_table(comparison, server.name))
    for advice in comparison.recommendations:
        console.print(Text(advice.server, style="bold"))
        console.print(Text(advice.sentence))
        for detail in advice.details:
            console.print(Text(f"  {detail}", style="dim"))
    console.print(Text(comparison.verdict.kind.replace("_", " "), style="bold"))
    console.print(Text(f"{comparison.verdict.headline} {comparison.verdict.lede}"))
    if comparison.verdict.remedy:
        console.print(Text(comparison.verdict.remedy))
    console.print(Text(f"Written: {kept}", no_wrap=True, overflow="ignore"), soft_wrap=True)


def _table(comparison: Comparison, server: str) -> Table:
    fronts = {front.server: front.labels for front in comparison.fronts}
    table = Table(title=escape(server), title_justify="left", box=None, padding=(0, 1))
    for heading in ("", "defence", "accuracy lost", "error left", "hits", "strongest attack"):
        table.add_column(heading)
    for point in comparison.points:
        cell = comparison.cell(point, server)
        mark = "*" if point.label in fronts.get(server, ()) else ""
        table.add_row(mark, escape(point.label), _lost(point), *map(escape, _left(cell)))
    table.caption = "* no other one costs less and leaves more"
    table.caption_justify = "left"
    return table


def _lost(point: DefendedPoint) -> str:
    utility = point.utility
    if utility.diverged:
        return f"{utility.diverged} of {utility.repeats} diverged"
    return cost_words(utility.accuracy_lost)


def _left(cell: Cell) -> tuple[str, str, str]:
    if cell.protection is None or cell.most_hits is None:
        return EN_DASH, EN_DASH, cell.problem
    return error_words(cell.protection), rate_with_limits(cell.most_hits), cell.strongest or ""


@contextmanager
def _watching() -> Iterator[ComparisonWatcher]:
    """Show two bars on a terminal: trainings and cells above, rounds or trials below."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        PerSecond(),
        TimeRemainingColumn(),
        transient=True,
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        above, below = bar.add_task("comparison", total=None), bar.add_task("", total=None)

        def watch(moment: ComparisonMoment) -> None:
            bar.update(above, total=moment.total, completed=moment.done)
            bar.update(
                below,
                description=escape(moment.what),
                total=moment.step.total,
                completed=moment.step.done,
            )

        yield watch
