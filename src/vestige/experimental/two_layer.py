"""Orders of the reconstruction error for two-layer networks, defence by defence.

Liu, Wang, Chen and Lei 2025: f = Σ a_j·σ(w_jᵀx), a ~ N(0, 1/m²), w ~ N(0, I), ‖x‖ = 1, summed
gradient of a batch. Orders only: constants and logarithms are left out, so they compare defences
and predict no error. The lower orders come from the Cramér–Rao bound, which holds for unbiased
attacks and which an attack with a prior can undercut; :func:`~vestige.bounds.van_trees` is the
bound for every attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vestige.mechanisms import require


@dataclass(frozen=True)
class ErrorOrders:
    """Upper order: an attack exists. Lower order: no unbiased attack does better."""

    upper: float | None
    lower: float
    upper_holds: bool
    """Whether the batch is small enough for the upper order: B⁴ at most of order d."""


@dataclass(frozen=True)
class TwoLayerNetwork:
    """The setting: d inputs, m hidden units, B records, noise σ on what the attacker measures."""

    inputs: int
    hidden: int
    batch: int
    measurement_noise: float = 0.0

    def __post_init__(self) -> None:
        require(
            min(self.inputs, self.hidden, self.batch) >= 1,
            "Inputs, hidden units and batch are at least 1.",
        )
        require(0 <= self.measurement_noise < math.inf, "Noise is at least 0 and finite.")

    def undefended(self) -> ErrorOrders:
        """No defence: B√(d/m) above, σ√(d/m) below."""
        return self._orders(self.batch, self.measurement_noise)

    def local_aggregation(self) -> ErrorOrders:
        """Two local steps before sending change no order."""
        return self.undefended()

    def noise(self, deviation: float) -> ErrorOrders:
        """Gaussian noise of standard deviation σ0: (B + σ0)√(d/m) above."""
        return self._orders(self.batch + _positive(deviation), self.measurement_noise)

    def clipping(self, gradient_norm: float, clipping_norm: float) -> ErrorOrders:
        """Clipping alone scales the noise up on the way back and stops no attack."""
        return self._orders(
            self.batch, self.measurement_noise * _excess(gradient_norm, clipping_norm)
        )

    def dp_sgd(self, deviation: float, gradient_norm: float, clipping_norm: float) -> ErrorOrders:
        """Clipping and noise: (B + σ0·max(1, ‖G‖/C))√(d/m) above."""
        excess = _excess(gradient_norm, clipping_norm)
        return self._orders(
            self.batch + _positive(deviation) * excess, self.measurement_noise * excess
        )

    def dropout(self, rate: float) -> ErrorOrders:
        """Dropout leaves (1−p)m hidden units."""
        require(0 <= rate < 1, "A dropout rate lies in [0, 1).")
        return self._orders(self.batch, self.measurement_noise, kept=1 - rate)

    def pruning(self, pruned_share: float) -> ErrorOrders:
        """Pruning, by its share ‖J_pruned‖²/‖J‖² of the squared Jacobian: no upper order."""
        require(0 <= pruned_share < 1, "The pruned share lies in [0, 1).")
        return self._orders(None, self.measurement_noise, kept=1 - pruned_share)

    def _orders(self, upper: float | None, lower: float, kept: float = 1.0) -> ErrorOrders:
        rate = math.sqrt(self.inputs / (kept * self.hidden))
        return ErrorOrders(
            None if upper is None else upper * rate, lower * rate, self.batch**4 <= self.inputs
        )


def _positive(deviation: float) -> float:
    require(0 <= deviation < math.inf, "A standard deviation is at least 0 and finite.")
    return deviation


def _excess(gradient_norm: float, clipping_norm: float) -> float:
    require(0 <= gradient_norm < math.inf, "The norm of a gradient is at least 0 and finite.")
    require(0 < clipping_norm < math.inf, "A clipping norm is positive and finite.")
    return max(1.0, gradient_norm / clipping_norm)
