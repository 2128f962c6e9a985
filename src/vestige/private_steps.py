"""How DP-SGD trains: a mechanism, a learning rate, and the clipping of each record's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.errors import BadInput

if TYPE_CHECKING:  # bounds need scipy, which training does not
    from vestige.bounds import DPSGD


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
