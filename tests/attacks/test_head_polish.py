"""Whether estimated features are polished: decided on simulated heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from head_worlds import digits, victim
from vestige import datasets
from vestige.attacks import HeadInversion
from vestige.attacks.head_inversion.estimators import LinearHeadEstimator
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.cli.demonstration import demonstration_head
from vestige.records import Records, Splits
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.threats import WeakAdversary
from vestige.victims import ReleasedHead

ATTACK = HeadInversion(shadows=10, polish_steps=30, rank=30)


def released(
    victim: ReleasedHead, splits: Splits, generator: torch.Generator
) -> tuple[PriorKnowledge, Tensor, Tensor, Tensor]:
    """What the attacker knows; weights, biases and true features of heads on other records."""
    knowledge = PriorKnowledge.of(WeakAdversary().public(victim, splits.prior), ATTACK.rank, None)
    records: Records = splits.train
    features = features_of(victim.simulator, records)
    factory = HeadFactory(victim.simulator, features, records.y)
    heads = factory.draw(12, generator=generator)
    size = 10 * features.shape[1]
    weight = heads.weights[:, :size].reshape(12, 10, -1)
    return knowledge, weight, heads.weights[:, size:], features[heads.sets.members]


def explained(knowledge: PriorKnowledge, estimated: Tensor, true: Tensor) -> float:
    away = (true - knowledge.statistics.mean).square().sum()
    return 1 - float((estimated - true).square().sum() / away)


@pytest.mark.parametrize("stable", [True, False])
def test_simulated_heads_say_whether_to_polish(stable):
    splits = digits() if stable else datasets.load("digits").split(seed=11)
    owner = victim() if stable else demonstration_head(splits.train.space)
    generator = torch.Generator().manual_seed(1)
    knowledge, weight, bias, true = released(owner, splits, generator)
    assert knowledge.linear.is_stable(knowledge.statistics.mean) is stable
    estimator = ATTACK._estimator(knowledge, generator)
    assert isinstance(estimator, LinearHeadEstimator)
    assert (estimator.steps == ATTACK.polish_steps) is stable

    def estimate(steps: int) -> float:
        found = replace(estimator, steps=steps)._chunk(weight, bias)
        return explained(knowledge, found, true)

    polished, plain = estimate(ATTACK.polish_steps), estimate(0)
    assert (polished > plain) is stable
    assert max(polished, plain) > 0.3


def test_no_polish_is_what_zero_steps_ask_for():
    knowledge = PriorKnowledge.of(WeakAdversary().public(victim(), digits().prior), 30, None)
    attack = replace(ATTACK, polish_steps=0)
    estimator = attack._estimator(knowledge, torch.Generator().manual_seed(0))
    assert isinstance(estimator, LinearHeadEstimator)
    assert estimator.steps == 0
