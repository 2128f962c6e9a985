"""Progress reporting: long-running code reports steps to a listener, if there is one.

Searches also hand out what they have so far, at a few shares of their iterations, if it is
recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Step:
    """Where a piece of work is: ``done`` of ``total``, and the gradient distance it has reached."""

    done: int
    total: int
    distance: float | None = None


@dataclass(frozen=True)
class Progress:
    """Where a study is: ``done`` of ``total`` units, and the step of the unit that runs.

    ``unit`` names that unit and ``part`` what of it runs, such as an attack. Where units run in
    other processes only the count is known: both names are empty and ``step`` is None. ``note`` is
    a sentence for the user, such as how long a study will take.
    """

    done: int
    total: int
    unit: str = ""
    part: str = ""
    step: Step | None = None
    note: str = ""


Listener = Callable[[Step], bool | None]
"""Called with every step; returning True asks the work to stop and return what it has."""

Watch = Callable[[Progress], bool | None]
"""Called with every progress of a study; returning True asks to stop and keep what is finished."""


@dataclass
class Display:
    """A watch that prints a line for every finished unit, at most one in ``interval`` seconds.

    ``run(study, watch=Display())`` prints to stderr: how many units are finished, the one that
    runs where it is known, and the time left at the pace so far.
    """

    file: TextIO | None = None
    interval: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _began: tuple[float, int] | None = field(default=None, init=False, repr=False)
    _printed: tuple[float, int] | None = field(default=None, init=False, repr=False)

    def __call__(self, where: Progress) -> None:
        """Print where a study is, unless that was printed already or just now."""
        now = self.clock()
        if where.note:
            print(where.note, file=self.file or sys.stderr, flush=True)
        self._began = self._began or (now, where.done)
        last = self._printed
        finished = where.done == where.total
        if last is not None and (
            where.done == last[1] or (now - last[0] < self.interval and not finished)
        ):
            return
        self._printed = now, where.done
        parts = [f"{where.done:,} of {where.total:,}", where.unit, self._left(where, now)]
        print(", ".join(filter(None, parts)), file=self.file or sys.stderr, flush=True)

    def _left(self, where: Progress, now: float) -> str:
        """The time left; units that were finished before this run say nothing about the pace."""
        began, before = self._began or (now, where.done)
        if where.done <= before or where.done == where.total:
            return ""
        left = round((now - began) / (where.done - before) * (where.total - where.done))
        hours, minutes = divmod(left // 60, 60)
        return f"{hours}:{minutes:02d}:{left % 60:02d} left"


_listener: ContextVar[Listener | None] = ContextVar("vestige_progress", default=None)
_part: ContextVar[str] = ContextVar("vestige_part", default="")


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every step reported inside the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Name the part of a unit that runs inside the block."""
    token = _part.set(name)
    try:
        yield
    finally:
        _part.reset(token)


def current_part() -> str:
    """The part of a unit that runs now, or an empty string."""
    return _part.get()


def has_listener() -> bool:
    """Return whether there is a listener: what only a reader needs can be left uncomputed."""
    return _listener.get() is not None


def report(done: int, total: int, distance: float | None = None) -> bool:
    """Tell the listener, if any; return True if the work should stop and return what it has."""
    listener = _listener.get()
    return bool(listener(Step(done, total, distance))) if listener else False


FRAME_SHARES = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Shares of the iterations after which candidates are recorded; what is returned is the last."""


@dataclass(frozen=True)
class Frame:
    """The best candidates (k, *shape) of a search after ``done`` of ``total`` iterations."""

    done: int
    total: int
    candidates: Tensor = field(repr=False)


@dataclass
class Recording:
    """Frames of one search, in order. Where several searches ran there are none.

    Which of several searches was returned is known only to the code that called them; it may run
    the others under :func:`not_recording`.
    """

    shares: Sequence[float] = FRAME_SHARES
    _frames: list[Frame] = field(default_factory=list, repr=False)
    _several: bool = False
    _due: dict[int, frozenset[int]] = field(default_factory=dict, repr=False)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames of the search, if it was the only one."""
        return () if self._several else tuple(self._frames)

    def due(self, total: int) -> frozenset[int]:
        """After how many of ``total`` iterations a frame is recorded."""
        if total not in self._due:
            done = (round(share * total) for share in self.shares)
            self._due[total] = frozenset(one for one in done if one < total)
        return self._due[total]

    def add(self, frame: Frame) -> None:
        """Append a frame that is due; one that is not later than the last is of another search."""
        if frame.done not in self.due(frame.total):
            return
        last = self._frames[-1] if self._frames else None
        if last is not None and (frame.done <= last.done or frame.total != last.total):
            self._several = True
        self._frames.append(frame)


_recording: ContextVar[Recording | None] = ContextVar("vestige_recording", default=None)


@contextmanager
def recording(shares: Sequence[float] = FRAME_SHARES) -> Iterator[Recording]:
    """Record what a search inside the block has after these shares of its iterations."""
    made = Recording(shares)
    token = _recording.set(made)
    try:
        yield made
    finally:
        _recording.reset(token)


@contextmanager
def not_recording() -> Iterator[None]:
    """Record no search inside the block: what it finds is not what is returned."""
    token = _recording.set(None)
    try:
        yield
    finally:
        _recording.reset(token)


def frames_due(total: int) -> frozenset[int]:
    """After how many of ``total`` iterations to call :func:`show_frame`; empty if not recorded."""
    recorder = _recording.get()
    return frozenset() if recorder is None else recorder.due(total)


def recorded_shares() -> Sequence[float]:
    """After which shares of the iterations frames are recorded; empty if they are not."""
    recorder = _recording.get()
    return () if recorder is None else recorder.shares


def show_frame(done: int, total: int, candidates: Tensor) -> None:
    """Record a copy of a search's best candidates so far, if they are recorded and due."""
    recorder = _recording.get()
    if recorder is not None:
        recorder.add(Frame(done, total, candidates.detach().clone()))
