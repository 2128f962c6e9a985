"""κ: how often the best guess before any release lands within a threshold of the secret.

κ(η) = sup over guesses z0 of P(ℓ(Z, z0) ≤ η), Z from the prior. Bounds need it from above. From
samples it has a lower limit (some guess does that well) and an upper limit (none does better).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from scipy.special import gammainc
from torch import Tensor

from vestige.distances import Distance, mean_squared_error
from vestige.errors import BadInput
from vestige.mechanisms import require
from vestige.statistics.rates import lower_limit, upper_limit

BLOCK = 512
"""Records compared at a time: the distances of all pairs need not fit into memory."""


class Triangle(Enum):
    """How far apart two records within η of one guess can be, as a multiple of η."""

    METRIC = 2.0
    """ℓ(a, b) ≤ ℓ(a, c) + ℓ(c, b)."""

    SQUARED_METRIC = 4.0
    """The square of a metric, such as the mean squared error."""


@dataclass(frozen=True)
class PriorSuccess:
    """Limits of κ that hold together with the confidence given, and what they were read from."""

    lower: float
    upper: float
    threshold: float
    samples: int
    confidence: float


def estimate_prior_success(
    samples: Tensor,
    threshold: float,
    *,
    generator: torch.Generator,
    distance: Distance = mean_squared_error,
    triangle: Triangle = Triangle.SQUARED_METRIC,
    guesses: int = 20,
    confidence: float = 0.95,
) -> PriorSuccess:
    """Limits of κ from independent samples (n, *shape) of the prior.

    Lower: the samples of one half, and their mean, that are near most of that half are guesses; the
    other half says how often each succeeds, with Clopper–Pearson limits joint over the guesses
    (Bonferroni).

    Upper, for all guesses at once, the smaller of two limits that share the doubt:

    - Two samples near one guess are near each other, so κ² ≤ P(ℓ(Z, Z') ≤ cη), c = 2 for a metric
      and 4 for its square; disjoint pairs are independent.
    - All of the N ~ Bin(n, κ) samples near the best guess are near each other, so N is at most the
      largest number of samples near any one sample. The Clopper–Pearson limit grows with its
      count, so that number gives a limit of κ. Usually far smaller: about 5/n when no two samples
      are near, where pairs give √(7/n).
    """
    require(0 < confidence < 1, "Confidence lies between 0 and 1.")
    require(threshold >= 0, "A threshold is a distance: at least 0.")
    require(guesses >= 1, "At least one guess is needed.")
    # Nothing is near a NaN, so it would count as a record that no guess finds.
    require(bool(samples.isfinite().all()), "The samples hold NaN or infinite values: drop those.")
    count = len(samples)
    if count < 4:
        raise BadInput(
            f"A prior of {count} record{'s' if count != 1 else ''} says nothing about its spread: "
            "give at least four records, better thousands."
        )
    doubt = (1 - confidence) / 2
    shuffled = samples[torch.randperm(count, generator=generator).to(samples.device)]
    return PriorSuccess(
        lower=_lower(shuffled, threshold, distance, guesses, doubt),
        upper=_upper(shuffled, threshold * triangle.value, distance, doubt),
        threshold=threshold,
        samples=count,
        confidence=confidence,
    )


def _lower(
    samples: Tensor, threshold: float, distance: Distance, guesses: int, doubt: float
) -> float:
    half = len(samples) // 2
    first, second = samples[:half], samples[half:]
    near = _near(first, first, threshold, distance)
    best = torch.argsort(near, descending=True, stable=True)[:guesses]
    candidates = torch.cat([first[best.to(first.device)], first.mean(0, keepdim=True)])
    hits = _near(candidates, second, threshold, distance)
    share = doubt / len(candidates)
    return max(lower_limit(int(hit), len(second), share) for hit in hits)


def _upper(samples: Tensor, reach: float, distance: Distance, doubt: float) -> float:
    half = len(samples) // 2
    pairs = sum(
        int((distance(samples[i : i + 1], samples[half + i : half + i + 1]) <= reach).item())
        for i in range(half)
    )
    most = int(_near(samples, samples, reach, distance).max())
    return min(
        math.sqrt(upper_limit(pairs, half, doubt / 2)),
        upper_limit(most, len(samples), doubt / 2),
    )


def _near(points: Tensor, records: Tensor, reach: float, distance: Distance) -> Tensor:
    """How many records are within reach of each point (k,)."""
    return torch.cat(
        [(distance(block, records) <= reach).sum(1).cpu() for block in points.split(BLOCK)]
    )


def log_gaussian_prior_success(dimension: int, deviation: float, threshold: float) -> float:
    """The logarithm of κ for a prior N(w, s²I) for the ℓ2 ball of radius η: ln P(χ²_d ≤ η²/s²).

    The best guess is the mean. Balle, Cherubin and Hayes 2022 use
    κ ≤ exp(d/2·(ln t + 1 − t)) with t = η²/(s²d) < 1; we return that upper limit where the
    distribution function itself underflows, as it does for every image.
    """
    require(dimension >= 1, "A record has at least one value.")
    require(0 < deviation < math.inf, "The prior's standard deviation is positive and finite.")
    require(0 <= threshold < math.inf, "A threshold is a distance: at least 0 and finite.")
    if threshold == 0:
        return -math.inf
    ratio = (threshold / deviation) ** 2
    exact = float(gammainc(dimension / 2, ratio / 2))
    if exact > np.finfo(np.float64).tiny:
        return math.log(exact)
    t = ratio / dimension
    return dimension / 2 * (math.log(t) + 1 - t)


def gaussian_prior_success(dimension: int, deviation: float, threshold: float) -> float:
    """κ of a Gaussian prior; 0 where it is smaller than any float."""
    return math.exp(log_gaussian_prior_success(dimension, deviation, threshold))
