"""The span of the records: from moments of the outputs' gradient, or the hidden weights' own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.tensor_features import hermite
from vestige.attacks.tensor_features.moments import Streams, first_moments, without_lower_orders

if TYPE_CHECKING:
    from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient

ROUNDS = 4
FILLING_ROUNDS = 200
# A singular value counts if it exceeds this multiple of what noise alone would make.
ABOVE_NOISE = 1.5


def from_moments(given: Streams, batch: int) -> Tensor:
    """Orthonormal basis V (d, b) of the top subspace of the moments.

    Wang, Lee and Lei 2023, Algorithm 1: the top of P̂ = (1/m)·Σ g_j·(w_j·w_jᵀ − I), or for
    activations whose second order vanishes of T̂(I, I, a). Where we deviate: a is the first moment,
    which has a part along every record, not a random vector; all orders that the activation has
    count together; and a few rounds of T̂(I, V, V) (orthogonal iteration) follow.
    """
    w = given.weights
    first = first_moments(given)
    linear = torch.cat([torch.ones(len(w), 1).to(w), w], 1)
    values = without_lower_orders(given.values, given.shares, linear)
    weighted = values * given.shares
    deviations = values.std(1).clamp_min(1e-300)
    blocks = [given.signal(1) * (first / given.values.std(1, keepdim=True)).T]
    seconds: list[Tensor] = []
    for one, deviation, ahead in zip(weighted, deviations, first):
        if given.signal(2):
            seconds.append(given.signal(2) / math.sqrt(2) * hermite.second(w, one) / deviation)
        if given.signal(3):
            along = ahead / torch.linalg.vector_norm(ahead).clamp_min(1e-300)
            moment = hermite.third_along(w, one, along)
            blocks.append(given.signal(3) / math.sqrt(6) * moment / deviation)
    basis = _top(torch.cat([*blocks, *seconds], 1), batch)
    for _ in range(ROUNDS):
        p = w @ basis
        blocks = blocks[:1] + [one @ basis for one in seconds]
        if given.signal(3):
            for one, deviation in zip(weighted, deviations):
                moment = hermite.third_open(w, basis, p, one).flatten(1)
                blocks.append(given.signal(3) / math.sqrt(6) * moment / deviation)
        basis = _top(torch.cat(blocks, 1), batch)
    return basis


def from_slopes(gradient: TwoLayerGradient, batch: int) -> Tensor | None:
    """Orthonormal basis (d, b) of the rows of the hidden weights' gradient; None if noise hides it.

    Row j is a combination of the records, so without noise its span is theirs exactly. Entries
    that are not known are filled by the best matrix of this rank, again and again.
    """
    rows, known = gradient.weight_gradient, gradient.weight_known
    if rows is None:
        return None
    if known is not None:
        rows = _filled(rows, known, batch)
        if rows is None:
            return None
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    basis = vectors[:, -batch:].flip(1)
    smallest = math.sqrt(max(float(values[-batch]), 0.0))
    largest = math.sqrt(max(float(values[-1]), 0.0))
    of_noise = gradient.noise * (math.sqrt(len(rows)) + math.sqrt(rows.shape[1]))
    return basis if smallest > max(ABOVE_NOISE * of_noise, 1e-12 * largest) else None


def _filled(rows: Tensor, known: Tensor, rank: int) -> Tensor | None:
    """Rows (m, d) with unknown entries filled so that the rank is ``rank``; None if too few."""
    usable = known.any(1)
    rows, known = rows[usable], known[usable]
    # A matrix of this rank has rank·(m + d − rank) degrees of freedom.
    if int(known.sum()) < 1.2 * rank * (sum(rows.shape) - rank):
        return None
    filled = torch.where(known, rows, 0.0)
    target = torch.linalg.vector_norm(filled)
    for _ in range(FILLING_ROUNDS):
        vectors = torch.linalg.eigh(filled.T @ filled)[1][:, -rank:]
        # Each row's best combination of the span, from its known entries alone.
        system = torch.einsum("jd,da,db->jab", known.to(rows), vectors, vectors)
        system = system + 1e-12 * torch.eye(rank).to(rows)
        wanted = torch.where(known, rows, 0.0) @ vectors
        fit = torch.linalg.solve(system, wanted[:, :, None])[:, :, 0] @ vectors.T
        moved = torch.where(known, rows, fit)
        change = torch.linalg.vector_norm(moved - filled)
        filled = moved
        if change < 1e-13 * target:
            break
    return filled


def _top(matrix: Tensor, count: int) -> Tensor:
    """Leading left singular vectors (d, count) of a wide matrix."""
    return torch.linalg.eigh(matrix @ matrix.T)[1][:, -count:].flip(1)
