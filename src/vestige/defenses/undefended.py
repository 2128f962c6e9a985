"""No defence: what every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vestige.defenses.altering import BaseDefense

if TYPE_CHECKING:
    from vestige.interfaces import Victim


@dataclass(frozen=True)
class Undefended(BaseDefense):
    """Leaves the victim as it is."""

    name = "No defence"
    why = "the gradient leaves as it was computed"

    @property
    def strength(self) -> float:
        """None."""
        return 0.0

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim."""
        return victim
