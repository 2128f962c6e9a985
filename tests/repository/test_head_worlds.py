"""benchmarks/head_worlds.py: what limits an attack on heads, against naive computations."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from vestige import Records
from vestige.attacks import HeadInversion
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.records import ImageSpace
from vestige.simulation.backbone_features import features_of
from vestige.streams import stream
from vestige.victims import HeadTraining, OneAgainstRest, ReleasedHead
from worlds import released_head

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PEOPLE, EACH = 12, 4


@pytest.fixture
def worlds_of_heads(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "head_worlds", raising=False)  # that of tests, put back later
    yield importlib.import_module("head_worlds")
    sys.modules.pop("head_worlds", None)


def pictures(seed: int) -> Records:
    space = ImageSpace(1, 4, 4, tuple(f"person {i}" for i in range(PEOPLE)))
    x = torch.rand((PEOPLE * EACH, 1, 4, 4), generator=stream(seed, "pictures"))
    return Records(x, torch.arange(PEOPLE).repeat_interleave(EACH), space)


def attacked(module):
    training = HeadTraining(OneAgainstRest(1, 3), epochs=10, learning_rate=0.3)
    victim = ReleasedHead(HeadedModel(released_head().model.backbone, 48, 1), training)
    world = module.World.of(victim, pictures(1), pictures(2))
    decoder = FullyConnectedDecoder((8,))
    attack = HeadInversion(decoder, examples=100, shadows=4, polish_steps=2, rank=4)
    return world, module.attacked(world, attack, 20, 0)


def test_recognition_is_that_of_a_loop(worlds_of_heads):
    world, found = attacked(worlds_of_heads)
    drawn, people, shares, losses = found.drawn, world.secrets.y, [], []
    features = features_of(world.victim.simulator, world.secrets)
    for release, members in zip(drawn.releases, drawn.sets.members.tolist()):
        weight, bias = release.tensors["head.weight"], release.tensors["head.bias"]
        logits = (features @ weight.T + bias)[:, 0]
        for own in (True, False):
            right = [
                (float(logits[i]) > 0) == own
                for i in range(len(people))
                if i not in members and (people[i] == people[members[0]]) == own
            ]
            shares.append(sum(right) / len(right))
        signs = torch.tensor([1.0] + 3 * [-1.0])
        losses.append(nn.functional.softplus(-signs * logits[members]).mean())
    accuracy, loss = worlds_of_heads.recognition(found, world)
    assert accuracy == pytest.approx(sum(shares) / len(shares))
    assert loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


def test_features_that_are_known_are_explained(worlds_of_heads):
    world, found = attacked(worlds_of_heads)
    known, sets = found.reconstruct.knowledge, found.drawn.sets
    true = features_of(world.victim.simulator, world.secrets)[sets.members]
    groups = torch.stack([true[:, 0], true[:, 1:].mean(1)], 1)
    for estimate, explained in ((groups, 1.0), (known.statistics.mean.expand_as(groups), 0.0)):
        told = replace(found.reconstruct, estimator=lambda heads, estimate=estimate: estimate)
        again = replace(found, reconstruct=told)
        value = worlds_of_heads.explained_features(again, world)
        assert value == pytest.approx(explained, abs=1e-6)


def test_ridge_regression_is_the_naive_solve(worlds_of_heads):
    """At its penalty, which is the best one on people that it was not fitted to."""
    world, found = attacked(worlds_of_heads)
    known = found.reconstruct.knowledge
    decode, penalty = worlds_of_heads.ridge_decoder(found)
    x, y = known.features.double(), known.pictures.flatten(1).double()
    x = torch.cat(
        [(x - x.mean(0)) / x.std(0).clamp_min(1e-6 + 1e-3 * x.std()), x.new_ones(48, 1)], 1
    )

    def fitted(some: torch.Tensor, penalty: float) -> torch.Tensor:
        # The penalty as further rows of the least squares problem.
        rows = torch.cat([x[some], penalty**0.5 * torch.eye(49, dtype=torch.float64)])
        goals = torch.cat([y[some] - y.mean(0), y.new_zeros(49, 16)])
        return x @ torch.linalg.lstsq(rows, goals).solution + y.mean(0)

    everything = torch.ones(48, dtype=torch.bool)
    drawn = decode(known.features, known.labels).flatten(1).double()
    assert torch.allclose(drawn, fitted(everything, penalty), atol=1e-5)
    errors = {}
    for one in worlds_of_heads.PENALTIES:
        held = [known.labels % 3 == fold for fold in range(3)]
        errors[one] = sum(float((fitted(~h, one) - y)[h].square().sum()) for h in held)
    assert penalty == min(errors, key=errors.__getitem__)
    true = worlds_of_heads.drawn_from_true_features(found, world, decode)
    naive = (drawn.clamp(0, 1) - y).square().mean() / (y - y.mean(0)).square().mean()
    assert true.seen == pytest.approx(float(naive), rel=1e-5)
