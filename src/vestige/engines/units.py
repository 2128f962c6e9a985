"""Units of work, and the one loop through which every engine runs them.

The result of a unit is the content of a file, so that nothing has to be unpickled. Units may run in
any order and more than once; each result is returned once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from vestige.errors import VestigeError

MOST_LOST = 3
"""Workers that may die on a unit before the unit is blamed."""

MOST_LOST_BLAMELESSLY = 20
"""The same for workers whose whole machine was lost, which is rarely the unit's fault."""

Work = Callable[[int], bytes]
"""The number of a unit → its result."""


@dataclass(frozen=True)
class Unit:
    """The ``number`` of a ``family`` of units, the hash of all that decides their results."""

    family: str
    number: int


@dataclass(frozen=True)
class Finished:
    """A unit and its result; ``cpu_seconds`` is what other processes than this one spent on it."""

    unit: Unit
    content: bytes
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Raised:
    """A unit and the exception that it raised."""

    unit: Unit
    error: BaseException


@dataclass(frozen=True)
class Lost:
    """A unit whose worker died; ``blameless`` if its machine was lost too."""

    unit: Unit
    how: str
    blameless: bool = False


Report = Finished | Raised | Lost


class WorkerLost(VestigeError):
    """A unit killed every worker that ran it."""


class Workers(Protocol):
    """A pool of workers; called from one thread."""

    @property
    def capacity(self) -> int:
        """Units that may run or wait for a worker at a time."""
        ...

    def start(self, unit: Unit) -> None:
        """Submit a unit."""
        ...

    def report(self) -> Report:
        """Wait for the next unit that ends."""
        ...


class Engine(Protocol):
    """Where work runs; ``here`` if that is this process, which can report every step."""

    @property
    def here(self) -> bool:
        """Whether work runs in this process."""
        ...

    def worker_pool(self, work: Work) -> AbstractContextManager[Workers]:
        """Start a pool of workers for some work; they are stopped when the block ends."""
        ...


def results(
    engine: Engine, work: Work, units: Iterable[Unit], *, in_order: bool = False
) -> Generator[Finished, None, None]:
    """Results of units, each exactly once, as they come or in the units' order.

    No more results wait to be taken than the workers' capacity, however many units there are. A
    lost worker's unit is given to another one. An exception ends the loop after all units before
    its own, so the same one ends it on every engine.
    """
    order = list(dict.fromkeys(units))
    if order:
        with engine.worker_pool(work) as workers:
            yield from _Loop(order, workers, in_order).results()


class _Loop:
    """Units under way and results that wait for their turn."""

    def __init__(self, order: list[Unit], workers: Workers, in_order: bool) -> None:
        self.order, self.workers, self.in_order = order, workers, in_order
        self.places = {unit: place for place, unit in enumerate(order)}
        self.begun, self.due = 0, 0
        self.under_way: set[Unit] = set()
        self.ready: dict[int, Finished] = {}
        self.lost: Counter[tuple[Unit, bool]] = Counter()
        self.failure: Raised | None = None

    def results(self) -> Iterator[Finished]:
        while True:
            self._start()
            self._fail()
            if not self.under_way:
                return
            report = self.workers.report()
            if report.unit not in self.under_way:
                continue  # done before, by a worker that was thought lost
            if isinstance(report, Lost):
                self._again(report)
                continue
            self.under_way.discard(report.unit)
            if isinstance(report, Raised):
                if self.failure is None or self._place(report) < self._place(self.failure):
                    self.failure = report
            elif self.in_order:
                self.ready[self._place(report)] = report
                del report
                while self.due in self.ready:
                    yield self.ready.pop(self.due)
                    self.due += 1
            else:
                yield report

    def _place(self, report: Report) -> int:
        return self.places[report.unit]

    def _start(self) -> None:
        """Submit as many units as fit; none after a failure."""
        while self.failure is None and self.begun < len(self.order):
            capacity = self.workers.capacity
            # In order, a slow unit holds the others back: what waits for it stays in memory.
            behind = self.begun - self.due if self.in_order else 0
            if max(behind, len(self.under_way)) >= capacity:
                return
            unit = self.order[self.begun]
            self.begun += 1
            self.under_way.add(unit)
            self.workers.start(unit)

    def _fail(self) -> None:
        """Raise the first failure, once no unit before it is under way."""
        if self.failure is None:
            return
        place = self._place(self.failure)
        if not any(self.places[unit] < place for unit in self.under_way):
            raise self.failure.error

    def _again(self, loss: Lost) -> None:
        """Resubmit the unit of a lost worker, unless it has lost too many."""
        self.lost[loss.unit, loss.blameless] += 1
        count = self.lost[loss.unit, loss.blameless]
        if count >= (MOST_LOST_BLAMELESSLY if loss.blameless else MOST_LOST):
            raise WorkerLost(
                f"Unit {loss.unit.number + 1} lost {count} workers, the last one by {loss.how}: "
                "use fewer workers so that each has more memory, or run in this process to see why."
            )
        if self.failure is not None and self.places[loss.unit] > self._place(self.failure):
            self.under_way.discard(loss.unit)
            return
        self.workers.start(loss.unit)
