"""Naming a secret among candidates by squared distance, where a tie counts against the secret.

Candidates that the computation cannot tell apart are a tie: an image and a darker copy of it are
one image after clipping, whatever their last bits say. Images are float32, so every candidate is
known to a relative precision of 2⁻²³, and the secret is nearer only if it is nearer by more than
this precision can change.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRECISION = torch.finfo(torch.float32).eps
"""Relative precision of a candidate: one rounding when it was stored and one when computed with."""


def names_secret(points: Tensor, pool: Tensor, near: Tensor, own: Tensor) -> Tensor:
    """Whether each point (n, …) is surely nearer to its secret than to its other candidates (n,).

    ``near`` (n, k) are places of candidates in ``pool``, ``own`` (n,) is the secret's place among
    them. A point that is not finite names nothing.
    """
    records = pool.detach().cpu().flatten(1).double()
    rows = zip(points.detach().cpu().flatten(1).double(), near, own.tolist())
    nearer = [
        bool((margins(point, records[places], place) > 0).all()) for point, places, place in rows
    ]
    return torch.tensor(nearer, dtype=torch.bool)


def margins(point: Tensor, candidates: Tensor, own: int) -> Tensor:
    """By how much candidates (k, d) are surely farther from a point (d,) than the one at ``own``.

    Differences of squared distances (k,), less what rounding may change; infinite for the secret
    itself. ‖c − z‖² − ‖s − z‖² is formed as ⟨c − s, (c − z) + (s − z)⟩, because the two squares
    agree in almost all digits where z is mostly noise.
    """
    gaps = candidates - point
    difference = ((candidates - candidates[own]) * (gaps + gaps[own])).sum(1)
    reach = candidates.norm(dim=1) * gaps.norm(dim=1)
    margin = difference - 2 * PRECISION * (reach + reach[own])
    margin[own] = torch.inf
    return margin
