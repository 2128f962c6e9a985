"""The lifted equations of a ReLU layer and their null space.

Every hidden neuron r of every sample satisfies (L_r·q)·(L_r·q − w̃_r·γ) = 0: its loss derivative
L_r·q is zero where the neuron is silent, and what the next layer sends back, w̃_r·γ, where it is
active. The equations are linear in the lifted unknowns Z = q·qᵀ (symmetric) and Y = q·γᵀ. This
lift is Vestige's own method; that the rank of the gradient is the batch size and that silent
neurons make its factors sparse is known from Dimitrov et al. 2024 ("SPEAR").
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import coo_array

# Steps of inverse iteration; a clear gap needs three.
STEPS = 40


def unknowns(batch: int, outgoing: int) -> int:
    """Count the lifted unknowns: b(b+1)/2 of Z and b·k of Y."""
    return batch * (batch + 1) // 2 + batch * outgoing


def null_space(
    left: np.ndarray, outgoing: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve for the b lifted solutions of smallest residual in the metric of the noise.

    left (n, b) with unit noise, outgoing (n, k) → Z (b, b, b), Y (b, b, k), residuals (b + 1,).
    The metric is Taubin's: N(Z, Y) = Σ_r ‖2Z·L_r − Y·w̃_r‖², the first-order variance of the
    equations' left side.
    """
    n, b = left.shape
    k = outgoing.shape[1]
    # Columns of size one: the noise in column i is then 1/size.
    size = np.linalg.norm(left, axis=0)
    scaled = left / size
    first, second = np.triu_indices(b)
    weight = np.where(first == second, 1.0, np.sqrt(2.0))
    equations = np.hstack(
        [
            weight * scaled[:, first] * scaled[:, second],
            -(scaled[:, :, None] * outgoing[:, None, :]).reshape(n, b * k),
        ]
    )
    metric = _metric(scaled, outgoing, 1 / size, first, second, weight)
    # The factor of the metric after scaling its diagonal to one, with a grain for rank loss.
    unit = 1 / np.sqrt(np.maximum(np.diag(metric), 1e-300))
    metric *= unit[:, None] * unit
    metric[np.diag_indices_from(metric)] += 1e-13
    root = cholesky(metric, lower=False, overwrite_a=True, check_finite=False)
    whitened = solve_triangular(
        root, (equations * unit).T, trans=1, lower=False, check_finite=False
    ).T
    solutions, residuals = _smallest(whitened, b, generator)
    solutions = unit[:, None] * solve_triangular(root, solutions, check_finite=False)
    z = np.zeros((b, b, b))
    half = solutions[: len(first)].T * weight / np.where(first == second, 1.0, 2.0)
    z[:, first, second] = half
    z[:, second, first] = half
    y = solutions[len(first) :].T.reshape(b, b, k)
    return z / size[:, None] / size, y / size[:, None], residuals


def _metric(
    left: np.ndarray,
    outgoing: np.ndarray,
    deviation: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    weight: np.ndarray,
) -> np.ndarray:
    """Build N for the unknowns in their order: B·(diag(σ²) ⊗ K)·Bᵀ with K the second moments."""
    b, k = left.shape[1], outgoing.shape[1]
    both = np.hstack([left, outgoing])
    moments = both.T @ both
    width, pairs = b + k, len(first)
    # Row p of [2Z, −Y] as a function of the unknowns, times the deviation of column p.
    share = np.where(first == second, 2.0, weight)
    off = first != second
    where = np.concatenate([first * width + second, (second * width + first)[off]])
    unknown = np.concatenate([np.arange(pairs), np.arange(pairs)[off]])
    value = np.concatenate([share, share[off]])
    p, j = np.divmod(np.arange(b * k), k)
    where = np.concatenate([where, p * width + b + j])
    unknown = np.concatenate([unknown, pairs + np.arange(b * k)])
    value = np.concatenate([value, -np.ones(b * k)])
    value = value * deviation[where // width]
    b_matrix = coo_array((value, (where, unknown)), shape=(b * width, pairs + b * k)).tocsr()
    dense = b_matrix.toarray().reshape(b, width, -1)
    product = np.matmul(moments, dense).reshape(b * width, -1)
    return b_matrix.T @ product


def _smallest(
    matrix: np.ndarray, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Right singular vectors (c, count) of the smallest singular values, and count + 1 of these.

    Inverse iteration on the triangle of a QR factorisation: as accurate as a singular value
    decomposition (the Gram matrix would lose half the digits), at a fifth of the cost.
    """
    n, c = matrix.shape
    triangle = np.asarray(np.linalg.qr(matrix, mode="r"))
    if n < c:
        triangle = np.vstack([triangle, np.zeros((c - n, c))])
    diagonal = np.abs(np.diag(triangle))
    floor = 1e-15 * diagonal.max()
    triangle[np.diag_indices(c)] = np.where(diagonal < floor, floor, np.diag(triangle))
    block, _ = np.linalg.qr(generator.standard_normal((c, min(count + 6, c))))
    before = None
    values = np.zeros(0)
    for _ in range(STEPS):
        block = solve_triangular(triangle, block, trans=1, check_finite=False)
        block, _ = np.linalg.qr(block)
        block = solve_triangular(triangle, block, check_finite=False)
        block, _ = np.linalg.qr(block)
        _, values, turn = np.linalg.svd(triangle @ block, full_matrices=False)
        block, values = block @ turn[::-1].T, values[::-1]
        if before is not None and np.all(
            np.abs(values - before)[: count + 1] <= 1e-3 * values[: count + 1]
        ):
            break
        before = values
    return block[:, :count], values[: count + 1]
