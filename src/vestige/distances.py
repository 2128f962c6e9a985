"""How far apart records are. Plain functions: lower is closer, always.

Each takes candidates (k, *shape) and records (n, *shape) and returns (k, n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vestige.errors import BadInput

Distance = Callable[[Tensor, Tensor], Tensor]

WINDOW = 7
"""Side of the SSIM window: the uniform window of Wang et al. 2004 as scikit-image uses it."""

LUMINANCE, CONTRAST = 0.01**2, 0.03**2
"""C₁ and C₂ of Wang et al. 2004, Eq. 13, with K₁ = 0.01, K₂ = 0.03 and values in [0, 1]."""


def mean_squared_error(candidates: Tensor, records: Tensor) -> Tensor:
    """Mean squared error of every candidate to every record (k, n).

    Differences are formed before squaring, row by row of the smaller side: the shortcut through
    inner products would lose exact reconstructions in rounding.
    """
    left, right = candidates.flatten(1).double(), records.flatten(1).double()
    if len(left) > len(right):
        return mean_squared_error(records, candidates).T
    if len(left) == 0:
        return left.new_zeros(0, len(right))
    return torch.stack([(row - right).square().mean(1) for row in left])


def structural_dissimilarity(candidates: Tensor, records: Tensor) -> Tensor:
    """1 − SSIM of every candidate to every record (k, n), images in [0, 1]."""
    return 1 - torch.stack([ssim(row.expand_as(records), records) for row in candidates])


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """SSIM of pairs (n, c, h, w) → (n,), values in [0, 1], uniform window.

    Wang, Bovik, Sheikh and Simoncelli 2004, Eq. 13, averaged over windows around every pixel and
    over channels. Images are reflected at their border, and variances are those of the window
    itself (divided by its size), as torchmetrics has it. The window shrinks to the largest odd side
    that fits into small images.
    """
    side = min(WINDOW, *images.shape[-2:])
    side -= 1 - side % 2
    if images.dim() != 4 or side < 3:
        raise BadInput("SSIM compares images of at least 3 × 3 pixels: use mean_squared_error.")
    first, second = (
        nn.functional.pad(part.clamp(0, 1).double(), (side // 2,) * 4, mode="reflect")
        for part in (images, others)
    )

    def windowed(values: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(values, side, stride=1)

    mean, other = windowed(first), windowed(second)
    variance = (windowed(first.square()) - mean.square()).clamp_min(0)
    others_variance = (windowed(second.square()) - other.square()).clamp_min(0)
    covariance = windowed(first * second) - mean * other
    similarity = (2 * mean * other + LUMINANCE) * (2 * covariance + CONTRAST)
    similarity /= (mean.square() + other.square() + LUMINANCE) * (
        variance + others_variance + CONTRAST
    )
    return similarity.flatten(1).mean(1)


def distance_label(distance: Distance) -> str:
    """What an axis says about a distance."""
    if distance is structural_dissimilarity:
        return "1 − SSIM"
    return getattr(distance, "__name__", "distance").replace("_", " ")
