"""A defence of your own: a client that rounds its gradient to a grid.

A finer grid protects less, so ``ordering`` is minus the number of steps. The rounding of a release
is outside the theorems on the error, which ``error_bound`` says; a comparison then claims none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.defenses import AlteredVictim
from vestige.interfaces import Victim
from vestige.mechanisms import Mechanism, NonPrivate
from vestige.simulation.alterations import ClientMemory, Reading


@dataclass(frozen=True)
class GradientGrid:
    """Rounds every entry to ``steps`` steps of the largest one."""

    steps: int

    name = "Grid"
    random = False

    @property
    def strength(self) -> float:
        """The number of steps."""
        return float(self.steps)

    @property
    def ordering(self) -> float:
        """Fewer steps protect more."""
        return -float(self.steps)

    @property
    def setting(self) -> str:
        """The number of steps in words."""
        return f"{self.steps} steps"

    @property
    def mechanism(self) -> Mechanism:
        """None: rounding is a heuristic."""
        return NonPrivate("rounding to a grid is a heuristic")

    @property
    def error_bound(self) -> ReleaseDefense:
        """Rounding."""
        return ReleaseDefense(quantized=True)

    def records(self, batch_size: int) -> int:
        """As many as the client holds."""
        return batch_size

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim whose gradient is rounded."""
        return AlteredVictim(victim, (self,))

    def sent(
        self,
        gradient: Tensor,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        memory: ClientMemory,
    ) -> Tensor:
        """Send the rounded gradient (n,)."""
        step = gradient.abs().max().clamp_min(1e-30) / self.steps
        return (gradient / step).round() * step

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """A reader expects the gradient of a candidate itself: rounding has no slope."""
        return gradient

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """Rounding to steps of s is an error of standard deviation s/√12, spread evenly."""
        return Reading(deviation=float(released.abs().max()) / self.steps / 12**0.5)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """What earlier alterations left to see is still there."""
        return earlier
