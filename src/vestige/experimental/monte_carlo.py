"""The published Monte-Carlo estimate of γ for DP-SGD."""

from __future__ import annotations

import math

import numpy as np

from vestige.bounds.bound import Array
from vestige.errors import BadInput
from vestige.mechanisms import DPSGD, Neighbouring, require


def log_likelihood_ratios(
    mechanism: DPSGD, samples: int, *, with_record: bool, generator: np.random.Generator
) -> Array:
    """Sum over steps of ln((1−q) + q·e^((2x−1)/2σ²)), x drawn with or without the record."""
    q, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    total = np.zeros(samples)
    with np.errstate(divide="ignore"):
        kept = np.log1p(-q)
    for _ in range(mechanism.steps):
        outcomes = sigma * generator.standard_normal(samples)
        if with_record:
            outcomes += generator.random(samples) < q
        total += np.logaddexp(kept, math.log(q) + (2 * outcomes - 1) / (2 * sigma**2))
    return total


def monte_carlo_estimate(
    mechanism: DPSGD, prior_success: float, *, samples: int, generator: np.random.Generator
) -> float:
    """γ̂ = 1 − (1/N)·(sum of the N(1−κ) smallest likelihood ratios of null samples).

    Hayes, Mahloujifar and Balle 2023, the estimate for DP-SGD. An estimate, not a bound: it may
    lie below γ.
    """
    if mechanism.relation is not Neighbouring.ADD_OR_REMOVE_ONE:
        raise BadInput(
            "The Monte-Carlo estimate compares with the release without the record: account "
            "DP-SGD under 'add or remove one'."
        )
    require(samples >= 1, "Sampling needs at least one sample.")
    require(0 <= prior_success <= 1, "A prior success is a probability: give a value from 0 to 1.")
    ratios = log_likelihood_ratios(mechanism, samples, with_record=False, generator=generator)
    kept = math.floor(samples * (1 - prior_success) + 1e-9)
    return float(1 - np.exp(np.sort(ratios)[:kept]).sum() / samples)
