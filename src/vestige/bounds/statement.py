"""What theory says about one mechanism, complete: for a table, for JSON, for a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vestige.bounds.accounting import epsilon_at
from vestige.bounds.allowance import Allowance, tightest
from vestige.bounds.calibration import SMALLEST_NOISE
from vestige.bounds.description import in_words
from vestige.bounds.protection import Protection, protection_of
from vestige.mechanisms import (
    DPSGD,
    ApproximateDP,
    Gaussian,
    Laplace,
    Mechanism,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    mechanism_to_json,
    noise_parts,
    require,
)
from vestige.reports import numbers

USUAL_PRIOR_SUCCESS = (0.0001, 0.001, 0.01, 0.1)
USUAL_CANDIDATES = (2, 10, 100, 1000)

CURVE_POINTS = 81
"""Points of a curve γ(κ): smooth to the eye."""

STRENGTHS = tuple(2.0 ** (step / 3) for step in range(-12, 13))
"""Multiples of a mechanism's own strength at which it is compared with itself."""

NEARLY_CERTAIN = 0.999

LARGEST_EPSILON = 200.0
"""ε beyond which nothing is left to be compared, and accountants only grow slow."""


@dataclass(frozen=True)
class Strength:
    """A mechanism's one number, with what it allows at one κ and its ε where that is known."""

    value: float
    success: float
    epsilon: float | None = None


@dataclass(frozen=True)
class Strengths:
    """Success at one κ for weaker and stronger versions of a mechanism; its own is ``own``."""

    name: str
    prior_success: float
    points: tuple[Strength, ...]
    own: Strength


