"""The gradient equation Δ·X = M·G of a layer, solved for what entered it: Pan et al. 2020, Eq. 5.

With loss vectors and activation patterns known, the derivatives Δ (units, M) are known too and the
released gradient G (units, in) is linear in X (M, in).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, lsmr

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.propagation import Propagation

SPARSE_FROM = 100_000_000
"""Entries of Δ from which LSMR replaces dense least squares: 0.8 GB, of which dense least squares
holds some three copies. Below, LSMR has nothing to offer: ReLU makes only half of Δ zero, and dense
least squares factors Δ once for all inputs where every iteration of LSMR visits them all. With 2000
units, 500 records and 784 inputs the one took 1 second and the other 44."""


def solve_scaled(
    signals: np.ndarray, gradient: np.ndarray, *, sparse_from: int = SPARSE_FROM
) -> np.ndarray:
    """Least squares Δ·X = G for Δ (units, M), G (units, in), columns of Δ scaled to one first.

    A record with a small loss has a small column; unscaled, it would count as rank-deficient.
    """
    size = np.maximum(np.linalg.norm(signals, axis=0), 1e-300)
    scaled = signals / size
    if signals.size < sparse_from or not np.isfinite(scaled).all():
        return np.linalg.lstsq(scaled, gradient, rcond=None)[0] / size[:, None]
    return least_squares_by_lsmr(scaled, gradient) / size[:, None]


def least_squares_by_lsmr(signals: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """LSMR on the sparse system Δ·X = G with all entries of X (M, in) unknown at once.

    ReLU makes about half the entries of Δ zero. The system is Δ ⊗ I, which is applied and not
    built: it would hold Δ once for every input.
    """
    batch, width = signals.shape[1], gradient.shape[1]
    system = _Repeated(signals, width)
    most = 20 * batch + 200
    solution = lsmr(system, gradient.ravel(), atol=1e-14, btol=1e-14, conlim=0, maxiter=most)[0]
    return solution.reshape(batch, width)


class _Repeated(LinearOperator):
    """Δ ⊗ I: one matrix (units, batch) applied to every column of X (batch, width)."""

    def __init__(self, matrix: np.ndarray, width: int) -> None:
        units, batch = matrix.shape
        super().__init__(np.float64, (units * width, batch * width))
        self.forwards, self.backwards, self.width = csr_array(matrix), csr_array(matrix.T), width

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        return (self.forwards @ x.reshape(-1, self.width)).ravel()

    def _rmatvec(self, x: np.ndarray) -> np.ndarray:
        return (self.backwards @ x.reshape(-1, self.width)).ravel()


def solve_robustly(signals: np.ndarray, gradient: np.ndarray, *, rounds: int = 6) -> np.ndarray:
    """Δ·X = G where a few entries of Δ may be wrong: rows are reweighted by what they miss.

    A hidden neuron within rounding of zero may be taken for active or silent; its row of Δ is then
    wrong and every other right.
    """
    size = np.maximum(np.linalg.norm(gradient, axis=1), 1e-300)
    signals, gradient = signals / size[:, None], gradient / size[:, None]
    weight = np.ones(len(size))
    solution = solve_scaled(signals, gradient)
    for _ in range(rounds):
        missed = np.linalg.norm(signals @ solution - gradient, axis=1)
        floor = max(float(np.median(missed)), 1e-300)
        weight = 1 / np.maximum(missed, floor)
        solution = solve_scaled(signals * weight[:, None], gradient * weight[:, None])
    return solution


def solve_again(
    network: Propagation, inputs: np.ndarray, labels: np.ndarray, *, rounds: int = 3
) -> tuple[np.ndarray, float]:
    """Solve the equation of the first layer again, with masks and losses from the inputs.

    Eq. 5 with i = 0 averages over all rows what a few rows gave first. A round that does not lower
    the residual is undone; the residual is returned too.
    """
    best, residual = inputs, network.residual(inputs, labels)
    for _ in range(rounds):
        signals, _ = network.sent_back(best, labels)
        moved = solve_scaled(signals.T, len(best) * network.weight_gradients[0])
        reached = network.residual(moved, labels)
        if not reached < residual:
            break
        best, residual = moved, reached
    return best, residual
