"""What records of the same kind say about a record whose features are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.feature_inversion.body import Body
    from vestige.records import Records

# Ridge, as a share of the records, in units of standardised features; flat from .001 to .1.
RIDGE = 0.01
# Directions in which records hardly vary keep this share of the largest variance.
LEAST_VARIANCE = 1e-3
FEWEST, CHUNK = 32, 256
# A covariance of more values than this is not decomposed (it takes minutes).
MOST_VALUES = 4096


@dataclass(frozen=True)
class Decoder:
    """Linear guess of a record from its features, and the spread of the truth around it.

    The posterior of a Gaussian model fitted to records of the prior: record = guess(features) +
    basis·z with z standard normal. basis (values, values).
    """

    feature_mean: Tensor
    feature_scale: Tensor
    map: Tensor
    mean: Tensor
    basis: Tensor

    @classmethod
    def fitted(cls, body: Body, records: Records, like: Tensor) -> Decoder | None:
        """Fit to records of the prior, or None where they are too few or too large."""
        x = records.x.to(like)
        if len(x) < FEWEST or x[0].numel() > MOST_VALUES:
            return None
        with torch.no_grad():
            parts = [body(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        features, values = torch.cat(parts).double(), x.flatten(1).double()
        # Half of the records judge a map that the other half made: its own would flatter it.
        half = len(x) // 2
        fit = _ridge(features[:half], values[:half])
        missed = values[half:] - _applied(features[half:], *fit)
        size, turned = torch.linalg.eigh(missed.T @ missed / len(missed))
        basis = turned * size.clamp_min(LEAST_VARIANCE * float(size.max())).sqrt()
        return cls(*_ridge(features, values), basis)

    def guess(self, features: Tensor) -> Tensor:
        """Records (n, values) from features (n, d)."""
        return _applied(
            features.double(), self.feature_mean, self.feature_scale, self.map, self.mean
        )


def _ridge(features: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    center, mean = features.mean(0), values.mean(0)
    scale = features.std(0) + 1e-3 * features.std()
    a, ridge = (features - center) / scale, RIDGE * len(features)
    if len(a) < a.shape[1]:
        gram = a @ a.T + ridge * torch.eye(len(a)).to(a)
        slopes = a.T @ torch.linalg.solve(gram, values - mean)
    else:
        gram = a.T @ a + ridge * torch.eye(a.shape[1]).to(a)
        slopes = torch.linalg.solve(gram, a.T @ (values - mean))
    return center, scale, slopes, mean


def _applied(
    features: Tensor, center: Tensor, scale: Tensor, slopes: Tensor, mean: Tensor
) -> Tensor:
    return ((features - center) / scale) @ slopes + mean
