"""What every bound on reconstruction looks like.

A bound turns a mechanism and the attacker's prior success κ into a success γ that no attack
exceeds: reconstruction robustness (Balle, Cherubin and Hayes 2022, Definition 2). One argument
carries all of them (see docs/architecture.md): the attacker's success against a release that does
not depend on the secret is at most κ, and a guarantee says how far the true release is from such
a reference. The reference is the release without the record (add or remove one) or with another
record in its place (replace one); either serves.

All computation is in logarithms: κ of an image is easily e^−1000.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vestige.errors import BadInput
from vestige.mechanisms import Mechanism, Neighbouring

Array = NDArray[np.float64]

ANY_RELATION = (Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE)

INFORMED = (
    "The attacker knows everything but one record, and a prior over that record.",
    "Any loss, any threshold.",
)
"""What reconstruction robustness assumes; what a theorem assumes beside is its own."""

ROUNDING = 1e-9
"""Relative margin added to what floating point computed: far above its error, far below use."""


class ReconstructionBound(ABC):
    """A bound with a vectorised curve; a theorem fills in the last two methods."""

    name: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]] = INFORMED
    relations: ClassVar[tuple[Neighbouring, ...]] = ANY_RELATION
    cites: ClassVar[str]

    def supports(self, mechanism: Mechanism) -> bool:
        """Whether the theorem says something about this mechanism."""
        return self.refusal(mechanism) is None

    def refusal(self, mechanism: Mechanism) -> str | None:
        """Why the theorem says nothing about this mechanism, in a sentence; None if it does."""
        if not self.covers(mechanism):
            return (
                f"{self.name} does not cover mechanisms of the kind {mechanism.kind!r}: use a "
                "bound that does."
            )
        relation = getattr(mechanism, "relation", None)
        if relation not in self.relations:
            return (
                f"{self.name} needs a guarantee under {self.relations[0]!r}, and this one holds "
                f"under {str(relation)!r}: account the mechanism under that relation first."
            )
        return None

    def __call__(self, mechanism: Mechanism, prior_success: float) -> float:
        """γ: the success that no attack exceeds, given its success κ before the release."""
        return float(self.curve(mechanism, [prior_success])[0])

    def curve(self, mechanism: Mechanism, prior_success: Sequence[float] | Array) -> Array:
        """γ for every κ of a list, at about the cost of one."""
        kappas = np.asarray(prior_success, dtype=np.float64)
        check_prior_success(kappas)
        with np.errstate(divide="ignore"):
            logs = np.log(kappas)
        return np.maximum(np.exp(self.log_curve(mechanism, logs)), kappas)

    def log_curve(self, mechanism: Mechanism, log_prior_success: Sequence[float] | Array) -> Array:
        """The logarithm of γ for every ln κ of a list: for priors whose κ no float can hold."""
        refused = self.refusal(mechanism)
        if refused is not None:
            raise BadInput(refused)
        logs = np.asarray(log_prior_success, dtype=np.float64)
        if logs.ndim != 1 or not np.all(logs <= 0):
            raise BadInput("The logarithm of a prior success is at most 0.")
        # No release makes an attacker worse than its prior, and none more than certain.
        return np.clip(self.log_success(mechanism, logs), logs, 0.0)

    @abstractmethod
    def covers(self, mechanism: Mechanism) -> bool:
        """Whether the theorem is about this kind of mechanism, whatever its relation."""

    @abstractmethod
    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of γ for ln κ, for a mechanism that is supported."""


def check_prior_success(kappas: Array) -> None:
    """Refuse what is no list of probabilities."""
    if kappas.ndim != 1 or not np.all((kappas >= 0) & (kappas <= 1)):
        raise BadInput("A prior success is a probability: give values from 0 to 1.")


def log_one_minus_exp(logs: Array) -> Array:
    """ln(1 − e^x) for x ≤ 0 without loss of digits at either end."""
    with np.errstate(divide="ignore"):
        return np.where(
            logs > -math.log(2),
            np.log(-np.expm1(np.minimum(logs, 0.0))),
            np.log1p(-np.exp(np.minimum(logs, 0.0))),
        )
