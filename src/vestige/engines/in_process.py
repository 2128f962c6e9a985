"""Work in this process, one unit after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vestige.engines.units import Finished, Report, Unit, Work, Workers


@dataclass(frozen=True)
class InProcess:
    """Runs units here: nothing is sent anywhere, and exceptions rise where they occur."""

    @property
    def here(self) -> bool:
        """Whether work runs in this process."""
        return True

    @contextmanager
    def employed(self, work: Work) -> Iterator[Workers]:
        """One worker, which is this process."""
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
