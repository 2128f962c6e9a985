"""Progress on a terminal: one display for every kind of study."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from vestige.printable import terminal_text
from vestige.progress import Progress, Watch


@contextmanager
def show_progress(what: str) -> Iterator[Watch]:
    """Show two bars: finished units above, the steps of the unit that runs below.

    Units that run in other processes report no steps; then there is one bar. Without a terminal
    nothing is shown.
    """
    console = Console(stderr=True)
    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        PerSecond(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        transient=True,
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        above = bars.add_task(what, total=None, note="")
        below = bars.add_task("", total=None, note="", visible=False)

        def watch(where: Progress) -> None:
            if where.note:
                console.print(escape(terminal_text(where.note)), highlight=False)
            bars.update(above, total=where.total, completed=where.done)
            if where.step is None:
                bars.update(below, visible=False)
                return
            named = ": ".join(name for name in (where.unit, where.part) if name)
            bars.update(
                below,
                description=escape(terminal_text(named)),
                total=where.step.total,
                completed=where.step.done,
                note=""
                if where.step.distance is None
                else f"gradient distance {where.step.distance:.3g}",
                visible=True,
            )

        yield watch


class PerSecond(ProgressColumn):
    """How many are done in a second, or in a minute or an hour where a second is too short."""

    def render(self, task: Task) -> Text:
        """Return the rate, or nothing before there is one."""
        return Text("" if task.speed is None else pace(task.speed))


def pace(per_second: float) -> str:
    """A rate in the unit in which it is at least one, if there is such a unit."""
    for factor, unit in ((1, "s"), (60, "min")):
        if per_second * factor >= 1:
            return f"{per_second * factor:.3g}/{unit}"
    return f"{per_second * 3600:.3g}/h"
