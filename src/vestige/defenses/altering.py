"""What defences share, and those that alter what leaves a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from vestige.defenses.defended_victims import alter_victim
from vestige.mechanisms import Mechanism, NonPrivate
from vestige.simulation.alterations import ClientMemory, Reading

if TYPE_CHECKING:
    from vestige.bounds.errors.release_defense import ReleaseDefense
    from vestige.interfaces import Victim


@dataclass(frozen=True)
class BaseDefense:
    """What defences share: the first field is the strength, and there is no guarantee."""

    name: ClassVar[str] = ""
    why: ClassVar[str] = ""
    """Why it has no guarantee."""

    @property
    def strength(self) -> float:
        """The first field; 1 where there is none."""
        return float(getattr(self, fields(self)[0].name)) if fields(self) else 1.0

    @property
    def ordering(self) -> float:
        """As the strength: more protects more."""
        return self.strength

    @property
    def setting(self) -> str:
        """The strength in words; empty where there is only one."""
        return f"{self.strength:.6g}" if fields(self) else ""

    @property
    def mechanism(self) -> Mechanism:
        """None: it limits no attacker."""
        return NonPrivate(self.why)

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size


@dataclass(frozen=True)
class Altering(BaseDefense):
    """Alters the gradient or update that leaves; subclasses say how."""

    random = False

    @property
    def error_bound(self) -> ReleaseDefense | None:
        """None: no theorem is known."""
        return None

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim whose release is altered."""
        return alter_victim(victim, self)

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """What leaves in place of a gradient (n,)."""
        return gradient

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """What an attacker expects for the gradient of a candidate."""
        return gradient

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """What the released vector shows of the alteration."""
        return Reading()

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Mask and noise level that remain readable after earlier alterations."""
        return earlier
