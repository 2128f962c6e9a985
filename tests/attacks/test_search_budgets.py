"""Searches end at a budget that is counted, say so, and return the best so far."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige.attacks import CombinedInversion, FeatureInversion
from vestige.attacks.combined_inversion.problem import Problem
from vestige.attacks.exact_inversion.layers import Recovered
from vestige.attacks.exact_inversion.search_budget import ANSWER_TRIES, limited_search
from vestige.attacks.exact_inversion.silent_directions import Directions
from vestige.attacks.feature_inversion import feature_recovery
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.records import Prior
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import draws, sequential


def seen(model: nn.Module, size: int):
    """What an attacker knows and sees of a client's gradient, and the secret."""
    victim, threat, secret = SharedGradient(model, mode="eval"), HonestServer(), draws(size, 8)
    release = victim.release(secret, generator=stream(0, "victim"))
    return threat.public(victim, Prior(draws(60, 7))), threat.observe(Run(secret, release)), secret


def convolutions() -> nn.Module:
    return sequential(
        lambda: nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(128, 60),
        nn.ReLU,
        lambda: nn.Linear(60, 3),
    )


@pytest.fixture
def without_lift(monkeypatch):
    """Let the search by silent neurons do all the work."""
    monkeypatch.setattr(
        feature_recovery,
        "lifted_inversion",
        lambda dense, **_: Recovered.nothing(dense, 3, "not tried"),
    )


@pytest.fixture
def examined(monkeypatch):
    """Directions that are examined closely."""
    counted, sharpened = [], Directions._sharpened

    def counting(self, direction):
        counted.append(direction)
        return sharpened(self, direction)

    monkeypatch.setattr(Directions, "_sharpened", counting)
    return counted


def test_a_search_within_its_budget_is_as_without_one(without_lift, examined):
    public, observation, _ = seen(convolutions(), 3)
    head = feature_recovery.find_head(public, None)

    def recovered():
        return feature_recovery.recover_features(
            head, public, observation, noise=None, generator=stream(0)
        )

    unlimited = recovered()
    count = len(examined)
    assert bool(unlimited.certified.all())
    with limited_search(100_000) as budget:
        limited = recovered()
    assert torch.equal(unlimited.inputs, limited.inputs)
    assert not budget.ended
    # Every direction is one try, and every one that is kept costs what an answer does.
    spent = 100_000 - budget.left
    assert (spent - count) % ANSWER_TRIES == 0
    assert len(examined) == 2 * count


def test_features_end_at_the_budget_and_say_so(without_lift, examined):
    public, observation, _ = seen(convolutions(), 3)
    found = []
    for budget in (2, 2, 5000):
        examined.clear()
        attack = FeatureInversion(iterations=3, search_budget=budget)
        reconstruct = attack.prepare(public, generator=stream(1))
        found.append(reconstruct(observation, stream(2)))
        assert len(examined) <= budget
    short, again, whole = found
    assert "search_budget" in short.remark
    assert torch.equal(short.candidates, again.candidates)
    assert short.candidates.shape == whole.candidates.shape
    assert bool(short.candidates.isfinite().all())
    assert not whole.remark
    assert whole.info["features certified"] == 3


@pytest.fixture
def searches(monkeypatch):
    """Iterations of every search that the combined attack runs."""
    counted, followed = [], Problem._followed

    def counting(self, *given):
        counted.append(self.attack.iterations)
        return followed(self, *given)

    monkeypatch.setattr(Problem, "_followed", counting)
    return counted


def linear_features() -> nn.Module:
    return sequential(
        lambda: nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid, nn.Flatten, lambda: nn.Linear(96, 3)
    )


@pytest.mark.parametrize(
    ("budget", "most", "remark"),
    [
        (None, 20 * 4, "chosen on 2 of 3 simulated batches"),
        (9, 9, "chosen on 0 of 3 simulated batches"),
        (4, 4, "other recipes were left out"),
        (1000, 25 * 4, None),
    ],
)
def test_combined_inversion_keeps_to_its_budget(budget, most, remark, searches):
    public, observation, _ = seen(linear_features(), 2)
    attack = CombinedInversion(iterations=4, budget=budget, feature_sources=())
    results = []
    for _ in range(2):
        searches.clear()
        reconstruct = attack.prepare(public, generator=stream(1))
        results.append(reconstruct(observation, stream(2)))
        # Four iterations explain nothing, so that every recipe is followed to its end.
        assert 0 < sum(searches) <= most
    assert torch.equal(results[0].candidates, results[1].candidates)
    if remark is None:
        assert sum(searches) == most
        assert not results[0].remark
    else:
        assert remark in results[0].remark


def test_budgets_are_whole_numbers():
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(BadInput, match="budget"):
            FeatureInversion(search_budget=wrong)
        with pytest.raises(BadInput, match="budget"):
            CombinedInversion(budget=wrong)
