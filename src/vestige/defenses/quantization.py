"""Fewer bits for each entry: signs, b-bit grids, half precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.choices import check_fields
from vestige.defenses.altering import Altering
from vestige.errors import BadInput
from vestige.simulation.alterations import ClientMemory, Reading, mark_uncertain

SOFTNESS = 0.3
"""Width of the smooth stand-in for a sign, as a share of the tensor's mean size."""


@dataclass(frozen=True)
class _Rounding(Altering):
    """What all share: rounding."""

    @property
    def error_bound(self) -> ReleaseDefense:
        """Rounding."""
        return ReleaseDefense(quantized=True)


@dataclass(frozen=True)
class GradientSign(_Rounding):
    """Sends the sign of each entry, times the mean size of its tensor's entries.

    Bernstein et al. 2018, signSGD; the size as in Karimireddy et al. 2019. A sign has no slope, so
    a reader compares a smooth stand-in, tanh.
    """

    name = "Sign"
    why = "sign is a heuristic"

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send signs and one size for each tensor."""
        pieces = gradient.split(list(sizes))
        return torch.cat([piece.sign() * piece.abs().mean() for piece in pieces])

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """A smooth stand-in for the signs."""
        pieces = []
        for piece in gradient.split(list(sizes)):
            size = piece.abs().mean().clamp_min(1e-30)
            pieces.append(torch.tanh(piece / (SOFTNESS * size)) * size)
        return torch.cat(pieces)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Noise has turned signs and is no addition any more."""
        return mark_uncertain(earlier)


@dataclass(frozen=True)
class GradientQuantization(_Rounding):
    """Rounds each tensor to a grid of ``bits`` bits between minus and plus its largest size.

    Alistarh et al. 2017, QSGD: with ``stochastic`` the rounding is random and right on average,
    otherwise it goes to the nearest point. A reader sees the grid, and the rounding is its noise.
    """

    bits: int
    stochastic: bool = True

    name = "Quantisation"
    why = "quantisation is a heuristic"

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise BadInput(
                f"Quantisation takes 2 … 16 bits, not {self.bits!r}: say GradientSign() for one."
            )
        check_fields(self)

    @property
    def random(self) -> bool:
        """Whether rounding is random."""
        return self.stochastic

    @property
    def ordering(self) -> float:
        """Fewer bits protect more."""
        return -float(self.bits)

    @property
    def setting(self) -> str:
        """The number of bits in words."""
        return f"{self.bits} bits"

    @property
    def points(self) -> int:
        """Points of the grid on either side of zero."""
        return 2 ** (self.bits - 1) - 1

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the gradient on the grid."""
        pieces = []
        for piece in gradient.split(list(sizes)):
            step = piece.abs().max().clamp_min(1e-30) / self.points
            shift = (
                torch.rand(piece.shape, generator=generator).to(piece) if self.stochastic else 0.5
            )
            pieces.append(torch.floor(piece / step + shift).clamp(-self.points, self.points) * step)
        return torch.cat(pieces)

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """The size of rounding, tensor by tensor (see ``_rounding``)."""
        pieces = released.split(list(sizes))
        return Reading(deviation=torch.cat([self._rounding(p).expand(len(p)) for p in pieces]))

    def _rounding(self, piece: Tensor) -> Tensor:
        """Standard deviation of the rounding of a tensor, if entries have exponential sizes.

        Most entries lie far below the largest, within the grid's first step. Rounding at random
        leaves the mean size a; where in its step an entry lies then has density ∝ e^(−f/a).
        """
        size, step = piece.abs().mean(), piece.abs().max() / self.points
        places = (torch.arange(256, dtype=piece.dtype, device=piece.device) + 0.5) / 256
        density = torch.softmax(-places * (step / size.clamp_min(1e-30)), 0)
        nearest = torch.minimum(places, 1 - places).square()
        error = places * (1 - places) if self.stochastic else nearest
        return step * (density * error).sum().sqrt()


@dataclass(frozen=True)
class HalfPrecision(_Rounding):
    """Sends 16-bit floating-point numbers, as mixed-precision training does."""

    name = "Half precision"
    why = "half precision is a heuristic"

    @property
    def strength(self) -> float:
        """The number of bits."""
        return 16.0

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send rounded numbers; an overflow is refused."""
        rounded = gradient.half()
        if not bool(rounded.isfinite().all()):
            raise BadInput(
                "A gradient beyond 65,504 cannot be sent in half precision: scale the loss down, "
                "or clip first."
            )
        return rounded.to(gradient)
