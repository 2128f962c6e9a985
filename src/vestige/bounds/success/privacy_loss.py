"""Reconstruction from noisy releases through their privacy loss distribution."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.bounds.success.privacy_loss_distribution import (
    ACCURACY,
    largest_loss_for,
    privacy_loss_distribution,
)
from vestige.mechanisms import Mechanism, noise_parts, require


@dataclass(frozen=True)
class PrivacyLossBound(ReconstructionBound):
    """γ = 1 − f(κ), f the trade-off function of all steps together, never too small.

    The exact route to the quantity that Hayes, Mahloujifar and Balle 2023 estimate by sampling.
    Only the direction that matters is composed: the release with the record against the release
    without it. A bound that holds in both directions is larger.
    """

    accuracy: float = ACCURACY

    name = "privacy loss distribution"
    assumptions = (
        *INFORMED,
        "Each record is in a batch independently with the sampling rate.",
        "The attacker sees every step, and may choose what the next one computes.",
        "Under 'replace one' with sampling it rests on a conjecture: that opposite gradients of "
        "full norm are the worst pair.",
    )
    cites = "Hayes, Mahloujifar, Balle 2023; Koskela, Jälkö, Honkela 2020; Doroshenko et al. 2022"

    def __post_init__(self) -> None:
        require(0 < self.accuracy < 1, "Accuracy is a small positive number.")

    def covers(self, mechanism: Mechanism) -> bool:
        """Everything whose noise is known."""
        return bool(noise_parts(mechanism))

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ: the whole curve from one composition."""
        composed = privacy_loss_distribution(
            noise_parts(mechanism),
            accuracy=self.accuracy,
            largest_loss=largest_loss_for(float(log_prior.min(initial=0.0))),
        )
        return composed.log_success(log_prior)
