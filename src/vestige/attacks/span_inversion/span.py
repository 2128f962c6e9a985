"""The span of a layer's gradient: which vectors were among the layer's inputs.

The gradient of a linear layer Z = XW is Xᵀ·∂L/∂Z, so every column of it is a sum of rows of X.
While there are fewer tokens than inputs, a vector x is an input only if it lies in that span
(Petrov et al. 2024, DAGER, Section 4). Their threshold is a constant; here it follows the noise
of the release, whether that is rounding, the difference of weights that were rounded, or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SCREEN = 24
"""Directions outside the span that screen all tokens; those that pass are compared with all."""

PASSES = 0.2
"""What a member may miss there of what others miss: far more than any member does."""

NOISY = 0.02
"""The same that noise alone moves outside, from which a few directions are no screen, and …"""

SURELY = 0.95
"""… what a member then misses of what others do, at most."""

EDGE = 1.3
"""Singular values of noise alone stay below this multiple of √rows + √columns."""

MARGIN = 3.0
"""The same for rounding of float32, which is not independent from entry to entry."""

BALANCED = 6
"""Rounds that scale rows and columns until the noise of all entries is about one."""

NEAR = 30.0
"""Singular values of rounding may be this many times above the edge of independent noise."""

LEAST = 0.3
"""Noise is taken for this share of what was expected at least."""

ALIKE = 0.25
"""Share of the smallest singular values that tell the level of noise that was not told."""


@dataclass(frozen=True)
class Span:
    """The span of a gradient, in coordinates in which the noise of its entries is one.

    ``scale`` (width,) divides vectors into these coordinates; ``basis`` (width, rank) is
    orthonormal there, ``values`` (rank,) are the singular values without what noise adds to them.
    ``level`` is how much larger the noise is than it was taken for, ``rounding`` the relative error
    of vectors that are computed again. ``full`` says that nothing can be told.
    """

    scale: Tensor
    basis: Tensor
    values: Tensor
    level: float
    screen: Tensor
    rounding: float
    full: bool

    @classmethod
    def of(cls, gradient: Tensor, variance: Tensor, rounding: float, *, told: bool = False) -> Span:
        """The span of a gradient (width, outputs) with the variance of its entries' noise.

        ``told`` says that the variance is known, and not only what rounding leaves at least.
        """
        gradient, variance = gradient.double(), variance.double()
        down, across = _balance(variance)
        left, values, _ = torch.linalg.svd(gradient / down[:, None] / across, full_matrices=False)
        shape = (len(down), int((gradient != 0).any(0).sum()))
        rank, level = _rank(values, shape, EDGE if told else MARGIN)
        kept = _unbiased(values[:rank] / level, shape)
        basis = left[:, :rank]
        generator = torch.Generator().manual_seed(0)
        some = torch.randn((len(down), min(SCREEN, len(down) - rank)), generator=generator)
        some = some.double().to(basis.device)
        screen = torch.linalg.qr(some - basis @ (basis.mT @ some))[0]
        return cls(down, basis, kept, level, screen, rounding, rank >= min(shape))

    @property
    def rank(self) -> int:
        """Dimensions of the span."""
        return self.basis.shape[1]

    @property
    def free(self) -> int:
        """Dimensions outside."""
        return self.basis.shape[0] - self.rank

    @property
    def weakest(self) -> float:
        """The largest part of a vector's length that noise moves outside."""
        if not self.rank:
            return 1.0
        return min(1.0, math.sqrt(self.free) / float(self.values[-1]) + self.rounding)

    def outside(self, inputs: Tensor) -> Tensor:
        """How much of each vector (…, width) lies outside, as a share of its length."""
        vectors = inputs.double() / self.scale
        rest = vectors - (vectors @ self.basis) @ self.basis.mT
        return rest.norm(dim=-1) / vectors.norm(dim=-1).clamp_min(1e-300)

    def evidence(self, inputs: Tensor, usual: float) -> Tensor:
        """Log likelihood ratio of each vector (…, width): among the layer's inputs, or another one.

        An input is x = Gc without noise, so of the noisy span it misses Nc: a normal vector with
        variance ‖c‖² in each of the dimensions outside. Another vector misses ``usual`` of its
        length there.
        """
        vectors = inputs.double() / self.scale
        inner = vectors @ self.basis
        rest = (vectors - inner @ self.basis.mT).square().sum(-1)
        length = vectors.square().sum(-1).clamp_min(1e-300)
        free = max(self.free, 1)
        own = (inner / self.values).square().sum(-1) + self.rounding**2 * length / free
        other = usual**2 * length / free
        own = torch.minimum(own, 0.999 * other)
        return free / 2 * (other / own).log() - rest / 2 * (1 / own - 1 / other)

    def may_hold(self, inputs: Tensor, usual: float) -> Tensor:
        """Whether vectors (…, width) pass a screen: every member does, and few others.

        Others miss ``usual`` of their length. Where noise moves members far outside, the screen is
        the whole space outside, in the numbers of the inputs.
        """
        vectors = inputs / self.scale.to(inputs.dtype)
        lengths = vectors.norm(dim=-1)
        if self.weakest > NOISY * usual:
            inner = (vectors @ self.basis.to(inputs.dtype)).square().sum(-1)
            return lengths.square() - inner < (SURELY * usual * lengths).square()
        seen = (vectors @ self.screen.to(inputs.dtype)).norm(dim=-1)
        part = math.sqrt(self.screen.shape[1] / max(self.free, 1))
        return seen < PASSES * usual * part * lengths


