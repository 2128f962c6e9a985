"""Dropout of gradient entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.choices import check_fields
from vestige.defenses.altering import Altering
from vestige.errors import BadInput
from vestige.simulation.alterations import ClientMemory, Reading


@dataclass(frozen=True)
class GradientDropout(Altering):
    """Sets each entry to zero with probability ``rate`` and scales the others by 1/(1 − rate).

    Liu, Wang, Chen and Lei 2025. The gradient stays right on average. A reader sees the mask.
    """

    rate: float

    name = "Dropout"
    why = "dropout is a heuristic"
    random = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.rate < 1:
            raise BadInput(f"A dropout rate lies in [0, 1), not at {self.rate!r}.")

    @property
    def error_bound(self) -> ReleaseDefense:
        """Dropout by a mask that the attacker sees."""
        return ReleaseDefense(dropout=self.rate)

    def sent(
        self, gradient: Tensor, sizes: Sequence[int], *, generator: Generator, memory: ClientMemory
    ) -> Tensor:
        """Send the entries that a random mask leaves."""
        mask = torch.rand(gradient.shape, generator=generator) >= self.rate
        return gradient * mask.to(gradient) / (1 - self.rate)

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """Entries that were kept are larger than those of the gradient."""
        return gradient / (1 - self.rate)

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """Entries that are not zero were kept."""
        return Reading(kept=released != 0)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Noise in the entries that were kept is larger too."""
        return replace(earlier, deviation=earlier.deviation / (1 - self.rate))
