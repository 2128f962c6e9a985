"""First-order error bound of recovered records: how far records that explain a gradient can be off.

The first layer's gradient is A = Δ·[X 1]/M with Δ = mask ∘ W₂ᵀ·G. With the masks fixed it is
bilinear in the records X (b, D) and the loss vectors G = B·Γ of the next layer. Loss vectors are
left free within their basis B, so that what is certified does not rest on the softmax, whose
rounding is large where a loss is small. The Jacobian by (X, Γ) at a solution is [Δ ⊗ I, U]; by a QR
decomposition of Δ the unknown X drops out and a system of b·k unknowns Γ is left (a Schur
complement), whatever the number of features. Where it is singular, other batches explain the
gradient as well, and the bound is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import solve_triangular, svd

from vestige.attacks.exact_inversion.noise import ROUNDING
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.reading import Reading

SINGULAR = 1e-12
"""Smallest singular value, relative to the largest, that rounding in float64 leaves meaningful."""


@dataclass(frozen=True)
class Step:
    """One Gauss–Newton step of the records, with loss vectors free.

    ``change`` (b, D) leads to the least-squares solution; ``deviation`` (b,) is the root of the
    expected squared norm of its error under the release's noise, and ``record_deviation`` (b,) the
    same after a normalisation is undone; ``unseen`` (b,) bounds the norm of the features, of the
    record, whose gradient is zero or negligible in all neurons. ``misfit`` is the root mean square
    of what the step leaves of the gradient, in units of the noise; ``loss_error`` (b,) is the
    relative deviation of each loss vector, and ``losses`` (b, d₂) are those it started from.
    """

    change: np.ndarray
    deviation: np.ndarray
    record_deviation: np.ndarray
    unseen: np.ndarray
    misfit: float
    loss_error: np.ndarray
    losses: np.ndarray


def gauss_newton_step(
    network: Propagation, reading: Reading, x: np.ndarray, rows: np.ndarray | None = None
) -> Step | None:
    """Step from records x (b, D); None where the solution is not unique.

    Loss vectors start where they explain the gradient best. ``rows`` (units,) says which neurons
    are used: those at their kink are left out.
    """
    factors, b = reading.factors, len(x)
    used = np.ones(len(factors.rows), bool) if rows is None else rows[factors.rows]
    at, scale = factors.rows[used], factors.row_scale[used]
    active = network.hidden(x)[:, at] > 0
    basis = reading.bases[0]
    outgoing = (network.weights[1].T[at] @ basis) / scale[:, None]
    tilted = np.hstack([outgoing * mask[:, None] for mask in active])
    k = basis.shape[1]
    full = np.hstack([x, np.ones((b, 1))]) if reading.with_bias else x
    weighted = full[:, factors.columns] / factors.column_scale
    entries = reading.released[np.ix_(at, factors.columns)] / scale[:, None] / factors.column_scale
    if len(at) <= b or (reading.with_bias and factors.columns[-1] != factors.shape[1] - 1):
        return None
    derivative = entries @ np.linalg.pinv(weighted, rcond=1e-14)
    gamma = np.stack([_fitted(outgoing, *pair) for pair in zip(derivative.T, active)])
    delta = (outgoing @ gamma.T) * active.T
    missed = entries - delta @ weighted
    q, upper = np.linalg.qr(delta)
    pivots = np.abs(np.diag(upper))
    if not pivots.min() > 1e-13 * pivots.max():  # also where all of them are zero
        return None
    inner = weighted[:, :-1] if reading.with_bias else weighted
    last = 1 / factors.column_scale[-1] if reading.with_bias else 0.0
    turn = None
    if not reading.with_bias:
        # A longer record with a smaller loss vector has the same gradient: the length is fixed
        # here, and bounded by the softmax (``length_deviation``).
        turn = _crosswise(gamma)
        tilted, k = tilted @ turn, k - 1
    solved = _schur(tilted, q, inner, last, missed, k, reading.with_bias)
    if solved is None:
        return None
    step, covariance = solved
    leaning = solve_triangular(upper, q.T @ tilted)
    inverse = solve_triangular(upper, np.eye(b))
    mixed = np.stack(
        [leaning[:, m * k : (m + 1) * k] @ step[m * k : (m + 1) * k] for m in range(b)], 1
    )
    rest = missed[:, : inner.shape[1]]
    move = solve_triangular(upper, q.T @ rest) - mixed @ inner
    columns = factors.column_scale[: inner.shape[1]]
    change = np.zeros_like(x)
    change[:, factors.columns[: inner.shape[1]]] = move * columns

    def deviation(scale: np.ndarray) -> np.ndarray:
        products = (inner * scale) @ (inner * scale).T
        spread = covariance * np.kron(products, np.ones((k, k)))
        variance = np.square(inverse).sum(1) * np.square(scale).sum()
        variance = variance + np.einsum("ma,ab,mb->m", leaning, spread, leaning)
        # Negative where rounding has taken all digits: nothing is known then.
        return np.sqrt(np.where(variance < 0, np.inf, variance))

    record_scale = network.record_scale[factors.columns[: inner.shape[1]]]
    sent = np.stack([tilted[:, m * k : (m + 1) * k] @ step[m * k : (m + 1) * k] for m in range(b)])
    left = missed - sent.T @ weighted
    left[:, : inner.shape[1]] -= delta @ move
    freedom = max(left.size - move.size - len(step), 1)
    losses = np.diag(covariance).reshape(b, k).sum(1)
    size = np.maximum(np.linalg.norm(gamma, axis=1), 1e-300)
    return Step(
        change,
        deviation(columns),
        deviation(columns * record_scale),
        _unseen(network, reading, at, solve_triangular(upper, q.T) / scale),
        float(np.sqrt(np.square(left).sum() / freedom)),
        np.sqrt(losses) / size,
        gamma @ basis.T,
    )


def _unseen(
    network: Propagation, reading: Reading, at: np.ndarray, solve: np.ndarray
) -> np.ndarray:
    """Bound (b,) on the norm of the features that no row shows, with solve (b, rows) = Δ⁺.

    Entries that were rounded to zero are not independent of one another: their errors are added
    and not their squares.
    """
    noise = reading.noise
    hidden = np.setdiff1d(np.arange(len(network.record_scale)), reading.factors.columns)
    entries = np.abs(reading.released[np.ix_(at, hidden)])
    entries = entries + (ROUNDING[noise][1] / 2 if isinstance(noise, str) else noise)
    return np.linalg.norm((np.abs(solve) @ entries) * network.record_scale[hidden], axis=1)


def length_deviation(
    network: Propagation, x: np.ndarray, labels: np.ndarray, step: Step, misfit: float
) -> np.ndarray:
    """Relative deviation (b,) of the lengths of records of a network without a first bias.

    The length s of s·u solves g(s·u) = M·γ/s. Its logarithm is off by the errors of the loss
    vector, of the direction and of the softmax's own rounding, over the slope of both sides.
    """
    own, rise = _lengthening(network, x, labels)
    slope = np.linalg.norm(rise + own, axis=1)
    size = np.linalg.norm(own, axis=1)
    turned = step.deviation / np.maximum(np.linalg.norm(x, axis=1), 1e-300)
    steep = np.linalg.norm(rise, axis=1)
    error = size * (step.loss_error * misfit) + (steep + size) * turned * misfit
    return error / np.maximum(slope, 1e-300)


def length_step(
    network: Propagation, x: np.ndarray, labels: np.ndarray, losses: np.ndarray
) -> np.ndarray:
    """Factors (b,) to the lengths at which records x have their fitted losses (b, d₂), times M.

    One Newton step of log s for s·g(s·u) = M·γ, by least squares over the entries of g.
    """
    own, rise = _lengthening(network, x, labels)
    slope = rise + own
    step = ((losses - own) * slope).sum(1) / np.maximum(np.square(slope).sum(1), 1e-300)
    return np.exp(np.clip(step, -0.1, 0.1))


def _lengthening(
    network: Propagation, x: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Loss vectors of the second layer (b, d₂), and their slopes by the logarithm of a length."""
    columns = []
    for factor in (1.0, 1 + 1e-5, 1 - 1e-5):
        activations = network.forward(factor * x)
        columns.append(network.backward(activations, loss_vectors(activations[-1], labels))[1])
    return columns[0], (columns[1] - columns[2]) / 2e-5


