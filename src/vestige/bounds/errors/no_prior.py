"""What an attacker without any prior reconstructs from a noisy release, in closed form.

Ziller et al. 2024, "Reconciling privacy and accuracy in AI for medical imaging", consider a
malicious network whose gradient is the record itself: what is released is βx + N(0, C²σ²I) with
β = min(1, C/‖x‖), and an unbiased attacker can do no better than divide by β.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import digamma, gammainc, gammaln, ndtr

from vestige.errors import BadInput
from vestige.mechanisms import DPSGD, Gaussian, Mechanism, Neighbouring, require

if TYPE_CHECKING:
    from vestige.bounds.bound import Array

GRID = 601
"""Points of the trapezoidal rules, over ten standard deviations to either side."""


@dataclass(frozen=True)
class NoPriorReconstruction:
    """Errors of the best unbiased attacker without a prior, for one record.

    ``dimension`` N and ``norm`` ‖x‖ describe the record, ``largest_value`` is MAX of the PSNR,
    ``standard_deviation`` that of the record's values (for the correlation).
    """

    dimension: int
    norm: float
    clipping_norm: float = 1.0
    largest_value: float = 1.0
    standard_deviation: float | None = None

    name: ClassVar[str] = "no prior, unbiased attacker"
    assumptions: ClassVar[tuple[str, ...]] = (
        "The attacker is unbiased: a biased one, which shrinks towards anything it believes, can "
        "have a smaller error (James and Stein 1961).",
        "The attacker has no prior over the record.",
        "Every step releases the clipped record itself, which only a malicious network does.",
    )
    relations: ClassVar[tuple[Neighbouring, ...]] = (Neighbouring.ADD_OR_REMOVE_ONE,)
    cites: ClassVar[str] = "Ziller et al. 2024"

    def __post_init__(self) -> None:
        require(self.dimension >= 3, "A record needs at least three values here.")
        require(
            all(0 < value < math.inf for value in (self.norm, self.clipping_norm)),
            "The norm of the record and the clipping norm are positive and finite.",
        )
        require(
            0 < self.largest_value < math.inf, "The largest value of a record is positive, finite."
        )
        require(
            self.standard_deviation is None or 0 <= self.standard_deviation < math.inf,
            "The standard deviation of a record's values is at least 0 and finite.",
        )

    def supports(self, mechanism: Mechanism) -> bool:
        """Gaussian noise on every step, with every record in every step."""
        return isinstance(mechanism, Gaussian) or (
            isinstance(mechanism, DPSGD) and mechanism.sampling_rate == 1
        )

    @property
    def shrinkage(self) -> float:
        """β: by how much clipping shrinks the record."""
        return 1 / max(1.0, self.norm / self.clipping_norm)

    def noise_variance(self, mechanism: Mechanism) -> float:
        """V = σ²·max(‖x‖, C)²: variance of each value once the attacker has undone clipping.

        The average of all steps has the noise of one step with σ/√T.
        """
        sigma = self._noise_multiplier(mechanism)
        return sigma**2 * max(self.norm, self.clipping_norm) ** 2

    def mean_squared_error(self, mechanism: Mechanism) -> float:
        """Expected mean squared error of the release itself: C²σ² + (1−β)²‖x‖²/N."""
        sigma = self._noise_multiplier(mechanism)
        lost = (1 - self.shrinkage) ** 2 * self.norm**2 / self.dimension
        return self.clipping_norm**2 * sigma**2 + lost

    def success(self, mechanism: Mechanism, threshold: float) -> float:
        """P(MSE ≤ threshold) once clipping is undone: the χ² distribution function."""
        require(threshold >= 0, "A threshold is an error: at least 0.")
        scale = 2 * self.noise_variance(mechanism)
        return float(gammainc(self.dimension / 2, self.dimension * threshold / scale))

    def psnr(self, mechanism: Mechanism) -> float:
        """Expected PSNR in dB: 10log10(MAX²/v) − (10/ln10)(ψ(N/2) − ln(N/2)).

        The first term alone lies below the expectation (Jensen) and is no upper bound.
        """
        half = self.dimension / 2
        plain = 10 * math.log10(self.largest_value**2 / self.noise_variance(mechanism))
        return plain - 10 / math.log(10) * float(digamma(half) - math.log(half))

    def correlation(self, mechanism: Mechanism) -> float:
        """Expected normalised cross-correlation of the release with the record."""
        chi, weights, shift = self._correlation_terms(mechanism)
        normal, density = _normal_grid()
        numerator = normal[:, None] + shift
        return float(density @ (numerator / np.hypot(numerator, chi)) @ weights)

    def correlation_success(self, mechanism: Mechanism, threshold: float) -> float:
        """P(NCC ≥ threshold): a noncentral t with N − 2 degrees of freedom, integrated over χ."""
        require(-1 < threshold < 1, "A correlation lies between −1 and 1.")
        chi, weights, shift = self._correlation_terms(mechanism)
        return float(ndtr(shift - threshold / math.sqrt(1 - threshold**2) * chi) @ weights)

    def _correlation_terms(self, mechanism: Mechanism) -> tuple[Array, Array, float]:
        # NCC = (Z + a)/√((Z + a)² + V), Z normal, V chi-square with N − 2 degrees of freedom.
        if self.standard_deviation is None or self.standard_deviation <= 0:
            raise BadInput("The correlation needs the standard deviation of the record's values.")
        noise = self.clipping_norm * self._noise_multiplier(mechanism)
        shift = self.shrinkage * math.sqrt(self.dimension) * self.standard_deviation / noise
        freedom = self.dimension - 2
        # χ has a standard deviation below 1/√2.
        centre = math.sqrt(freedom)
        chi = np.linspace(max(centre - 8, 1e-9), centre + 8, GRID)
        logs = (freedom - 1) * np.log(chi) - chi**2 / 2 + (1 - freedom / 2) * math.log(2)
        weights = np.exp(logs - gammaln(freedom / 2))
        return chi, weights / weights.sum(), shift

    def _noise_multiplier(self, mechanism: Mechanism) -> float:
        if not isinstance(mechanism, Gaussian | DPSGD) or not self.supports(mechanism):
            raise BadInput(
                "The bound without a prior covers Gaussian noise on steps that use every record: "
                "for sampled steps use the privacy loss distribution."
            )
        if mechanism.relation not in self.relations:
            raise BadInput(
                "The bound without a prior describes noise relative to the clipping norm: account "
                "the mechanism under 'add or remove one'."
            )
        clipping = getattr(mechanism, "clipping_norm", None)
        if clipping is not None and clipping != self.clipping_norm:
            raise BadInput(
                f"The mechanism clips at {clipping} and the bound at {self.clipping_norm}: give "
                "both the same clipping norm."
            )
        return mechanism.noise_multiplier / math.sqrt(mechanism.steps)


def _normal_grid() -> tuple[Array, Array]:
    points = np.linspace(-10, 10, GRID)
    density = np.exp(-(points**2) / 2)
    return points, density / density.sum()
