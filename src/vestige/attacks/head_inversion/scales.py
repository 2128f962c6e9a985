"""How far apart the records of a class are, which says how much an error of a drawing means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge

RECORDS_FOR_SCALES = 400
"""Records of a class whose nearest neighbours say how far apart its records are."""


def group_scales(knowledge: PriorKnowledge, generator: torch.Generator) -> Tensor:
    """Median squared error (g,) of a group's records to the nearest other one, in some of them."""
    scales = []
    for label in knowledge.groups.classes:
        own = knowledge.places
        if label is not None:
            own = own[knowledge.labels[own] == label]
        chosen = own[torch.randperm(len(own), generator=generator)[:RECORDS_FOR_SCALES]]
        flat = knowledge.pictures[chosen].float().flatten(1)
        gaps = torch.cdist(flat, flat).square() / flat.shape[1]
        gaps.fill_diagonal_(math.inf)
        scales.append(gaps.amin(1).median() if len(chosen) > 1 else torch.ones(()))
    found = torch.stack(scales)
    return found.clamp_min(1e-3 * float(found.max()) + 1e-12)
