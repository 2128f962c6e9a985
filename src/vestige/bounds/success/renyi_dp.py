"""Reconstruction under Rényi differential privacy, and the Rényi divergences it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import Array, ReconstructionBound
from vestige.bounds.success.zero_concentrated_dp import concentration
from vestige.errors import BadInput
from vestige.mechanisms import (
    DPSGD,
    Gaussian,
    Laplace,
    Mechanism,
    Neighbouring,
    RenyiDP,
    ZeroConcentratedDP,
    noise_parts,
)

ORDERS = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *(float(order) for order in range(11, 64)),
    *(128.0, 256.0, 512.0, 1024.0),
)
"""The orders that dp-accounting and Opacus choose from, so that ε agrees with theirs."""


@dataclass(frozen=True)
class RenyiDPBound(ReconstructionBound):
    """γ = min over orders α of (κe^ε(α))^((α−1)/α) (Balle, Cherubin and Hayes 2022, Theorem 2)."""

    name = "Rényi DP"
    cites = "Balle, Cherubin, Hayes 2022, Theorem 2"

    def covers(self, mechanism: Mechanism) -> bool:
        """Everything whose Rényi divergences are known."""
        if isinstance(mechanism, RenyiDP | ZeroConcentratedDP):
            return True
        parts = noise_parts(mechanism)
        return bool(parts) and all(
            not isinstance(part, DPSGD)
            or part.sampling_rate == 1
            or part.relation is Neighbouring.ADD_OR_REMOVE_ONE
            for part in parts
        )

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        guarantee = to_renyi_dp(mechanism)
        orders, epsilons = np.asarray(guarantee.orders), np.asarray(guarantee.epsilons)
        return ((log_prior[:, None] + epsilons) * (1 - 1 / orders)).min(axis=1)


def to_renyi_dp(mechanism: Mechanism, orders: tuple[float, ...] = ORDERS) -> RenyiDP:
    """The Rényi guarantee of a mechanism: release with the record against the reference."""
    if isinstance(mechanism, RenyiDP):
        return mechanism
    wanted = np.asarray(orders, dtype=np.float64)
    if isinstance(mechanism, ZeroConcentratedDP):
        return RenyiDP(orders, tuple(mechanism.rho * wanted), mechanism.relation)
    parts = noise_parts(mechanism)
    if not RenyiDPBound().covers(mechanism):
        raise BadInput(
            "The Rényi divergences of this mechanism are not known here: use the privacy loss "
            "distribution, or account under 'add or remove one'."
        )
    total = sum((_divergences(part, wanted) for part in parts), np.zeros(len(wanted)))
    return RenyiDP(orders, tuple(map(float, total)), parts[0].relation)


def _divergences(part: Gaussian | Laplace | DPSGD, orders: Array) -> Array:
    if isinstance(part, DPSGD) and part.sampling_rate == 1:
        part = Gaussian(part.noise_multiplier, part.steps, part.relation)
    if isinstance(part, Gaussian):
        return concentration(part) * orders
    if isinstance(part, Laplace):
        # Mironov 2017, the Laplace mechanism; a divergence near 0 may round to below it.
        moments = np.logaddexp(
            np.log(orders / (2 * orders - 1)) + (orders - 1) * part.epsilon,
            np.log((orders - 1) / (2 * orders - 1)) - orders * part.epsilon,
        )
        return (part.steps / (orders - 1)) * np.maximum(moments, 0.0)
    return np.array([part.steps * sampled_gaussian_divergence(part, order) for order in orders])


def sampled_gaussian_divergence(part: DPSGD, order: float) -> float:
    """D_α((1−q)N(0,σ²) + qN(1,σ²) ‖ N(0,σ²)) of one step.

    Mironov, Talwar and Zhang 2019 show that this direction is the larger one and sum a binomial
    series. We integrate: the trapezoidal rule converges faster than any power for these integrands
    and serves fractional orders as well.
    """
    q, sigma = part.sampling_rate, part.noise_multiplier
    # The integrand is a mixture of normals with means in [0, ⌈α⌉] and the same σ.
    count = min(20001, max(2001, math.ceil(16 * (order + 1 + 20 * sigma) / sigma)))
    outcomes = np.linspace(-10 * sigma, math.ceil(order) + 10 * sigma, count)
    losses = np.logaddexp(math.log1p(-q), math.log(q) + (2 * outcomes - 1) / (2 * sigma**2))
    exponents = order * losses - outcomes**2 / (2 * sigma**2)
    width = (outcomes[1] - outcomes[0]) / (sigma * math.sqrt(2 * math.pi))
    top = float(exponents.max())
    moment = top + math.log(float(np.exp(exponents - top).sum()) * width)
    return max(moment, 0.0) / (order - 1)


def epsilon_of_renyi(guarantee: RenyiDP, delta: float) -> float:
    """Smallest ε of the orders at δ (Canonne, Kamath and Steinke 2020)."""
    if not 0 < delta < 1:
        raise BadInput(f"δ lies between 0 and 1, not at {delta!r}.")
    orders, epsilons = np.asarray(guarantee.orders), np.asarray(guarantee.epsilons)
    candidates = (
        epsilons + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    )
    return max(float(candidates.min()), 0.0)
