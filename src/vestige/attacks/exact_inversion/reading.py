"""A dense head's gradient made ready for the lift: precision or noise, pruning, factors, rank.

Where small entries were set to zero, the matrix is filled again as one of low rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import null_space

from vestige.attacks.exact_inversion.lifted_equations import unknowns
from vestige.attacks.exact_inversion.noise import (
    ROUNDING,
    Factors,
    Noise,
    check_noise,
    constant_level,
    detected_precision,
    factorize,
)
from vestige.attacks.exact_inversion.propagation import gradient_matrix

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.layers import DenseHead

GRAINS = 2.0
"""Deviations of the parameters' rounding that noise in an update may have to count as just that."""

# A smooth density has as many entries in (τ, 1.5τ) as in half of (0, τ): the smallest of
# thousands of unpruned entries has next to none so near.
FEWEST_AT_EDGE = 30
# Relative miss of known entries that counts as none.
EXACT = 1e-7
SWEEPS, PUSH = 40, 0.7


@dataclass(frozen=True)
class Reading:
    """What the lift reads of two adjacent layers.

    ``released`` is [∂W | ∂b] of the first layer as released; ``factors`` those of the matrix with
    pruned entries filled; each of ``bases`` (d₂, k) spans the loss vectors of the second layer;
    ``coarse`` says whether refinement can add anything to the lift; ``doubt`` how many times the
    assumed noise filled entries may be off; ``guessed`` whether the level of noise was not told but
    estimated.
    """

    released: np.ndarray
    factors: Factors
    bases: tuple[np.ndarray, ...]
    noise: Noise
    with_bias: bool
    coarse: bool
    missing: np.ndarray | None = None
    edge: np.ndarray | None = None
    doubt: float = 1.0
    guessed: bool = False


def read(head: DenseHead, noise: Noise | None, batch_size: int | None) -> Reading:
    """Find the noise, fill what was pruned, and factor the first two layers' gradients."""
    first, second = gradient_matrix(head, 0), gradient_matrix(head, 1)
    with_bias = head.layers[0].bias_gradient is not None
    kind = _precision(head) if noise is None else check_noise(noise)
    step = ROUNDING[kind][1] if isinstance(kind, str) else 0.0
    parts = (with_bias, head.layers[1].bias_gradient is not None)
    if any(_edge(matrix, part, step) for matrix, part in zip((first, second), parts)):
        missing, edges = first == 0, _edges(first, with_bias)
        matrix, rank, rest = fill_missing(first, missing, edges, rank=batch_size)
        second, _, _ = fill_missing(second, second == 0, _edges(second, parts[1]), rank=rank)
        # Where filling does not explain the known entries, what is left is noise to the fit, but
        # filled ones are as uncertain as their bounds say.
        doubt, guessed = 1.0, False
        if rest > 1e-5 * float(np.sqrt(np.mean(first[first != 0] ** 2))):
            # They are not independent of one another either: a factor of three.
            doubt = max(1.0, 3 * float(np.sqrt(np.mean(missing * edges**2 / 3))) / rest)
            kind, guessed = rest, True
        factors = factorize(matrix, kind, rank=batch_size, most=rank)
        bases = (_basis(second, kind, factors.rank),)
        return Reading(first, factors, bases, kind, with_bias, True, missing, edges, doubt, guessed)
    level = constant_level(first, kind) if noise is None and isinstance(kind, str) else None
    # Noise no larger than the rounding of parameters, which is always known.
    grainy = level is not None and level <= GRAINS * head.grain
    level = max(level, head.grain) if grainy and level is not None else level
    factors = factorize(first, kind if level is None else level, most=batch_size)
    if level is not None and factors.rank:
        kind = level
    coarse = not isinstance(kind, str) or kind in ("float16", "bfloat16")
    bases = (_basis(second, kind, factors.rank),)
    # A noisy basis loses small loss vectors: do without where there are neurons enough.
    if coarse and 2 * unknowns(factors.rank, len(second)) <= len(factors.rows):
        # At the logits they sum to zero, up to rounding that is far below this noise.
        whole = null_space(np.ones((1, len(second)))) if len(head.layers) == 2 else None
        bases = (np.eye(len(second)) if whole is None or not whole.size else whole, *bases)
    guessed = level is not None and factors.rank > 0 and not grainy
    return Reading(first, factors, bases, kind, with_bias, coarse, guessed=guessed)


def _precision(head: DenseHead) -> str:
    tensors = [head.layers[0].weight_gradient, head.layers[1].weight_gradient]
    tensors += [t for layer in head.layers[:2] if (t := layer.bias_gradient) is not None]
    return detected_precision(*tensors)


