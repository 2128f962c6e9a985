"""A mechanism as a user describes it on the command line, and as a reader sees it in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from vestige.errors import BadInput, NotFound
from vestige.files import read_document
from vestige.mechanisms import (
    DPSGD,
    ApproximateDP,
    Composition,
    Gaussian,
    Laplace,
    LocalAggregation,
    Mechanism,
    Neighbouring,
    NonPrivate,
    PureDP,
    ZeroConcentratedDP,
    mechanism_from_json,
)

USUAL_DELTA = 1e-5


@dataclass(frozen=True)
class Description:
    """One of: ε with or without δ, ρ, Gaussian noise, Laplace noise, a file; the rest is None.

    Gaussian noise is a noise multiplier σ or the ratio μ = 1/σ; ``delta`` then describes nothing:
    it is where ε is reported.
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    noise_multiplier: float | None = None
    laplace: float | None = None
    file: Path | None = None
    sampling_rate: float | None = None
    steps: int | None = None
    replace_one: bool = False
    mu: float | None = None

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism, or one sentence on what is missing or too much."""
        self._check()
        relation = Neighbouring.REPLACE_ONE if self.replace_one else Neighbouring.ADD_OR_REMOVE_ONE
        if self.epsilon is not None:
            if not self.delta:
                return PureDP(self.epsilon, relation)
            return ApproximateDP(self.epsilon, self.delta, relation)
        if self.rho is not None:
            return ZeroConcentratedDP(self.rho, relation)
        steps = 1 if self.steps is None else self.steps
        if self.laplace is not None:
            return Laplace(self.laplace, steps, relation)
        noise = self._noise
        if noise is None:
            return _from_file(self.file)
        if self.sampling_rate is None:
            return Gaussian(noise, steps, relation)
        return DPSGD(noise, self.sampling_rate, steps, None, relation)

    @property
    def reported_delta(self) -> float:
        """δ at which the ε of a noise is reported; beside --epsilon δ = 0 describes pure DP."""
        pure = self.epsilon is not None and self.delta == 0
        return USUAL_DELTA if self.delta is None or pure else self.delta

    @property
    def _noise(self) -> float | None:
        """The noise multiplier, by itself or as 1/μ."""
        if self.mu is None:
            return self.noise_multiplier
        if not 0 < self.mu < math.inf:
            raise BadInput(f"--mu is positive and finite, not {self.mu!r}: it is 1/σ.")
        return 1 / self.mu

    def _check(self) -> None:
        alternatives = {
            "--epsilon": self.epsilon,
            "--rho": self.rho,
            "--noise-multiplier": self.noise_multiplier,
            "--mu": self.mu,
            "--laplace": self.laplace,
            "--mechanism": self.file,
        }
        given = [name for name, value in alternatives.items() if value is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} describe different mechanisms" if given else ""
            raise BadInput(
                f"{problem or 'No mechanism is described'}: give one of {', '.join(alternatives)}."
            )
        gaussian = self.noise_multiplier is not None or self.mu is not None
        if self.sampling_rate is not None and not gaussian:
            raise BadInput("--sampling-rate belongs to --noise-multiplier or --mu: give both.")
        if self.steps is not None and not gaussian and self.laplace is None:
            raise BadInput(
                "--steps belongs to --noise-multiplier, --mu or --laplace: give one of them."
            )
        if self.replace_one and self.file is not None:
            raise BadInput("The file of --mechanism says its own relation: drop --replace-one.")


def _from_file(path: Path | None) -> Mechanism:
    try:
        return mechanism_from_json(read_document(Path(path or "")).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise NotFound(
            f"{path} cannot be read: give a file that holds a mechanism as JSON."
        ) from problem


def in_words(mechanism: Mechanism) -> str:
    """A mechanism in one line, with its neighbouring relation where it has one."""
    if isinstance(mechanism, NonPrivate):
        return f"no guarantee: {mechanism.reason}"
    if isinstance(mechanism, LocalAggregation):
        return f"{mechanism.local_steps:,} local steps before sending, which guarantee nothing"
    return f"{_numbers(mechanism)} ({mechanism.relation.value})"


def _numbers(mechanism: Mechanism) -> str:
    if isinstance(mechanism, PureDP):
        return f"{mechanism.epsilon:g}-differential privacy"
    if isinstance(mechanism, ApproximateDP):
        return f"({mechanism.epsilon:g}, {mechanism.delta:g})-differential privacy"
    if isinstance(mechanism, ZeroConcentratedDP):
        return f"{mechanism.rho:g}-zero-concentrated differential privacy"
    if isinstance(mechanism, Laplace):
        return f"Laplace noise, ε = {mechanism.epsilon:g}, {_steps(mechanism.steps)}"
    if isinstance(mechanism, Gaussian):
        return (
            f"Gaussian noise, noise multiplier {mechanism.noise_multiplier:g}, "
            f"{_steps(mechanism.steps)}"
        )
    if isinstance(mechanism, DPSGD):
        return (
            f"DP-SGD, noise multiplier {mechanism.noise_multiplier:g}, sampling rate "
            f"{mechanism.sampling_rate:g}, {_steps(mechanism.steps)}"
        )
    if isinstance(mechanism, Composition):
        return "; then ".join(_numbers(part) for part in mechanism.parts)
    return f"a {mechanism.kind}"


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"
