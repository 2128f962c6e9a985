"""Estimators: released heads → features of the groups of records they were trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from vestige.attacks.heads.coefficients import CoefficientNetwork, fixed_point
from vestige.attacks.heads.dual_training import LinearTraining
from vestige.attacks.heads.groups import Groups, GroupStatistics
from vestige.attacks.heads.polish import polished
from vestige.attacks.heads.posterior import posterior
from vestige.attacks.heads.reading import Heads

NOISE_FACTORS = (1.0, 4.0, 16.0, 64.0)
"""Multiples of the noise that simulated heads are estimated with, to find the best."""

CHUNK = 64
"""Heads estimated at a time; bounds the memory of the posterior, s·d·k² numbers."""


class Estimator(Protocol):
    """Finds features in heads."""

    def __call__(self, heads: Heads) -> Tensor:
        """Features (s, g, d): of every group the mean over its records."""
        ...


@dataclass(frozen=True)
class LinearHeadEstimator:
    """Posterior of the features given a linear head, polished to the most probable ones.

    Coefficients come from training on mean features, improved by the fixed point where training is
    stable. The polish follows the training of every single record: within a group records differ
    at first by a little noise, because from equal ones they would never part.
    """

    training: LinearTraining
    statistics: GroupStatistics
    records: GroupStatistics
    steps: int
    learning_rate: float

    def __call__(self, heads: Heads) -> Tensor:
        """Features (s, g, d)."""
        parts = [
            self._chunk(heads.weight[i : i + CHUNK], heads.bias[i : i + CHUNK])
            for i in range(0, len(heads), CHUNK)
        ]
        return torch.cat(parts)

    def allowing_for_noise(self, heads: Heads, features: Tensor) -> LinearHeadEstimator:
        """The same under the noise that brings it next to the features (s, g, d) of known heads.

        Initial weights that are not small move the logits, which the polish takes to begin at zero:
        with σ_init = .02 on MNIST, R² is .18 under the noise as it is and .49 under four times as
        much.
        """
        best, least = self, float("inf")
        for factor in NOISE_FACTORS:
            tried = replace(self, training=replace(self.training, noise_factor=factor))
            error = float((tried(heads) - features).square().sum())
            if not error < least:
                break
            best, least = tried, error
        return best

    def _chunk(self, weight: Tensor, bias: Tensor) -> Tensor:
        groups, training = self.training.groups, self.training
        noise = training.noise_variance * torch.eye(weight.shape[1])
        stable = training.is_stable(self.statistics.mean)
        rounds = {} if stable else {"rounds": 0}
        _, features = fixed_point(weight, training, self.statistics, noise, **rounds)
        if not self.steps:
            return features
        alone = replace(training, groups=groups.apart())
        start = features.repeat_interleave(torch.tensor(groups.counts), 1)
        if groups.size > len(groups):
            # The same for every head: an estimate depends on nothing but the head.
            noise = torch.randn(start.shape[1:], generator=torch.Generator().manual_seed(0))
            start = start + 0.1 * self.records.variance.sqrt() * noise
        found = polished(
            start,
            weight,
            bias,
            alone,
            self.records,
            steps=self.steps,
            learning_rate=self.learning_rate,
        )
        return groups.means(found)


@dataclass(frozen=True)
class HiddenLayerEstimator:
    """Posterior of the features given a head's first layer, coefficients read by a network.

    Which units a record drives depends on initial weights that nobody knows, so the training cannot
    be followed; what the network misses counts as noise.
    """

    coefficients: CoefficientNetwork
    statistics: GroupStatistics
    noise_variance: float

    def __call__(self, heads: Heads) -> Tensor:
        """Features (s, g, d)."""
        found = self.coefficients(heads)
        floor = self.noise_variance * torch.eye(found.shape[2])
        # The network's noise was measured on weights that had the initial ones in them.
        noise = self.coefficients.noise + 1e-3 * floor
        parts = [
            posterior(heads.weight[i : i + CHUNK], found[i : i + CHUNK], self.statistics, noise)
            for i in range(0, len(heads), CHUNK)
        ]
        features = torch.cat([part.mean for part in parts])
        return features.relu() if self.statistics.rectified else features


def record_statistics(
    groups: Groups, features: Tensor, labels: Tensor, rank: int
) -> GroupStatistics:
    """Statistics of single records, one row for each record of a training set."""
    return GroupStatistics.of(groups.apart(), features, labels, rank)
