"""Mechanisms: what was done to a release, as frozen data that accountants and bounds read.

A mechanism checks its own numbers and says nothing about risk. Every one is JSON through
:func:`mechanism_to_json` and can be a field of a pydantic document. The noise multiplier is the
standard deviation of the noise in units of the clipping norm, whatever the neighbouring relation.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from vestige.choices import check_fields
from vestige.errors import BadInput

LARGEST = 1e9
"""Noise or loss beyond which, or below its inverse, sums are rounding and nothing is described."""


class Neighbouring(StrEnum):
    """Which two datasets a guarantee compares.

    With a record left out the sensitivity of a clipped sum is the clipping norm; with a record
    replaced by another it is twice that.
    """

    ADD_OR_REMOVE_ONE = "add or remove one"
    REPLACE_ONE = "replace one"


def require(holds: bool, sentence: str) -> None:
    """Refuse a number in one sentence; comparisons with NaN are False and so refused too."""
    if not holds:
        raise BadInput(sentence)


def _check_steps(steps: int) -> None:
    require(
        isinstance(steps, int) and not isinstance(steps, bool) and 1 <= steps <= LARGEST,
        f"Steps are a whole number from 1 to 1e9, not {f'{steps!r}'[:40]}.",
    )


def _check_noise(noise_multiplier: float) -> None:
    require(
        # Its square must be a number that can be divided by, and that is one.
        1 / LARGEST <= noise_multiplier <= LARGEST,
        f"A noise multiplier is positive and finite, from 1e-9 to 1e9, not {noise_multiplier!r}: "
        "describe a release without noise as NonPrivate.",
    )


def _check_epsilon(epsilon: float) -> None:
    require(0 <= epsilon < math.inf, f"ε is at least 0 and finite, not {epsilon!r}.")


def _set_relation(mechanism: object, relation: str) -> None:
    """Read a relation by its words: text that only looks like the enum would be taken for none."""
    try:
        object.__setattr__(mechanism, "relation", Neighbouring(relation))
    except ValueError as problem:
        known = " or ".join(repr(one.value) for one in Neighbouring)
        raise BadInput(f"A neighbouring relation is {known}, not {relation!r}.") from problem


def _check_types(mechanism: Any) -> None:
    """Read the relation by its words, and refuse values that do not fit their annotations."""
    _set_relation(mechanism, mechanism.relation)
    # Infinite numbers are refused below, in words of their own.
    check_fields(mechanism, any_number=[field.name for field in fields(mechanism)])


@dataclass(frozen=True)
class PureDP:
    """ε-differential privacy."""

    epsilon: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["pure DP"] = "pure DP"

    def __post_init__(self) -> None:
        _check_types(self)
        _check_epsilon(self.epsilon)


@dataclass(frozen=True)
class ApproximateDP:
    """(ε, δ)-differential privacy."""

    epsilon: float
    delta: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["approximate DP"] = "approximate DP"

    def __post_init__(self) -> None:
        _check_types(self)
        _check_epsilon(self.epsilon)
        require(0 <= self.delta < 1, f"δ lies in [0, 1), not at {self.delta!r}.")


@dataclass(frozen=True)
class PrivacyProfile:
    """(ε, δ)-differential privacy at several points at once; ε may be negative here."""

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["privacy profile"] = "privacy profile"

    def __post_init__(self) -> None:
        _check_types(self)
        require(
            0 < len(self.epsilons) == len(self.deltas),
            "A privacy profile has one δ for each of its ε, and at least one of them.",
        )
        require(all(map(math.isfinite, self.epsilons)), "Every ε of a profile is finite.")
        require(all(0 <= delta <= 1 for delta in self.deltas), "Every δ of a profile is in [0, 1].")


@dataclass(frozen=True)
class TradeOff:
    """f-differential privacy: points (α, f(α)) of a convex trade-off function.

    f(α) is the smallest type II error of any test with type I error α. Between the points no more
    is assumed than that f is convex and does not increase.
    """

    false_positive_rates: tuple[float, ...]
    false_negative_rates: tuple[float, ...]
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["trade-off function"] = "trade-off function"

    def __post_init__(self) -> None:
        _check_types(self)
        levels, errors = self.false_positive_rates, self.false_negative_rates
        require(
            0 < len(levels) == len(errors),
            "A trade-off function has one false negative rate for each false positive rate.",
        )
        require(
            all(0 <= value <= 1 for value in (*levels, *errors)),
            "The rates of a trade-off function lie in [0, 1].",
        )
        require(
            all(a < b for a, b in pairwise(levels)),
            "The false positive rates of a trade-off function increase.",
        )
        slopes = [
            (errors[i + 1] - errors[i]) / (levels[i + 1] - levels[i])
            for i in range(len(levels) - 1)
        ]
        require(
            all(a + b <= 1 + 1e-12 for a, b in zip(levels, errors))
            and all(slope <= 1e-12 for slope in slopes)
            and all(a <= b + 1e-9 for a, b in pairwise(slopes)),
            "A trade-off function is convex, does not increase and stays below 1 − α: check its "
            "points.",
        )


@dataclass(frozen=True)
class RenyiDP:
    """(α, ε)-Rényi differential privacy at every order of a list."""

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["Rényi DP"] = "Rényi DP"

    def __post_init__(self) -> None:
        _check_types(self)
        require(
            0 < len(self.orders) == len(self.epsilons),
            "Rényi differential privacy has one ε for each order, and at least one order.",
        )
        require(
            all(1 < order < math.inf for order in self.orders),
            "Rényi orders are greater than 1 and finite.",
        )
        for epsilon in self.epsilons:
            _check_epsilon(epsilon)


@dataclass(frozen=True)
class ZeroConcentratedDP:
    """ρ-zero-concentrated differential privacy: (α, αρ)-Rényi for every α > 1."""

    rho: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["zero-concentrated DP"] = "zero-concentrated DP"

    def __post_init__(self) -> None:
        _check_types(self)
        require(0 <= self.rho <= LARGEST, f"ρ is at least 0 and at most 1e9, not {self.rho!r}.")


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on a sum of clipped contributions, released several times."""

    noise_multiplier: float
    steps: int = 1
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["Gaussian"] = "Gaussian"

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_types(self)
        _check_noise(self.noise_multiplier)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise: ε of one release is its sensitivity, under ``relation``, over the scale."""

    epsilon: float
    steps: int = 1
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["Laplace"] = "Laplace"

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_types(self)
        require(
            1 / LARGEST <= self.epsilon <= LARGEST,
            "ε of a Laplace mechanism is positive and finite, from 1e-9 to 1e9, not "
            f"{self.epsilon!r}.",
        )


@dataclass(frozen=True)
class DPSGD:
    """DP-SGD: every step sums the clipped gradients of a Poisson sample and adds Gaussian noise.

    ``clipping_norm`` enters no ratio of noise to sensitivity; bounds on the error of a
    reconstruction need it.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    clipping_norm: float | None = None
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
    kind: Literal["DP-SGD"] = "DP-SGD"

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_types(self)
        _check_noise(self.noise_multiplier)
        require(
            0 < self.sampling_rate <= 1,
            f"A sampling rate lies in (0, 1], not at {self.sampling_rate!r}.",
        )
        require(
            self.clipping_norm is None or 0 < self.clipping_norm < math.inf,
            f"A clipping norm is positive and finite, not {self.clipping_norm!r}.",
        )


