"""Features by Hermite moments as a source of the combined attack: what defences leave of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige.attacks.combined_inversion.feature_terms import two_layer_features
from vestige.datasets import load
from vestige.defenses import (
    Defense,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    Undefended,
)
from vestige.interfaces import GradientRelease, Hints, Observation, Run
from vestige.networks.gaussian_head import gaussian_head
from vestige.threats import HonestServer
from vestige.victims import SharedGradient


def world(defense: Defense):
    digits = load("digits").split(seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 16)
        )
        model = gaussian_head(body, features=16, hidden=3000, classes=10)
    victim = defense(SharedGradient(model, mode="eval"))
    threat = HonestServer(labels=True)
    secret = digits.train[:2]
    release = victim.release(secret, generator=torch.Generator().manual_seed(1))
    public = threat.public(victim, digits.prior)
    return public, threat.observe(Run(secret, release)), body(secret.x).detach().double()


def similarity(defense: Defense) -> float:
    """Smallest cos² between a true feature and its nearest recovered one; −1 if there is none."""
    public, observation, truth = world(defense)
    found = two_layer_features(public, observation, torch.Generator().manual_seed(0))
    if found is None:
        return -1.0
    units = nn.functional.normalize(found.values.double(), dim=1)
    return float((nn.functional.normalize(truth, dim=1) @ units.T).square().amax(1).min())


@pytest.mark.parametrize(
    "defense",
    [
        Undefended(),
        GradientDropout(0.5),
        pytest.param(GradientPruning(0.5), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_features_survive_masks(defense: Defense) -> None:
    assert similarity(defense) > 0.999


def test_noise_that_hides_the_gradient_leaves_no_feature_or_a_worse_one() -> None:
    weak, strong = similarity(GradientNoise(1e-6)), similarity(GradientNoise(10.0))
    assert weak > 0.99
    assert strong < 0.9


def test_a_gradient_of_one_layer_has_none() -> None:
    digits = load("digits").split(seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    public = HonestServer().public(SharedGradient(model, mode="eval"), digits.prior)
    tensors = {name: torch.ones_like(p) for name, p in public.simulator.parameters.items()}
    observation = Observation(GradientRelease(tensors), Hints(batch_size=1))
    assert two_layer_features(public, observation, torch.Generator()) is None
