"""Affine copies of pictures: slightly turned, slanted, scaled, moved, mirrored and recoloured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.choices import check_fields

JITTERED = 3
"""Every so manieth set of copies is recoloured as well."""


@dataclass(frozen=True)
class AffineCopies:
    """How many copies of each picture, and how far they go, as deviations.

    ``linear`` is of the matrix, ``shift`` in half pictures. With ``mirrored`` pictures count as
    well as their mirror images, as photographs do and digits do not. ``jitter`` changes
    brightness, contrast and the channels' levels in every third set of copies. A decoder's error is
    mostly that it saw too few records; copies are more of them.
    """

    number: int = 10
    linear: float = 0.06
    shift: float = 0.03
    mirrored: bool = False
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("number", "linear", "shift", "jitter"))

    @property
    def sets(self) -> int:
        """Sets of copies beside the pictures themselves."""
        return self.number + self.mirrored

    def __call__(self, pictures: Tensor, place: int, generator: torch.Generator) -> Tensor:
        """The copies (n, channels, height, width) of one of the ``sets``."""
        if self.mirrored and place == 0:
            return pictures.flip(-1)
        count = len(pictures)
        matrix = torch.eye(2).expand(count, -1, -1)
        matrix = matrix + self.linear * torch.randn((count, 2, 2), generator=generator)
        shift = self.shift * torch.randn((count, 2, 1), generator=generator)
        theta = torch.cat([matrix, shift], 2)
        if self.mirrored:
            sides = 2.0 * torch.randint(2, (count, 1), generator=generator) - 1
            theta[:, 0] *= sides
        theta = theta.to(pictures)
        grid = nn.functional.affine_grid(theta, list(pictures.shape), align_corners=False)
        # Photographs go on past their border, and what is drawn on an empty ground does not.
        padding = "reflection" if self.mirrored else "zeros"
        copies = nn.functional.grid_sample(
            pictures, grid, padding_mode=padding, align_corners=False
        )
        if self.jitter and place % JITTERED == 0:
            copies = self._recoloured(copies, generator)
        return copies

    def _recoloured(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        count, channels = pictures.shape[:2]
        draws = self.jitter * torch.randn((count, channels + 2, 1, 1), generator=generator)
        contrast, light, levels = draws.to(pictures).tensor_split([1, 2], 1)
        mean = pictures.mean((1, 2, 3), keepdim=True)
        return mean + (pictures - mean) * (1 + contrast) + light / 2 + levels / 4
