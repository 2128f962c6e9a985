"""Two-layer networks with Gaussian records, defended gradients of them, and attacks on those.

The world of the theorems on two-layer networks (Liu, Wang, Chen and Lei 2025): a tanh network with
a ~ N(0, 1/m²) and w ~ N(0, I), untrained, four classes, the summed gradient of records with known
labels, all different, in float64. Records are Gaussian of standard deviation 1/√d, norm about one.
No attack sees a secret: where there are several starts, its own lowest objective decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from sheet import stream
from vestige import Prior, Records
from vestige.attacks import InvertingGradients
from vestige.bounds import GaussianDensity, ReleaseDefense, ReleaseSlopes
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.records import Column, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.jacobians import release_slopes
from vestige.simulation.simulator import Simulator

CLASSES = 4
SAMPLES = 200
AT_A_TIME = 64
"""Releases whose Jacobians are held at once: more of them do not fit into the cache."""


@dataclass(frozen=True)
class World:
    """A network, and how many records make a batch."""

    inputs: int = 12
    hidden: int = 64
    batch: int = 1
    seed: int = 0
    """Which weights."""

    @cached_property
    def simulator(self) -> Simulator:
        """The network."""
        generator = stream(self.seed)
        model = nn.Sequential(
            nn.Linear(self.inputs, self.hidden, bias=False),
            nn.Tanh(),
            nn.Linear(self.hidden, CLASSES, bias=False),
        ).double()
        with torch.no_grad():
            for layer, deviation in ((model[0], 1.0), (model[2], 1 / self.hidden)):
                drawn = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64)
                layer.weight.copy_(deviation * drawn)
        return GradientSimulator(model, reduction="sum")

    @property
    def prior(self) -> GaussianDensity:
        """Records have a norm of about one."""
        return GaussianDensity(1 / math.sqrt(self.inputs))

    @property
    def targets(self) -> Tensor:
        """Labels 0 … B − 1: which record is which is known."""
        return torch.eye(CLASSES, dtype=torch.float64)[: self.batch]

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Batches (count, B·d) of the prior."""
        shape = (count, self.batch * self.inputs)
        return self.prior.deviation * torch.randn(shape, generator=generator, dtype=torch.float64)

    def slopes(self, count: int, generator: torch.Generator) -> list[ReleaseSlopes]:
        """Undefended releases of batches of the prior, as bounds take them."""
        shape = (self.batch, self.inputs)
        return [
            release_slopes(self.simulator, x.reshape(shape), self.targets)
            for x in self.draw(count, generator)
        ]

    def gradients(self) -> Callable[[Tensor, Tensor], Tensor]:
        """(record, target) → gradient (P,) of that record's loss."""
        # Taken here and not inside, where vmap would not let the weights be drawn.
        simulator = self.simulator

        def gradient(record: Tensor, target: Tensor) -> Tensor:
            slope = torch.func.grad(simulator.loss_of)
            found = slope(simulator.parameters, record[None], target[None])
            return torch.cat([value.reshape(-1) for value in found.values()])

        return gradient


