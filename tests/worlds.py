"""Small worlds whose truth is known: one that can be solved, one in which nothing leaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import nn

from vestige import Audit, ImageSpace, Prior, Records, datasets, networks
from vestige.bounds import DPSGD
from vestige.interfaces import (
    GradientRelease,
    Reconstruction,
    Release,
    Victim,
)
from vestige.networks import Bins, HeadedModel, ImprintedModel
from vestige.networks.gaussian_head import gaussian_head
from vestige.records import Splits
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.simulator import Simulator
from vestige.threats import InformedAdversary, MaliciousServer, WeakAdversary
from vestige.victims import (
    ClassCounts,
    ConvexFit,
    HeadTraining,
    LocalTraining,
    PrivateTraining,
    ReleasedConvexModel,
    ReleasedHead,
    ReleasedNetwork,
    SharedGradient,
)

CLASSES = 3
SPACE = ImageSpace(1, 4, 4, tuple("abc"[:CLASSES]), noun="patch")


def draws(count: int, seed: int, space: ImageSpace = SPACE) -> Records:
    """Records with a mean for each class and noise around it, in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.rand((CLASSES, *space.shape), generator=torch.Generator().manual_seed(99))
    y = torch.arange(count) % CLASSES
    noise = torch.randn((count, *space.shape), generator=generator)
    return Records((means[y] * 0.6 + 0.2 + 0.12 * noise).clamp(0, 1), y, space)


def linear_network() -> nn.Module:
    """One linear layer: at batch 1 its gradient determines the record."""
    return networks.mlp(SPACE, hidden=(12,), generator=torch.Generator().manual_seed(5))


def sequential(*layers) -> nn.Module:
    """Layers made by calls without arguments, so that torch's global stream stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*(layer() for layer in layers))


def small_audit(attacks, *, seed: int = 0, batch_size: int = 1, **changes) -> Audit:
    settings = {
        "victim": SharedGradient(linear_network()),
        "secrets": draws(60, 1000 + seed),
        "prior": Prior(draws(60, 2000 + seed)),
        "attacks": attacks,
        "batch_size": batch_size,
        "false_positive_rate": 0.1,
    }
    return Audit(**{**settings, **changes})


def gaussian_network() -> nn.Module:
    """A wide layer of Gaussian units that reads the records: its moments hold a batch."""
    return gaussian_head(nn.Flatten(), 16, 200, CLASSES, generator=torch.Generator().manual_seed(5))


def imprinted_network() -> nn.Module:
    """The same network behind an imprint layer of a malicious server."""
    bins = Bins.from_prior(draws(60, 7), 24)
    return ImprintedModel(linear_network(), SPACE, bins)


def imprint_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    """The small audit of a gradient behind an imprint layer."""
    settings = {"victim": SharedGradient(imprinted_network()), "threat": MaliciousServer()}
    return small_audit(attacks, seed=seed, **{**settings, **changes})


KNOWN = draws(20, 77)


def convex_model() -> ReleasedConvexModel:
    """Softmax regression at its optimum: one unknown record is determined."""
    return ReleasedConvexModel(KNOWN, ConvexFit(l2=0.01))


def released_network() -> ReleasedNetwork:
    """A small network trained for long enough that the unknown record leaves its trace."""
    model = networks.mlp(SPACE, hidden=(), generator=torch.Generator().manual_seed(5))
    return ReleasedNetwork(model, KNOWN, LocalTraining(steps=20, learning_rate=0.3, momentum=0.9))


def model_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    """The small audit of a trained model, against an informed adversary."""
    settings = {"victim": convex_model(), "threat": InformedAdversary()}
    return small_audit(attacks, seed=seed, **{**settings, **changes})


def private_training() -> PrivateTraining:
    """DP-SGD with so little noise that the unknown record's gradient is seen."""
    model = networks.mlp(SPACE, hidden=(), generator=torch.Generator().manual_seed(5))
    mechanism = DPSGD(noise_multiplier=0.02, sampling_rate=0.8, steps=4, clipping_norm=0.5)
    return PrivateTraining(model, KNOWN, mechanism, learning_rate=0.5)


