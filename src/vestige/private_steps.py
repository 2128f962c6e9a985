"""How DP-SGD trains: clipping of each record's gradient, noise, and the steps made of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.errors import BadInput

if TYPE_CHECKING:  # bounds need scipy, which training does not
    from vestige.bounds import DPSGD


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
        if not (0 < self.clipping_norm < math.inf and 0 <= self.noise_multiplier < math.inf):
            raise BadInput(
                "Private steps need a positive clipping norm and a noise multiplier not below 0, "
                f"both finite, not {self.clipping_norm!r} and {self.noise_multiplier!r}."
            )

    def factors(self, squared_norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied with."""
        return (self.clipping_norm / squared_norms.sqrt().clamp_min(1e-30)).clamp(max=1.0)

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
        return gradients * (self.clipping_norm / norms.clamp_min(self.clipping_norm))

    def moved(
        self, parameters: Mapping[str, Tensor], noisy: Mapping[str, Tensor], records: int
    ) -> dict[str, Tensor]:
        """Parameters after a step along a noisy sum, when ``records`` are trained on."""
        rate = self.learning_rate / (self.mechanism.sampling_rate * records)
        return {name: value - rate * noisy[name] for name, value in parameters.items()}
