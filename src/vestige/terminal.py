"""What the command line shows and keeps: progress bars, ctrl-C, the list of attacks, pages."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from vestige import attacks as attack_room
from vestige import progress
from vestige.audit import Audit, run
from vestige.capture import Capture
from vestige.engines import Engine, InProcess, LocalProcesses, RayCluster
from vestige.errors import BadInput, Conflict, Interrupted, NotFound
from vestige.files import explained, write_atomically
from vestige.inversion import invert
from vestige.observations import Attack
from vestige.pages import STUDIES, Study, save_page, write_page
from vestige.record import Record
from vestige.report import render
from vestige.store import RunDirectory, record_bytes
from vestige.trials import Moment


def run_and_render(
    audit: Audit,
    trials: int,
    seed: int,
    folder: Path,
    *,
    redact: bool = False,
    engine: Engine | None = None,
) -> tuple[Record, Path]:
    """Run an audit in a folder with a progress bar; write its page."""
    try:
        with _watching("trials", trials) as watch:
            record = run(
                audit, trials=trials, seed=seed, directory=folder, watcher=watch, engine=engine
            )
        return record, RunDirectory(folder).write_page(render(record, redact=redact))
    except KeyboardInterrupt as stopped:
        raise Interrupted(
            "Stopped; finished trials are kept, and the same command goes on from there."
        ) from stopped


def chosen_engine(place: str, workers: int, address: str) -> Engine:
    """The engine that a command's options describe; 0 workers are as many as there are cores."""
    if address and place != "ray":
        raise BadInput("--address names a Ray cluster: add --engine ray.")
    if place == "here":
        if workers > 1:
            raise BadInput("This process is one worker: add --engine processes or --engine ray.")
        return InProcess()
    if place == "processes":
        return LocalProcesses(workers or os.cpu_count() or 1)
    return RayCluster(address or None, workers or None)


def keep_study(study: Study, folder: Path, *, redact: bool = False) -> Path:
    """Write a study and its page into a folder; say where the page is."""
    name = STUDIES[study.kind][1]
    with explained(folder):
        write_atomically(folder / f"{name}.json", study.model_dump_json(indent=1).encode())
    page = folder / f"{name}.html"
    save_page(study, page, redact=redact)
    return page


def study_and_keep(
    make: Callable[[], Study], what: str, folder: Path, *, redact: bool = False
) -> tuple[Study, Path]:
    """Make a study with a progress bar for its steps; write it and its page into a folder."""
    console = Console(stderr=True)
    with (
        _kept_if_filled(folder),
        Progress(transient=True, console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task(what, total=None)

        def listen(step: progress.Step) -> None:
            bar.update(task, total=step.total, completed=step.done)

        try:
            with progress.listening(listen):
                study = make()
        except KeyboardInterrupt as stopped:
            raise Interrupted("Stopped; nothing was written.") from stopped
        return study, keep_study(study, folder, redact=redact)


def invert_and_render(
    capture: Capture,
    names: Sequence[str],
    iterations: int,
    samples: int,
    seed: int,
    folder: Path,
    *,
    redact: bool = False,
) -> tuple[Record, Path]:
    """Attack a captured release; write Record and page. Ctrl-C keeps the best so far."""
    chosen = [named_attack(name) for name in names or ["InvertingGradients"]]
    if iterations:
        chosen = [_with_iterations(attack, iterations) for attack in chosen]
    with explained(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Conflict(f"{folder} is not an empty folder: name a new one with --out.")
    observation, public = capture.observation, capture.public
    with _kept_if_filled(folder):
        try:
            with _watching("runs", samples) as watch, _stop_on_interrupt() as stopped:
                record = invert(
                    observation,
                    public,
                    chosen,
                    samples=samples,
                    seed=seed,
                    title=f"Captured: {capture.gradient.name}",
                    watcher=lambda moment: watch(moment) or stopped(),
                )
        except KeyboardInterrupt as stopped_twice:
            raise Interrupted("Stopped twice; nothing was written.") from stopped_twice
        with explained(folder):
            write_atomically(folder / "record.json", record_bytes(record))
        write_page(folder / "page.html", render(record, redact=redact))
    return record, folder / "page.html"


def named_attack(name: str) -> Attack:
    """An attack with its default settings, by class name or by the name readers see."""
    known = {n: getattr(attack_room, n) for n in attack_room.__all__}
    for class_name, cls in known.items():
        if _plain(name) in (_plain(class_name), _plain(str(cls().name))):
            return cls()
    by_plain = {_plain(n): n for n in known}
    close = get_close_matches(_plain(name), by_plain, n=1, cutoff=0.4)
    hint = f"; did you mean {by_plain[close[0]]}?" if close else "."
    raise NotFound(f"There is no attack {name!r}: choose one of {', '.join(known)}{hint}")


def attack_list() -> Group:
    """Every attack with what it does, reads, needs and cites."""
    blocks = []
    for name in attack_room.__all__:
        attack = getattr(attack_room, name)()
        facts = Table.grid(padding=(0, 2))
        facts.add_column(no_wrap=True)
        facts.add_column()
        reads = ", ".join(cls.__name__ for cls in attack.reads)
        facts.add_row("does", Text(attack.summary))
        facts.add_row("reads", Text(reads))
        facts.add_row("needs", Text(attack.needs))
        facts.add_row("cites", Text(attack.cites))
        blocks += [Text(name, style="bold"), Padding(facts, (0, 0, 1, 2))]
    return Group(*blocks)


def _with_iterations(attack: Attack, iterations: int) -> Attack:
    if "iterations" not in inspect.signature(type(attack)).parameters:
        return attack
    return replace(attack, iterations=iterations)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


@contextmanager
def _kept_if_filled(folder: Path) -> Iterator[None]:
    """Make a private folder now, so that a refusal comes before the work; remove it if empty."""
    with explained(folder):
        made = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _watching(what: str, total: int) -> Iterator[Callable[[Moment], None]]:
    """Show two bars on a terminal: trials or runs above, the steps of the attack below.

    Trials that run elsewhere say nothing of their steps; then there is one bar.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        PerSecond(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        transient=True,
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        above = bar.add_task(what, total=total, note="")
        below = bar.add_task("", total=None, note="")

        def watch(moment: Moment) -> None:
            bar.update(above, completed=moment.trial)
            bar.update(
                below,
                description=escape(moment.attack),
                total=moment.step.total,
                completed=moment.step.done,
                note=_distance(moment.step),
                visible=bool(moment.attack),
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


def _distance(step: progress.Step) -> str:
    return "" if step.distance is None else f"gradient distance {step.distance:.3g}"


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turn the first ctrl-C into a request to stop; the second one stops at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads for a while; 0 leaves it alone.

    On networks as small as the bundled ones a second thread costs more than it brings, and on a
    busy machine many times more.
    """
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
