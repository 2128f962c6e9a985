"""What theory allows of a cell: the least error, where a bound applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.comparison import ErrorFloor
from vestige.defenses import Defense

if TYPE_CHECKING:
    from vestige.comparison_plan import ComparedServer, ComparisonPlan


def error_floor(plan: ComparisonPlan, server: ComparedServer, defense: Defense) -> ErrorFloor:
    """The least root mean squared error that theory allows against a defended release."""
    return ErrorFloor(reason="no bound was computed")
