"""Gradients whose small entries were set to zero, filled again as matrices of low rank."""

from __future__ import annotations

import numpy as np

# A smooth density has as many entries in (τ, 1.5τ) as in half of (0, τ): the smallest of
# thousands of unpruned entries has next to none so near.
FEWEST_AT_EDGE = 30
# Relative miss of known entries that counts as none.
EXACT = 1e-7
SWEEPS, PUSH = 40, 0.7


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


def filled(
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
