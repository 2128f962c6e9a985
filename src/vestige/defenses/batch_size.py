"""A larger batch."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.choices import check_fields
from vestige.defenses.altering import BaseDefense
from vestige.interfaces import Victim


@dataclass(frozen=True)
class BatchSize(BaseDefense):
    """The client averages over ``size`` records instead of fewer.

    A comparison draws batches of this size; in a single audit, set ``batch_size`` instead.
    """

    size: int

    name = "Batch size"
    why = "a mean over more records has no guarantee"

    def __post_init__(self) -> None:
        check_fields(self, counts=("size",))

    def records(self, batch_size: int) -> int:
        """Its own size, whatever the client held before."""
        return self.size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim, which takes any batch."""
        return victim
