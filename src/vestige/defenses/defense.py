"""What every defence offers, and defences that act on what leaves a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vestige.alterations import ClientMemory, Reading
from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.defenses.defended_victims import altered
from vestige.observations import Victim


@runtime_checkable
class Defense(Protocol):
    """Turns a victim into a defended one. Frozen data, so that a comparison can name it."""

    @property
    def name(self) -> str:
        """The name readers see; defences of one name differ in strength."""
        ...

    @property
    def strength(self) -> float:
        """The number that says how strong it is, in its own unit."""
        ...

    @property
    def setting(self) -> str:
        """Its strength in words."""
        ...

    @property
    def mechanism(self) -> Mechanism:
        """What it guarantees; a heuristic guarantees nothing and says why."""
        ...

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim with this defence, or say why it does not fit."""
        ...

    def records(self, batch_size: int) -> int:
        """Records behind one release when every client holds ``batch_size`` of them."""
        ...


@dataclass(frozen=True)
class Altering:
    """A heuristic that alters the gradient or update which leaves; subclasses say how."""

    name = ""
    random = False

    @property
    def why(self) -> str:
        """Why no guarantee comes with it."""
        return f"{self.name.lower()} is a heuristic"

    @property
    def mechanism(self) -> Mechanism:
        """None: it limits no attacker."""
        return NonPrivate(self.why)

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim whose release is altered."""
        return altered(victim, self)

    def sent(
        self,
        gradient: Tensor,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        memory: ClientMemory,
    ) -> Tensor:
        """What leaves in place of a gradient (n,): as it is, unless a subclass says otherwise."""
        return gradient

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """What a reader expects for the gradient of a candidate: as it is."""
        return gradient

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """What the released vector shows: nothing."""
        return Reading()

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """What it leaves of what earlier alterations had left to see: all of it."""
        return earlier
