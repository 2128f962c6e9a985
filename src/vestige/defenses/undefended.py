"""No defence: what every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.observations import Victim


@dataclass(frozen=True)
class Undefended:
    """Leaves the victim as it is."""

    name = "No defence"
    strength = 0.0
    setting = ""

    @property
    def mechanism(self) -> Mechanism:
        """None."""
        return NonPrivate("the gradient leaves as it was computed")

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim."""
        return victim
