"""How well drawings tell the training sets of held-back heads apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.drawing_goals import DrawingGoals
from vestige.errors import BadInput
from vestige.shadows.heads import HeadFactory
from vestige.training_sets import ClassCounts, Makeup, OneAgainstRest


def held_back(
    labels: Tensor, makeup: Makeup, share: float, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Indices of the records that shadows are trained on, and of those held back for validation.

    A share of every class, and no fewer than two training sets need. Where one class stands against
    the rest, whole classes are held back: nobody promises that the class behind a head is known.
    """
    labels = labels.cpu()
    classes = labels.unique()
    if isinstance(makeup, OneAgainstRest):
        order = classes[torch.randperm(len(classes), generator=generator)]
        held = torch.isin(labels, order[: max(2, round(share * len(classes)))])
    else:
        held = torch.zeros_like(labels, dtype=torch.bool)
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
            held[pool[torch.randperm(len(pool), generator=generator)[:count]]] = True
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def disjoint_sets(labels: Tensor, makeup: Makeup, most: int) -> int:
    """How many training sets these records make that share none, and no more than ``most``."""
    if isinstance(makeup, ClassCounts):
        held = torch.bincount(labels.cpu(), minlength=len(makeup.counts)).tolist()
        found = min(count // wanted for count, wanted in zip(held, makeup.counts) if wanted)
    else:
        found = sum(int((labels == c).sum()) // makeup.positives for c in labels.unique().tolist())
    if found < 2:
        raise BadInput(
            "The records held back do not make two training sets that share none: give a larger "
            "prior, or hold back a larger share."
        )
    return min(found, most)


@dataclass(frozen=True)
class HeldBackHeads:
    """Heads trained on sets that share no record, and what their drawings are held against.

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

    def distances(self, drawn: Tensor) -> Tensor:
        """Smallest MSE of drawings (r, drawings, *shape) to each set's goal: (r, n, drawings)."""
        pixels = math.prod(self.images.shape[1:])
        found = []
        for number in range(drawn.shape[1]):
            members = self.goals[:, number]
            wanted = self.images[members.clamp_min(0)].flatten(2)
            apart = torch.cdist(drawn[:, number].flatten(1), wanted.flatten(0, 1))
            errors = apart.square().reshape(len(drawn), *members.shape) / pixels
            found.append(errors.masked_fill(members < 0, torch.inf).amin(2))
        return torch.stack(found, 2)

    def true_and_false(self, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Distances of drawings of these heads to their own sets, and to those of the others.

        Maciazek and Allison 2025, Definition 1, pooled over the drawings as in Algorithm 3: a false
        positive is the drawing of one head that is close to the set of another.
        """
        distances = self.distances(drawn)
        own = torch.eye(len(drawn), dtype=torch.bool)
        return distances[own].flatten(), distances[~own].flatten()


def true_positive_rate(true: Tensor, false: Tensor, false_positive_rate: float) -> float:
    """Share of true distances below the threshold that so few false ones stay below."""
    allowed = math.floor(false_positive_rate * len(false) + 1e-9)
    if allowed >= len(false):
        return 1.0
    return float((true < false.sort().values[allowed]).float().mean())
