"""Features from heads that Adam trained, one coordinate at a time, by a learned network.

Adam (Kingma and Ba 2015, Algorithm 1) divides each weight's mean slope by the root of its mean
square, so weights leave the span of the features and have no coefficients. But it moves the weights
of one feature, W[:, j], by that feature of the records alone, X[:, j], given the residuals p − y of
all steps, which are the same for all features. So one small network, the same for all coordinates,
reads X[:, j] off W[:, j]; simulated heads teach it. A feature's scale hardly moves Adam's steps:
what W does not say is left at the prior's mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.attacks.head_inversion.coefficients import fit_network, reading_network

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.groups import Groups, GroupStatistics
    from vestige.attacks.head_inversion.reading import Heads, SimulatedHeads

EXAMPLES = 200_000
"""Coordinates of simulated heads that the network learns from."""

EPOCHS = 6
"""Passes through them."""

HEADS = 1_000
"""Simulated heads, at most: each gives many examples."""

CHUNK = 64
"""Heads estimated at a time."""


@dataclass(frozen=True)
class CoordinateEstimator:
    """Heads → features (s, g, d), each coordinate from its own weights.

    The network sees a coordinate's weights, the groups' prior means and deviations there, and the
    biases, which all coordinates share. It gives deviations from the mean. Linear heads only: units
    of a hidden layer have other roles in every head.
    """

    network: nn.Module
    means: Tensor
    deviations: Tensor
    statistics: GroupStatistics

    @classmethod
    def learned(
        cls,
        simulated: SimulatedHeads,
        features: Tensor,
        groups: Groups,
        statistics: GroupStatistics,
        *,
        generator: torch.Generator,
    ) -> CoordinateEstimator:
        """Learn from simulated heads whose sets hold rows of ``features``."""
        heads, width = simulated.heads, features.shape[1]
        each = min(width, -(-EXAMPLES // len(heads)))
        rows, goals = [], []
        for place in range(len(heads)):
            chosen = torch.randperm(width, generator=generator)[:each]
            own = groups.means(features[simulated.sets.members[place : place + 1]])
            away = (own - statistics.mean) / statistics.variance.sqrt()
            rows.append(_readings(heads[place : place + 1], statistics, chosen)[0])
            goals.append(away[0, :, chosen].T)
        inputs, wanted = torch.cat(rows), torch.cat(goals)
        means, deviations = inputs.mean(0), inputs.std(0).clamp_min(1e-12)
        network = reading_network(inputs.shape[1], wanted.shape[1], generator)
        standardized = ((inputs - means) / deviations).clamp(-10, 10)
        fit_network(network, standardized, wanted, EPOCHS, generator)
        return cls(network, means, deviations, statistics)

    def __call__(self, heads: Heads) -> Tensor:
        """Features (s, g, d)."""
        every = torch.arange(heads.weight.shape[2])
        statistics, parts = self.statistics, []
        for start in range(0, len(heads), CHUNK):
            rows = _readings(heads[start : start + CHUNK], statistics, every)
            with torch.no_grad():
                away = self.network(((rows - self.means) / self.deviations).clamp(-10, 10))
            parts.append(statistics.mean + away.mT * statistics.variance.sqrt())
        found = torch.cat(parts)
        return found.relu() if statistics.rectified else found


def _readings(heads: Heads, statistics: GroupStatistics, chosen: Tensor) -> Tensor:
    """What the network sees (s, c, …) of some coordinates (c,)."""
    prior = torch.cat([statistics.mean[:, chosen], statistics.variance[:, chosen].sqrt()]).T
    count, size = len(heads), len(chosen)
    return torch.cat(
        [
            heads.weight[:, :, chosen].mT,
            prior.expand(count, -1, -1),
            heads.bias[:, None].expand(-1, size, -1),
        ],
        2,
    )