@dataclass(frozen=True)
class Problem:
    """Releases of one defence: what the attacker sees of each draw, and how it replays them."""

    world: World
    defense: ReleaseDefense
    observed: Tensor
    """(n, P), zero where dropped."""
    kept: Tensor
    """(n, P) masks."""

    def rows(self, chosen: Tensor) -> Problem:
        """The releases chosen by number."""
        return replace(self, observed=self.observed[chosen], kept=self.kept[chosen])

    def replayed(self, x: Tensor) -> Tensor:
        """Clipped gradients (n, P) of batches x (n, B·d)."""
        world = self.world
        records, targets = x.reshape(-1, world.inputs), world.targets.repeat(len(x), 1)
        parts = torch.func.vmap(world.gradients())(records, targets)
        parts = _clipped(parts, self.defense.record_clipping_norm)
        total = parts.reshape(len(x), world.batch, -1).sum(1)
        return _clipped(total, self.defense.clipping_norm)

    def objective(self, x: Tensor, weight: float) -> Tensor:
        """Minus log likelihood (n,), and minus the log prior times a weight."""
        residual = self.kept * (self.replayed(x) - self.observed) / self.defense.noise
        squares = (x / self.world.prior.deviation).square().sum(1)
        return residual.square().sum(1) / 2 + weight * squares / 2

    def normal_equations(self, x: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Gauss–Newton matrix (n, D, D) and slope (n, D) of the objective."""
        found = [
            self.rows(chosen)._normal_equations(x[chosen], weight)
            for chosen in torch.arange(len(x)).split(AT_A_TIME)
        ]
        return torch.cat([matrix for matrix, _ in found]), torch.cat([slope for _, slope in found])

    def _normal_equations(self, x: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        world, count = self.world, len(x)
        gradients = world.gradients()

        def twice(record: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            gradient = gradients(record, target)
            return gradient, gradient

        slopes = torch.func.vmap(torch.func.jacfwd(twice, has_aux=True))
        records, targets = x.reshape(-1, world.inputs), world.targets.repeat(count, 1)
        jacobians, parts = slopes(records, targets)
        jacobians = _clipped_slopes(jacobians, parts, self.defense.record_clipping_norm)
        parts = _clipped(parts, self.defense.record_clipping_norm)
        total = parts.reshape(count, world.batch, -1).sum(1)
        joined = jacobians.reshape(count, world.batch, -1, world.inputs).transpose(1, 2).flatten(2)
        joined = _clipped_slopes(joined, total, self.defense.clipping_norm)
        total = _clipped(total, self.defense.clipping_norm)
        joined = joined * (self.kept / self.defense.noise)[..., None]
        residual = self.kept * (total - self.observed) / self.defense.noise
        prior = weight / world.prior.deviation**2
        matrix = joined.transpose(1, 2) @ joined
        matrix.diagonal(dim1=1, dim2=2).add_(prior)
        return matrix, (residual[:, None] @ joined)[:, 0] + prior * x


def observe(world: World, defense: ReleaseDefense, secrets: Tensor, seed: int) -> Problem:
    """Release the gradients of secrets (n, B·d) under a defence."""
    generator = stream(seed)
    clean = Problem(world, defense, secrets, secrets).replayed(secrets)
    kept = torch.rand(clean.shape, generator=generator, dtype=torch.float64) >= defense.dropout
    noise = torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    mask = kept.double()
    return Problem(world, defense, mask * (clean + defense.noise * noise), mask)


def searched(problem: Problem, starts: list[Tensor], weight: float) -> Tensor:
    """The end point with the lowest objective, draw by draw: MAP at weight 1, likelihood at 0."""
    count = len(problem.observed)
    stacked = problem.rows(torch.arange(count).repeat(len(starts)))
    x, values = _minimized(stacked, torch.cat(starts).clone(), weight)
    best = values.reshape(len(starts), count).argmin(0)
    return x.reshape(len(starts), count, -1)[best, torch.arange(count)]


def moments(problem: Problem) -> Tensor:
    """Records (n, B·d) from E[tanh(wᵀx)w] = E[tanh′(wᵀx)]x over the last layer's gradient.

    Residuals are those of an untrained network, 1/K less one for the label, and unmix the records;
    dropped values count as zero and the others are scaled up. E[tanh′] is that of a record of norm
    one, as the theorems have it; those of the prior are near it.
    """
    world = problem.world
    weights = world.simulator.parameters["0.weight"]
    last = problem.observed[:, -CLASSES * world.hidden :].reshape(-1, CLASSES, world.hidden)
    residuals = 1 / CLASSES - world.targets
    hidden = torch.linalg.pinv(residuals.T) @ last / (1 - problem.defense.dropout)
    nodes, mass = np.polynomial.hermite_e.hermegauss(60)
    slope = float((mass / np.cosh(nodes) ** 2).sum() / mass.sum())
    return (hidden @ weights / (slope * world.hidden)).flatten(1)


def posterior_mean(problem: Problem, mode: Tensor, generator: torch.Generator) -> Tensor:
    """Importance sampling from the Gaussian that fits the posterior at its mode."""
    matrix, _ = problem.normal_equations(mode, 1.0)
    spread = torch.linalg.inv(torch.linalg.cholesky(matrix)).transpose(1, 2)
    means = torch.empty_like(mode)
    for place in range(len(mode)):
        drawn = torch.randn((SAMPLES, mode.shape[1]), generator=generator, dtype=torch.float64)
        points = mode[place] + drawn @ spread[place].T
        repeated = problem.rows(torch.full((SAMPLES,), place))
        scores = drawn.square().sum(1) / 2 - repeated.objective(points, 1.0)
        means[place] = torch.softmax(scores, 0) @ points
    return means


def inverted(problem: Problem, seed: int) -> Tensor:
    """Inverting Gradients, release by release; it is told neither the mask nor the noise."""
    world = problem.world
    # All but one in a thousand values of the prior are within its bounds.
    bounds = (-3.5 * world.prior.deviation, 3.5 * world.prior.deviation)
    columns = tuple(Column(f"x{place}") for place in range(world.inputs))
    space = TableSpace(columns, tuple("abcd"[:CLASSES]), bounds=bounds)
    others = world.draw(20, stream(seed)).reshape(-1, world.inputs)
    prior = Prior(Records(others, torch.zeros(len(others), dtype=torch.int64), space))
    public = Public(world.simulator, prior)
    reconstruct = InvertingGradients(iterations=150).prepare(public, generator=stream(seed))
    hints, found = Hints(world.batch, torch.arange(world.batch)), []
    parameters = world.simulator.parameters
    for release in problem.observed:
        pieces = release.split([value.numel() for value in parameters.values()])
        tensors = {n: p.reshape(v.shape) for (n, v), p in zip(parameters.items(), pieces)}
        observation = Observation(GradientRelease(tensors), hints)
        found.append(reconstruct(observation, stream(seed + 1)).candidates.flatten())
    return torch.stack(found).double()


def _minimized(
    problem: Problem, x: Tensor, weight: float, steps: int = 30
) -> tuple[Tensor, Tensor]:
    """Levenberg–Marquardt from x (n, D), each by itself; points and their objectives."""
    values = problem.objective(x, weight)
    damping = torch.full((len(x),), 1e-3, dtype=torch.float64)
    active = torch.arange(len(x))
    for _ in range(steps):
        part = problem.rows(active)
        matrix, slope = part.normal_equations(x[active], weight)
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        damped = matrix + torch.diag_embed(damping[active, None] * diagonal + 1e-12)
        moved = x[active] - torch.linalg.solve(damped, slope)
        found = part.objective(moved, weight)
        better = found < values[active]
        gain = (values[active] - found) / values[active].clamp_min(1e-300)
        x[active] = torch.where(better[:, None], moved, x[active])
        values[active] = torch.where(better, found, values[active])
        damping[active] = torch.where(better, damping[active] / 5, damping[active] * 4)
        # A gain too small to matter ends the search, and so does a step that vanishes.
        done = (better & (gain < 1e-7)) | (damping[active] > 1e8)
        active = active[~done]
        if len(active) == 0:
            break
    return x, values


def _clipped(gradients: Tensor, norm: float | None) -> Tensor:
    """Gradients (n, P), each cut to a norm."""
    if norm is None:
        return gradients
    lengths = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return gradients * (norm / lengths).clamp(max=1)


def _clipped_slopes(jacobians: Tensor, gradients: Tensor, norm: float | None) -> Tensor:
    """Jacobians (n, P, w) of gradients (n, P) that are cut to a norm."""
    if norm is None:
        return jacobians
    lengths = torch.linalg.vector_norm(gradients, dim=1)[:, None, None]
    directions = gradients[..., None] / lengths
    cut = norm / lengths * (jacobians - directions * (directions.transpose(1, 2) @ jacobians))
    return torch.where(lengths > norm, cut, jacobians)
