"""A stream of shadow heads that stores none: a head's number is its seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.streams import stream

if TYPE_CHECKING:
    from vestige.attacks.head_reconstructor.drawing_goals import DrawingGoals
    from vestige.shadows.heads.factory import HeadFactory, ShadowHeads

BATCHES = 32
"""Batches that are made of one chunk of heads, which are trained together."""


@dataclass(frozen=True)
class ShadowBatch:
    """Heads and what to draw of them.

    ``weights`` (n, size), ``drawing`` (n,) the number of the drawing, ``goals`` (n, most) indices.
    """

    weights: Tensor
    drawing: Tensor
    goals: Tensor


@dataclass(frozen=True)
class ShadowStream:
    """``total`` shadow heads in batches, without end: each pass goes through them in a new order.

    Maciazek and Allison 2025, Algorithm 1, without its list. Heads come in chunks that are trained
    when they are needed, and again in the next pass, from a seed of their own: memory does not grow
    with their number, and any step can be reached without those before it.
    """

    factory: HeadFactory
    goals: DrawingGoals
    total: int
    batch_size: int
    seed: int

    @property
    def chunks(self) -> int:
        """Chunks that the heads are shared by, evenly."""
        return -(-self.total // (BATCHES * self.batch_size))

    def chunk(self, number: int) -> ShadowHeads:
        """Train the heads of one chunk."""
        size = self.total // self.chunks + (number < self.total % self.chunks)
        return self.factory.draw(size, generator=stream(self.seed, "shadows", number))

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        """Weights and goals of the first heads, or of all if they are fewer."""
        parts: list[tuple[Tensor, Tensor]] = []
        for number in range(self.chunks):
            if sum(len(weights) for weights, _ in parts) >= count:
                break
            heads = self.chunk(number)
            parts.append((heads.weights, self.goals.of(heads.sets, self.factory.labels)))
        weights, goals = zip(*parts)
        return torch.cat(weights)[:count], torch.cat(goals)[:count]

    def batches(self, step: int) -> Iterator[ShadowBatch]:
        """The batches from a step on."""
        loaded: tuple[int, ShadowHeads] | None = None
        visit, place = divmod(step, BATCHES)
        while True:
            turn, position = divmod(visit, self.chunks)
            order = torch.randperm(self.chunks, generator=stream(self.seed, "pass", turn))
            number = int(order[position])
            if loaded is None or loaded[0] != number:
                loaded = number, self.chunk(number)
            heads = loaded[1]
            goals = self.goals.of(heads.sets, self.factory.labels)
            own = stream(self.seed, "visit", visit)
            rows = _repeated_orders(len(goals), BATCHES * self.batch_size, own)
            picks = torch.randint(self.goals.drawings, rows.shape, generator=own)
            for part, pick in list(zip(rows.split(self.batch_size), picks.split(self.batch_size)))[
                place:
            ]:
                yield ShadowBatch(heads.weights[part], pick, goals[part, pick])
            visit, place = visit + 1, 0


def _repeated_orders(count: int, wanted: int, generator: torch.Generator) -> Tensor:
    """Numbers below ``count`` in random order, as often as needed, each equally often."""
    turns = -(-wanted // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(turns)])[:wanted]
