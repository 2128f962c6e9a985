"""What records of each class look like: a Gaussian, fitted to the attacker's own records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.priors.schedule import NoiseSchedule

if TYPE_CHECKING:
    from vestige.records import Records

# Directions that are kept one by one; all others share one variance.
RANK = 512
# No direction has less than this share of the largest variance: records are no exact Gaussian.
LEAST_VARIANCE = 1e-3
FEWEST = 16


@dataclass(frozen=True)
class GaussianPrior:
    """Records of class c are mean_c + root·z with z standard normal, the same root for all classes.

    ``root`` is the symmetric square root of a covariance that is ``directions`` (values, r) with
    deviations ``scales`` (r,), and ``rest`` in every other direction, so it is never formed.
    ``means`` (classes, values).
    """

    means: Tensor
    directions: Tensor
    scales: Tensor
    rest: Tensor

    @classmethod
    def fitted(cls, records: Records, like: Tensor) -> GaussianPrior | None:
        """Fit to records, or None where they are too few. Classes without records get the mean.

        The covariance within classes is shrunk towards a multiple of the identity by the share of
        Ledoit and Wolf 2004, "A well-conditioned estimator for large-dimensional covariance
        matrices", Eq. 14.
        """
        x, y = records.x.flatten(1).double(), records.y.to(records.x.device)
        count, values = x.shape
        if count < FEWEST:
            return None
        overall = x.mean(0)
        classes = range(records.classes)
        means = torch.stack(
            [x[y == c].mean(0) if bool((y == c).any()) else overall for c in classes]
        )
        residual = x - means[y]
        if values <= count:
            variances, directions = torch.linalg.eigh(residual.T @ residual / count)
        else:
            variances, turned = torch.linalg.eigh(residual @ residual.T / count)
            directions = residual.T @ turned / (count * variances.clamp_min(1e-30)).sqrt()
        variances = variances.clamp_min(0)
        mean = variances.sum() / values
        squares = variances.square().sum()
        spread = (squares / values - mean.square()).clamp_min(1e-30)
        error = (residual.square().sum(1).square().sum() / count - squares) / (count * values)
        share = float((error / spread).clamp(0, 1))
        leading = variances.argsort(descending=True)[:RANK]
        left = max(values - len(leading), 1)
        rest = (variances.sum() - variances[leading].sum()).clamp_min(0) / left
        floor = (LEAST_VARIANCE * variances.max()).clamp_min(1e-12)
        scales = ((1 - share) * variances[leading] + share * mean).maximum(floor).sqrt()
        rest = ((1 - share) * rest + share * mean).maximum(floor).sqrt()
        return cls(means.to(like), directions[:, leading].to(like), scales.to(like), rest.to(like))

    def mean(self, labels: Tensor) -> Tensor:
        """Most probable records (n, values) of these classes."""
        return self.means[labels.to(self.means.device)]

    def rooted(self, z: Tensor) -> Tensor:
        """root·z for rows z (n, values)."""
        return self.rest * z + (z @ self.directions * (self.scales - self.rest)) @ self.directions.T

    def whitened(self, offset: Tensor) -> Tensor:
        """The z whose root·z is an offset (n, values) from the mean."""
        inner = 1 / self.scales - 1 / self.rest
        return offset / self.rest + (offset @ self.directions * inner) @ self.directions.T

    def denoised(self, noisy: Tensor, deviation: Tensor) -> Tensor:
        """E[x | x + noise] of rows (n, values) with noise of deviations (n, 1), class 0.

        Wiener's filter: each direction of variance s² keeps its share s²/(s² + σ²).
        """
        offset, variance = noisy - self.means[0], deviation.square()
        scales, rest = self.scales.square(), self.rest.square()
        outer = rest / (rest + variance)
        inner = scales / (scales + variance) - outer
        kept = outer * offset + (offset @ self.directions * inner) @ self.directions.T
        return self.means[0] + kept


@dataclass(frozen=True, eq=False)
class GaussianImages:
    """Images of one Gaussian as an :class:`ImagePrior`, whose denoiser is known in closed form.

    ``gaussian`` has one class, and values in [−1, 1].
    """

    gaussian: GaussianPrior
    shape: tuple[int, ...]
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def fitted(cls, records: Records, like: Tensor) -> GaussianImages | None:
        """Fit to images, whatever their classes, or None where they are too few."""
        alike = replace(records, y=torch.zeros_like(records.y)).to(like.device)
        fit = GaussianPrior.fitted(alike, like)
        if fit is None:
            return None
        wide = GaussianPrior(2 * fit.means - 1, fit.directions, 2 * fit.scales, 2 * fit.rest)
        return cls(wide, tuple(records.x.shape[1:]))

    def expected(self, noisy: Tensor, time: Tensor) -> Tensor:
        """E[x₀ | x_t] for noisy images x_t (n, c, h, w) at fractional times (n,)."""
        signal, noise = (w.to(noisy)[:, None] for w in self.schedule.weights(time))
        rows = noisy.flatten(1) / signal
        return self.gaussian.denoised(rows, noise / signal).reshape(noisy.shape)
