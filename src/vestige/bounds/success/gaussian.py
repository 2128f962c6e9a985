"""Reconstruction from Gaussian releases, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import log_ndtr, ndtri_exp

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.mechanisms import DPSGD, Composition, Gaussian, Mechanism, Neighbouring, noise_parts


@dataclass(frozen=True)
class GaussianBound(ReconstructionBound):
    """γ = Φ(Φ⁻¹(κ) + μ), μ² the sum of (sensitivity/σ)² over all steps: tight.

    Hayes, Mahloujifar and Balle 2023; Dong, Roth and Su 2022 for the trade-off
    function. Sampled steps are not Gaussian, and the central limit theorem that treats them so
    gives no bound: those go to the privacy loss distribution.
    """

    name = "Gaussian noise"
    assumptions = (
        *INFORMED,
        "Every step uses every record.",
    )
    cites = "Hayes, Mahloujifar, Balle 2023; Dong, Roth, Su 2022"

    def covers(self, mechanism: Mechanism) -> bool:
        """Gaussian steps without sampling, alone or composed."""
        parts = noise_parts(mechanism)
        return bool(parts) and all(
            isinstance(part, Gaussian) or (isinstance(part, DPSGD) and part.sampling_rate == 1)
            for part in parts
        )

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        return log_ndtr(ndtri_exp(log_prior) + self.mu(mechanism))

    def mu(self, mechanism: Mechanism) -> float:
        """μ of a mechanism that is covered."""
        assert isinstance(mechanism, Gaussian | DPSGD | Composition)
        sensitivity = 2.0 if mechanism.relation is Neighbouring.REPLACE_ONE else 1.0
        total = sum(
            part.steps / part.noise_multiplier**2
            for part in noise_parts(mechanism)
            if isinstance(part, Gaussian | DPSGD)
        )
        return sensitivity * math.sqrt(total)