def _basis(second: np.ndarray, noise: Noise, rank: int) -> np.ndarray:
    """Columns (d₂, k) that span the loss vectors: those of the gradient, or all if b ≥ d₂."""
    size = len(second)
    if rank >= size:
        return np.eye(size)
    factors = factorize(second, noise, rank=rank)
    basis = np.zeros((size, factors.rank))
    basis[factors.rows] = factors.row_scale[:, None] * factors.left
    return basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-300)


def _edge(matrix: np.ndarray, with_bias: bool, step: float) -> bool:
    """Whether the weights or the bias of a layer show the edge that pruning leaves.

    Zeros of whole rows and columns do not count: dead neurons and empty features leave them too.
    """
    live = matrix[(matrix != 0).any(1)]
    parts = (live[:, :-1], live[:, -1:]) if with_bias else (live,)
    return any(pruning_edge(part[:, (part != 0).any(0)], step) is not None for part in parts)


def _edges(matrix: np.ndarray, with_bias: bool) -> np.ndarray:
    """How large a pruned entry can have been: the smallest that is left, weights and bias apart."""
    edges = np.zeros(matrix.shape)
    for part in (slice(None, -1), slice(-1, None)) if with_bias else (slice(None),):
        left = np.abs(matrix[:, part])
        edges[:, part] = left[left > 0].min(initial=np.inf)
    return np.where(np.isfinite(edges), edges, 0.0)


def pruning_edge(matrix: np.ndarray, smallest_step: float) -> float | None:
    """Magnitude below which entries were pruned, or None if there is no sign of it."""
    size = np.abs(matrix[matrix != 0])
    if size.size == 0 or size.size == matrix.size:
        return None
    edge = float(size.min())
    if edge < 32 * smallest_step:
        return None
    near = int((size < 1.5 * edge).sum())
    return edge if near > max(FEWEST_AT_EDGE, 0.002 * size.size) else None


def fill_missing(
    matrix: np.ndarray, missing: np.ndarray, edge: np.ndarray, *, rank: int | None = None
) -> tuple[np.ndarray, int, float]:
    """Fill missing entries, known to lie within ±edge, so that the matrix has low rank.

    Alternates a projection on rank r with the known entries and bounds. Returns the matrix, the
    rank, and the root mean square of what stays unexplained.
    """
    rows = np.flatnonzero((matrix != 0).any(1))
    columns = np.flatnonzero((matrix != 0).any(0))
    corner = np.ix_(rows, columns)
    part = (matrix[corner], missing[corner], edge[corner])
    whole = matrix.copy()
    best = _of_rank(*part, min(rank or _apparent_rank(*part), *part[0].shape))
    whole[corner] = best[0]
    scale = float(np.sqrt(np.mean(np.square(part[0][~part[1]]))))
    return whole, best[1].shape[1], best[2] * scale


def _apparent_rank(matrix: np.ndarray, missing: np.ndarray, edge: np.ndarray) -> int:
    """Where singular values fall most, those of pruned entries (about uniform in ±edge) aside."""
    noise = np.sqrt(np.mean(missing * edge**2 / 3))
    unit = noise * (np.sqrt(matrix.shape[0]) + np.sqrt(matrix.shape[1]))
    singular = np.maximum(np.linalg.svd(matrix, compute_uv=False) / unit, 2.0)
    return int(np.argmax(singular[:-1] / singular[1:])) + 1


Filling = tuple[np.ndarray, np.ndarray, float]
"""The filled matrix, its right factor (columns, r), and the relative miss on known entries."""


def _of_rank(matrix: np.ndarray, missing: np.ndarray, edge: np.ndarray, rank: int) -> Filling:
    """Alternate projections at one rank."""
    known = ~missing
    current = matrix.copy()
    _, _, v = np.linalg.svd(current, full_matrices=False)
    right = v[:rank].T
    scale = np.linalg.norm(matrix)
    before = np.inf
    miss, low = np.inf, current
    at, limit = np.nonzero(missing), edge[missing]
    for _ in range(SWEEPS):
        for _ in range(10):
            left, _ = np.linalg.qr(current @ right)
            right, _ = np.linalg.qr(current.T @ left)
            low = (current @ right) @ right.T
            # Steps past the projection converge in far fewer rounds.
            step = low[at] + PUSH * (low[at] - current[at])
            current[at] = np.clip(step, -limit, limit)
        miss = float(np.linalg.norm((current - low)[known]) / scale)
        if miss < EXACT or miss > 0.98 * before:
            break
        before = miss
    return current, right, miss
