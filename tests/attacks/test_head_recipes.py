"""Recipes that learn on: what is left of the budget of a choice is used, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vestige import Prior
from vestige.attacks.head_inversion import choice, recipes
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.pools import ChannelPool
from vestige.attacks.head_inversion.reading import Heads
from vestige.attacks.head_inversion.recipes import Recipe
from vestige.interfaces import Public
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.streams import stream
from vestige.threats import WeakAdversary
from worlds import draws, released_head


def known(count: int) -> Public:
    return WeakAdversary().public(released_head(), Prior(draws(count, 7)))


def test_a_decoder_learns_on():
    """More examples lower the error, count in the recipe, and leave nothing to be trained."""
    knowledge = PriorKnowledge.of(known(300), 4, None)
    pool = ChannelPool(knowledge, lambda features, groups, generator: features)
    recipe = Recipe(FullyConnectedDecoder((64,)), None, 1_000, 50, 3e-3, None)
    generator = stream(0, "training")
    decoder = recipe.train(pool, generator)
    rows, groups, records = next(pool.batches(300, stream(1, "rows")))

    def error() -> float:
        return float((decoder(rows, groups) - records[:, 0]).square().mean())

    before = error()
    assert recipe.train_more(decoder, 40, pool, generator) == recipe
    assert error() == before
    longer = recipe.train_more(decoder, 10_000, pool, generator)
    assert longer == replace(recipe, examples=11_000)
    assert error() < 0.8 * before
    assert not any(p.requires_grad or p.grad is not None for p in decoder.parameters())


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 10**6), (1.0, 6_000), (4.0, 6_000)])
def test_what_rehearsals_leave_of_the_budget_is_used(monkeypatch, seconds, most):
    """A few records held back: at most the recipe's examples, and no more than are paid for."""
    monkeypatch.setattr(choice, "MOST_HEADS", 10)
    knowledge = PriorKnowledge.of(known(600), 4, None)
    recipe = Recipe(FullyConnectedDecoder((256,)), None, most, 50, 1e-3, None)
    per_example = recipe.cost(knowledge)
    monkeypatch.setattr(recipes, "NOMINAL_RATE", recipes.NOMINAL_RATE * per_example * 10_000)
    pool = ChannelPool(knowledge, lambda features, groups, generator: features)

    def estimator(heads: Heads) -> torch.Tensor:
        return knowledge.statistics.mean.expand(len(heads), -1, -1)

    found = choice.choose([recipe], pool, estimator, seconds=seconds, generator=stream(0, "choice"))
    # One example is a ten thousandth of a nominal second; both parts are rounded down.
    paid = min(most, round(10_000 * seconds))
    assert paid - 2 <= found.recipe.examples <= paid
    assert set(found.rates) == {"FullyConnectedDecoder", "FullyConnectedDecoder, fine-tuned"}