def _fitted(outgoing: np.ndarray, derivative: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Loss vector (k,), in its basis, that explains a record's derivatives in active neurons."""
    return np.linalg.lstsq(outgoing[active], derivative[active], rcond=1e-14)[0]


def _crosswise(gamma: np.ndarray) -> np.ndarray:
    """Block diagonal (b·k, b·(k − 1)): directions across each record's own loss vector."""
    b, k = gamma.shape
    turn = np.zeros((b * k, b * (k - 1)))
    for m in range(b):
        across = np.linalg.svd(gamma[m : m + 1])[2][1:].T
        turn[m * k : (m + 1) * k, m * (k - 1) : (m + 1) * (k - 1)] = across
    return turn


def _schur(
    tilted: np.ndarray,
    q: np.ndarray,
    inner: np.ndarray,
    last: float,
    missed: np.ndarray,
    k: int,
    with_bias: bool,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Solve for changes of loss vectors (b·k,) with their covariance; None where singular."""
    if k == 0:
        return np.zeros(0), np.zeros((0, 0))
    along = q.T @ tilted
    across = tilted - q @ along
    # The columns of U, all features at once, in an orthonormal basis of few rows: squaring U would
    # lose half the digits, and trained networks need them.
    full = np.hstack([inner, np.full((len(inner), 1), last)]) if with_bias else inner
    triangle = np.asarray(np.linalg.qr(across, mode="r"))
    points = np.asarray(np.linalg.qr(full.T, mode="r"))
    weight = np.repeat(points, k, axis=1)
    rows = (triangle[None] * weight[:, None]).reshape(-1, len(weight[0]))
    stacked = np.vstack([rows, last * along]) if with_bias else rows
    right = (across * np.repeat(missed @ full.T, k, axis=1)).sum(0)
    if with_bias:
        right = right + last * (along.T @ (q.T @ missed[:, -1]))
    size = np.linalg.norm(stacked, axis=0)
    if size.min() <= SINGULAR * size.max():
        return None
    _, values, turn = svd(stacked / size, full_matrices=False)
    if len(values) < len(size) or values[-1] < SINGULAR * values[0]:
        return None
    root = (turn.T / values) / size[:, None]
    covariance = root @ root.T
    return root @ (root.T @ right), covariance
