"""Small worlds in which attacks are tried: pictures, rows, and what their client releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vestige.interfaces import (
    Hints,
    Observation,
    Public,
    Reconstruction,
    Release,
)
from vestige.networks import lenet, mlp
from vestige.records import Column, ImageSpace, Prior, Records, Space, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.kinds import ClientSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(channels: int = 1, classes: int = 4, size: int = 6) -> ImageSpace:
    return ImageSpace(channels, size, size, tuple(str(label) for label in range(classes)))


def rows(columns: int = 7, classes: int = 3) -> TableSpace:
    names = tuple(Column(f"feature {index}") for index in range(columns))
    return TableSpace(names, tuple(str(label) for label in range(classes)))


def records(space: Space, count: int = 60, seed: int = 0) -> Records:
    """Records that differ by class: a class has its own mean."""
    generator, classes = stream(seed), len(space.class_names)
    y = torch.arange(count) % classes
    centers = torch.rand(classes, *space.shape, generator=stream(99))
    x = 0.7 * centers[y] + 0.3 * torch.rand(count, *space.shape, generator=generator)
    return Records(x, y, space)


@dataclass(frozen=True)
class World:
    """A secret batch, what its client released, and what the attacker knows."""

    public: Public
    release: Release
    secret: Records

    def observation(self, *, labels: bool = True, batch_size: bool = True) -> Observation:
        hints = Hints(len(self.secret) if batch_size else None, self.secret.y if labels else None)
        return Observation(self.release, hints)

    def attacked(self, attack, seed: int = 5, **told: bool) -> Reconstruction:
        reconstruct = attack.prepare(self.public, generator=stream(seed + 1))
        return reconstruct(self.observation(**told), stream(seed)).checked(self.public.space)

    def error(self, found: Reconstruction) -> float:
        """Root mean squared error, candidates in the order of the secret."""
        return float((found.candidates.cpu() - self.secret.x).square().mean().sqrt())


def client(
    model: nn.Module, local: LocalTraining | None = None, **settings: Any
) -> ClientSimulator:
    """The simulator of a gradient, or with local training that of an update."""
    if local is None:
        return GradientSimulator(model, **settings)
    return UpdateSimulator(model, local=local, **settings)


def world(simulator: Simulator, space: Space, batch_size: int = 1, seed: int = 3) -> World:
    """Draw a secret, and release its gradient or its update."""
    secret = records(space, batch_size, seed + 1000)
    tensors = {n: t.detach() for n, t in simulator(*simulator.batch(secret)).items()}
    kind = simulator.releases
    return World(Public(simulator, Prior(records(space)), kind), kind(tensors), secret)


def smooth_network(space: Space, seed: int = 0) -> nn.Module:
    """A twice differentiable network that any gradient attack should invert."""
    if isinstance(space, ImageSpace):
        return lenet(space, generator=stream(seed))
    return mlp(space, (32,), activation=nn.Sigmoid, generator=stream(seed))


def layered(*layers: Callable[[], nn.Module]) -> nn.Sequential:
    """Layers made by calls without arguments, so that torch's global stream stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*(layer() for layer in layers))
