"""What the command line does around the library: load files, show progress, write pages."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from vestige import attacks as attack_room
from vestige import progress
from vestige.archive import load_release
from vestige.audit import Audit, run
from vestige.datasets import load
from vestige.errors import BadInput, NotFound, VestigeError
from vestige.inversion import invert
from vestige.observations import Attack, Hints, Observation, Public
from vestige.record import Record
from vestige.records import Column, ImageSpace, Prior, Records, Space, TableSpace
from vestige.report import render
from vestige.simulation import LocalTraining, Normalization, Simulator
from vestige.store import RunDirectory, load_record, read_safetensors, write_atomically
from vestige.streams import stream
from vestige.trials import Moment
from vestige.verdicts import judge


def run_and_render(
    audit: Audit, trials: int, seed: int, folder: Path, *, redact: bool = False
) -> tuple[Record, Path]:
    """Run an audit in a folder with a progress bar; write its page."""
    with _bar() as bar:
        trial_bar = bar.add_task("trials", total=trials, note="")
        attack_bar = bar.add_task("", total=None, note="")

        def watch(moment: Moment) -> None:
            bar.update(trial_bar, completed=moment.trial)
            bar.update(
                attack_bar,
                description=moment.attack,
                total=moment.step.total,
                completed=moment.step.done,
                note=_distance(moment.step),
            )

        record = run(audit, trials=trials, seed=seed, directory=folder, watcher=watch)
        bar.update(trial_bar, completed=record.trials_finished)
    return record, RunDirectory(folder).write_page(render(record, redact=redact))


def render_again(path: Path, out: Path | None, *, redact: bool = False) -> tuple[Record, Path]:
    """Judge and render a finished run again."""
    if path.is_dir():
        directory = RunDirectory.existing(path)
        if not (path / "record.json").is_file():
            manifest = directory.manifest()
            raise NotFound(
                f"{path} holds {len(directory.finished())} of {manifest.get('trials')} trials and "
                "no Record yet: run the audit again with the same command, it goes on."
            )
        path = path / "record.json"
    record = judge(load_record(path))
    page = out or path.parent / "page.html"
    write_page(page, render(record, redact=redact))
    return record, page


def write_page(path: Path, page: str) -> None:
    """Write a page, or say why not."""
    try:
        write_atomically(path, page.encode())
    except OSError as error:
        raise VestigeError(
            f"Cannot write {path} ({error.strerror or error}): name another place with --out."
        ) from error


def load_audit(file: Path) -> Audit:
    """Return the ``audit`` that a Python file defines."""
    found = getattr(_module(str(file)), "audit", None)
    if found is None:
        raise BadInput(f"{file} defines no audit: add a line 'audit = Audit(...)'.")
    if not isinstance(found, Audit):
        raise BadInput(
            f"audit in {file} is a {type(found).__name__}: make it a vestige.Audit(...)."
        )
    return found


@dataclass(frozen=True)
class Capture:
    """A captured release and what is known about where it came from, as typed by a user."""

    gradient: Path
    model: str
    weights: Path | None
    shape: str
    classes: int
    prior: str
    batch_size: int
    labels: str
    mean: str
    std: str
    mode: str
    reduction: str
    update: bool
    local_steps: int
    local_batch_size: int
    learning_rate: float
    momentum: float

    def public(self) -> Public:
        """What the attacker knows."""
        model = _made(self.model)
        if self.weights is not None:
            _load_weights(model, self.weights)
        if self.mode not in ("train", "eval") or self.reduction not in ("mean", "sum"):
            raise BadInput("--mode is train or eval, --reduction is mean or sum.")
        local = None
        if self.update:
            if self.learning_rate <= 0:
                raise BadInput("An update needs the client's --learning-rate (and --local-steps).")
            local = LocalTraining(
                self.local_steps, self.learning_rate, self.local_batch_size or None, self.momentum
            )
        normalization = None
        if self.mean or self.std:
            normalization = Normalization(
                tuple(_numbers(self.mean, "--mean")), tuple(_numbers(self.std, "--std"))
            )
        simulator = Simulator(
            model,
            mode=self.mode,  # pyright: ignore[reportArgumentType]
            reduction=self.reduction,  # pyright: ignore[reportArgumentType]
            normalization=normalization,
            local=local,
        )
        prior = Prior(load(self.prior)) if self.prior else noise_prior(self._space(simulator))
        release = type(load_release(self.gradient, update=self.update))
        return Public(simulator, prior, reads=release)

    def observation(self, public: Public) -> Observation:
        """What the attacker sees."""
        labels = None
        if self.labels:
            labels = torch.tensor([int(v) for v in _numbers(self.labels, "--labels")])
            if len(labels) != self.batch_size:
                raise BadInput(
                    f"{len(labels)} labels came with --batch-size {self.batch_size}: make them "
                    "equal."
                )
            if not 0 <= int(labels.min()) <= int(labels.max()) < public.classes:
                raise BadInput(f"A label is out of range: labels lie in 0 … {public.classes - 1}.")
        release = load_release(self.gradient, update=self.update)
        parameter = next(iter(public.simulator.parameters.values()))
        moved = {n: t.to(parameter.device, parameter.dtype) for n, t in release.tensors.items()}
        return Observation(replace(release, tensors=moved), Hints(self.batch_size, labels))

    def _space(self, simulator: Simulator) -> Space:
        if not self.shape:
            raise BadInput(
                "Say what a record looks like: --shape 1,28,28 for images, --shape 30 for rows, "
                "or --prior with the name of a dataset."
            )
        classes = self.classes or simulator.classes
        if not classes:
            raise BadInput("The model has no linear head to count classes from: give --classes.")
        names = tuple(str(c) for c in range(classes))
        sizes = [int(v) for v in _numbers(self.shape, "--shape")]
        if len(sizes) == 3 and min(sizes) > 0:
            return ImageSpace(*sizes, class_names=names)
        if len(sizes) == 1 and sizes[0] > 0:
            columns = tuple(Column(f"feature {i + 1}") for i in range(sizes[0]))
            return TableSpace(columns, names)
        raise BadInput(f"--shape {self.shape} is neither channels,height,width nor a row's length.")


def invert_and_render(
    capture: Capture,
    names: Sequence[str],
    iterations: int,
    samples: int,
    seed: int,
    folder: Path,
    *,
    redact: bool = False,
) -> Record:
    """Attack a captured release; write Record and page. Ctrl-C keeps the best so far."""
    chosen = [named_attack(name) for name in names or ["InvertingGradients"]]
    if iterations:
        chosen = [_with_iterations(attack, iterations) for attack in chosen]
    public = capture.public()
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty: name a new folder with --out.")
    with _bar() as bar, _stop_on_interrupt() as stopped:
        task = bar.add_task("inverting", total=None, note="")

        def listen(step: progress.Step) -> bool:
            bar.update(task, total=step.total, completed=step.done, note=_distance(step))
            return stopped()

        with progress.listening(listen):
            record = invert(
                capture.observation(public),
                public,
                chosen,
                samples=samples,
                seed=seed,
                title=f"Captured: {capture.gradient.name}",
            )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise VestigeError(f"Cannot write to {folder} ({error.strerror}): name another.") from error
    write_page(folder / "record.json", record.model_dump_json(indent=1))
    write_page(folder / "page.html", render(record, redact=redact))
    return record


def named_attack(name: str) -> Attack:
    """An attack with its default settings, by class name or by the name readers see."""
    known = {n: getattr(attack_room, n) for n in attack_room.__all__}
    for class_name, cls in known.items():
        if _plain(name) in (_plain(class_name), _plain(str(cls().name))):
            return cls()
    close = get_close_matches(name, known, n=1, cutoff=0.3)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise NotFound(f"There is no attack {name!r}: choose one of {', '.join(known)}.{hint}")


def attack_table() -> Table:
    """The attacks as a table."""
    table = Table("Attack", "Reads", "Needs", "Cites", title="Attacks", show_lines=True)
    for name in attack_room.__all__:
        attack = getattr(attack_room, name)()
        reads = ", ".join(cls.__name__ for cls in attack.reads)
        table.add_row(f"{name}\n{attack.summary}", reads, attack.needs, attack.cites)
    return table


def noise_prior(space: Space, count: int = 64) -> Prior:
    """Uniform noise, for attackers who have collected nothing."""
    generator = stream(0, "noise prior")
    classes = len(space.class_names)
    x = torch.rand((max(count, classes), *space.shape), generator=generator)
    labels = torch.arange(len(x)) % classes
    return Prior(Records(x, labels, space))


def _with_iterations(attack: Attack, iterations: int) -> Attack:
    if "iterations" not in inspect.signature(type(attack)).parameters:
        return attack
    return replace(attack, iterations=iterations)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _module(source: str) -> ModuleType:
    """Import a module by name or by the path of its file; say what it stumbled over."""
    try:
        if not source.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(source)
        path = Path(source)
        if not path.is_file():
            raise NotFound(f"{path} does not exist: give a Python file.")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise BadInput(f"{path} cannot be imported: give a Python file.")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except VestigeError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == source]
        line = f" in line {frames[-1].lineno}" if frames else ""
        raise BadInput(
            f"{source} stopped{line} with {type(error).__name__}: {error}. Mend it and run again."
        ) from error


def _made(reference: str) -> nn.Module:
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise BadInput(f"--model {reference} is not of the form module:factory or file.py:factory.")
    factory = getattr(_module(source), name, None)
    if factory is None:
        raise NotFound(f"{source} has no {name!r}: name a function that returns the model.")
    model = factory() if callable(factory) and not isinstance(factory, nn.Module) else factory
    if not isinstance(model, nn.Module):
        raise BadInput(f"{reference} made a {type(model).__name__}: it must make an nn.Module.")
    return model


def _load_weights(model: nn.Module, path: Path) -> None:
    tensors, _ = read_safetensors(path)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise BadInput(
            f"{path} does not fit the model ({str(error).splitlines()[-1].strip()}): give the "
            "weights of this model."
        ) from error


def _numbers(text: str, option: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise BadInput(f"{option} {text!r} is not a list of numbers such as 1,28,28.") from error


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _distance(step: progress.Step) -> str:
    return "" if step.distance is None else f"gradient distance {step.distance:.3g}"


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        transient=True,
    )


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
