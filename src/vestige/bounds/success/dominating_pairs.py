"""The pair of distributions that no neighbouring datasets exceed, for one step of a mechanism.

``upper`` is the release with the record, ``lower`` the reference. The privacy loss
ln(upper/lower) increases with the outcome x, so probabilities between two losses are differences
of normal distribution functions: no quadrature and no sampling.

Poisson-subsampled Gaussian, one record added or removed: upper (1−q)N(0,σ²)+qN(1,σ²), lower
N(0,σ²) (Zhu, Dong and Wang 2022). One record replaced: lower (1−q)N(0,σ²)+qN(−1,σ²),
the pair that dp-accounting uses; at q = 1 it is a Gaussian with doubled sensitivity. For q < 1 that
this pair dominates is a conjecture here: we know no proof that gradients in opposite directions
are the worst, only that no other pair in two dimensions exceeded it in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy.special import ndtr

from vestige.mechanisms import DPSGD, Gaussian, Laplace, Neighbouring

if TYPE_CHECKING:
    from vestige.bounds.bound import Array

TAIL_DEVIATIONS = 11.0
"""Outcomes further out count as an infinite loss; their probability is 2e-28 for each step."""


@dataclass(frozen=True)
class IntervalMasses:
    """Probabilities below the first edge, between consecutive edges, and above the last one."""

    upper: Array
    lower: Array


class Pair(Protocol):
    """Two distributions of one step, described by their privacy loss."""

    def loss_range(self) -> tuple[float, float]:
        """Smallest and largest loss to keep."""
        ...

    def variance(self) -> float:
        """Variance of the loss under the lower distribution."""
        ...

    def atom(self) -> float | None:
        """A loss that has a probability of its own and should lie on the grid; None if none."""
        ...

    def masses(self, edges: Array) -> IntervalMasses:
        """Probabilities of the loss between edges: one more interval than there are edges."""
        ...


def _between(low: Array, high: Array) -> Array:
    """Φ(high) − Φ(low), from the tail that keeps the digits."""
    right = low > 0
    return np.where(right, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


@dataclass(frozen=True)
class SampledGaussianPair:
    """One step of the Poisson-subsampled Gaussian mechanism."""

    noise_multiplier: float
    sampling_rate: float
    relation: Neighbouring

    @property
    def _replace(self) -> bool:
        return self.relation is Neighbouring.REPLACE_ONE

    def loss(self, outcomes: Array) -> Array:
        """Privacy loss of outcomes."""
        with np.errstate(divide="ignore"):
            log_out, log_in = np.log1p(-self.sampling_rate), math.log(self.sampling_rate)
        variance = self.noise_multiplier**2
        ratio = np.logaddexp(log_out, log_in + (2 * outcomes - 1) / (2 * variance))
        if not self._replace:
            return ratio
        return ratio - np.logaddexp(log_out, log_in + (-2 * outcomes - 1) / (2 * variance))

    def outcome(self, losses: Array) -> Array:
        """The outcome at which the privacy loss takes a value; −∞ where it never does."""
        q, variance = self.sampling_rate, self.noise_multiplier**2
        if self._replace:
            return variance * (losses / 2 + self._asinh_of_scaled_sinh(losses / 2))
        # e^l = 1 − q + q·e^((2x−1)/2σ²), solved for x.
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = losses + np.log(-np.expm1(np.log1p(-q) - losses)) if q < 1 else losses
        return np.where(np.isnan(rest), -np.inf, variance * (rest - math.log(q)) + 0.5)

    def _asinh_of_scaled_sinh(self, halves: Array) -> Array:
        # With u = e^(x/σ²): u² − c(e^l − 1)u − e^l = 0, so ln u = l/2 + asinh(c·sinh(l/2)).
        q = self.sampling_rate
        if q == 1:
            return np.zeros_like(halves)
        log_scale = math.log1p(-q) - math.log(q) + 1 / (2 * self.noise_multiplier**2)
        size = np.abs(halves)
        with np.errstate(divide="ignore"):
            log_product = log_scale + size + np.log(-np.expm1(-2 * size)) - math.log(2)
        # asinh(e^y) is y + ln 2 up to rounding from y = 20 on.
        large = log_product > 20
        value = np.where(
            large, log_product + math.log(2), np.arcsinh(np.exp(np.minimum(log_product, 20)))
        )
        return np.sign(halves) * value

    def loss_range(self) -> tuple[float, float]:
        """Losses of outcomes within the kept deviations of either distribution."""
        reach = TAIL_DEVIATIONS * self.noise_multiplier
        low, high = self.loss(np.array([-(1.0 if self._replace else 0.0) - reach, 1 + reach]))
        return float(low), float(high)

    def variance(self) -> float:
        """Variance of the loss under the lower distribution, by the trapezoidal rule."""
        sigma, q = self.noise_multiplier, self.sampling_rate
        outcomes = np.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 4001)
        density = np.exp(-(outcomes**2) / (2 * sigma**2))
        if self._replace:
            density = (1 - q) * density + q * np.exp(-((outcomes + 1) ** 2) / (2 * sigma**2))
        weights, losses = density / density.sum(), self.loss(outcomes)
        return float(weights @ (losses - weights @ losses) ** 2)

    def atom(self) -> float | None:
        """The loss is continuous."""
        return None

    def masses(self, edges: Array) -> IntervalMasses:
        """Probabilities of the loss between edges."""
        q, sigma = self.sampling_rate, self.noise_multiplier
        cuts = np.concatenate(([-np.inf], self.outcome(edges), [np.inf]))

        def normal(mean: float) -> Array:
            return _between((cuts[:-1] - mean) / sigma, (cuts[1:] - mean) / sigma)

        without = normal(0.0)
        upper = (1 - q) * without + q * normal(1.0)
        lower = (1 - q) * without + q * normal(-1.0) if self._replace else without
        return IntervalMasses(upper, lower)


@dataclass(frozen=True)
class LaplacePair:
    """One step of the Laplace mechanism: densities e^−|x−ε|/2 and e^−|x|/2, losses in [−ε, ε]."""

    epsilon: float

    def loss_range(self) -> tuple[float, float]:
        """Every loss: the mechanism has no tail."""
        return -self.epsilon, self.epsilon

    def variance(self) -> float:
        """Variance of the loss under the lower distribution."""
        epsilon = self.epsilon
        # Mass ½ at −ε, e^−ε/2 at ε, and density e^−x/2 at loss 2x − ε in between.
        tail = math.exp(-epsilon)
        nodes, weights = np.polynomial.legendre.leggauss(40)
        inside = (nodes + 1) * epsilon / 2
        density = weights * epsilon / 4 * np.exp(-inside)
        losses = np.append(2 * inside - epsilon, [-epsilon, epsilon])
        masses = np.append(density, [0.5, tail / 2])
        return float(masses @ (losses - masses @ losses) ** 2)

    def atom(self) -> float | None:
        """Half of the probability is at one end."""
        return self.epsilon

    def masses(self, edges: Array) -> IntervalMasses:
        """Probabilities of the loss between edges; an atom on an edge counts below it."""
        epsilon = self.epsilon
        inside = (edges + epsilon) / 2
        middle = np.clip(inside, 0.0, epsilon)
        below, beyond = inside < 0, edges >= epsilon
        upper = np.where(below, 0.0, np.where(beyond, 1.0, 0.5 * np.exp(middle - epsilon)))
        lower = np.where(below, 0.0, np.where(beyond, 1.0, 1 - 0.5 * np.exp(-middle)))
        return IntervalMasses(
            np.diff(upper, prepend=0.0, append=1.0), np.diff(lower, prepend=0.0, append=1.0)
        )


@dataclass(frozen=True)
class Swapped:
    """The same pair with its distributions exchanged: the record is added, not removed."""

    pair: Pair

    def loss_range(self) -> tuple[float, float]:
        """The range of the other direction, mirrored."""
        low, high = self.pair.loss_range()
        return -high, -low

    def variance(self) -> float:
        """The other direction's, which is close enough to choose a grid by."""
        return self.pair.variance()

    def atom(self) -> float | None:
        """The grid holds 0, so it holds the mirrored atom as well."""
        return self.pair.atom()

    def masses(self, edges: Array) -> IntervalMasses:
        """Probabilities of the loss between edges."""
        mirrored = self.pair.masses(-edges[::-1])
        return IntervalMasses(mirrored.lower[::-1], mirrored.upper[::-1])


def pair_of(part: Gaussian | Laplace | DPSGD) -> tuple[Pair, int]:
    """The dominating pair of a step, with the record against the reference, and how many steps."""
    if isinstance(part, Laplace):
        return LaplacePair(part.epsilon), part.steps
    if isinstance(part, Gaussian) or part.sampling_rate == 1:
        # All steps without sampling are together one step with less noise.
        sigma = part.noise_multiplier / math.sqrt(part.steps)
        return SampledGaussianPair(sigma, 1.0, part.relation), 1
    pair = SampledGaussianPair(part.noise_multiplier, part.sampling_rate, part.relation)
    return pair, part.steps
