"""Reconstruction of one of finitely many candidates under ε-differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vestige.bounds.bound import Array, ReconstructionBound
from vestige.errors import BadInput
from vestige.mechanisms import Laplace, Mechanism, Neighbouring, PureDP, require


@dataclass(frozen=True)
class FiniteCandidatesBound(ReconstructionBound):
    """γ = nκe^ε / (n + e^ε − 1) for n candidates and exact reconstruction.

    From quantitative information flow (Alvim et al. 2015), as Balle, Cherubin and Hayes 2022 state
    it in section VII-F. Every
    candidate must be a neighbour of every other, so ε is that of replacing one record.
    """

    candidates: int

    name = "ε-DP, finitely many candidates"
    assumptions = (
        "The attacker knows everything but one record, which is one of n candidates.",
        "Success means naming the very candidate (0/1 loss).",
    )
    relations = (Neighbouring.REPLACE_ONE,)
    cites = "Alvim et al. 2015; Balle, Cherubin, Hayes 2022, section VII-F"

    def __post_init__(self) -> None:
        require(self.candidates >= 2, "There are at least two candidates to choose from.")

    def covers(self, mechanism: Mechanism) -> bool:
        """Guarantees with an ε and no δ."""
        return isinstance(mechanism, PureDP | Laplace)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ."""
        assert isinstance(mechanism, PureDP | Laplace)
        log_count = math.log(self.candidates)
        if np.any(log_prior < -log_count - 1e-9):
            raise BadInput(
                f"With {self.candidates} candidates the best guess succeeds with probability "
                f"1/{self.candidates} at least: give a larger prior success."
            )
        steps = mechanism.steps if isinstance(mechanism, Laplace) else 1
        epsilon = mechanism.epsilon * steps
        return (
            log_count + log_prior + epsilon - np.logaddexp(math.log(self.candidates - 1), epsilon)
        )
