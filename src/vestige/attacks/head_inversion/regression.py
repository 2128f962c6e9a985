"""Several records of a class: their features by ridge regression on simulated heads.

A head of four records of each of ten classes is nine mixtures of forty vectors: no record dominates
its class, and the most probable features fit the mixtures in ways that the records do not. The
posterior mean, approximated by a linear regression over simulated heads, does not do that. From a
head's weights on the principal directions within classes and on the class means, and its biases, it
estimates for each class the features of its records in the order of their coefficients in the head,
their mean weighted by these, the shares of the coefficients and their sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.head_inversion.reading import Heads, SimulatedHeads
from vestige.priors.component_decoders import ridge_solution

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge

DIRECTIONS = 62
"""Principal directions within classes that features are estimated in."""

RIDGE = 3.0
"""Penalty on the slopes of standardised numbers."""

CHUNK = 1_000
"""Heads simulated at a time."""


@dataclass(frozen=True)
class HeadRegression:
    """Heads → numbers (s, g, width) for each class; see the module.

    ``directions`` (r, d) and ``means`` (g, d) are those of the prior's features, ``slopes`` from
    standardised readings, with a last one of 1, to all numbers of all groups.
    """

    directions: Tensor
    means: Tensor
    reading_means: Tensor
    deviations: Tensor
    slopes: Tensor
    each: int

    @classmethod
    def learned(
        cls, knowledge: PriorKnowledge, heads: int, generator: torch.Generator
    ) -> HeadRegression:
        """Fit to heads that are simulated on the prior's records, every class equally often."""
        statistics, groups = knowledge.statistics, knowledge.groups
        classes = torch.tensor(groups.classes)
        own = knowledge.places
        index = (knowledge.labels[own][:, None] == classes).float().argmax(1)
        away = knowledge.features[own] - statistics.mean[index]
        count = min(DIRECTIONS, away.shape[1], len(own) - 1)
        covariance = (away.T @ away).double()
        directions = torch.linalg.eigh(covariance)[1].flip(1)[:, :count].T.to(away)
        each = groups.size // len(groups)
        nothing = torch.zeros(())
        bare = cls(directions, statistics.mean, nothing, nothing, nothing, each)
        factory = replace(knowledge.factory, coefficients=True)
        simulated = SimulatedHeads.drawn(factory, min(CHUNK, heads), generator)
        rows, goals = bare.readings(simulated.heads), bare.goals(simulated, knowledge.features)
        means, deviations = rows.mean(0), rows.std(0).clamp_min(1e-12)
        normal = torch.zeros(2 * (rows.shape[1] + 1,), dtype=torch.float64)
        right = torch.zeros((len(normal), goals.shape[1]), dtype=torch.float64)
        done = 0
        while True:
            rows = _standardised(rows, means, deviations)
            normal += rows.T @ rows
            right += rows.T @ goals
            done += len(rows)
            if progress.report(done, heads) or done >= heads:
                break
            simulated = SimulatedHeads.drawn(factory, min(CHUNK, heads - done), generator)
            rows, goals = bare.readings(simulated.heads), bare.goals(simulated, knowledge.features)
        slopes = ridge_solution(normal, right, RIDGE).float()
        return cls(directions, statistics.mean, means, deviations, slopes, each)

    @property
    def mean_place(self) -> slice:
        """Where among the numbers of a group the weighted mean of its records is."""
        rank = len(self.directions)
        return slice(self.each * rank, (self.each + 1) * rank)

    def __call__(self, heads: Heads) -> Tensor:
        """Numbers (s, g, width) for each class."""
        rows = _standardised(self.readings(heads), self.reading_means, self.deviations)
        return (rows @ self.slopes).view(len(rows), len(self.means), -1)

    def readings(self, heads: Heads) -> Tensor:
        """What the head shows (s, …): its weights on directions and means, and its biases."""
        shown = heads.weight @ torch.cat([self.directions, self.means]).T
        return torch.cat([shown.flatten(1), heads.bias], 1)

    def goals(self, simulated: SimulatedHeads, features: Tensor) -> Tensor:
        """What is to be estimated (s, g·width), from coefficients and features of the records."""
        assert simulated.coefficients is not None
        heads, groups, each = len(simulated.heads), len(self.means), self.each
        members = simulated.sets.members.view(heads, groups, each)
        taught = simulated.sets.targets.view(heads, groups, each)
        shape = (heads, groups, each, -1)
        own = simulated.coefficients.reshape(shape).gather(3, taught[..., None]).squeeze(3)
        weights, order = own.sort(2, descending=True)
        away = features[members.gather(2, order)] - self.means[:, None]
        return self.numbers(away @ self.directions.T, weights).flatten(1)

    def numbers(self, records: Tensor, weights: Tensor) -> Tensor:
        """Numbers (…, width) of records (…, each, r) with coefficients (…, each)."""
        total = weights.sum(-1, keepdim=True)
        shares = weights / torch.where(total.abs() < 1e-12, torch.ones_like(total), total)
        mean = (shares[..., None] * records).sum(-2)
        return torch.cat([records.flatten(-2), mean, shares, total], -1)

    def of_records(self, features: Tensor, groups: Tensor) -> Tensor:
        """Numbers (n, width) of heads whose records of a class are one: features (n, d)."""
        away = (features - self.means[groups]) @ self.directions.T
        records = away[:, None].expand(-1, self.each, -1)
        # The last slopes are those of a constant: the mean of every number.
        total = self.slopes[-1].view(len(self.means), -1)[groups, -1:]
        return self.numbers(records, (total / self.each).expand(-1, self.each))


def _standardised(rows: Tensor, means: Tensor, deviations: Tensor) -> Tensor:
    rows = (rows - means) / deviations
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1).to(rows)
