"""A larger batch."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.errors import BadInput
from vestige.observations import Victim


@dataclass(frozen=True)
class BatchSize:
    """The client averages over ``size`` records instead of fewer.

    It changes what a release is made of and not how: a comparison draws batches of this size, and
    in a single audit the same is said as ``batch_size``.
    """

    size: int

    name = "Batch size"

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise BadInput(f"A batch size is a whole number of at least 1, not {self.size!r}.")

    @property
    def strength(self) -> float:
        """The number of records."""
        return float(self.size)

    @property
    def setting(self) -> str:
        """The number of records in words."""
        return f"{self.size}"

    @property
    def mechanism(self) -> Mechanism:
        """None."""
        return NonPrivate("a mean over more records has no guarantee")

    def records(self, batch_size: int) -> int:
        """Its own size, whatever the client held before."""
        return self.size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim, which takes any batch."""
        return victim
