"""What makes the steps of a training private: clipping and noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput


@dataclass(frozen=True)
class ClippedNoise:
    """DP-SGD without subsampling (Abadi et al. 2016, Algorithm 1, sampling rate 1).

    Each record's gradient is cut to ``clipping_norm``, over all parameters together; to the sum
    comes Gaussian noise of standard deviation ``noise_multiplier · clipping_norm``. Where the loss
    is a mean, the total is divided by the number of records.
    """

    clipping_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if self.clipping_norm <= 0 or self.noise_multiplier < 0:
            raise BadInput("Private steps need a positive clipping norm and noise not below 0.")

    def factors(self, squared_norms: Tensor) -> Tensor:
        """What each record's gradient is multiplied with."""
        return (self.clipping_norm / squared_norms.sqrt().clamp_min(1e-30)).clamp(max=1.0)

    def add_noise(self, total: Tensor, scale: float, generator: torch.Generator) -> None:
        """Add noise to ``scale`` times a sum of clipped gradients, in place."""
        if self.noise_multiplier > 0:
            noise = torch.randn(total.shape, generator=generator, dtype=total.dtype)
            deviation = scale * self.noise_multiplier * self.clipping_norm
            total.add_(noise.to(total.device), alpha=deviation)
