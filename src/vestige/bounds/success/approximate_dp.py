"""Reconstruction under (ε, δ)-differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.bounds.bound import Array, ReconstructionBound
from vestige.bounds.success.pure_dp import log_success_of
from vestige.mechanisms import ApproximateDP, Mechanism


@dataclass(frozen=True)
class ApproximateDPBound(ReconstructionBound):
    """γ = min(κe^ε + δ, 1 − e^−ε(1 − δ − κ)).

    The trade-off function of (ε, δ)-DP (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015)
    at κ.
    """

    name = "(ε, δ)-DP"
    cites = "Balle, Cherubin, Hayes 2022; Kairouz, Oh, Viswanath 2015"

    def covers(self, mechanism: Mechanism) -> bool:
        """Guarantees with one ε and one δ."""
        return isinstance(mechanism, ApproximateDP)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, ApproximateDP)
        return log_success_of(mechanism.epsilon, mechanism.delta, log_prior)
