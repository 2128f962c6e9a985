"""Choosing the best of a random number of runs under Rényi differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vestige.bounds.success.renyi_dp import to_renyi_dp
from vestige.mechanisms import Mechanism, RenyiDP, require


@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """How many runs a random search makes, at least one (Papernot and Steinke 2022, Definition 1).

    ``shape`` η = 1 is a geometric number, η = 0 a logarithmic one; ``gamma`` in (0, 1] decides the
    mean, and 1 is a single run.
    """

    shape: float
    gamma: float

    def __post_init__(self) -> None:
        require(
            -1 < self.shape < math.inf,
            f"The shape η is greater than -1 and finite, not {self.shape!r}.",
        )
        require(0 < self.gamma <= 1, f"γ lies in (0, 1], not at {self.gamma!r}.")

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        eta, rest = self.shape, 1 - self.gamma
        if rest == 0:
            return 1.0
        if eta == 0:
            return rest / self.gamma / -math.log(self.gamma)
        return eta * rest / (self.gamma * -math.expm1(eta * math.log(self.gamma)))

    def probability(self, runs: int) -> float:
        """Probability of so many runs."""
        eta, gamma = self.shape, self.gamma
        if runs < 1 or gamma == 1:
            return float(runs == 1)
        if eta == 0:
            return (1 - gamma) ** runs / (runs * -math.log(gamma))
        product = math.prod((place + eta) / (place + 1) for place in range(runs))
        return (1 - gamma) ** runs * product / (gamma**-eta - 1)

    @classmethod
    def with_mean(cls, mean: float, shape: float = 1.0) -> TruncatedNegativeBinomial:
        """The law of a shape with an expected number of runs, never a smaller one."""
        require(1 <= mean < 1e12, f"A search expects at least one run, not {mean!r}.")
        low, high = 0.0, 1.0
        if mean == 1:
            return cls(shape, 1.0)
        for _ in range(200):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            low, high = (low, middle) if cls(shape, middle).mean < mean else (middle, high)
        return cls(shape, low or high)


def random_search(base: Mechanism, runs: TruncatedNegativeBinomial) -> RenyiDP:
    """The Rényi guarantee of the best of a random number of runs, each with guarantee ``base``.

    Papernot and Steinke 2022, Theorem 2: ε'(λ) = ε(λ) + (1 + η)(1 − 1/λ')ε(λ') + (1 + η) ln(1/γ)/λ'
    + ln E[K]/(λ − 1), at the best order λ' ≥ 1. Runs are independent, their number is drawn before
    and whatever they give, and nothing but the best one is looked at.
    """
    guarantee = to_renyi_dp(base)
    orders, epsilons = np.asarray(guarantee.orders), np.asarray(guarantee.epsilons)
    log_gamma = -math.log(runs.gamma)
    # λ' = 1 needs no divergence: its factor is zero.
    choices = (1 - 1 / orders) * epsilons + log_gamma / orders
    added = (1 + runs.shape) * min(log_gamma, float(choices.min()))
    found = epsilons + added + math.log(max(runs.mean, 1.0)) / (orders - 1)
    # A divergence does not decrease with its order, so a larger order bounds smaller ones.
    ranked = np.argsort(orders)
    found[ranked] = np.minimum.accumulate(found[ranked][::-1])[::-1]
    return RenyiDP(guarantee.orders, tuple(map(float, found)), guarantee.relation)
