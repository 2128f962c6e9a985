"""Choice of a recipe on simulated heads of public records, never on a head under attack.

Some of the prior's records are held back. Every recipe is rehearsed on the others, in a small share
of the budget, and draws heads that are simulated on the records held back, no record in two heads.
The recipe with the most true positives at the false positive rate, over all ordered pairs of heads,
is the one whose decoder is then trained on all records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.attacks.head_inversion.channels import Channel
from vestige.attacks.head_inversion.estimators import Estimator
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.attacks.head_inversion.reading import Heads
from vestige.attacks.head_inversion.recipes import Recipe
from vestige.priors.feature_decoders import FeatureDecoder

HELD_BACK = 0.1
"""Share of the prior's records that rehearsals are judged on."""

LEAST_HEADS, MOST_HEADS = 10, 60
"""Heads that a choice needs, and that are enough for it."""

REHEARSED_SHARE = 0.1
"""Of the budget, for the rehearsal of each recipe."""

FALSE_POSITIVE_RATE = 0.01


@dataclass(frozen=True)
class Rehearsal:
    """Heads of records held back: features as estimated (s, g, d) and their records.

    ``records`` (s, n, *shape) are in the order of the groups; ``learned_from`` (n,) says which of
    the prior's records are not held back.
    """

    knowledge: PriorKnowledge
    estimates: Tensor
    records: Tensor
    learned_from: Tensor

    @classmethod
    def of(
        cls, knowledge: PriorKnowledge, estimator: Estimator, generator: torch.Generator
    ) -> Rehearsal | None:
        """Simulate heads on a share of the records; None where these are too few."""
        order = torch.randperm(len(knowledge.labels), generator=generator)
        held = order[: int(HELD_BACK * len(order))]
        counts = knowledge.factory.training.makeup
        labels = knowledge.labels[held]
        heads = min(MOST_HEADS, len(held) // counts.size)
        if None not in knowledge.groups.classes:
            pairs = zip(knowledge.groups.classes, knowledge.groups.counts)
            most = [int((labels == label).sum()) // count for label, count in pairs]
            heads = min(heads, *most)
        if heads < LEAST_HEADS:
            return None
        factory = replace(knowledge.factory, features=knowledge.features[held], labels=labels)
        made = factory.draw(heads, disjoint=True, generator=generator)
        estimates = estimator(Heads.of_rows(made.weights, factory.model).in_order())
        # A makeup draws the records of a set in the order of its groups.
        records = knowledge.pictures[held[made.sets.members]].float()
        learned_from = torch.ones(len(order), dtype=torch.bool)
        learned_from[held] = False
        return cls(knowledge, estimates, records, learned_from)

    def without_held_back(self, pool: PriorKnowledge) -> PriorKnowledge:
        """A pool without the records held back and their copies."""
        origins = pool.places % len(self.learned_from)
        return replace(pool, places=pool.places[self.learned_from[origins]])

    def rate(self, decoder: FeatureDecoder) -> float:
        """True positive rate of drawings at the false positive rate, all groups together."""
        groups, device = self.knowledge.groups, self.knowledge.device
        wanted = torch.tensor(groups.wanted)
        chosen = self.estimates[:, wanted].flatten(0, 1)
        with torch.no_grad():
            drawings = decoder(chosen.to(device), wanted.repeat(len(self.estimates)).to(device))
        drawings = drawings.cpu().view(len(self.estimates), len(wanted), -1)
        parts = self.records.flatten(2).split(list(groups.counts), 1)
        errors = torch.stack(
            [pair_errors(drawings[:, i], parts[group]) for i, group in enumerate(groups.wanted)], 2
        )
        return rate_over_pairs(errors, FALSE_POSITIVE_RATE)


def pair_errors(drawings: Tensor, records: Tensor) -> Tensor:
    """Errors (s, s) of each head's drawing (s, p) to the nearest record of every head (s, k, p)."""
    flat = records.flatten(0, 1)
    gaps = drawings.square().sum(1)[:, None] + flat.square().sum(1) - 2 * drawings @ flat.T
    return gaps.view(len(drawings), len(records), -1).amin(2) / drawings.shape[1]


def rate_over_pairs(errors: Tensor, alpha: float) -> float:
    """Share of own errors below the α quantile of those to other heads; errors (s, s, slots)."""
    own = torch.eye(len(errors), dtype=torch.bool)
    others = errors[~own].flatten()
    rank = math.floor(alpha * len(others))
    if rank < 1:
        return 0.0
    threshold = others.kthvalue(rank).values
    return float((errors[own] <= threshold).double().mean())


def choose(
    recipes: Sequence[Recipe],
    knowledge: PriorKnowledge,
    estimator: Estimator,
    channel: Channel,
    *,
    seconds: float,
    generator: torch.Generator,
) -> tuple[Recipe, PriorKnowledge, dict[str, float]]:
    """The recipe that redraws most of simulated heads, with or without its fine-tuning.

    Also the records it learns from, and the rates of all. The first recipe without fine-tuning,
    where there are too few records to rehearse on.
    """
    rehearsal = Rehearsal.of(knowledge, estimator, generator)
    if rehearsal is None:
        first = replace(recipes[0], fine_tuning=None).within(seconds, knowledge)
        return first, first.pool(knowledge, generator), {}
    best, best_pool, most, rates = recipes[0], knowledge, -1.0, {}
    for recipe in recipes:
        short = recipe.within(REHEARSED_SHARE * seconds, knowledge)
        whole = recipe.pool(knowledge, generator)
        pool = rehearsal.without_held_back(whole)
        decoder = short.train(pool, channel, generator)
        plain = rehearsal.rate(decoder)
        short.tune(decoder, pool, channel, generator)
        tuned = rehearsal.rate(decoder)
        name = type(recipe.decoder).__name__
        rates |= {name: plain, f"{name}, fine-tuned": tuned}
        kept = recipe if tuned > plain else replace(recipe, fine_tuning=None)
        if max(plain, tuned) > most:
            best, most, best_pool = kept, max(plain, tuned), whole
    left = seconds * (1 - REHEARSED_SHARE * len(recipes))
    return best.within(left, knowledge), best_pool, rates
