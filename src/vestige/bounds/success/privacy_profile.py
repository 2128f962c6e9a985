"""Reconstruction under a whole privacy profile δ(ε)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.mechanisms import Mechanism, PrivacyProfile


@dataclass(frozen=True)
class PrivacyProfileBound(ReconstructionBound):
    """γ = inf over ε of κe^ε + δ(ε), ε of either sign.

    With the whole profile this is the trade-off function itself; with a few of its points it is a
    looser bound, never a wrong one.
    """

    name = "privacy profile"
    assumptions = (
        *INFORMED,
        "Every point (ε, δ) holds for the release with the record against the reference.",
    )
    cites = "Balle, Barthe, Gaboardi 2018; Hayes, Mahloujifar, Balle 2023"

    def covers(self, mechanism: Mechanism) -> bool:
        """Profiles."""
        return isinstance(mechanism, PrivacyProfile)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, PrivacyProfile)
        with np.errstate(divide="ignore"):
            log_deltas = np.log(np.asarray(mechanism.deltas))
        terms = np.logaddexp(log_prior[:, None] + np.asarray(mechanism.epsilons), log_deltas)
        return terms.min(axis=1)
