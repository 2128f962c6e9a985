"""Lower bounds on the error of a reconstruction from Fisher information.

These speak about mean squared error, not about success at a threshold, and take no prior success.
J = ∂g/∂x is the Jacobian (m, d) of what is released, s the standard deviation of the noise on it:
s = σC for a noise multiplier σ and a clipping norm C. Without noise every one of them is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vestige.bounds.success.renyi_dp import RenyiDPBound, to_renyi_dp
from vestige.errors import BadInput
from vestige.mechanisms import Mechanism, Neighbouring, require

if TYPE_CHECKING:
    from vestige.bounds.bound import Array


@dataclass(frozen=True)
class RenyiErrorBound:
    """Mean squared error of any attack under (2, ε)-Rényi privacy.

    Guo, Karrer, Chaudhuri and van der Maaten 2022, by the Hammersley–Chapman–Robbins
    inequality: MSE/d ≥ Σγ_i²·diam_i²/(4d(e^ε − 1)) + ‖bias‖²/d. ``diameters`` are the ranges of the
    values; ``sensitivities`` γ_i say how the attacker's expectation follows the value, 1 for an
    unbiased one; ``squared_bias`` is ‖bias‖².
    """

    diameters: tuple[float, ...]
    sensitivities: tuple[float, ...] | None = None
    squared_bias: float = 0.0

    name: ClassVar[str] = "Rényi error bound"
    assumptions: ClassVar[tuple[str, ...]] = (
        "The attacker is unbiased unless its bias and sensitivities are given.",
        "ε is that of order 2 when one record is replaced by another.",
    )
    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.REPLACE_ONE,)
    cites: ClassVar[str] = "Guo, Karrer, Chaudhuri, van der Maaten 2022"

    def __post_init__(self) -> None:
        require(
            len(self.diameters) > 0 and all(0 <= value < math.inf for value in self.diameters),
            "Diameters are the ranges of the values of a record: at least one, none negative.",
        )
        require(
            self.sensitivities is None or len(self.sensitivities) == len(self.diameters),
            "Give one sensitivity for each diameter.",
        )
        require(0 <= self.squared_bias < math.inf, "A squared bias is at least 0 and finite.")

    def supports(self, mechanism: Mechanism) -> bool:
        """Mechanisms with a Rényi divergence of order 2 under replacement of one record."""
        return self.refusal(mechanism) is None

    def refusal(self, mechanism: Mechanism) -> str | None:
        """Why the theorem says nothing about this mechanism; None if it does."""
        if not RenyiDPBound().covers(mechanism):
            return f"{self.name} needs a Rényi divergence of order 2: {mechanism.kind} has none."
        if getattr(mechanism, "relation", None) is not Neighbouring.REPLACE_ONE:
            return (
                f"{self.name} compares two records in the same place: account the mechanism under "
                "'replace one'."
            )
        if 2 not in to_renyi_dp(mechanism, (2.0,)).orders:
            return f"{self.name} needs order 2: account the mechanism at that order too."
        return None

    def __call__(self, mechanism: Mechanism) -> float:
        """Smallest mean squared error per value."""
        refused = self.refusal(mechanism)
        if refused is not None:
            raise BadInput(refused)
        guarantee = to_renyi_dp(mechanism, (2.0,))
        epsilon = guarantee.epsilons[guarantee.orders.index(2)]
        dimension = len(self.diameters)
        scale = np.ones(dimension) if self.sensitivities is None else np.array(self.sensitivities)
        squares = float(((scale * np.asarray(self.diameters)) ** 2).sum())
        if epsilon == 0:
            return math.inf if squares > 0 else self.squared_bias / dimension
        # e^−ε/(1 − e^−ε) is 1/(e^ε − 1) without overflow.
        inverse = math.exp(-epsilon) / -math.expm1(-epsilon)
        return (squares * inverse / 4 + self.squared_bias) / dimension


def cramer_rao(jacobian: Array, noise: float) -> float:
    """Smallest total squared error of an unbiased attack: s²·tr((JᵀJ)⁻¹).

    Infinite where the release does not determine the record at all. A biased attack, such as one
    with a prior, can go below it; :func:`van_trees` holds for every attack.
    """
    matrix = _matrix(jacobian)
    _check_noise(noise)
    if noise == 0:
        return 0.0
    values = np.linalg.svd(matrix, compute_uv=False)
    # Singular values fall; fewer than columns, or one lost in rounding, and no inverse exists.
    if len(values) < matrix.shape[1]:
        return math.inf
    if values[-1] <= max(matrix.shape) * np.finfo(np.float64).eps * values[0]:
        return math.inf
    return noise**2 * float((values**-2.0).sum())


def cramer_rao_from_norm(jacobian: Array, noise: float) -> float:
    """The same bound weakened to s²d²/‖J‖_F², which needs no inverse."""
    matrix = _matrix(jacobian)
    _check_noise(noise)
    squared = float((matrix**2).sum())
    if noise == 0:
        return 0.0
    return math.inf if squared == 0 else noise**2 * matrix.shape[1] ** 2 / squared


def van_trees(jacobians: Sequence[Array], noise: float, prior_deviation: float) -> float:
    """Smallest total squared error of every attack: tr((E[JᵀJ]/s² + I/s_π²)⁻¹).

    Van Trees 1968 (Gill and Levit 1995) for a Gaussian prior of standard deviation s_π; E is over
    records of the prior, one Jacobian each. No assumption of unbiasedness; the release must be
    differentiable in the record, so a mask that depends on the record is outside it.
    """
    _check_noise(noise)
    require(0 < prior_deviation < math.inf, "The prior's standard deviation is positive, finite.")
    require(len(jacobians) > 0, "The expectation needs at least one Jacobian.")
    matrices = [_matrix(jacobian) for jacobian in jacobians]
    if noise == 0:
        return 0.0
    mean = sum((matrix.T @ matrix for matrix in matrices), np.zeros(1)) / len(matrices)
    values = np.maximum(np.linalg.eigvalsh(mean), 0.0)
    return float((1 / (values / noise**2 + prior_deviation**-2)).sum())


def with_known_dropout(bound: float, dropout: float) -> float:
    """Bound when each released value is dropped with a probability and the mask is known."""
    require(0 <= dropout < 1, "A dropout rate lies in [0, 1).")
    return bound / (1 - dropout)


def clipped_jacobian(jacobian: Array, gradient: Array, clipping_norm: float) -> Array:
    """Jacobian of the clipped gradient: (C/‖G‖)(I − ĝĝᵀ)J where clipping acts, J elsewhere."""
    matrix, flat = _matrix(jacobian), np.asarray(gradient, dtype=np.float64).reshape(-1)
    require(clipping_norm > 0, "A clipping norm is positive.")
    require(bool(np.isfinite(flat).all()), "A gradient holds finite values: give one that does.")
    norm = float(np.linalg.norm(flat))
    if norm <= clipping_norm:
        return matrix
    direction = flat / norm
    return clipping_norm / norm * (matrix - np.outer(direction, direction @ matrix))


def batch_jacobian(jacobians: Sequence[Array], *, averaged: bool) -> Array:
    """Jacobian of a batch's gradient in all of its records: side by side, over B if averaged."""
    matrices = [_matrix(jacobian) for jacobian in jacobians]
    require(len(matrices) > 0, "A batch has at least one record.")
    joined = np.concatenate(matrices, axis=1)
    return joined / len(matrices) if averaged else joined


def pruned_jacobian(jacobian: Array, kept: Array) -> Array:
    """Jacobian of the values that pruning keeps.

    Local only: which values are kept depends on the record and jumps, so this serves
    :func:`cramer_rao` at one record and not :func:`van_trees`.
    """
    return _matrix(jacobian)[np.asarray(kept, dtype=bool).reshape(-1)]


def _matrix(jacobian: Array) -> Array:
    matrix = np.asarray(jacobian, dtype=np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise BadInput("A Jacobian is a finite matrix: released values by values of the record.")
    return matrix


def _check_noise(noise: float) -> None:
    require(0 <= noise < math.inf, "The standard deviation of the noise is at least 0 and finite.")
