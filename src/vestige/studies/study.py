"""Study: a question as data, with everything that ``run`` needs to answer it.

A study says which question it is (``identity``), what makes its answer suspicious before any work
is done (``preflight``), which units of work it consists of, how one unit is computed, and how the
results become findings. ``vestige.studies.run`` does the rest for every kind: resume, engines,
progress, interruption, digests, the judgement. A new kind of study needs no change there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from vestige.engines import Work
from vestige.errors import VestigeError
from vestige.reports.parts import Check, Failure, Times
from vestige.reports.report import Findings
from vestige.studies.unit_files import UnitResult

F = TypeVar("F", bound=Findings, covariant=True)


@dataclass(frozen=True)
class Header:
    """What a run knows beside the results of its units.

    ``failure`` says why units are missing, if they are. ``earlier_sizes`` are those that the run
    was planned with before more was added, in their order.
    """

    seed: int
    preflight: tuple[Check, ...]
    failure: Failure | None
    times: Times
    earlier_sizes: tuple[int, ...] = ()


class UnitStopped(VestigeError):
    """A unit of work could not be finished; what is finished is kept.

    A study raises it with what a reader should know: which ``part`` stopped (an attack, or None),
    in which unit, why, and what to do.
    """

    def __init__(self, part: str | None, number: int, message: str, remedy: str) -> None:
        super().__init__(f"{part or 'The work'} stopped in unit {number + 1}: {message}")
        self.part, self.number, self.message, self.remedy = part, number, message, remedy

    def __reduce__(
        self,
    ) -> tuple[Callable[..., UnitStopped], tuple[object, ...], dict[str, object]]:
        """Cross from a worker to the driver without the cause, which may not be sendable."""
        return _restored, (type(self), *self.args), self.__dict__


def _restored(kind: type[UnitStopped], *args: object) -> UnitStopped:
    return kind.__new__(kind, *args)


@runtime_checkable
class PredictsTime(Protocol):
    """A study that says before any work how long it will take."""

    def expected_time(self, seed: int, units: int) -> str:
        """A sentence if so many units take long; empty if not, or if that cannot be told."""
        ...


@runtime_checkable
class Extendable(Protocol):
    """A study that a run folder can add to: more heads of the same kind, more trials.

    Its identity leaves the size out. A unit whose name is the same at two sizes is the same unit,
    under the same number; one whose name differs, such as a block that was not full, runs again.
    Looking at a report before adding to it gives several chances, so findings must count
    ``Header.earlier_sizes`` against their limits.
    """

    @property
    def size(self) -> int:
        """How many heads or trials."""
        ...

    def resized(self, size: int) -> Study[Findings]:
        """The same study with another size."""
        ...


@runtime_checkable
class Study(Protocol[F]):
    """A question with its sizes (trials, heads, strengths), as frozen data."""

    @property
    def kind(self) -> str:
        """What is asked: "audit", "noise study"; also kept in the manifest of a run."""
        ...

    @property
    def heading(self) -> str:
        """The title of the report."""
        ...

    def identity(self) -> str:
        """Digest of everything that decides the results, except seed and code."""
        ...

    def code(self) -> Mapping[str, str]:
        """Digests of the code that units run, by name; a resumed run needs equal ones."""
        ...

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Checks before any work; no unit runs if one of them fails."""
        ...

    def units(self) -> Sequence[str]:
        """The units of work, each by a name for the progress display."""
        ...

    def prepare(self, seed: int) -> Work:
        """Train what all units need, once, in this process; return what computes one unit."""
        ...

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored unit is not a whole one of this study."""
        ...

    def findings(self, results: Sequence[UnitResult], about: Header) -> F:
        """What the results say, in the order of units; a pure function, without a verdict."""
        ...
