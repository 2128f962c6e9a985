"""How sure a drawing is, from the drawing alone: an error predicted by what public records show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.records import Space

RIDGE = 1e-3


@dataclass(frozen=True)
class Confidence:
    """Minus the logarithm of a drawing's expected squared error, by linear regression.

    The error is predicted from how far the drawing's own features are from those it was drawn from,
    how undecided its pixels are, and its group. ``usual`` (d,) are the distances of public records'
    drawings in each feature, ``slopes`` those of the regression.
    """

    usual: Tensor
    slopes: Tensor
    groups: int
    space: Space

    @classmethod
    def learned(
        cls,
        drawings: Tensor,
        seen: Tensor,
        estimated: Tensor,
        groups: Tensor,
        errors: Tensor,
        *,
        count: int,
        space: Space,
    ) -> Confidence:
        """Learn from drawings (n, *shape) of public records and their squared errors (n,).

        ``seen`` (n, d) are the drawings' own features, ``estimated`` those they were drawn from.
        """
        squared = (seen - estimated).square().mean(0)
        usual = squared.clamp_min(1e-2 * float(squared.mean()) + 1e-12).sqrt()
        unfinished = cls(usual, torch.zeros(()), count, space)
        rows = unfinished._rows(drawings, seen, estimated, groups)
        penalty = RIDGE * len(rows) * torch.eye(rows.shape[1], dtype=rows.dtype)
        wanted = errors.double().clamp_min(1e-12).log()
        slopes = torch.linalg.solve(rows.T @ rows + penalty, rows.T @ wanted)
        return cls(usual, slopes, count, space)

    def __call__(self, drawings: Tensor, seen: Tensor, estimated: Tensor, groups: Tensor) -> Tensor:
        """Confidence (n,) of drawings; higher is surer."""
        return -(self._rows(drawings, seen, estimated, groups) @ self.slopes).float()

    def _rows(self, drawings: Tensor, seen: Tensor, estimated: Tensor, groups: Tensor) -> Tensor:
        distance = ((seen - estimated) / self.usual).square().mean(1)
        parts = [torch.nn.functional.one_hot(groups, self.groups).double(), _log(distance)]
        if self.space.bounds is not None:
            low, high = self.space.bounds
            share = (drawings.flatten(1) - low) / (high - low)
            parts.append(_log((share * (1 - share)).mean(1)))
        return torch.cat(parts, 1)


def _log(values: Tensor) -> Tensor:
    return values.double().clamp_min(1e-9).log()[:, None]