@dataclass(frozen=True)
class Statement:
    """All bounds at some κ, the tightest, what it buys, and ε at δ."""

    mechanism: Mechanism
    allowance: Allowance
    protection: Protection
    delta: float
    epsilon: float | None
    """At δ; None where a mechanism has none."""

    @property
    def words(self) -> str:
        """The mechanism in one line."""
        return in_words(self.mechanism)

    @property
    def has_noise(self) -> bool:
        """Whether ε is a consequence of a known noise or of ρ, not a number the user gave."""
        return not isinstance(self.mechanism, PureDP | ApproximateDP)

    @property
    def main(self) -> tuple[float, float]:
        """The κ of which headlines speak, the middle one, and its γ."""
        pairs = sorted(zip(self.allowance.prior_success, self.allowance.success))
        return pairs[len(pairs) // 2]

    @property
    def finding(self) -> str:
        """What the tightest bound says, in a sentence or two."""
        if not self.allowance.curves:
            return "No bound is known for this mechanism: theory rules out nothing here."
        kappa, gamma = self.main
        guess = f"Where a guess succeeds with {numbers.chance(kappa)}"
        if gamma >= 1:
            return f"{guess}, theory rules out nothing here."
        return f"{guess}, no attack exceeds {numbers.allowed(gamma)}."

    def to_json(self) -> str:
        """Everything in this statement as a JSON document."""
        return json.dumps(
            {
                "mechanism": json.loads(mechanism_to_json(self.mechanism)),
                "words": self.words,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "prior_success": self.allowance.prior_success,
                "tightest": [
                    {"prior_success": kappa, "success": gamma, "bound": name}
                    for kappa, gamma, name in zip(
                        self.allowance.prior_success, self.allowance.success, self.allowance.names
                    )
                ],
                "bounds": [
                    {
                        "name": curve.bound.name,
                        "success": curve.success,
                        "assumptions": curve.bound.assumptions,
                        "cites": curve.bound.cites,
                    }
                    for curve in self.allowance.curves
                ],
                "re_identification": [
                    {"candidates": count, "success": gamma}
                    for count, gamma in self.protection.re_identification
                ],
                "membership": [
                    {"false_positive_rate": level, "true_positive_rate": power}
                    for level, power in self.protection.membership
                ],
                "membership_advantage": self.protection.membership_advantage,
            },
            indent=2,
            ensure_ascii=False,
        )


def state(
    mechanism: Mechanism,
    prior_success: Sequence[float] = USUAL_PRIOR_SUCCESS,
    *,
    candidates: Sequence[int] = USUAL_CANDIDATES,
    delta: float = 1e-5,
) -> Statement:
    """Ask every bound about a mechanism; an empty list of κ or of candidates means the usual."""
    kappas = tuple(prior_success) or USUAL_PRIOR_SUCCESS
    require(
        all(0 < kappa < 1 for kappa in kappas),
        "A prior success lies strictly between 0 and 1: give for example 0.01.",
    )
    require(0 < delta < 1, "δ lies strictly between 0 and 1: give for example 1e-5.")
    return Statement(
        mechanism=mechanism,
        allowance=tightest(mechanism, kappas),
        protection=protection_of(
            mechanism, prior_success=kappas, candidates=tuple(candidates) or USUAL_CANDIDATES
        ),
        delta=delta,
        epsilon=_epsilon(mechanism, delta),
    )


def whole_curve(statement: Statement) -> Allowance:
    """Every bound as a curve γ(κ) on a logarithmic grid that reaches below the κ asked for."""
    lowest = min(1e-4, 0.1 * min(statement.allowance.prior_success))
    kappas = np.geomspace(10.0 ** np.floor(np.log10(lowest) + 1e-9), 1.0, CURVE_POINTS)
    return tightest(statement.mechanism, kappas)


def strengths_of(statement: Statement) -> Strengths | None:
    """The same mechanism weaker and stronger, at the middle κ.

    None if it has no one number, or one so weak that nothing is left to compare.
    """
    kappa, _ = statement.main
    own = _number(statement.mechanism)
    if own is None or own[1] == 0:
        return None
    name, value = own

    def at(factor: float) -> Strength:
        mechanism = _scale_noise(statement.mechanism, factor)
        number = _number(mechanism)
        assert number is not None
        return Strength(
            number[1], tightest(mechanism, kappa).success[0], _epsilon(mechanism, statement.delta)
        )

    noisy = isinstance(statement.mechanism, Gaussian | DPSGD)
    smallest, largest = (SMALLEST_NOISE, np.inf) if noisy else (0.0, LARGEST_EPSILON)
    chosen = sorted(f for f in STRENGTHS if f == 1 or smallest <= f * value <= largest)
    stronger_first = chosen[::-1] if noisy else chosen
    points: dict[float, Strength] = {}
    for factor in stronger_first:
        points[factor] = at(factor)
        # Weaker still would draw a flat line, and accountants are slow there.
        if points[factor].success > NEARLY_CERTAIN and 1.0 in points:
            break
    if len(points) < 2:
        return None
    ordered = sorted(points.values(), key=lambda point: point.value)
    return Strengths(name, kappa, tuple(ordered), points[1.0])


def _number(mechanism: Mechanism) -> tuple[str, float] | None:
    if isinstance(mechanism, Gaussian | DPSGD):
        return "noise multiplier", mechanism.noise_multiplier
    if isinstance(mechanism, PureDP | ApproximateDP | Laplace):
        return "ε", mechanism.epsilon
    return ("ρ", mechanism.rho) if isinstance(mechanism, ZeroConcentratedDP) else None


def _scale_noise(mechanism: Mechanism, factor: float) -> Mechanism:
    if isinstance(mechanism, Gaussian | DPSGD):
        return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
    if isinstance(mechanism, PureDP | ApproximateDP | Laplace):
        return replace(mechanism, epsilon=mechanism.epsilon * factor)
    assert isinstance(mechanism, ZeroConcentratedDP)
    return replace(mechanism, rho=mechanism.rho * factor)


def _epsilon(mechanism: Mechanism, delta: float) -> float | None:
    """ε at δ where there is one, else the ε that the mechanism names."""
    if noise_parts(mechanism) or isinstance(mechanism, ZeroConcentratedDP | RenyiDP):
        epsilon = epsilon_at(mechanism, delta)
        return epsilon if np.isfinite(epsilon) else None
    if isinstance(mechanism, PureDP | ApproximateDP):
        return mechanism.epsilon
    return None
