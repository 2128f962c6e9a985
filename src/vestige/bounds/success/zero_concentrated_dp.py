"""Reconstruction under zero-concentrated differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import Array, ReconstructionBound
from vestige.mechanisms import Gaussian, Mechanism, Neighbouring, ZeroConcentratedDP


@dataclass(frozen=True)
class ZeroConcentratedDPBound(ReconstructionBound):
    """γ = exp(−(√L − √ρ)²) with L = ln(1/κ) if ρ < L, else 1.

    Balle, Cherubin and Hayes 2022, Corollary 4: the Rényi bound at its best order √(L/ρ).
    """

    name = "ρ-zCDP"
    cites = "Balle, Cherubin, Hayes 2022, Corollary 4"

    def covers(self, mechanism: Mechanism) -> bool:
        """Concentrated guarantees, and Gaussian noise, which has one."""
        return isinstance(mechanism, ZeroConcentratedDP | Gaussian)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, ZeroConcentratedDP | Gaussian)
        rho = concentration(mechanism)
        return np.where(rho < -log_prior, -((np.sqrt(-log_prior) - np.sqrt(rho)) ** 2), 0.0)


def concentration(mechanism: ZeroConcentratedDP | Gaussian) -> float:
    """ρ of a mechanism: sensitivity² · steps / 2σ² for Gaussian noise (Bun and Steinke 2016)."""
    if isinstance(mechanism, ZeroConcentratedDP):
        return mechanism.rho
    sensitivity = 2.0 if mechanism.relation is Neighbouring.REPLACE_ONE else 1.0
    return sensitivity**2 * mechanism.steps / (2 * mechanism.noise_multiplier**2)
