"""Withholding of drawings that would match a record of the class by chance.

A pooled false positive rate is spent on the drawings that are easy to match: nearly all false
positives among digits are ones. By Definition 1 of Maciazek and Allison 2025 an attack may hand out
nothing, and a drawing that is not handed out is neither a true nor a false positive. So a drawing
is withheld if a training set of other records would match it within a radius t too often:

    1 − (1 − κ)ᵏ > limit,     κ: share of public records of the class within t of the drawing

with k records of the class in a training set. Radius and limit are those that redraw most of heads
simulated on public records. Rates with withholding are to be printed beside those without, never
instead of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge

REFERENCES = 2_000
"""Public records of a class that drawings are compared with."""

RADII = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75)
"""Quantiles of the errors of simulated heads that are tried as the radius."""

LIMITS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 1.0)
"""Limits that are tried; the last withholds nothing."""


@dataclass(frozen=True)
class Withholding:
    """A rule which drawings are withheld; see the module."""

    knowledge: PriorKnowledge
    radius: float
    limit: float

    def __call__(self, drawings: Tensor, groups: Tensor) -> Tensor:
        """Whether each of the drawings (n, *shape) of groups (n,) is withheld."""
        chance = torch.zeros(len(drawings))
        for group in groups.unique().tolist():
            own = groups == group
            errors = reference_errors(self.knowledge, drawings[own], group)
            chance[own] = chance_of_match(errors, self.radius, self.knowledge.groups.counts[group])
        return chance > self.limit

    @classmethod
    def chosen(
        cls, knowledge: PriorKnowledge, drawings: Tensor, errors: Tensor, alpha: float
    ) -> Withholding:
        """The rule that redraws most of simulated heads at a false positive rate.

        ``drawings`` (s, w, *shape) are those of the wanted groups, ``errors`` (s, s, w) those of
        each head's drawings to the records of every head.
        """
        groups = knowledge.groups
        references = [
            reference_errors(knowledge, drawings[:, i], group)
            for i, group in enumerate(groups.wanted)
        ]
        own = errors.diagonal(dim1=0, dim2=1)
        best, most = cls(knowledge, math.inf, 1.0), rate_over_pairs(errors, alpha)
        for radius in own.flatten().quantile(torch.tensor(RADII)).tolist():
            chances = [
                chance_of_match(gaps, radius, groups.counts[group])
                for gaps, group in zip(references, groups.wanted)
            ]
            chance = torch.stack(chances, 1)
            for limit in LIMITS:
                # A head's drawing that is withheld matches no head, its own or another.
                left = errors.masked_fill((chance > limit)[:, None], math.inf)
                rate = rate_over_pairs(left, alpha)
                if rate > most:
                    best, most = cls(knowledge, radius, limit), rate
        return best


def reference_errors(knowledge: PriorKnowledge, drawings: Tensor, group: int) -> Tensor:
    """Errors (n, m) of drawings (n, *shape) to public records of a group."""
    places, label = knowledge.places, knowledge.groups.classes[group]
    if label is not None:
        places = places[knowledge.labels[places] == label]
    pool = knowledge.pictures[places[:REFERENCES]].float().flatten(1)
    return torch.cdist(drawings.flatten(1), pool).square() / pool.shape[1]


def chance_of_match(errors: Tensor, radius: float, records: int) -> Tensor:
    """1 − (1 − κ)ᵏ of drawings (n,) with errors (n, m) to public records."""
    share = (errors <= radius).double().mean(1)
    return (1 - (1 - share) ** records).float()


def rate_over_pairs(errors: Tensor, alpha: float) -> float:
    """Share of own errors below the α quantile of those to other heads; errors (s, s, slots)."""
    own = torch.eye(len(errors), dtype=torch.bool)
    others = errors[~own].flatten()
    rank = math.floor(alpha * len(others))
    if rank < 1:
        return 0.0
    threshold = others.kthvalue(rank).values
    if not math.isfinite(threshold):
        # Fewer drawings than that are handed out: all of them may count.
        return float(errors[own].isfinite().double().mean())
    return float((errors[own] <= threshold).double().mean())
