"""The published Monte-Carlo estimate of γ for DP-SGD, and a limit by sampling that holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.stats import beta

from vestige.bounds.bound import Array, ReconstructionBound
from vestige.bounds.mechanisms import DPSGD, Mechanism, Neighbouring, require
from vestige.errors import BadInput
from vestige.rates import upper_limit


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
    _check(mechanism)
    require(samples >= 1, "Sampling needs at least one sample.")
    require(0 <= prior_success <= 1, "A prior success is a probability: give a value from 0 to 1.")
    ratios = log_likelihood_ratios(mechanism, samples, with_record=False, generator=generator)
    kept = math.floor(samples * (1 - prior_success) + 1e-9)
    return float(1 - np.exp(np.sort(ratios)[:kept]).sum() / samples)


@dataclass(frozen=True)
class MonteCarloBound(ReconstructionBound):
    """A limit of γ that sampling exceeds with the confidence given: a check on the exact route.

    Half of the doubt goes to a threshold whose level is surely κ or more (the share of null samples
    above the j-th largest of N is Beta(j, N−j+1)), half to the Clopper–Pearson limit of the power
    at that threshold on independent samples.
    """

    samples: int = 100_000
    confidence: float = 0.999
    seed: int = 0

    name: ClassVar[str] = "Monte Carlo limit"
    assumptions: ClassVar[tuple[str, ...]] = (
        "The attacker knows everything but one record, and a prior over that record.",
        "Any loss, any threshold.",
        "Each record is in a batch independently with the sampling rate.",
        "Holds with the stated confidence for each κ, over the samples drawn.",
    )
    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_OR_REMOVE_ONE,)
    cites: ClassVar[str] = "Hayes, Mahloujifar, Balle 2023; Clopper, Pearson 1934"

    def __post_init__(self) -> None:
        require(self.samples >= 1, "Sampling needs at least one sample.")
        require(0 < self.confidence < 1, "Confidence lies between 0 and 1.")

    def covers(self, mechanism: Mechanism) -> bool:
        """DP-SGD."""
        return isinstance(mechanism, DPSGD)

    def log_success(self, mechanism: Mechanism, log_prior: Array) -> Array:
        """The logarithm of the upper limit of γ for ln κ."""
        assert isinstance(mechanism, DPSGD)
        generator = np.random.default_rng(self.seed)
        null = log_likelihood_ratios(
            mechanism, self.samples, with_record=False, generator=generator
        )
        null = np.sort(null)[::-1]
        true = log_likelihood_ratios(mechanism, self.samples, with_record=True, generator=generator)
        half = (1 - self.confidence) / 2
        places = np.arange(1, self.samples + 1)
        limits = []
        for kappa in np.exp(log_prior):
            # The probability of too low a level falls with the place: bisection finds the first.
            low, high = 0, self.samples
            while low < high:
                middle = (low + high) // 2
                place = places[middle]
                enough = beta.cdf(kappa, place, self.samples - place + 1) <= half
                low, high = (low, middle) if enough else (middle + 1, high)
            if low == self.samples:
                limits.append(1.0)
                continue
            hits = int((true >= null[low]).sum())
            limits.append(upper_limit(hits, self.samples, half))
        return np.log(limits)


def _check(mechanism: DPSGD) -> None:
    if mechanism.relation is not Neighbouring.ADD_OR_REMOVE_ONE:
        raise BadInput(
            "The Monte-Carlo estimate compares with the release without the record: account "
            "DP-SGD under 'add or remove one'."
        )
