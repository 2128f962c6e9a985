"""Errors that a user can fix.

Every message is one sentence that says what is wrong and what to do; the command line prints it
and exits with code 2.
"""

from __future__ import annotations

import reprlib

from vestige.printable import clean_text

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80


def brief(value: object) -> str:
    """A shortened ``repr`` of a value from a file, for a message."""
    return _BRIEF.repr(value)


def first_line(error: BaseException) -> str:
    """First line of an exception's message, or its type if it has none, for a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160].rstrip(".")


def extra(name: str) -> str:
    """How to install an optional dependency, for a message."""
    return f"install the extra {name!r} (in Vestige's source folder: pip install '.[{name}]')"


class VestigeError(Exception):
    """An error that the user can fix; control characters in its message are escaped."""

    def __init__(self, *message: object) -> None:
        super().__init__(*(clean_text(part) if isinstance(part, str) else part for part in message))


class BadInput(VestigeError):
    """An invalid argument or file: a shape, a label, a name."""


class NotFound(VestigeError):
    """A dataset, a run, an attack or a package that does not exist."""


class Conflict(VestigeError):
    """Existing files belong to another run and are left unchanged."""


class Interrupted(VestigeError):
    """The user stopped the work before there was a result."""
