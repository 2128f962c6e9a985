"""Paths that a caller gives: checked before the file system is asked."""

from __future__ import annotations

from pathlib import Path

from vestige.errors import BadInput, brief


def given_path(value: object, what: str) -> Path:
    """A path, or BadInput where it is none; ``what`` names it in the sentence."""
    if not isinstance(value, (str, Path)):
        raise BadInput(f"{what} is {brief(value)}: give the path of a file or folder.")
    return Path(value)
