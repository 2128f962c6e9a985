"""The lifted equations of a ReLU layer, their null space, and the samples in it.

Every hidden neuron r of every sample satisfies (L_r·q)·(L_r·q − w̃_r·γ) = 0: its loss derivative
L_r·q is zero where the neuron is silent, and what the next layer sends back, w̃_r·γ, where it is
active. The equations are linear in the lifted unknowns Z = q·qᵀ (symmetric) and Y = q·γᵀ. This
lift is Vestige's own method; that the rank of the gradient is the batch size and that silent
neurons make its factors sparse is known from Dimitrov et al. 2024 ("SPEAR").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import coo_array

# Steps of inverse iteration; a clear gap needs three.
STEPS = 40
TRIES, ROUNDS = 6, 30


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


def diagonalize(
    left: np.ndarray,
    outgoing: np.ndarray,
    z: np.ndarray,
    y: np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Mixing columns q (b, b), one for each sample, and what the next layer sends back γ (k, b).

    Out of the null space Z_k = Q·D_k·Qᵀ, Y_k = Q·D_k·Γᵀ: Q holds the eigenvectors of Z_a·Z_b⁻¹ for
    two random combinations; of several draws the one whose samples satisfy their equations best is
    kept.
    """
    size = np.linalg.norm(left, axis=0)
    scaled = size[:, None] * z * size
    best, solution = np.inf, None
    for _ in range(TRIES):
        one, two = np.tensordot(generator.standard_normal((2, len(z))), scaled, axes=1)
        try:
            _, columns = np.linalg.eig(np.linalg.solve(two.T, one.T).T)
        except np.linalg.LinAlgError:
            continue
        columns = _real(columns)
        inverse, _, rank, _ = np.linalg.lstsq(columns, np.eye(len(columns)), rcond=1e-14)
        if rank < len(columns):
            continue
        shares = np.einsum("mi,kij,mj->km", inverse, scaled, inverse)
        rows = np.einsum("mi,kij->kmj", inverse, size[:, None] * y)
        gamma = np.einsum("km,kmj->jm", shares, rows) / np.maximum((shares**2).sum(0), 1e-300)
        q = columns / size[:, None]
        score = float(np.log(inconsistency(left, outgoing, q, gamma) + 1e-300).mean())
        if score < best:
            best, solution = score, (q, gamma)
    if solution is None:
        return np.eye(left.shape[1]), np.zeros((outgoing.shape[1], left.shape[1]))
    return solution


def inconsistency(
    left: np.ndarray, outgoing: np.ndarray, q: np.ndarray, gamma: np.ndarray
) -> np.ndarray:
    """For each sample, how far derivatives L·q lie from both zero and w̃·γ, relative to L·q."""
    derivative, sent = left @ q, outgoing @ gamma
    nearest = np.minimum(np.abs(derivative), np.abs(derivative - sent))
    scale = np.linalg.norm(derivative, axis=0)
    return np.linalg.norm(nearest, axis=0) / np.maximum(scale, 1e-300)


def _real(columns: np.ndarray) -> np.ndarray:
    """Real columns that span the same: a complex pair gives its real and imaginary part."""
    if not np.iscomplexobj(columns):
        return columns
    real = np.real(columns).copy()
    lone = np.flatnonzero(np.abs(np.imag(columns)).max(0) > 0)
    real[:, lone[1::2]] = np.imag(columns)[:, lone[1::2]]
    return real / np.maximum(np.linalg.norm(real, axis=0), 1e-300)


@dataclass(frozen=True)
class Sample:
    """One sample: mixing q (b,), sent γ (k,), which neurons are active (n,), and its residual.

    The residual is the root mean square over the neurons, in units of the noise.
    """

    q: np.ndarray
    gamma: np.ndarray
    active: np.ndarray
    residual: float


def division(
    left: np.ndarray, outgoing: np.ndarray, q: np.ndarray, gamma: np.ndarray
) -> np.ndarray:
    """Active neurons (n,): those whose derivative is nearer to the sent value than to zero."""
    derivative = left @ q
    return np.abs(derivative) > np.abs(derivative - outgoing @ gamma)


def polish_division(left: np.ndarray, outgoing: np.ndarray, active: np.ndarray) -> Sample:
    """Alternate between the division of neurons and the fit, until the division is stable.

    Each neuron lies on one of two hyperplanes: silent (L·q = 0) or active (L·q = w̃·γ); q is the
    direction of smallest noise-weighted residual of both groups together. Fitting the silent ones
    alone fails on trained networks, where a sample's silent neurons are also silent for its
    neighbours.
    """
    q, gamma, residual = fit_division(left, outgoing, active)
    seen: set[bytes] = set()
    for _ in range(ROUNDS):
        active = division(left, outgoing, q, gamma)
        key = active.tobytes()
        if key in seen:
            break
        seen.add(key)
        q, gamma, residual = fit_division(left, outgoing, active)
    return Sample(q, gamma, active, residual)


def fit_division(
    left: np.ndarray, outgoing: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit q of norm one and γ: min ‖L_silent·q‖² + ‖L_active·q − w̃_active·γ‖².

    With unit noise in L every residual has the variance ‖q‖² = 1.
    """
    b, k = left.shape[1], outgoing.shape[1]
    upper = np.asarray(np.linalg.qr(np.hstack([outgoing[active], left[active]]), mode="r"))
    stacked = np.vstack([left[~active], upper[k:, k:]])
    # Column sizes differ by orders of magnitude: smallest singular vector of the triangle.
    triangle = np.asarray(np.linalg.qr(stacked, mode="r"))
    if len(triangle) < b:
        triangle = np.vstack([triangle, np.zeros((b - len(triangle), b))])
    _, values, turn = np.linalg.svd(triangle)
    q = turn[-1]
    if len(upper) >= k and k:
        gamma = np.linalg.lstsq(upper[:k, :k], upper[:k, k:] @ q, rcond=1e-13)[0]
    else:
        gamma = np.linalg.lstsq(outgoing[active], left[active] @ q, rcond=1e-13)[0]
    return q, gamma, float(values[-1] / np.sqrt(max(len(left), 1)))
