"""Reconstruction from one Poisson-sampled Gaussian step, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from vestige.bounds.bound import INFORMED, Array, ReconstructionBound
from vestige.mechanisms import DPSGD, Mechanism, Neighbouring


@dataclass(frozen=True)
class PoissonGaussianBound(ReconstructionBound):
    """γ = (1−q)κ + qΦ(Φ⁻¹(κ) + 1/σ) for one step: tight.

    The likelihood ratio of the sampled step increases with that of the Gaussian step, so the best
    tests are the same and their powers mix.
    """

    name = "one Poisson-sampled Gaussian step"
    assumptions = (
        *INFORMED,
        "Each record is in the batch independently with the sampling rate.",
    )
    relations = (Neighbouring.ADD_OR_REMOVE_ONE,)
    cites = "Hayes, Mahloujifar, Balle 2023; Dong, Roth, Su 2022"

    def covers(self, mechanism: Mechanism) -> bool:
        """DP-SGD of one step."""
        return isinstance(mechanism, DPSGD) and mechanism.steps == 1

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, DPSGD)
        q = mechanism.sampling_rate
        seen = math.log(q) + log_ndtr(ndtri_exp(log_prior) + 1 / mechanism.noise_multiplier)
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log1p(-q) + log_prior, seen)
