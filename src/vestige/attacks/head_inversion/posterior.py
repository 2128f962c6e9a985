"""What a head's weights say about the features it was trained on, if its coefficients are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.groups import GroupStatistics

ALMOST_SURELY = 0.95
"""Some group's feature is taken to be zero where that has at least this probability."""


@dataclass(frozen=True)
class Posterior:
    """Gaussian posterior of the features, dimension by dimension.

    ``mean`` (s, g, d); ``gain`` (s, g, d) is the share of a feature's prior variance that the head
    explains, 1 if it is known.
    """

    mean: Tensor
    gain: Tensor


def posterior(
    weight: Tensor, coefficients: Tensor, statistics: GroupStatistics, noise: Tensor
) -> Posterior:
    """Bayesian linear regression: weights (s, k, d) = Aᵀx + noise of covariance (k, k).

    x̂ = μ + SA(AᵀSA + Σ)⁻¹(W − Aᵀμ) with coefficients A (s, g, k) and the prior variances S of each
    dimension on their own: correlated features are left to the polish. In double precision, because
    AᵀSA lacks a rank and noise may be small.
    """
    kind = weight.dtype
    weight, coefficients, noise = weight.double(), coefficients.double(), noise.double()
    mean, variance = statistics.mean.double(), statistics.variance.double()
    scatter = torch.einsum("sgk,gd,sgl->sdkl", coefficients, variance, coefficients) + noise
    away = (weight - coefficients.mT @ mean).mT[..., None]
    factor = torch.linalg.cholesky(scatter)
    right = torch.cat([away, coefficients[:, None].mT.expand(-1, len(variance.T), -1, -1)], -1)
    solved = torch.cholesky_solve(right, factor)
    moved = torch.einsum("sgk,sdk->sgd", coefficients, solved[..., 0]) * variance
    gain = torch.einsum("sgk,sdkg->sgd", coefficients, solved[..., 1:]) * variance
    return Posterior((mean + moved).to(kind), gain.clamp(0, 1).to(kind))


def silent_direction(coefficients: Tensor) -> Tensor:
    """The direction v (s, g) along which features leave no trace: vᵀA = 0, largest entry positive.

    Slopes of a softmax sum to zero, so as many groups as outputs have one: all features shifted.
    """
    left = torch.linalg.svd(coefficients)[0][..., -1]
    sign = left.gather(1, left.abs().argmax(1, keepdim=True)).sign()
    return left * sign


def without_shift(features: Tensor, coefficients: Tensor, statistics: GroupStatistics) -> Tensor:
    """Features (s, g, d) moved along the silent direction until the least of them is zero.

    ReLUs leave no negative feature, and where some group's feature is almost surely zero the least
    is zero; elsewhere the posterior mean stays. What is negative after that is set to zero.
    """
    if not statistics.rectified:
        return features
    groups, outputs = coefficients.shape[1:]
    if groups == outputs:
        direction = silent_direction(coefficients)[:, :, None]
        some_idle = 1 - (1 - statistics.idle).prod(0) >= ALMOST_SURELY
        # x + t·v ≥ 0 for all groups, with equality for one; groups that v hardly moves cannot.
        moves = direction.clamp_min(0.1 * direction.amax(1, keepdim=True))
        shift = (-features / moves).amax(1, keepdim=True)
        features = torch.where(some_idle, features + shift * direction, features)
    return features.relu()
