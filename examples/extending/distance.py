"""A distance of your own: the mean absolute error, which outliers move less than squares do."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_absolute_error(candidates: Tensor, records: Tensor) -> Tensor:
    """Mean absolute error of every candidate (k, *shape) to every record (n, *shape): (k, n)."""
    left, right = candidates.flatten(1).double(), records.flatten(1).double()
    if len(left) == 0:
        return left.new_zeros(0, len(right))
    return torch.stack([(row - right).abs().mean(1) for row in left])
