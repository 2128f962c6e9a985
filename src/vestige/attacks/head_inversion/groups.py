"""Records of a training set that nothing tells apart, and the features that each group may have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.simulation.training_sets import Makeup, OneAgainstRest

LEAST_VARIANCE = 1e-4
"""Of a feature, as a share of the mean variance: a feature that never varied in the prior may."""


@dataclass(frozen=True)
class Groups:
    """The groups of a training set in its order: ``counts`` records each, taught as ``taught``.

    ``classes`` are the records' own classes, None where they may be of any. Training treats the
    records of a group alike, so it is the mean of their features that a head holds; with one record
    in a group that is the record.
    """

    counts: tuple[int, ...]
    taught: tuple[int, ...]
    classes: tuple[int | None, ...]

    @classmethod
    def of(cls, makeup: Makeup) -> Groups:
        """Every class in the training set; of one against the rest, the one and the rest."""
        if isinstance(makeup, OneAgainstRest):
            return cls((makeup.positives, makeup.negatives), (1, 0), (None, None))
        present = [label for label, count in enumerate(makeup.counts) if count]
        to = makeup.label_map or tuple(range(len(makeup.counts)))
        counts = tuple(makeup.counts[label] for label in present)
        return cls(counts, tuple(to[label] for label in present), tuple(present))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def size(self) -> int:
        """Records in a training set."""
        return sum(self.counts)

    @property
    def shares(self) -> Tensor:
        """Share (g,) of the training set that each group is."""
        return torch.tensor(self.counts, dtype=torch.float64) / self.size

    @property
    def wanted(self) -> tuple[int, ...]:
        """The groups worth drawing: all, or of one against the rest the one."""
        return tuple(range(len(self))) if None not in self.classes else (0,)

    def apart(self) -> Groups:
        """Every record a group of its own."""
        pairs = list(zip(self.counts, self.taught, self.classes))
        return Groups(
            (1,) * self.size,
            tuple(taught for count, taught, _ in pairs for _ in range(count)),
            tuple(label for count, _, label in pairs for _ in range(count)),
        )

    def means(self, values: Tensor) -> Tensor:
        """Means (s, g, …) over each group of values (s, n, …) of its records."""
        return torch.stack([part.mean(1) for part in values.split(list(self.counts), 1)], 1)

    def sums(self, values: Tensor) -> Tensor:
        """Sums (s, g, …) over each group of values (s, n, …) of its records."""
        return torch.stack([part.sum(1) for part in values.split(list(self.counts), 1)], 1)

    def goals(self, labels: int) -> Tensor:
        """One-hot labels (g, labels) that the groups are taught."""
        return torch.nn.functional.one_hot(torch.tensor(self.taught), labels).float()


@dataclass(frozen=True)
class GroupStatistics:
    """What features the mean of a group may have: a Gaussian for each group, cut at zero.

    ``mean`` and ``variance`` (g, d); ``directions`` (g, r, d) are principal directions times their
    deviations, so that mean + z·directions with standard normal z has the prior's law; ``idle``
    (g, d) is the probability that a feature is zero, which ReLUs make common.
    """

    mean: Tensor
    variance: Tensor
    directions: Tensor
    idle: Tensor

    @classmethod
    def of(cls, groups: Groups, features: Tensor, labels: Tensor, rank: int) -> GroupStatistics:
        """Statistics of the groups' means, from features (n, d) of the prior's records."""
        statistics = {}
        for label in set(groups.classes):
            own = features if label is None else features[labels == label]
            if len(own) < 2:
                raise BadInput(
                    f"The prior holds {len(own)} records of class {label}: statistics of features "
                    "need at least two of every class."
                )
            statistics[label] = _moments(own, rank)
        mean, variance, directions, idle = (
            [statistics[label][part] for label in groups.classes] for part in range(4)
        )
        counts = torch.tensor(groups.counts, dtype=features.dtype)[:, None]
        return cls(
            torch.stack(mean),
            torch.stack(variance) / counts,
            torch.stack(directions) / counts.sqrt()[:, :, None],
            torch.stack(idle) ** counts,
        )

    @property
    def rectified(self) -> bool:
        """Whether features are never negative, as after ReLUs."""
        return bool((self.idle >= 0).all())

    def features(self, z: Tensor) -> Tensor:
        """Features (s, g, d) of coordinates z (s, g, r)."""
        rows = self.mean + torch.einsum("sgr,grd->sgd", z, self.directions)
        return rows.relu() if self.rectified else rows

    def coordinates(self, features: Tensor) -> Tensor:
        """Coordinates z (s, g, r) of the point of the principal subspace next to features."""
        squared = self.directions.square().sum(2).clamp_min(1e-12)
        away = features - self.mean
        return torch.einsum("sgd,grd->sgr", away, self.directions) / squared

    def to(self, device: torch.device) -> GroupStatistics:
        """The same on a device."""
        return GroupStatistics(
            *(v.to(device) for v in (self.mean, self.variance, self.directions, self.idle))
        )


def _moments(own: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, variance = own.mean(0), own.var(0)
    variance = variance.clamp_min(float(LEAST_VARIANCE * variance.mean()) + 1e-12)
    away = own - mean
    retained = min(rank, len(own) - 1, own.shape[1])
    values, vectors = torch.linalg.eigh((away.T @ away / (len(own) - 1)).double())
    scaled = (vectors * values.clamp_min(0).sqrt()).to(own).T.flip(0)[:retained]
    if retained < rank:
        scaled = torch.cat([scaled, scaled.new_zeros((rank - retained, own.shape[1]))])
    # A feature that is negative anywhere is no ReLU's: −1 marks it.
    idle = torch.where((own >= 0).all(0), (own == 0).float().mean(0), -own.new_ones(()))
    return mean, variance, scaled, idle
