"""Affine copies of pictures: slightly turned, slanted, scaled and moved."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.choices import check_fields


@dataclass(frozen=True)
class AffineCopies:
    """How far copies go, as deviations: ``linear`` of the matrix, ``shift`` in half pictures.

    A decoder's error is mostly that it saw too few records; copies are more of them.
    """

    linear: float = 0.06
    shift: float = 0.03

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("linear", "shift"))

    def __call__(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """Return one copy of each picture (n, channels, height, width)."""
        count = len(pictures)
        matrix = torch.eye(2).expand(count, -1, -1)
        matrix = matrix + self.linear * torch.randn((count, 2, 2), generator=generator)
        shift = self.shift * torch.randn((count, 2, 1), generator=generator)
        theta = torch.cat([matrix, shift], 2).to(pictures)
        grid = nn.functional.affine_grid(theta, list(pictures.shape), align_corners=False)
        return nn.functional.grid_sample(pictures, grid, align_corners=False)
