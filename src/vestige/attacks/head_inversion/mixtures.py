"""Mixtures of features that a head with one logit holds, whatever the order of its hidden units.

The rows of a trained first layer are mixtures AᵀX of the records' features and what is left of the
initial weights. Hidden units that push the logit the same way see the same slopes, so their rows
are nearly proportional: a binary head of eight units holds little more than one mixture for each
direction of the logit. These are read by orthonormal combinations of the units' rows, which leave
the noise of the initial weights white, and which do not depend on the order of the units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.reading import Heads

LEAST = 1e-12
"""Singular values below this share of the largest are rounding."""


def logit_weights(heads: Heads) -> Tensor:
    """What each unit of the first layer adds to the logit of the second label (s, k).

    Of two outputs it is their difference that a softmax sees.
    """
    second = heads.second
    if second is None:
        second = torch.eye(heads.weight.shape[1]).to(heads.weight).expand(len(heads), -1, -1)
    return second[:, 0] if second.shape[1] == 1 else second[:, 1] - second[:, 0]


def unit_mixtures(heads: Heads, each: int = 1) -> Tensor:
    """Orthonormal combinations (s, r, k) of the units, in an order of their own.

    A linear head has a single one. Otherwise they are the first ``each`` left singular vectors of
    the rows of the units that push the logit up, then of those that push it down; zero where there
    are fewer. The first of a kind is a sum with positive weights, and the bias of the others is
    positive.
    """
    toward = logit_weights(heads)
    if heads.second is None:
        return (toward / toward.norm(dim=1, keepdim=True))[:, None]
    rows = []
    for side in (toward > 0, toward < 0):
        own = side.to(heads.weight)
        left, values, _ = torch.linalg.svd(own[:, :, None] * heads.weight, full_matrices=False)
        for place in range(each):
            if place >= left.shape[2]:
                rows.append(torch.zeros_like(own))
                continue
            present = values[:, place] > LEAST * values[:, 0]
            row = left[:, :, place] * own * present[:, None]
            reference = toward.abs() if place == 0 else heads.bias
            sign = torch.where((row * reference).sum(1) < 0, -1.0, 1.0).to(row)
            rows.append(row * sign[:, None])
    return torch.stack(rows, 1)
