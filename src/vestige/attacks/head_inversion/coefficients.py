"""Coefficients of a head, found from its weights: by a fixed point, or by a learned network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.attacks.head_inversion.groups import Groups, GroupStatistics
from vestige.attacks.head_inversion.linear_training import LinearTraining
from vestige.attacks.head_inversion.posterior import posterior, without_shift

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.reading import Heads, SimulatedHeads

ROUNDS = 6
"""Of the fixed point; it has settled by then wherever training is stable."""


def fixed_point(
    weight: Tensor,
    training: LinearTraining,
    statistics: GroupStatistics,
    noise: Tensor,
    rounds: int = ROUNDS,
) -> tuple[Tensor, Tensor]:
    """Coefficients (s, g, k) and features (s, g, d) that agree: each follows from the other.

    Begins with the coefficients of a head trained on the mean features. Only where training is
    stable: past that a small error in the features becomes a large one in the coefficients, and
    ``rounds=0`` keeps the first ones.
    """
    coefficients = training.coefficients(statistics.mean[None]).expand(len(weight), -1, -1)
    features = _estimated(weight, coefficients, statistics, noise)
    for _ in range(rounds):
        coefficients = training.coefficients(features)
        features = _estimated(weight, coefficients, statistics, noise)
    return coefficients, features


def _estimated(
    weight: Tensor, coefficients: Tensor, statistics: GroupStatistics, noise: Tensor
) -> Tensor:
    mean = posterior(weight, coefficients, statistics, noise).mean
    return without_shift(mean, coefficients, statistics)


@dataclass(frozen=True)
class CoefficientNetwork:
    """Reads coefficients off a head: a network learned from simulated heads.

    It sees WWᵀ, Wμᵀ, the biases and the second layer, standardised. ``noise`` (k, k) is what its
    error and the records' differences within a group add to the weights, as a covariance.
    """

    network: nn.Module
    means: tuple[Tensor, Tensor]
    deviations: tuple[Tensor, Tensor]
    shape: tuple[int, int]
    noise: Tensor
    directions: Tensor

    @classmethod
    def learned(
        cls,
        simulated: SimulatedHeads,
        features: Tensor,
        groups: Groups,
        statistics: GroupStatistics,
        *,
        epochs: int,
        generator: torch.Generator,
    ) -> CoefficientNetwork:
        """Learn from simulated heads whose sets hold rows of ``features``."""
        directions = statistics.mean.unique(dim=0)
        rows = _readings(simulated.heads, directions)
        assert simulated.coefficients is not None
        goals = groups.sums(simulated.coefficients)
        shape = (goals.shape[1], goals.shape[2])
        means, deviations = (rows.mean(0), goals.mean(0)), (_spread(rows), _spread(goals))
        inputs = (rows - means[0]) / deviations[0]
        wanted = ((goals - means[1]) / deviations[1]).flatten(1)
        network = reading_network(inputs.shape[1], wanted.shape[1], generator)
        # A tenth is held back: the network's error on heads it has seen is smaller than on others.
        validation = max(1, len(inputs) // 10)
        fit_network(network, inputs[validation:], wanted[validation:], epochs, generator)
        unfinished = cls(network, means, deviations, shape, torch.zeros(()), directions)
        heads = simulated.heads[:validation]
        own = groups.means(features[simulated.sets.members[:validation]])
        left = heads.weight - unfinished(heads).mT @ own
        noise = torch.einsum("skd,sld->kl", left, left) / (len(left) * left.shape[2])
        return cls(network, means, deviations, shape, noise, directions)

    def __call__(self, heads: Heads) -> Tensor:
        """Coefficients (s, g, k), summed over the records of a group."""
        rows = (_readings(heads, self.directions) - self.means[0]) / self.deviations[0]
        with torch.no_grad():
            output = self.network(rows.clamp(-10, 10)).view(-1, *self.shape)
        return output * self.deviations[1] + self.means[1]


def _readings(heads: Heads, directions: Tensor) -> Tensor:
    """What the coefficients follow from (s, …): products that do not depend on the dimension."""
    products = heads.weight @ heads.weight.mT
    upper = torch.triu_indices(products.shape[1], products.shape[1])
    parts = [products[:, upper[0], upper[1]], (heads.weight @ directions.T).flatten(1), heads.bias]
    if heads.second is not None and heads.second_bias is not None:
        parts += [heads.second.flatten(1), heads.second_bias]
    return torch.cat(parts, 1)


def _spread(values: Tensor) -> Tensor:
    return values.std(0).clamp_min(1e-12)


def reading_network(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    """A network with two hidden layers, its weights drawn from a generator."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, 256),
            nn.GELU(),
            nn.Linear(256, 256),
            nn.GELU(),
            nn.Linear(256, outputs),
        )


def fit_network(
    network: nn.Module, inputs: Tensor, wanted: Tensor, epochs: int, generator: torch.Generator
) -> None:
    """Train a network on examples by least squares; its parameters are fixed afterwards."""
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    steps = epochs * -(-len(inputs) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(128):
            with torch.enable_grad():
                loss = (network(inputs[batch]) - wanted[batch]).square().mean()
                slopes = torch.autograd.grad(loss, parameters)
            for parameter, slope in zip(parameters, slopes):
                parameter.grad = slope
            optimizer.step()
            schedule.step()
    for parameter in parameters:
        parameter.grad = None
        parameter.requires_grad_(False)
