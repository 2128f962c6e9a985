"""Choosing the best of a Poisson number of runs under Rényi differential privacy."""

from __future__ import annotations

import math

import numpy as np

from vestige.bounds.success.renyi_dp import to_renyi_dp
from vestige.mechanisms import Mechanism, RenyiDP, require


def poisson_search(base: Mechanism, mean: float) -> RenyiDP:
    """The Rényi guarantee of the best of a Poisson number of runs, which may be none.

    Papernot and Steinke 2022, Theorem 6: ε'(λ) = ε(λ) + μδ' + ln(μ)/(λ − 1), where a run is
    (ε', δ')-private with e^ε' ≤ 1 + 1/(λ − 1). Runs are independent, their number is drawn before,
    and nothing but the best one is looked at. Means below one are accounted as one.
    """
    require(0 < mean < 1e12, f"A search expects a positive number of runs, not {mean!r}.")
    mean = max(mean, 1.0)
    guarantee = to_renyi_dp(base)
    orders, epsilons = np.asarray(guarantee.orders), np.asarray(guarantee.epsilons)
    levels = np.log1p(1 / (orders - 1))
    # δ at each ε', the smallest over orders (Canonne, Kamath and Steinke 2020).
    exponents = (orders - 1) * (epsilons + np.log1p(-1 / orders) - levels[:, None]) - np.log(orders)
    deltas = np.minimum(np.exp(np.minimum(exponents.min(axis=1), 0.0)), 1.0)
    found = epsilons + mean * deltas + math.log(mean) / (orders - 1)
    return RenyiDP(guarantee.orders, tuple(map(float, found)), guarantee.relation)
