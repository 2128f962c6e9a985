"""Errors of reconstructions of many heads: which images count, other heads, thresholds.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 2 and Algorithms 2 and 3. A reconstruction is positive
if the nearest image of a training set lies within τ. True positives are counted against the set of
the head itself; false ones, by Definition 1, against the set of another head.

Where we deviate: the paper counts false positives with Gaussian weights in place of another head's;
that is one more kind of null here (``NullRates``), not the one that counts. Rates and their limits
are in :mod:`vestige.statistics.head_rates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.training_sets import TrainingSets

CHUNK = 512
"""Records compared with all others at a time when nearest neighbours are sought."""


def members_of_classes(sets: TrainingSets, labels: Tensor, classes: Tensor) -> Tensor:
    """Which members (s, c, n) a reconstruction of each class is held against (Algorithm 3)."""
    return labels[sets.members][:, None, :] == classes[None, :, None]


def positive_members(sets: TrainingSets) -> Tensor:
    """The positives (s, 1, n) of one class against the rest: Algorithm 2 for the one class."""
    return (sets.targets == 1)[:, None, :]


def minimum_errors(drawn: Tensor, members: Tensor, counted: Tensor, images: Tensor) -> Tensor:
    """ℓ_min-MSE (s, c) of what was drawn (s, c, *shape) to the counted members of each set (eq. 4).

    ``members`` (s, n) are places in ``images``; ``counted`` (s, c, n) says which of them a
    reconstruction is held against. Infinite where the reconstruction is not finite.
    """
    heads, slots = drawn.shape[:2]
    flat, pool = drawn.detach().cpu().double().flatten(2), images.detach().cpu().flatten(1)
    errors = torch.empty((heads, slots), dtype=torch.float64)
    check_counted(counted)
    for head in range(heads):  # one set at a time: differences of all would not fit
        own = pool[members[head]].double()
        gaps = (flat[head][:, None, :] - own[None]).square().mean(2)
        errors[head] = gaps.masked_fill(~counted[head], math.inf).amin(1)
    return errors.masked_fill(~torch.isfinite(errors), math.inf)


def check_counted(counted: Tensor) -> None:
    """Raise BadInput if a set (of ``counted`` (s, c, n)) has no member of a class."""
    if not bool(counted.any(2).all()):
        raise BadInput(
            "A training set holds no image of a class that was drawn: reconstruct classes that "
            "every set holds."
        )


def other_heads(members: Tensor) -> Tensor:
    """For each training set (s, n) another one that shares no image with it: a derangement.

    The next set, if sets are disjoint; else the nearest shift that works for all, else any perfect
    matching. Depends on the sets alone.
    """
    heads = len(members)
    held = [set(row) for row in members.tolist()]
    places = torch.arange(heads)
    for shift in range(1, heads):
        if all(held[i].isdisjoint(held[(i + shift) % heads]) for i in range(heads)):
            return (places + shift) % heads
    allowed = np.array([[a.isdisjoint(b) for b in held] for a in held], dtype=bool).reshape(
        heads, heads
    )
    found = maximum_bipartite_matching(csr_matrix(allowed), perm_type="column")
    if heads < 2 or (found < 0).any():
        raise BadInput(
            "Some training set shares an image with every other one, so nothing says what the "
            "attack draws by chance: draw sets with disjoint=True, or more of them."
        )
    return torch.as_tensor(found, dtype=torch.int64)


@dataclass(frozen=True)
class Thresholds:
    """Nearest-neighbour thresholds: over all images, and of each class."""

    pooled: float
    by_class: tuple[float, ...]


def nearest_neighbor_errors(images: Tensor, others: Tensor) -> Tensor:
    """Mean squared error (n,) of each image to the nearest of some others."""
    left, right = images.flatten(1).float(), others.flatten(1).float()
    norms = right.square().sum(1)
    found = []
    for part in left.split(CHUNK):
        # Inner products find the neighbour; the error itself is then formed without rounding.
        nearest = (norms - 2 * part @ right.T).argmin(1)
        found.append((part.double() - right[nearest].double()).square().mean(1))
    return torch.cat(found) if found else left.new_zeros(0, dtype=torch.float64)


def nearest_neighbor_thresholds(validation: Records, train: Records) -> Thresholds:
    """τ: the mean error of validation images to their nearest training image (Section 2).

    A class without validation images has the threshold of all.
    """
    if len(train) == 0 or len(validation) == 0:
        raise BadInput("Nearest-neighbour thresholds need validation and training images.")
    errors = nearest_neighbor_errors(validation.x, train.x)
    labels, pooled = validation.y.cpu(), float(errors.mean())
    by_class = [
        float(errors[labels == c].mean()) if bool((labels == c).any()) else pooled
        for c in range(validation.classes)
    ]
    return Thresholds(pooled, tuple(by_class))
