"""What DP-SGD leaves of an image when the gradient of a malicious network is the image itself.

Schwethelm et al. 2025, equation 7: the release is x_priv = x/λ + ξ with the clipping factor
λ = max(‖x‖/C, 1) and ξ ~ N(0, C²σ²I). Two numbers are told apart throughout:

- the noise multiplier σ, relative to the clipping norm C: the noise has deviation Cσ;
- μ, the largest norm that a release can carry over the deviation of its noise: C/(Cσ) = 1/σ.

The paper writes μ = C/σ, which is the same at C = 1, the only value it uses; at other C that
quotient says nothing about the noise an attacker meets, and 1/σ is also what Gaussian differential
privacy calls μ. Multiplying by λ undoes clipping and leaves noise of deviation σ̂ = λCσ on an image
in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput


@dataclass(frozen=True, eq=False)
class PrivateImages:
    """Released images x_priv (n, c, h, w), the clipping norm C and the noise multiplier σ."""

    released: Tensor
    clipping_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_fields(self, positive=("clipping_norm", "noise_multiplier"))
        if self.released.dim() != 4:
            raise BadInput(
                f"Released images have the shape (n, channels, height, width), not "
                f"{tuple(self.released.shape)}: reshape them."
            )
        if not torch.isfinite(self.released).all():
            raise BadInput("A released image holds NaN or infinite values: read it out again.")

    @property
    def noise_deviation(self) -> float:
        """Cσ, the deviation of the noise on x_priv."""
        return self.clipping_norm * self.noise_multiplier

    @property
    def mu(self) -> float:
        """μ = C/(Cσ) = 1/σ."""
        return 1 / self.noise_multiplier

    @property
    def largest_factor(self) -> float:
        """The clipping factor of an image that is white all over: √N/C (appendix A), at least 1."""
        return max(math.sqrt(self.released[0].numel()) / self.clipping_norm, 1.0)

    def rescale(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Images λ·x_priv and the deviations λCσ (n,) of their noise, for factors λ (n,)."""
        factors = torch.as_tensor(factors, dtype=self.released.dtype, device=self.released.device)
        if factors.shape != self.released.shape[:1] or not (factors >= 1).all():
            raise BadInput("Give one clipping factor for each image; none is below 1.")
        return factors[:, None, None, None] * self.released, factors * self.noise_deviation


def clipping_factors(images: Tensor, clipping_norm: float) -> Tensor:
    """λ = max(‖x‖/C, 1) (n,) of images (n, c, h, w)."""
    return (images.flatten(1).norm(dim=1) / clipping_norm).clamp(min=1)


def privatize(
    images: Tensor, *, mu: float, clipping_norm: float = 1.0, generator: torch.Generator
) -> PrivateImages:
    """Release images (n, c, h, w) as equation 7 has it, with noise of deviation C/μ."""
    if not 0 < mu < math.inf:
        raise BadInput("μ is positive and finite.")
    clipped = images / clipping_factors(images, clipping_norm)[:, None, None, None]
    noise = torch.randn(images.shape, generator=generator, dtype=images.dtype)
    released = clipped + clipping_norm / mu * noise.to(images.device)
    return PrivateImages(released, clipping_norm, 1 / mu)
