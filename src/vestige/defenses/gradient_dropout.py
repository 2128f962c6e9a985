"""Dropout of gradient entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.alterations import ClientMemory, Reading
from vestige.defenses.defense import Altering
from vestige.errors import BadInput


@dataclass(frozen=True)
class GradientDropout(Altering):
    """Sets each entry to zero with probability ``rate`` and scales the others by 1/(1 − rate).

    Liu, Wang, Chen and Lei 2025. The gradient stays right on average. A reader sees the mask.
    """

    rate: float

    name = "Dropout"
    random = True

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise BadInput(f"A dropout rate lies in [0, 1), not at {self.rate!r}.")

    @property
    def strength(self) -> float:
        """The share that is dropped."""
        return self.rate

    @property
    def setting(self) -> str:
        """The rate in words."""
        return f"{self.rate:g}"

    def sent(
        self,
        gradient: Tensor,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        memory: ClientMemory,
    ) -> Tensor:
        """Send the entries that a random mask leaves."""
        kept = torch.rand(gradient.shape, generator=generator) >= self.rate
        return gradient * kept.to(gradient) / (1 - self.rate)

    def expected(self, gradient: Tensor, sizes: Sequence[int]) -> Tensor:
        """Entries that were kept are larger than those of the gradient."""
        return gradient / (1 - self.rate)

    def reading(self, released: Tensor, sizes: Sequence[int]) -> Reading:
        """Entries that are not zero were kept."""
        return Reading(kept=released != 0)

    def carried(self, earlier: Reading, released: Tensor) -> Reading:
        """Noise in the entries that were kept is larger too."""
        return replace(earlier, deviation=earlier.deviation / (1 - self.rate))
