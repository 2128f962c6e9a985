"""Refinement of lifted records under noise, half precision and pruning.

The lift explains the gradient with free derivatives. Once masks and labels are known the network
itself says what the derivatives are: alternate Δ(X) by a forward and backward pass with weighted
least squares A = Δ·X/M for X. Pruned entries are filled with the model's own, within their bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.propagation import Propagation

ROUNDS, PRUNED_ROUNDS = 15, 60
# A sent value below this many noise units cannot tell an active neuron from a silent one.
CLEAR = 2.0


@dataclass(frozen=True)
class Known:
    """A first-layer gradient [∂W | ∂b] (n, D + 1) as released, and how far its entries are known.

    weight (n,) is one over the noise of each row; missing entries were pruned and lie within
    ±edge, an array of the matrix's shape.
    """

    matrix: np.ndarray
    row_weight: np.ndarray
    missing: np.ndarray | None = None
    edge: np.ndarray | None = None

    def completed(self, model: np.ndarray) -> np.ndarray:
        """The matrix, its pruned entries as the model has them but within their bounds."""
        if self.missing is None or self.edge is None:
            return self.matrix
        return np.where(self.missing, np.clip(model, -self.edge, self.edge), self.matrix)


def refine(
    network: Propagation,
    known: Known,
    x: np.ndarray,
    labels: np.ndarray,
    divisor: float,
    *,
    with_bias: bool,
    bounds: tuple[float, float] | None,
) -> np.ndarray:
    """Alternate derivatives and least squares; the round that explains the gradient best wins.

    x (b, D), labels (b,); divisor is M, the number the batch's gradient is divided by. A neuron
    near its kink is not believed to be where the noisy record puts it: the gradient's own
    derivative decides, by which of zero and the sent value it is nearer to.
    """
    best, best_x, matrix = np.inf, x, known.matrix
    current = x
    weight = known.row_weight[:, None]
    for _ in range(ROUNDS if known.missing is None else PRUNED_ROUNDS):
        full = np.hstack([current, np.ones((len(current), 1))]) if with_bias else current
        _, second = network.sent_back(current, labels)
        sent = (second @ network.weights[1]).T / divisor
        active = network.hidden(current).T > 0
        inverse = np.linalg.pinv(full, rcond=1e-10)
        free = matrix @ inverse
        # The noise of a free derivative, in the noise of one entry of its row.
        clear = np.abs(sent) * weight > CLEAR * np.linalg.norm(inverse, axis=0)
        active = np.where(clear, np.abs(free) > np.abs(free - sent), active)
        mixed = sent * active
        model = mixed @ full
        matrix = known.completed(model)
        miss = float(np.linalg.norm((matrix - model) * weight))
        if not np.isfinite(miss):
            break
        if miss < best:
            best, best_x = miss, current
        columns = x.shape[1]
        solve = np.linalg.pinv(mixed * weight, rcond=1e-12)
        current = solve @ (matrix[:, :columns] * weight)
        if bounds is not None:
            current = np.clip(current, *bounds)
    return best_x
