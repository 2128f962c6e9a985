"""How long work tells whoever watches where it is, without knowing who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """Where a piece of work is: ``done`` of ``total``, and the gradient distance it has reached."""

    done: int
    total: int
    distance: float | None = None


Listener = Callable[[Step], bool | None]
"""Called with every step; returning True asks the work to stop and return what it has."""

_listener: ContextVar[Listener | None] = ContextVar("vestige_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every step reported inside the block to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def watched() -> bool:
    """Return whether anybody listens: what only a reader needs can be left uncomputed."""
    return _listener.get() is not None


def report(done: int, total: int, distance: float | None = None) -> bool:
    """Tell the listener, if any; return True if the work should stop and return what it has."""
    listener = _listener.get()
    return bool(listener(Step(done, total, distance))) if listener else False
