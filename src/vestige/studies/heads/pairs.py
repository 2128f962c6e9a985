"""Errors of every drawing to the records of every head, in blocks (Definition 1).

Maciazek and Allison 2025, equation 4 and Definition 1: the diagonal holds the errors to the head's
own records, all other pairs say what an attack matches by chance.
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from torch import Tensor

from vestige.statistics.head_pairs import PairErrors
from vestige.studies.heads.rates import check_counted

HEADS_AT_ONCE = 512
"""Heads whose drawings, and heads whose records, are compared at a time."""

IN_MEMORY = 2**28
"""Most bytes of errors that are held in memory; more go to an unnamed temporary file."""


def pair_errors(drawn: Tensor, members: Tensor, counted: Tensor, images: Tensor) -> PairErrors:
    """ℓ_min-MSE of what was drawn (s, c, *shape) to the counted members of every set.

    ``members`` (s, n) are places in ``images``; ``counted`` (s, c, n) says which of them a
    reconstruction is compared with. Own and other pairs are computed alike, from differences of
    pixels, and rounded to 32 bits: copies of a record have equal errors wherever they stand, so
    that none of them looks closer because it is the head's own.
    """
    heads, classes = drawn.shape[:2]
    check_counted(counted)
    values = _room((classes, heads, heads))
    pool = images.detach().cpu().flatten(1)
    for place in range(classes):
        flat = drawn[:, place].detach().cpu().flatten(1)
        broken = ~torch.isfinite(flat).all(1)
        flat = flat.masked_fill(broken[:, None], 0.0)
        rows = _padded(members, counted[:, place])
        for first in range(0, heads, HEADS_AT_ONCE):
            sets = rows[first : first + HEADS_AT_ONCE]
            records = pool[sets.flatten()].double()
            for start in range(0, heads, HEADS_AT_ONCE):
                part = flat[start : start + HEADS_AT_ONCE].double()
                gaps = torch.cdist(part, records, compute_mode="donot_use_mm_for_euclid_dist")
                gaps = gaps.square_() / pool.shape[1]
                nearest = gaps.reshape(len(part), *sets.shape).amin(2)
                nearest[broken[start : start + HEADS_AT_ONCE]] = torch.inf
                values[place, start : start + len(part), first : first + len(sets)] = nearest
    return PairErrors(values, shared=overlapping_sets(members))


def overlapping_sets(members: Tensor) -> np.ndarray | None:
    """Which training sets (s, n) share a record (s, s); None if no two do."""
    if len(members.unique()) == members.numel():
        return None
    heads = len(members)
    held = torch.zeros((heads, int(members.max()) + 1))
    held[torch.arange(heads)[:, None], members] = 1.0
    return (held @ held.T > 0).numpy()


def _padded(members: Tensor, counted: Tensor) -> Tensor:
    """Counted members (s, most) of each set; sets with fewer repeat their first one."""
    order = torch.sort(counted.int(), dim=1, descending=True, stable=True).indices
    order = order[:, : int(counted.sum(1).max())]
    chosen = members.gather(1, order)
    return torch.where(counted.gather(1, order), chosen, chosen[:, :1])


def _room(shape: tuple[int, ...]) -> np.ndarray:
    if 4 * int(np.prod(shape)) <= IN_MEMORY:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
