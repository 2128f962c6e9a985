"""What a client does to a gradient before it leaves, and what a reader can make of it.

A gradient is one vector here, all parameters joined in the model's order; ``sizes`` are the numbers
of entries of its tensors. An update is altered as the gradient it stands for: its negative, divided
by the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    standard deviation of what was added to the entries, one number or (n,). Neither is ``certain``
    where noise was altered after it was added, or blurs which entries carry a value.
    """

    kept: Tensor | None = None
    deviation: float | Tensor = 0.0
    certain: bool = True

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
        certain = self.certain and other.certain
        if not (self.noisy and other.noisy):
            return Reading(kept, self.deviation if self.noisy else other.deviation, certain)
        if isinstance(self.deviation, float) and isinstance(other.deviation, float):
            return Reading(kept, math.hypot(self.deviation, other.deviation), certain)
        squares = torch.as_tensor(self.deviation).square()
        squares = squares + torch.as_tensor(other.deviation).square()
        return Reading(kept, squares.sqrt(), certain)


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

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """What this alteration leaves of what earlier ones had left to see."""
        ...


def join_tensors(tensors: Mapping[str, Tensor]) -> Tensor:
    """All tensors as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def split_like(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector cut into tensors of these names and shapes."""
    pieces = vector.split([tensor.numel() for tensor in like.values()])
    return {name: piece.reshape(like[name].shape) for name, piece in zip(like, pieces)}


def joint_reading(
    alterations: Sequence[Alteration],
    released: Tensor,
    sizes: Sequence[int],
    earlier: Reading | None = None,
) -> Reading:
    """What a released vector shows of alterations, in their order, after what was there before."""
    found = Reading() if earlier is None else earlier
    for alteration in alterations:
        found = alteration.carried(found, released).joined(alteration.reading(released, sizes))
    return found


def mark_uncertain(reading: Reading) -> Reading:
    """The same reading with its noise known about."""
    return replace(reading, certain=False) if reading.noisy else reading


def expected_release(
    alterations: Sequence[Alteration], gradient: Tensor, sizes: Sequence[int]
) -> Tensor:
    """What a reader expects for the gradient (n,) of a candidate after all alterations."""
    for alteration in alterations:
        gradient = alteration.expected(gradient, sizes)
    return gradient


def proportional(alterations: Sequence[Alteration], gradient: Tensor, sizes: Sequence[int]) -> bool:
    """Whether a reader expects a multiple of the gradient (n,), which signs are not."""
    made, size = expected_release(alterations, gradient, sizes), gradient.abs().mean()
    factor = made.abs().mean() / size.clamp_min(torch.finfo(size.dtype).tiny)
    return torch.allclose(made, factor * gradient, rtol=1e-4, atol=1e-4 * float(made.abs().mean()))


def known_factor(
    alterations: Sequence[Alteration], gradient: Tensor, sizes: Sequence[int]
) -> float | None:
    """What alterations multiply any gradient with, None where that is not one known number.

    Tried on a gradient (n,) and on ten times it: clipping answers with one length.
    """
    size = float(gradient.abs().sum())
    if size == 0 or not proportional(alterations, gradient, sizes):
        return 1.0 if size == 0 else None
    made = expected_release(alterations, gradient, sizes)
    ten = expected_release(alterations, 10 * gradient, sizes)
    factor = float(made.abs().sum()) / size
    return factor if abs(float(ten.abs().sum()) / size / factor - 10) < 1e-3 else None
