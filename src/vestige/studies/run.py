"""Run a study: the one orchestration for every kind of question."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from vestige import progress
from vestige.choices import check_whole
from vestige.content import combined_digest
from vestige.engines import Engine, InProcess, Unit, Work, results
from vestige.errors import BadInput, Interrupted, brief
from vestige.progress import Progress, Watch
from vestige.reports.parts import CheckOutcome, Failure, Times
from vestige.reports.report import Findings, Report
from vestige.studies.content_digests import content_digests
from vestige.studies.declared import declarations
from vestige.studies.field_digests import field_digests
from vestige.studies.judge import report_on
from vestige.studies.other_runs import other_runs
from vestige.studies.store import MemoryUnits, RunFolder
from vestige.studies.study import Extendable, Header, PredictsTime, Study, UnitStopped
from vestige.studies.unit_files import UnitResult, is_provisional, unit_in

_log = logging.getLogger("vestige")

F = TypeVar("F", bound=Findings)

RESUME = "Rerun the same command: it resumes where it stopped."


def run(
    study: Study[F],
    *,
    seed: int = 0,
    directory: str | Path | None = None,
    engine: Engine | None = None,
    watch: Watch | None = None,
) -> Report[F, Any]:
    """Run a study and return its report.

    Units run in this process, or where the ``engine`` runs them. The report is the same but for
    its times, if this process uses one thread of torch as workers do: sums over several threads
    are rounded differently.

    With a directory every finished unit is on disk at once, and the same call resumes a run that
    was killed; its CPU time counts the units of all calls. A larger size of an
    :class:`~vestige.studies.study.Extendable` study adds to the folder, and its report counts the
    earlier looks; other sizes are fixed in advance. A unit that stops, or an interruption, ends
    the run with a report of what is finished.
    """
    if isinstance(study, type) or not isinstance(study, Study):
        raise BadInput(f"run takes a study, such as an Audit, not {brief(study)}.")
    check_whole("seed of run", seed, 0)
    if engine is not None and not callable(getattr(engine, "worker_pool", None)):
        raise BadInput(
            f"engine is {brief(engine)}: give an object such as vestige.engines.LocalProcesses(2), "
            "or None."
        )
    if watch is not None and not callable(watch):
        raise BadInput(f"watch is {brief(watch)}: give a function of a Progress, or None.")
    if directory is not None and not isinstance(directory, (str, Path)):
        raise BadInput(f"directory is {brief(directory)}: give the path of a folder, or None.")
    started, cpu = _now(), time.process_time()
    names, identity = study.units(), study.identity()
    declared = {**declarations(study), "digests": content_digests(study)}
    manifest = {
        "kind": study.kind,
        "identity": identity,
        "title": study.heading,
        **({"size": study.size} if isinstance(study, Extendable) else {}),
        "units": len(names),
        "seed": seed,
    }
    # First of all, so that a study that cannot run leaves no folder behind.
    checks = study.preflight(seed)
    opened = (
        nullcontext(MemoryUnits())
        if directory is None
        else RunFolder.opened(
            directory, manifest, study.code(), field_digests(study), _kept_units(study, names)
        )
    )
    with opened as store:
        failure, spent, found, expected = None, 0.0, [], ""
        done = set(store.finished())
        for number in sorted(done & set(range(len(names)))):
            kept = store.read(number)
            study.check(kept)  # before hours of work, not after
            spent += kept.cpu_seconds
        waiting = [number for number in range(len(names)) if number not in done]
        if waiting and not any(check.outcome is CheckOutcome.FAILED for check in checks):
            family = combined_digest(identity, str(seed))
            expected = _expected_time(study, seed, len(waiting))
            work = _Units(names, engine or InProcess(), watch, family)
            work.note(expected, len(names) - len(waiting))
            failure = work.run(lambda: study.prepare(seed), store, waiting)
            spent, found = spent + work.cpu_seconds, work.provisional
        times = Times(
            started=started,
            finished=_now(),
            expected=expected,
            cpu_seconds=time.process_time() - cpu + spent,
            other_runs="" if directory is None else other_runs(Path(directory), manifest),
        )
        found += [store.read(number) for number in store.finished() if number < len(names)]
        found.sort(key=lambda one: one.number)
        if not found and failure is not None and failure.attack is None:
            raise Interrupted(f"Stopped before the first unit was finished. {RESUME}")
        about = Header(seed, checks, failure, times, store.earlier_sizes)
        report = report_on(study.findings(found, about).model_copy(update=declared))
        store.write_report(report)
    return report


@dataclass
class _Units:
    """The units of a run that are still to be done; ``cpu_seconds`` is what workers spent.

    ``asked`` says that the watch asked to stop, ``cut`` that it did so inside the unit that runs.
    """

    names: Sequence[str]
    engine: Engine
    watch: Watch | None
    family: str
    cpu_seconds: float = 0.0
    asked: bool = False
    cut: bool = False
    provisional: list[UnitResult] = field(default_factory=list)

    def note(self, sentence: str, done: int) -> None:
        """Tell the watch, or the log where there is none."""
        if sentence and self.watch is not None:
            self._tell(Progress(done, len(self.names), note=sentence))
        elif sentence:
            _log.warning("%s", sentence)

    def run(
        self, prepare: Callable[[], Work], store: MemoryUnits | RunFolder, waiting: Sequence[int]
    ) -> Failure | None:
        """Run the units that wait; return why they stopped early, if they did."""
        try:
            return self._keep(prepare(), store, waiting)
        except UnitStopped as stopped:
            _log.info("%s", stopped, exc_info=stopped.__cause__)
            return Failure(
                attack=stopped.part,
                trial=stopped.number,
                message=stopped.message,
                remedy=stopped.remedy,
            )
        except KeyboardInterrupt:
            return self._interrupted(store, waiting)

    def _keep(
        self, work: Work, store: MemoryUnits | RunFolder, waiting: Sequence[int]
    ) -> Failure | None:
        """Write every unit as it comes back; this process alone writes."""
        before = len(self.names) - len(waiting)
        here = _Observed(work, self) if self.engine.here and self.watch is not None else work
        self._tell(Progress(before, len(self.names)))
        units = [Unit(self.family, number) for number in waiting]
        with closing(results(self.engine, here, units)) as finished:
            begun = time.process_time()
            for count, one in enumerate(finished, 1):
                self.cpu_seconds += one.cpu_seconds
                spent, begun = time.process_time() - begun, time.process_time()
                if is_provisional(one.content):
                    self.provisional.append(unit_in(one.unit.number, one.content))
                elif self.cut:  # work that was asked to stop is not what a whole unit gives
                    return self._interrupted(store, waiting)
                else:
                    store.write(one.unit.number, one.content, spent + one.cpu_seconds)
                self._tell(Progress(before + count, len(self.names)))
                if self.asked and (self.cut or count < len(units)):
                    return self._interrupted(store, waiting)
        return None

    def _interrupted(self, store: MemoryUnits | RunFolder, waiting: Sequence[int]) -> Failure:
        done = set(store.finished())
        return Failure(
            attack=None,
            trial=next((number for number in waiting if number not in done), waiting[-1]),
            message="it was interrupted.",
            remedy=RESUME,
        )

    def _tell(self, where: Progress) -> bool:
        if self.watch is not None:
            self.asked |= bool(self.watch(where))
        return self.asked


class _Observed:
    """Work in this process whose steps are reported."""

    def __init__(self, work: Work, units: _Units) -> None:
        self._work, self._units = work, units

    def __call__(self, number: int) -> bytes:
        total = len(self._units.names)

        def listen(step: progress.Step) -> bool:
            where = Progress(
                number, total, self._units.names[number], progress.current_part(), step
            )
            self._units.cut |= self._units._tell(where)
            return self._units.cut

        with progress.listening(listen):
            return self._work(number)


def _kept_units(study: Study[Any], names: Sequence[str]) -> Callable[[int, int], bool]:
    """Whether a unit of the study at an earlier size is the same unit now: it has one name."""

    def kept(size: int, number: int) -> bool:
        if not isinstance(study, Extendable):
            return True
        before = study.resized(size).units()
        return number < len(before) and number < len(names) and before[number] == names[number]

    return kept


def _expected_time(study: Study[Any], seed: int, units: int) -> str:
    """What a study predicts, if it does; a prediction that fails stops nothing."""
    if not isinstance(study, PredictsTime):
        return ""
    try:
        return study.expected_time(seed, units)
    except Exception as error:
        _log.info("The time could not be predicted: %s", error)
        return ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
