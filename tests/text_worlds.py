"""Small worlds of texts: random token numbers, short transformers, and audits of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vestige import Audit, Prior, Records, TextSpace, networks
from vestige.distances import TokenSetDistance
from vestige.interfaces import GradientRelease, Release
from vestige.networks import TokenModel, own_loss
from vestige.simulation.simulator import Simulator
from vestige.victims import SharedGradient

SPACE = TextSpace(7, 40, ("a", "b"))


def texts(count: int, seed: int, space: TextSpace = SPACE) -> Records:
    """Random texts of two lengths; padding is token 0."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, space.length)
    x = torch.randint(1, space.vocabulary, shape, generator=generator).float()
    x[torch.arange(count) % 3 == 0, -1] = space.padding
    return Records(x, torch.arange(count) % len(space.class_names), space)


def model(task="language modelling", space: TextSpace = SPACE) -> TokenModel:
    return networks.transformer(
        space, task, width=32, heads=2, generator=torch.Generator().manual_seed(5)
    )


def victim(task="language modelling", **changes) -> SharedGradient:
    loss = {"loss": own_loss} if task == "language modelling" else {}
    return SharedGradient(model(task), **{"mode": "eval", **loss, **changes})


def text_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    settings = {
        "victim": victim(),
        "secrets": texts(60, 1000 + seed),
        "prior": Prior(texts(60, 2000 + seed)),
        "attacks": attacks,
        "false_positive_rate": 0.1,
    }
    return Audit(**{**settings, **changes})


def unordered_audit(attacks, **changes) -> Audit:
    """The same, measured without the order of tokens."""
    return text_audit(attacks, distance=TokenSetDistance(), **changes)


@dataclass(frozen=True)
class NullTexts:
    """Releases the gradient of other texts with the same labels: nothing about the secret."""

    seed: int

    @property
    def releases(self) -> type[Release]:
        return GradientRelease

    @property
    def simulator(self) -> Simulator:
        return victim().simulator

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        others = texts(60, 3000 + self.seed)
        chosen = []
        for label in secret.y.tolist():
            same = torch.nonzero(others.y == label).flatten()
            chosen.append(int(same[torch.randint(len(same), (), generator=generator)]))
        return victim().release(others[chosen], generator=generator)

    def describe(self) -> dict[str, str]:
        return {"Victim": f"null world {self.seed}"}
