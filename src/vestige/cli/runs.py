"""What the command line shows and keeps: progress bars, ctrl-C, the list of attacks, pages."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vestige import attacks as attack_room
from vestige.attacks.around_attack import AroundAttack
from vestige.cli.progress_bars import show_progress
from vestige.cli.user_code import load_plan
from vestige.engines.in_process import InProcess
from vestige.engines.local_processes import LocalProcesses
from vestige.engines.ray_cluster import RayCluster
from vestige.errors import BadInput, Interrupted, NotFound
from vestige.pages.saving import save_page
from vestige.printable import terminal_text
from vestige.reports.report import Findings, Report
from vestige.runs.staleness import stale_files
from vestige.studies.audit.plan import Audit
from vestige.studies.inversion.plan import Inversion
from vestige.studies.repeated.plan import Repeated
from vestige.studies.run import run
from vestige.studies.run_digests import PAGE, list_page
from vestige.studies.study import Study

F = TypeVar("F", bound=Findings)

if TYPE_CHECKING:
    from vestige.cli.capture_options import Capture
    from vestige.engines.units import Engine
    from vestige.interfaces import Attack


def run_and_render(
    study: Study[F],
    seed: int,
    folder: Path,
    *,
    redact: bool | None = None,
    engine: Engine | None = None,
) -> tuple[Report[F, Any], Path]:
    """Run a study in a folder with a progress display; write its page.

    Without a choice to ``redact``, a redacted page is replaced by a redacted one.

    Ctrl-C asks an inversion to stop and keep the best so far, which is a result. Any other study
    keeps finished units and says nothing yet.
    """
    soft = type(study) is Inversion
    asking = _stop_on_interrupt() if soft else nullcontext(lambda: False)
    try:
        with show_progress(study.kind) as watch, asking as stopped:
            report = run(
                study,
                seed=seed,
                directory=folder,
                watch=lambda where: watch(where) or stopped(),
                engine=engine,
            )
        page = folder / PAGE
        save_page(report, page, redact=redact)
        list_page(folder)
        for sentence in stale_files(folder, report):
            typer.echo(terminal_text(f"Remark: {sentence}"), err=True)
        return report, page
    except KeyboardInterrupt as interrupted:
        raise Interrupted(
            "Stopped; finished units are kept. Rerun the same command to resume."
        ) from interrupted


def run_file(
    reference: str | Path,
    kind: type[Study[Any]] | None,
    seed: int,
    out: Path | None,
    threads: int,
    engine: Engine,
    *,
    redact: bool | None,
    repeat: int | None = None,
    **changes: object,
) -> tuple[Report[Any, Any], Path]:
    """Run the study that a file defines, with fields changed by options that are not None.

    An audit can be run ``repeat`` times, with as many seeds.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    with torch_threads(threads):
        study = load_plan(reference, kind)
        for name in given:
            if not hasattr(study, name):
                raise BadInput(f"{_of_kind(study)} has no {name}: leave out --{name}.")
        study = replace(study, **given) if given else study  # pyright: ignore[reportArgumentType, reportCallIssue]
        sizes = [str(study.trials)] if hasattr(study, "trials") else []  # pyright: ignore[reportAttributeAccessIssue]
        if repeat is not None:
            if not isinstance(study, Audit):
                raise BadInput(
                    f"--repeat repeats an audit, and {reference} holds {_of_kind(study, 'a')}."
                )
            study, sizes = Repeated(study, repeat), [*sizes, f"repeat{repeat}"]
        stem = str(reference).replace(".py:", "-").removesuffix(".py")
        folder = out or Path("runs") / "-".join([Path(stem).name, *sizes, str(seed)])
        return run_and_render(study, seed, folder, redact=redact, engine=engine)


def _of_kind(study: Study[Any], article: str = "A") -> str:
    """The kind of a study with its article."""
    return f"{article}{'n' * study.kind.startswith(tuple('aeiou'))} {study.kind}"


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


def inversion_of(
    capture: Capture, names: Sequence[str], iterations: int, samples: int, rehearsals: int
) -> Inversion:
    """The inversion that a command's options describe; without names, attacks are recommended."""
    chosen: Sequence[Attack] = [named_attack(name) for name in names]
    if not names:
        chosen = attack_room.recommended(capture.public, capture.observation)
    if iterations:
        own = tuple(_with_iterations(attack, iterations) for attack in chosen)
        chosen = own if names else replace(chosen, attacks=own)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return Inversion(
        capture.observation,
        capture.public,
        chosen,
        samples,
        rehearsals,
        title=f"Captured: {capture.gradient.name}",
        settings=capture.settings,
        remarks=capture.remarks,
    )


def named_attack(name: str) -> Attack:
    """An attack with its default settings, by class name or by the name readers see."""
    known = _attack_classes()
    for class_name, cls in known.items():
        if _plain(name) in (_plain(class_name), _plain(str(cls().name))):
            return cls()
    by_plain = {_plain(n): n for n in known}
    close = get_close_matches(_plain(name), by_plain, n=1, cutoff=0.4)
    hint = f"; did you mean {by_plain[close[0]]}?" if close else "."
    raise NotFound(f"There is no attack {name!r}: choose one of {', '.join(known)}{hint}")


def _attack_classes() -> dict[str, type[Any]]:
    """The attacks by the names of their classes, without those around another attack."""
    named = {name: getattr(attack_room, name) for name in dir(attack_room)}
    complete = {n: cls for n, cls in named.items() if hasattr(cls, "prepare")}
    return {n: cls for n, cls in complete.items() if not issubclass(cls, AroundAttack)}


def attack_list() -> Group:
    """Every attack with what it does, reads, needs and cites."""
    blocks = []
    for name, cls in _attack_classes().items():
        attack = cls()
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