Noise = Annotated[Gaussian | Laplace | DPSGD, Field(discriminator="kind")]
"""Mechanisms whose noise is known, so that they can be composed exactly."""


@dataclass(frozen=True)
class Composition:
    """Several noisy releases about the same records, one after the other."""

    parts: tuple[Noise, ...]
    kind: Literal["composition"] = "composition"

    def __post_init__(self) -> None:
        check_fields(self)
        require(len(self.parts) > 0, "A composition has at least one part.")
        require(
            len({part.relation for part in self.parts}) == 1,
            "The parts of a composition compare different datasets: account all of them under one "
            "neighbouring relation.",
        )

    @property
    def relation(self) -> Neighbouring:
        """The neighbouring relation that all parts share."""
        return self.parts[0].relation


@dataclass(frozen=True)
class LocalAggregation:
    """Several local steps before an update is sent: a heuristic, without any guarantee."""

    local_steps: int
    kind: Literal["local aggregation"] = "local aggregation"

    def __post_init__(self) -> None:
        _check_steps(self.local_steps)
        check_fields(self)


@dataclass(frozen=True)
class NonPrivate:
    """A release without a guarantee, and why there is none."""

    reason: str
    kind: Literal["non-private"] = "non-private"

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            bool(self.reason.strip()), "Say in `reason` why a release carries no privacy guarantee."
        )


Mechanism = Annotated[
    PureDP
    | ApproximateDP
    | PrivacyProfile
    | TradeOff
    | RenyiDP
    | ZeroConcentratedDP
    | Gaussian
    | Laplace
    | DPSGD
    | Composition
    | LocalAggregation
    | NonPrivate,
    Field(discriminator="kind"),
]

_MECHANISMS: TypeAdapter[Mechanism] = TypeAdapter(Mechanism)


def noise_parts(mechanism: Mechanism) -> tuple[Gaussian | Laplace | DPSGD, ...]:
    """The releases a mechanism is made of, where their noise is known; nothing otherwise."""
    if isinstance(mechanism, Composition):
        return mechanism.parts
    return (mechanism,) if isinstance(mechanism, Gaussian | Laplace | DPSGD) else ()


def has_guarantee(mechanism: Mechanism) -> bool:
    """Whether a mechanism limits any attacker at all; a heuristic does not."""
    return not isinstance(mechanism, NonPrivate | LocalAggregation)


def mechanism_to_json(mechanism: Mechanism) -> str:
    """Write a mechanism as a JSON object."""
    return _MECHANISMS.dump_json(mechanism).decode()


def mechanism_from_json(text: str) -> Mechanism:
    """Read a mechanism that :func:`mechanism_to_json` wrote."""
    try:
        mechanism = _MECHANISMS.validate_json(text)
        _refuse_unknown_fields(json.loads(text), mechanism)
        return mechanism
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the top"
        raise BadInput(
            f"This is not a mechanism as JSON: at {where[:80]}, {first['msg'].lower()[:160]}."
        ) from problem
    except (ValueError, RecursionError, OverflowError) as problem:
        # A number of thousands of digits is JSON to one reader and not to the other.
        raise BadInput(
            "This is not a mechanism as JSON: it holds a number that is too large."
        ) from problem


def _refuse_unknown_fields(document: dict, mechanism: Mechanism) -> None:
    """Refuse what a mechanism does not have: a misspelt relation would be accounted as none."""
    for name in document:
        require(
            name in {field.name for field in fields(mechanism)},
            f"A mechanism of the kind {mechanism.kind!r} has no {name[:80]!r}: remove it.",
        )
    if isinstance(mechanism, Composition):
        for part, described in zip(document["parts"], mechanism.parts):
            _refuse_unknown_fields(part, described)
