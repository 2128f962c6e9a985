"""What a client does to a gradient before it leaves, and what a reader can make of it.

A gradient is one vector here, all parameters joined in the model's order; ``sizes`` are the numbers
of entries of its tensors. An update is altered as the gradient it stands for: its negative, divided
by the learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class ClientMemory:
    """What one client carries from round to round; only error feedback needs it."""

    residual: Tensor | None = None


@dataclass(frozen=True)
class Reading:
    """What a released vector (n,) shows of how it was altered.

    ``kept`` (n,) says which entries carry a value, None for all of them. ``deviation`` is the
    standard deviation of what was added to the entries, one number or (n,).
    """

    kept: Tensor | None = None
    deviation: float | Tensor = 0.0

    @property
    def noisy(self) -> bool:
        """Whether any entry carries noise."""
        return bool(torch.as_tensor(self.deviation).max() > 0)

    def joined(self, other: Reading) -> Reading:
        """Both at once: entries that both keep, and the noise of both."""
        if self.kept is None or other.kept is None:
            kept = self.kept if other.kept is None else other.kept
        else:
            kept = self.kept & other.kept
        if not (self.noisy and other.noisy):
            return Reading(kept, self.deviation if self.noisy else other.deviation)
        squares = torch.as_tensor(self.deviation).square()
        return Reading(kept, (squares + torch.as_tensor(other.deviation).square()).sqrt())


class Alteration(Protocol):
    """One thing that is done to a gradient before it leaves."""

    @property
    def random(self) -> bool:
        """Whether two runs on the same gradient differ."""
        ...

    def sent(
        self,
        gradient: Tensor,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        memory: ClientMemory,
    ) -> Tensor:
        """What leaves in place of a gradient (n,)."""
        ...

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """What a reader expects for the gradient (n,) of a candidate; differentiable, no chance."""
        ...

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """What the released vector shows."""
        ...


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def shaped(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector cut into tensors of these names and shapes."""
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {name: piece.reshape(like[name].shape) for name, piece in zip(like, pieces)}


def joint_reading(
    alterations: Sequence[Alteration], released: Tensor, sizes: Sequence[int]
) -> Reading:
    """What a released vector shows of several alterations, one after the other."""
    readings = (alteration.reading(released, sizes) for alteration in alterations)
    return reduce(Reading.joined, readings, Reading())