def private_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    """The small audit of DP-SGD, whose attacker holds a near-copy of every secret."""
    secrets = draws(60, 1000 + seed)
    noise = torch.randn(secrets.x.shape, generator=torch.Generator().manual_seed(4000 + seed))
    copies = replace(secrets, x=(secrets.x + 0.01 * noise).clamp(0, 1))
    settings = {"victim": private_training(), "secrets": secrets, "prior": Prior(copies)}
    return model_audit(attacks, seed=seed, **{**settings, **changes})


def released_head() -> ReleasedHead:
    """A head whose features are as many as the pixels: one record of each class is determined."""
    backbone = sequential(nn.Flatten, lambda: nn.Linear(16, 48), nn.ReLU).eval()
    training = HeadTraining(
        ClassCounts.balanced(CLASSES, CLASSES), epochs=20, learning_rate=0.3, initial_deviation=1e-4
    )
    return ReleasedHead(HeadedModel(backbone, 48, CLASSES), training)


def released_head_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    """The small audit of a released head, against a weak adversary."""
    settings = {"victim": released_head(), "threat": WeakAdversary(), "batch_size": CLASSES}
    return small_audit(attacks, seed=seed, **{**settings, **changes})


@cache
def head_world(seed: int = 0) -> tuple[ReleasedHead, Splits]:
    """A linear head on a fixed random layer, trained on one bundled digit of each of 3 classes."""
    digits = datasets.load("digits")
    digits = digits[digits.y < CLASSES]
    assert isinstance(digits.space, ImageSpace)
    space = replace(digits.space, class_names=digits.space.class_names[:CLASSES])
    digits = Records(digits.x, digits.y, space)
    backbone = sequential(nn.Flatten, lambda: nn.Linear(64, 64), nn.ReLU).eval()
    training = HeadTraining(ClassCounts.balanced(CLASSES, CLASSES), epochs=12, learning_rate=0.3)
    victim = ReleasedHead(HeadedModel(backbone, 64, CLASSES), training)
    return victim, digits.split(seed=seed, train=0.25, held_out=0.1, prior=0.65)


def head_audit(attacks, *, seed: int = 0, **changes) -> Audit:
    """The small audit of a published head, against a weak adversary."""
    victim, parts = head_world(seed)
    settings = {"victim": victim, "secrets": parts.train, "prior": parts.prior}
    settings |= {"threat": WeakAdversary(), "batch_size": CLASSES}
    return small_audit(attacks, seed=seed, **{**settings, **changes})


def other_records(
    secret: Records, seed: int, generator: torch.Generator, pool: Records | None = None
) -> Records:
    """Other records with the labels of a secret."""
    others = draws(60, 3000 + seed) if pool is None else pool
    chosen = []
    for label in secret.y.tolist():
        same = torch.nonzero(others.y == label).flatten()
        chosen.append(int(same[torch.randint(len(same), (), generator=generator)]))
    return others[chosen]


@dataclass(frozen=True)
class NullModel:
    """Releases a model, or a training, of other records with the same labels."""

    seed: int
    victim: Victim
    pool: Records | None = None

    @property
    def releases(self) -> type[Release]:
        return self.victim.releases

    @property
    def simulator(self) -> Simulator:
        return self.victim.simulator

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        others = other_records(secret, self.seed, generator, self.pool)
        return self.victim.release(others, generator=generator)

    def describe(self) -> dict[str, str]:
        return {"Victim": f"null world {self.seed}"}


@dataclass(frozen=True)
class NullVictim:
    """Releases the gradient of other records with the same labels: nothing about the secret."""

    seed: int
    model: nn.Module = field(default_factory=linear_network)

    @property
    def releases(self) -> type[Release]:
        return GradientRelease

    @property
    def simulator(self) -> Simulator:
        return GradientSimulator(self.model, mode="train")

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        others = other_records(secret, self.seed, generator)
        return SharedGradient(self.model).release(others, generator=generator)

    def describe(self) -> dict[str, str]:
        return {"Victim": f"null world {self.seed}"}


@dataclass(frozen=True)
class LabelOnly:
    """Draws the mean of the class it was told, and nothing else: it knows no record."""

    name = "Label only"
    summary = "draws a class mean"
    needs = "the labels"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            labels = observation.hints.labels
            means = torch.stack([public.prior.mean(int(label)) for label in labels])
            return Reconstruction(means, labels)

        return reconstruct