def _balance(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of rows and columns that make noise of this variance (n, D) about one everywhere."""
    unit = float(variance.mean().clamp_min(1e-300))
    relative = (variance / unit).clamp_min(1e-24)
    down = relative.new_ones(len(relative))
    across = relative.new_ones(relative.shape[1])
    for _ in range(BALANCED):
        down = (relative / across).mean(1)
        across = (relative / down[:, None]).mean(0)
    down = down.clamp_min(1e-12 * float(down.median()))
    return (down * unit).sqrt(), across.sqrt()


def _rank(values: Tensor, shape: tuple[int, int], margin: float) -> tuple[int, float]:
    """Singular values above the noise, and how much larger that is than one.

    What is left beside k signals is noise of n − k by D − k entries, whose mean squared singular
    value tells its level. Where even the smallest values are above the edge, the release holds more
    noise than rounding, if these are as much alike as those of noise are (Marchenko and Pastur
    1967), or spans everything.
    """
    few, many = min(shape), max(shape)
    squares = values[:few].square()

    def above(level: float, factor: float, k: int) -> int:
        edge = factor * level * (math.sqrt(few - k) + math.sqrt(many - k))
        return int((values[:few] > edge).sum())

    def tail(k: int) -> float:
        return math.sqrt(float(squares[k:].mean()) / (many - k))

    rank, level = above(1.0, margin, 0), 1.0
    if few < 4 or rank == 0:
        return rank, level
    if margin > EDGE:
        rank = _before_the_drop(values[:few], rank, margin * (math.sqrt(few) + math.sqrt(many)))
        if rank <= few - 2:
            return rank, max(tail(rank), LEAST)
    if rank > few - 2:  # rounding explains none of it
        count = max(2, round(ALIKE * few))
        ratio = few / many
        lowest = (1 - 0.8 * math.sqrt(ratio)) ** 2
        level = math.sqrt(float(squares[-count:].mean()) / (many * lowest))
        rank = above(level, EDGE, 0)
        for _ in range(20):
            if rank > few - count:
                return few, 1.0
            level = tail(rank)
            again = above(level, EDGE, rank)
            if again == rank:
                break
            rank = again
        edge = math.sqrt(many - rank) - math.sqrt(few - rank)
        if float(values[few - 1]) < 0.5 * level * edge:
            return few, 1.0
        return rank, level
    return rank, max(tail(rank), LEAST)


def _before_the_drop(values: Tensor, above: int, edge: float) -> int:
    """Rank where rounding, which can be structured, is above the edge of independent noise.

    The widest drop ends it, if what follows is near the edge; where there is none, the edge does.
    """
    logs = values.clamp_min(1e-300).log10()
    near = [k for k in range(1, above + 1) if k < len(values) and float(values[k]) < NEAR * edge]
    if not near:
        return above
    best = max(near, key=lambda k: float(logs[k - 1] - logs[k]))
    return best if float(logs[best - 1] - logs[best]) > 1 else above


def _unbiased(values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Singular values without what unit noise adds (Gavish and Donoho 2017, equation 8)."""
    many, ratio = max(shape), min(shape) / max(shape)
    seen = values.square() / many - 1 - ratio
    inner = (seen.square() - 4 * ratio).clamp_min(0).sqrt()
    return (many * (seen + inner).clamp_min(1e-3) / 2).sqrt()
