"""Reconstruction from one Laplace release, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.mechanisms import Laplace, Mechanism


@dataclass(frozen=True)
class LaplaceBound(ReconstructionBound):
    """γ = e^εκ up to κ = e^−ε/2, 1 − e^−ε/4κ up to κ = ½, then 1 − e^−ε(1 − κ): tight.

    One minus the trade-off function of two Laplace distributions ε apart.
    """

    name = "Laplace noise"
    assumptions = (
        *INFORMED,
        "ε is the ℓ1 sensitivity over the scale of the noise.",
    )
    cites = "Hayes, Mahloujifar, Balle 2023; Dong, Roth, Su 2022"

    def covers(self, mechanism: Mechanism) -> bool:
        """One Laplace release."""
        return isinstance(mechanism, Laplace) and mechanism.steps == 1

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, Laplace)
        epsilon = mechanism.epsilon
        edge = -epsilon - math.log(2)
        middle = np.log1p(-np.exp(-epsilon - math.log(4) - np.clip(log_prior, edge, 0.0)))
        above = np.log1p(np.exp(-epsilon) * np.expm1(log_prior))
        return np.where(
            log_prior < edge, log_prior + epsilon, np.where(log_prior < -math.log(2), middle, above)
        )
