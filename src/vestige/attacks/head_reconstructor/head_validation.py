"""How well drawings tell the training sets of held-back heads apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.simulation.training_sets import ClassCounts, Makeup, OneAgainstRest

if TYPE_CHECKING:
    from vestige.attacks.head_reconstructor.drawing_goals import DrawingGoals
    from vestige.shadows.heads.factory import HeadFactory


def split_validation(
    labels: Tensor, makeup: Makeup, share: float, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Indices of the records that shadows are trained on, and of those held back for validation.

    A share of every class, and no fewer than two training sets need. Where one class stands against
    the rest, whole classes are held back: the class behind a head may be unknown.
    """
    labels = labels.cpu()
    classes = labels.unique()
    if isinstance(makeup, OneAgainstRest):
        order = classes[torch.randperm(len(classes), generator=generator)]
        reserved = torch.isin(labels, order[: max(2, round(share * len(classes)))])
    else:
        reserved = torch.zeros_like(labels, dtype=torch.bool)
        for label in classes.tolist():
            pool = torch.nonzero(labels == label).flatten()
            least = 2 * makeup.counts[label] if label < len(makeup.counts) else 0
            if len(pool) < least + least // 2:
                raise BadInput(
                    f"The prior holds {len(pool)} records of class {label}, but shadows and "
                    f"validation together need {least + least // 2}: give a larger prior."
                )
            count = max(least, round(share * len(pool)))
            count = min(count, len(pool) - least // 2)
            reserved[pool[torch.randperm(len(pool), generator=generator)[:count]]] = True
    return torch.nonzero(~reserved).flatten(), torch.nonzero(reserved).flatten()


def disjoint_sets(labels: Tensor, makeup: Makeup, most: int) -> int:
    """How many training sets these records make that share none, and no more than ``most``."""
    if isinstance(makeup, ClassCounts):
        counts = torch.bincount(labels.cpu(), minlength=len(makeup.counts)).tolist()
        sets = min(count // wanted for count, wanted in zip(counts, makeup.counts) if wanted)
    else:
        sets = sum(int((labels == c).sum()) // makeup.positives for c in labels.unique().tolist())
    if sets < 2:
        raise BadInput(
            "The records held back do not make two training sets that share none: give a larger "
            "prior, or hold back a larger share."
        )
    return min(sets, most)


@dataclass(frozen=True)
class HeldBackHeads:
    """Heads trained on sets that share no record, and what their drawings are compared with.

    ``weights`` (n, size); ``goals`` (n, drawings, most) indices of ``images``, −1 where there are
    fewer. Images lie in [−1, 1].
    """

    weights: Tensor
    goals: Tensor
    images: Tensor

    @classmethod
    def drawn(
        cls,
        factory: HeadFactory,
        images: Tensor,
        goals: DrawingGoals,
        most: int,
        *,
        generator: torch.Generator,
    ) -> HeldBackHeads:
        """Train up to ``most`` heads on disjoint sets of the factory's records."""
        count = disjoint_sets(factory.labels, goals.makeup, most)
        heads = factory.draw(count, disjoint=True, generator=generator)
        return cls(heads.weights.float(), goals.of(heads.sets, factory.labels), images)

    def distances(self, drawings: Tensor) -> Tensor:
        """Smallest MSE of drawings (r, drawings, *shape) to each set's goal: (r, n, drawings)."""
        pixels = math.prod(self.images.shape[1:])
        smallest = []
        for number in range(drawings.shape[1]):
            members = self.goals[:, number]
            wanted = self.images[members.clamp_min(0)].flatten(2)
            apart = torch.cdist(drawings[:, number].flatten(1), wanted.flatten(0, 1))
            errors = apart.square().reshape(len(drawings), *members.shape) / pixels
            smallest.append(errors.masked_fill(members < 0, torch.inf).amin(2))
        return torch.stack(smallest, 2)

    def true_and_false(self, drawings: Tensor) -> tuple[Tensor, Tensor]:
        """Distances of drawings of these heads to their own sets, and to those of the others.

        Maciazek and Allison 2025, Definition 1, pooled over the drawings as in Algorithm 3: a false
        positive is the drawing of one head that is close to the set of another.
        """
        distances = self.distances(drawings)
        own = torch.eye(len(drawings), dtype=torch.bool)
        return distances[own].flatten(), distances[~own].flatten()
