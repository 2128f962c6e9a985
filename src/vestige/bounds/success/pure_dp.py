"""Reconstruction under ε-differential privacy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import Array, ReconstructionBound, log_one_minus_exp
from vestige.mechanisms import Laplace, Mechanism, PureDP


@dataclass(frozen=True)
class PureDPBound(ReconstructionBound):
    """γ = min(κe^ε, 1 − e^−ε(1 − κ)).

    Balle, Cherubin and Hayes 2022, Corollary 3, has the first term. The second is the same
    argument for the attacker's failure, and smaller once κe^ε is large.
    """

    name = "ε-DP"
    cites = "Balle, Cherubin, Hayes 2022, Corollary 3"

    def covers(self, mechanism: Mechanism) -> bool:
        """Guarantees with an ε and no δ."""
        return isinstance(mechanism, PureDP | Laplace)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, PureDP | Laplace)
        steps = mechanism.steps if isinstance(mechanism, Laplace) else 1
        return log_success_of(mechanism.epsilon * steps, 0.0, log_prior)


def log_success_of(epsilon: float, delta: float, log_prior: Array) -> Array:
    """The logarithm of min(κe^ε + δ, 1 − e^−ε(1 − δ − κ)) for ln κ."""
    with np.errstate(divide="ignore"):
        log_delta = np.log(delta)
        log_rest = np.log(np.maximum(-np.expm1(log_prior) - delta, 0.0))
    return np.minimum(
        np.logaddexp(log_prior + epsilon, log_delta), log_one_minus_exp(log_rest - epsilon)
    )
