"""Rehearsals of head inversion: whole classes held back, and copies that a budget is enough for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Prior, Records
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.choice import Rehearsal, held_back_classes
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.recipes import FEATURE_RATE, Recipe
from vestige.networks import HeadedModel
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.records import ImageSpace
from vestige.simulation.backbone_features import CHUNK, LEAST_CHUNK, features_of
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import HeadTraining, OneAgainstRest, ReleasedHead
from worlds import draws, released_head


def people(count: int, each: int) -> Records:
    """Random pictures, so many of each class."""
    space = ImageSpace(1, 4, 4, tuple(f"person {i}" for i in range(count)))
    x = torch.rand((count * each, 1, 4, 4), generator=stream(3, "pictures"))
    return Records(x, torch.arange(count).repeat_interleave(each), space)


def recogniser(negatives: int) -> ReleasedHead:
    training = HeadTraining(OneAgainstRest(1, negatives), epochs=5, learning_rate=0.3)
    return ReleasedHead(HeadedModel(released_head().model.backbone, 48, 1), training)


def knowledge_of(victim: ReleasedHead, records: Records) -> PriorKnowledge:
    return PriorKnowledge.of(WeakAdversary().public(victim, Prior(records)), 4, None)


def nothing(heads) -> torch.Tensor:
    """An estimator that reads nothing."""
    return torch.zeros(len(heads), 2, 48)


def test_of_one_against_the_rest_whole_classes_are_held_back():
    records = people(30, 6)
    rehearsal = Rehearsal.of(knowledge_of(recogniser(9), records), nothing, stream(0, "rehearsal"))
    assert rehearsal is not None
    held = ~rehearsal.learned_from
    assert int(held.sum()) == 18
    for person in range(30):
        assert len(held[records.y == person].unique()) == 1
    # Every record held back is the positive of one head, and negatives are held back, too.
    assert len(rehearsal.records) == 18
    own = rehearsal.records.flatten(2)
    assert len(own[:, 0].unique(dim=0)) == 18
    pool = {tuple(row.tolist()) for row in records.x[held].flatten(1)}
    assert {tuple(row.tolist()) for row in own.flatten(0, 1)} <= pool


@pytest.mark.parametrize(
    ("classes", "each", "negatives"), [(10, 30, 9), (9, 30, 9), (30, 2, 9), (3, 2, 1)]
)
def test_classes_too_few_or_too_small_for_a_head_are_not_held_back(classes, each, negatives):
    """One class alone has no others, and two of two records each have too few."""
    labels = torch.arange(classes).repeat_interleave(each)
    assert held_back_classes(labels, (1, negatives), stream(0, "classes")) is None


def test_without_whole_classes_records_are_held_back():
    rehearsal = Rehearsal.of(
        knowledge_of(recogniser(2), people(5, 80)), nothing, stream(0, "rehearsal")
    )
    assert rehearsal is not None
    assert int((~rehearsal.learned_from).sum()) == len(rehearsal.records) * 3


def test_operations_of_a_backbone_are_those_of_its_layers():
    knowledge = knowledge_of(recogniser(9), people(30, 6))
    assert knowledge.record_operations == 2 * 16 * 48


def test_copies_are_no_more_than_a_budget_is_enough_for():
    knowledge = knowledge_of(recogniser(9), people(30, 6))
    one_set = 180 * knowledge.record_operations / FEATURE_RATE
    recipe = Recipe(FullyConnectedDecoder((8,)), AffineCopies(20), 100, 32, 1e-3, None)
    for sets in (0, 3, 20):
        short = recipe.within((sets + 0.5) * one_set, knowledge)
        assert short.copies == replace(AffineCopies(20), number=sets)
    mirrored = replace(recipe, copies=AffineCopies(20, mirrored=True))
    found = mirrored.within(3.5 * one_set, knowledge).copies
    assert found is not None
    assert found.sets == 3
    assert recipe.within(1.0, knowledge).copies == recipe.copies


def test_large_records_go_through_the_backbone_a_few_at_a_time():
    seen: list[int] = []

    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return x.flatten(1)[:, :16]

    victim = ReleasedHead(HeadedModel(Counting(), 16, 3), released_head().training)
    small = draws(50, 1)
    for side, most in ((4, CHUNK), (400, LEAST_CHUNK)):
        seen.clear()
        space = replace(small.space, height=side, width=side)
        large = small.x.repeat(1, 1, side // 4, side // 4)
        features = features_of(victim.simulator, Records(large, small.y, space))
        assert torch.equal(features, large.flatten(1)[:, :16])
        assert max(seen) == min(most, 50)
        assert sum(seen) == 50
