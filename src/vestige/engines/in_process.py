"""Work in this process, one unit after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vestige.engines.units import Finished, Report, Unit, Work, Workers


@dataclass(frozen=True)
class InProcess:
    """Runs units in this process; exceptions are raised where they occur."""

    here = True

    @contextmanager
    def worker_pool(self, work: Work) -> Iterator[Workers]:
        """A pool of one worker: this process."""
        yield _ThisProcess(work)


class _ThisProcess:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._units: list[Unit] = []

    @property
    def capacity(self) -> int:
        return 1

    def start(self, unit: Unit) -> None:
        self._units.append(unit)

    def report(self) -> Report:
        unit = self._units.pop(0)
        return Finished(unit, self._work(unit.number))
