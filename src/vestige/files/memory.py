"""Limits of the memory that a file may take once it is decoded, checked before allocation.

Compressed files and pictures can grow a thousandfold, so the decoded size counts. One environment
variable replaces the limits of all readers.
"""

from __future__ import annotations

import os

from vestige.errors import BadInput

VARIABLE = "VESTIGE_MAX_BYTES"
"""Environment variable with the number of bytes that a reader may use, for all readers."""


def memory_limit(default: int) -> int:
    """Bytes that a reader may use: the environment variable, else the default."""
    setting = os.environ.get(VARIABLE, "").strip()
    if not setting:
        return default
    try:
        limit = int(float(setting))
    except (ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise BadInput(
            f"The environment variable {VARIABLE} is {setting[:40]!r}: set it to a number of "
            "bytes, such as 8e9, or remove it."
        )
    return limit


def refuse_memory(needed: int, default: int, what: str, remedy: str) -> None:
    """Raise BadInput where reading would take more memory than the limit.

    ``what`` begins the sentence ("x.npz becomes records that"), ``remedy`` is what to do other than
    raising the limit.
    """
    limit = memory_limit(default)
    if needed > limit:
        raise BadInput(
            f"{what} would take about {in_gigabytes(needed)} of memory and the limit is "
            f"{in_gigabytes(limit)}: {remedy}, or set the environment variable "
            f"{VARIABLE}={_round_up(needed)} to allow it."
        )


def in_gigabytes(count: int) -> str:
    """A number of bytes in gigabytes, or in megabytes if it is small."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.3g} MB"


def _round_up(count: int) -> str:
    """A number of bytes that is at least ``count``, short enough to type."""
    unit = 10 ** max(0, len(str(count)) - 2)
    return str(-(-count // unit) * unit)
