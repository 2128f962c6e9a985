"""Pruning by magnitude, and its form with error feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.choices import check_fields
from vestige.defenses.altering import Altering
from vestige.defenses.defended_victims import alter_victim
from vestige.errors import BadInput
from vestige.interfaces import Victim
from vestige.records import Records
from vestige.simulation.alterations import ClientMemory, Reading, mark_uncertain

Scope = Literal["all", "tensor"]


@dataclass(frozen=True)
class _LargestEntries(Altering):
    """What both share: the largest entries alone are sent."""

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """Entries that are not zero were sent."""
        return Reading(kept=released != 0)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Entries that noise made large are left more often, so its size is known about."""
        return mark_uncertain(earlier)


@dataclass(frozen=True)
class GradientPruning(_LargestEntries):
    """Sends the largest entries only; a share ``rate`` of them is set to zero.

    Zhu, Liu and Han 2019, §5.2; Liu, Wang, Chen and Lei 2025. ``scope`` says among which entries
    the largest are taken: all of the gradient, or each tensor by itself. At least one entry of
    each scope stays. A reader sees which entries are zero and compares the others.
    """

    rate: float
    scope: Scope = "all"

    name = "Pruning"
    why = "pruning is a heuristic"

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.rate < 1:
            raise BadInput(f"A pruning rate lies in [0, 1), not at {self.rate!r}.")

    @property
    def error_bound(self) -> ReleaseDefense:
        """Pruning of the smallest values."""
        return ReleaseDefense(pruned_share=self.rate)

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the largest entries."""
        return gradient * largest(gradient, sizes, 1 - self.rate, self.scope)


@dataclass(frozen=True)
class TopKSparsification(_LargestEntries):
    """Sends a share ``kept`` of the entries, the largest, and remembers the rest for next time.

    Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with Memory", Algorithm 1 (error feedback).
    What is sent is then a sum over rounds. ``rounds`` says how many the client has sent before the
    audited one, on batches of ``earlier``; without them its memory is empty and the release is
    that of :class:`GradientPruning`. The attacker does not know the memory.
    """

    kept: float
    scope: Scope = "all"
    rounds: int = 0
    earlier: Records | None = field(default=None, compare=False, repr=False)

    name = "Top-k with error feedback"
    why = "top-k with error feedback is a heuristic"

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.kept <= 1:
            raise BadInput(f"The share of entries that are sent lies in (0, 1], not {self.kept!r}.")
        if self.rounds < 0 or (self.rounds > 0) != (self.earlier is not None):
            raise BadInput(
                "Earlier rounds need records that they were made of: give rounds ≥ 1 and earlier "
                "together, or neither."
            )

    @property
    def strength(self) -> float:
        """The share that waits for later."""
        return 1 - self.kept

    @property
    def setting(self) -> str:
        """The share that is sent, in words."""
        return f"sends {self.kept:g}"

    @property
    def random(self) -> bool:
        """With earlier rounds, what they left is chance to a reader."""
        return self.rounds > 0

    def __call__(self, victim: Victim) -> Victim:
        """Return the victim that sends its largest entries."""
        return alter_victim(victim, self, earlier=self.earlier, rounds=self.rounds)

    @property
    def error_bound(self) -> ReleaseDefense:
        """Pruning of the smallest values."""
        return ReleaseDefense(pruned_share=1 - self.kept)

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the largest entries of gradient and memory; remember the others."""
        total = gradient if memory.residual is None else gradient + memory.residual
        chosen = total * largest(total, sizes, self.kept, self.scope)
        memory.residual = total - chosen
        return chosen


def largest(gradient: Tensor, sizes: Sequence[int], share: float, scope: Scope) -> Tensor:
    """Which entries (n,) are among the share of largest ones, at least one of each scope."""
    if scope == "tensor":
        pieces = [
            largest(piece, [len(piece)], share, "all") for piece in gradient.split(list(sizes))
        ]
        return torch.cat(pieces)
    count = max(1, round(share * len(gradient)))
    chosen = torch.zeros_like(gradient, dtype=torch.bool)
    chosen[gradient.abs().topk(count).indices] = True
    return chosen
