"""An engine that counts the CPU time of its workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vestige.engines.units import Engine, Finished, Report, Unit, Work, Workers


@dataclass
class Metered:
    """Another engine; ``cpu_seconds`` is what other processes than this one spent on its units."""

    engine: Engine
    cpu_seconds: float = 0.0

    @property
    def here(self) -> bool:
        """Whether work runs in this process."""
        return self.engine.here

    @contextmanager
    def employed(self, work: Work) -> Iterator[Workers]:
        """The other engine's workers, counted."""
        with self.engine.employed(work) as workers:
            yield _Counted(workers, self)


@dataclass(frozen=True)
class _Counted:
    workers: Workers
    meter: Metered

    @property
    def capacity(self) -> int:
        return self.workers.capacity

    def start(self, unit: Unit) -> None:
        self.workers.start(unit)

    def report(self) -> Report:
        report = self.workers.report()
        if isinstance(report, Finished):
            self.meter.cpu_seconds += report.cpu_seconds
        return report
