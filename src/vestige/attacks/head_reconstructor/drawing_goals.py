"""Which records of a training set a drawing is compared with, and how: the softmin loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.simulation.training_sets import ClassCounts, Makeup, OneAgainstRest, TrainingSets

Features = Callable[[Tensor], Tensor]
"""Records (n, *shape) in their own space → features (n, …), differentiable."""


@dataclass(frozen=True)
class DrawingGoals:
    """What each drawing of a head is compared with.

    Conditional: one drawing for every class that the training set holds, against its records of
    that class. Otherwise a single drawing, against all of them, or, where one class stands against
    the rest, against the records of that one.
    """

    makeup: Makeup
    conditional: bool

    def __post_init__(self) -> None:
        if self.conditional and isinstance(self.makeup, OneAgainstRest):
            raise BadInput(
                "One class against the rest changes its class from head to head, so no drawing can "
                "be asked for by class: say conditional=False."
            )

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes that are drawn one by one; none if there is a single drawing."""
        if not self.conditional or not isinstance(self.makeup, ClassCounts):
            return ()
        return tuple(label for label, count in enumerate(self.makeup.counts) if count)

    @property
    def drawings(self) -> int:
        """Drawings for each head."""
        return len(self.classes) or 1

    def of(self, sets: TrainingSets, labels: Tensor) -> Tensor:
        """Indices (s, drawings, most) of the records of each goal; −1 where a goal has fewer."""
        if isinstance(self.makeup, OneAgainstRest):
            return sets.members[sets.targets == 1].reshape(len(sets), 1, self.makeup.positives)
        if not self.conditional:
            return sets.members[:, None]
        order = labels[sets.members].argsort(dim=1, stable=True)
        blocks = sets.members.gather(1, order).split(self.makeup.counts, 1)
        most = max(self.makeup.counts)
        return torch.stack(
            [
                torch.nn.functional.pad(block, (0, most - block.shape[1]), value=-1)
                for block in blocks
                if block.shape[1]
            ],
            1,
        )


def softmin(losses: Tensor, present: Tensor, sharpness: float) -> Tensor:
    """Σᵢ ℓᵢ e^{−αℓᵢ} / Σᵢ e^{−αℓᵢ} over the goals that are present: (n, m) → (n,).

    Maciazek and Allison 2025, equation 3: nearly the smallest loss, so a drawing need not be near
    to all records of its class.
    """
    weights = (-sharpness * losses).masked_fill(~present, -torch.inf).softmax(1)
    return (weights * losses.masked_fill(~present, 0.0)).sum(1)


def goal_losses(drawings: Tensor, goals: Tensor) -> Tensor:
    """(MSE + MAE) / 2 of drawings (n, *shape) against each of their goals (n, m, *shape): (n, m).

    The loss of the paper, for values in [−1, 1].
    """
    difference = (drawings[:, None] - goals).flatten(2)
    return (difference.square().mean(2) + difference.abs().mean(2)) / 2


def perceptual_losses(features: Features, drawings: Tensor, goals: Tensor) -> Tensor:
    """Mean squared difference of the features of drawings and of each of their goals: (n, m)."""
    seen = features(drawings).flatten(1)
    with torch.no_grad():
        wanted = features(goals.flatten(0, 1)).flatten(1).reshape(*goals.shape[:2], -1)
    return (seen[:, None] - wanted).square().mean(2)
