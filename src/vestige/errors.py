"""Problems a user can mend.

Every message is one sentence that says what is wrong and what to do; the command line prints it
and exits with code 2.
"""

from __future__ import annotations

import reprlib

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80


def brief(value: object) -> str:
    """A value from somebody's file, for a sentence: however long or deep it is."""
    return _BRIEF.repr(value)


class VestigeError(Exception):
    """A problem the user can mend."""


class BadInput(VestigeError):
    """Something handed to Vestige does not fit: a shape, a label, a file, a name."""


class NotFound(VestigeError):
    """Something named is nowhere to be found: a dataset, a run, an attack."""


class Conflict(VestigeError):
    """What is already on disk belongs to something else and is left as it was."""


class Interrupted(VestigeError):
    """Somebody stopped the work before there was anything to show."""
