"""Test profiles: ``VESTIGE_PROFILE=quick`` shrinks repeated tests for ``make check``.

``full`` is the default and what ``make test`` runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

PROFILES = ("full", "quick")
PROFILE = os.environ.get("VESTIGE_PROFILE") or "full"
if PROFILE not in PROFILES:
    raise pytest.UsageError(
        f"VESTIGE_PROFILE is {PROFILE!r}: use {' or '.join(PROFILES)}, or unset it."
    )
QUICK = PROFILE == "quick"

QUICK_EXAMPLES = 10
"""Hypothesis examples of each test in the quick profile."""

NULL_AUDITS = 20 if QUICK else 200
"""Audits of a world in which nothing leaks, for each attack."""


def examples(full: int) -> int:
    """Return the number of hypothesis examples: ``full``, or fewer in the quick profile."""
    return min(full, QUICK_EXAMPLES) if QUICK else full


def slow_unless_quick(test: Callable) -> Callable:
    """Mark a test ``slow`` in the full profile and ``quick_form`` in the quick one.

    The quick form belongs to ``make check`` and is not subject to the limit of CPU time.
    """
    return pytest.mark.quick_form(test) if QUICK else pytest.mark.slow(test)
