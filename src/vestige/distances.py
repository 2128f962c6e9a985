"""How far apart records are. Plain functions: lower is closer, always.

Each takes candidates (k, *shape) and records (n, *shape) and returns (k, n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from vestige.errors import BadInput

Distance = Callable[[Tensor, Tensor], Tensor]

WINDOW = 7
"""Side of the SSIM window: the uniform window of Wang et al. 2004 as scikit-image uses it."""


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

    The window shrinks to the largest odd side that fits into small images.
    """
    side = min(WINDOW, *images.shape[-2:])
    side -= 1 - side % 2
    if images.dim() != 4 or side < 3:
        raise BadInput("SSIM compares images of at least 3 × 3 pixels: use mean_squared_error.")
    found = structural_similarity_index_measure(
        images.clamp(0, 1).double(),
        others.clamp(0, 1).double(),
        gaussian_kernel=False,
        kernel_size=side,
        data_range=1.0,
        reduction="none",
    )
    return torch.as_tensor(found).reshape(-1)


def distance_label(distance: Distance) -> str:
    """What an axis says about a distance."""
    if distance is structural_dissimilarity:
        return "1 − SSIM"
    return getattr(distance, "__name__", "distance").replace("_", " ")
