"""How DP-SGD trains: clipping of each record's gradient, noise, and the steps made of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.choices import check_fields, check_object
from vestige.errors import BadInput
from vestige.simulation.alterations import split_like

if TYPE_CHECKING:  # bounds need scipy, which training does not
    from vestige.bounds import DPSGD
    from vestige.simulation.simulator import Simulator


def clipping_factors(norms: Tensor, clipping_norm: float) -> Tensor:
    """What multiplies gradients of these norms so that none is longer than the clipping norm C."""
    return (clipping_norm / norms.clamp_min(1e-30)).clamp(max=1.0)


def weighted_factors(squared_norms: Tensor, clipping_norm: float, weights: Tensor | None) -> Tensor:
    """The same for gradients w·g of weighted records, from ‖g‖²: w·min(1, C/(w‖g‖)).

    Written as C/max(C/w, ‖g‖), which is differentiable where a gradient vanishes.
    """
    if weights is None:
        least = squared_norms.clamp_min(clipping_norm**2)
    else:
        least = torch.maximum(squared_norms, (clipping_norm / weights).square())
    return least.rsqrt() * clipping_norm


@dataclass(frozen=True)
class ClippedNoise:
    """What makes full-batch training private (Abadi et al. 2016, Algorithm 1, sampling rate 1).

    Each record's gradient is cut to ``clipping_norm``, over all parameters together; to the sum
    comes Gaussian noise of standard deviation ``noise_multiplier · clipping_norm``. Where the loss
    is a mean, the total is divided by the number of records.
    """

    clipping_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not (0 < self.clipping_norm < math.inf and 0 <= self.noise_multiplier < math.inf):
            raise BadInput(
                "Private steps need a positive clipping norm and a noise multiplier not below 0, "
                f"both finite, not {self.clipping_norm!r} and {self.noise_multiplier!r}."
            )

    def factors(self, squared_norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied with."""
        return clipping_factors(squared_norms.sqrt(), self.clipping_norm)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in every coordinate of a sum of gradients."""
        return self.noise_multiplier * self.clipping_norm

    def mechanism(self, steps: int) -> DPSGD:
        """Steps in which every record takes part, as accountants count them."""
        from vestige.mechanisms import DPSGD

        return DPSGD(self.noise_multiplier, 1.0, steps=steps, clipping_norm=self.clipping_norm)

    def add_noise(self, total: Tensor, scale: float, generator: torch.Generator) -> None:
        """Add noise to ``scale`` times a sum of clipped gradients, in place."""
        if self.noise_multiplier > 0:
            noise = torch.randn(total.shape, generator=generator, dtype=total.dtype)
            deviation = scale * self.noise_multiplier * self.clipping_norm
            total.add_(noise.to(total.device), alpha=deviation)


@dataclass(frozen=True)
class PrivateSteps:
    """Steps of DP-SGD, as ``mechanism`` describes them, with plain SGD as the optimiser.

    Every step adds up the clipped gradients of a Poisson sample, adds Gaussian noise of standard
    deviation σC, and divides by the expected size of the sample before it moves the weights.
    """

    mechanism: DPSGD
    learning_rate: float

    def __post_init__(self) -> None:
        from vestige.mechanisms import DPSGD

        check_fields(self)
        check_object("mechanism of DP-SGD's steps", self.mechanism, DPSGD)
        if self.mechanism.clipping_norm is None:
            raise BadInput("DP-SGD clips gradients: give the mechanism its clipping_norm.")
        if self.mechanism.relation != "add or remove one":
            raise BadInput(
                "Poisson sampling is accounted under 'add or remove one': leave the mechanism's "
                "relation as it is."
            )
        if not self.learning_rate > 0:
            raise BadInput(f"A learning rate is positive, not {self.learning_rate!r}.")

    @property
    def clipping_norm(self) -> float:
        """C: the largest norm that one record's gradient keeps."""
        assert self.mechanism.clipping_norm is not None
        return self.mechanism.clipping_norm

    @property
    def noise(self) -> float:
        """σC: the standard deviation of the noise in every coordinate of a sum of gradients."""
        return self.mechanism.noise_multiplier * self.clipping_norm

    def clipped(self, gradients: Tensor) -> Tensor:
        """Gradients (n, P), each scaled down to the clipping norm where it is longer."""
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
        return gradients * clipping_factors(norms, self.clipping_norm)

    def moved(
        self, parameters: Mapping[str, Tensor], noisy: Mapping[str, Tensor], records: int
    ) -> dict[str, Tensor]:
        """Parameters after a step along a noisy sum, when ``records`` are trained on."""
        rate = self.learning_rate / (self.mechanism.sampling_rate * records)
        return {name: value - rate * noisy[name] for name, value in parameters.items()}


def clipped_gradient(
    simulator: Simulator,
    private: ClippedNoise,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    targets: Tensor,
) -> dict[str, Tensor]:
    """The reduced gradient of clipped records, by name."""
    gradients = simulator.record_gradients(parameters, x, targets)
    total = private.factors(gradients.square().sum(1)) @ gradients
    scale = 1 / max(len(x), 1) if simulator.reduction == "mean" else 1.0
    return {name: scale * piece for name, piece in split_like(total, parameters).items()}
