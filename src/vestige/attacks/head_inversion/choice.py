"""Choice of a recipe on simulated heads of public records, never on a head under attack.

Some of the prior's records are held back. The decoder of every recipe learns from the others and
draws heads that are simulated on the records held back, no record in two heads. The recipe with the
most true positives at the false positive rate, over all ordered pairs of heads, is taken.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.head_inversion.reading import Heads
from vestige.attacks.head_inversion.scales import group_scales
from vestige.attacks.head_inversion.withholding import Withholding, rate_over_pairs

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.estimators import Estimator
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge
    from vestige.attacks.head_inversion.pools import Pool
    from vestige.attacks.head_inversion.recipes import Recipe
    from vestige.priors.feature_decoders import FeatureDecoder

HELD_BACK = 0.1
"""Most that is held back of the prior's records, as a share."""

FEW = 0.06
"""A share of the records that a decoder may go without."""

LEAST_HEADS, MOST_HEADS = 10, 60
"""Heads that a choice needs, and that are enough for it."""

TRAINED_SHARE = 0.7
"""Of the budget, for the rehearsals of all recipes; with the rest the recipe chosen is trained
further, or on all records where those held back are more than a few."""

FALSE_POSITIVE_RATE = 0.01


@dataclass(frozen=True)
class Rehearsal:
    """Heads of records held back: features as estimated (s, g, d) and their records.

    ``records`` (s, n, *shape) are in the order of the groups; ``learned_from`` (n,) says which of
    the prior's records are not held back. ``scales`` (w,) divide errors of the wanted groups where
    a head holds several records of a class: without them easy classes alone would decide.
    """

    knowledge: PriorKnowledge
    estimates: Tensor
    records: Tensor
    learned_from: Tensor
    scales: Tensor

    @classmethod
    def of(
        cls, knowledge: PriorKnowledge, estimator: Estimator, generator: torch.Generator
    ) -> Rehearsal | None:
        """Simulate heads on a share of the records; None where these are too few."""
        groups, labels = knowledge.groups, knowledge.labels
        order = torch.randperm(len(labels), generator=generator)
        order = order[: int(HELD_BACK * len(order))]
        heads = min(MOST_HEADS, len(order) // groups.size)
        held = order[: heads * groups.size]
        if None in groups.classes:
            own = held_back_classes(labels, groups.counts, generator)
            if own is not None:
                held = own
                heads = min(MOST_HEADS, _positive_sets(labels[held], groups.counts[0]))
        else:
            pairs = list(zip(groups.classes, groups.counts))
            own = [order[labels[order] == label] for label, _ in pairs]
            heads = min(heads, *(len(part) // count for part, (_, count) in zip(own, pairs)))
            held = torch.cat([part[: heads * count] for part, (_, count) in zip(own, pairs)])
        if heads < LEAST_HEADS:
            return None
        factory = replace(knowledge.factory, features=knowledge.features[held], labels=labels[held])
        made = factory.draw(heads, disjoint=True, generator=generator)
        estimates = estimator(Heads.of_rows(made.weights, factory.model).in_order())
        # A makeup draws the records of a set in the order of its groups.
        records = knowledge.pictures[held[made.sets.members]].float()
        learned_from = torch.ones(len(labels), dtype=torch.bool)
        learned_from[held] = False
        scales = torch.ones(len(groups.wanted))
        if max(groups.counts) > 1:
            scales = group_scales(knowledge, generator)[list(groups.wanted)]
        return cls(knowledge, estimates, records, learned_from, scales)

    def without_held_back(self, pool: Pool) -> Pool:
        """A pool without the records held back and their copies."""
        known = pool.knowledge
        kept = self.learned_from[known.places % len(self.learned_from)]
        return pool.learned_from(replace(known, places=known.places[kept]))

    def rate(self, decoder: FeatureDecoder) -> float:
        """True positive rate of drawings at the false positive rate, all groups together."""
        errors = self.errors(self.drawings(decoder)) / self.scales
        return rate_over_pairs(errors, FALSE_POSITIVE_RATE)

    def drawings(self, decoder: FeatureDecoder) -> Tensor:
        """What a decoder draws (s, w, *shape) of the wanted groups of each head."""
        wanted, device = torch.tensor(self.knowledge.groups.wanted), self.knowledge.device
        chosen = self.estimates[:, wanted].flatten(0, 1)
        with torch.no_grad():
            found = decoder(chosen.to(device), wanted.repeat(len(self.estimates)).to(device))
        return found.cpu().view(len(self.estimates), len(wanted), *found.shape[1:])

    def errors(self, drawings: Tensor) -> Tensor:
        """Errors (s, s, w) of each head's drawings to the records of every head."""
        groups, flat = self.knowledge.groups, drawings.flatten(2)
        parts = self.records.flatten(2).split(list(groups.counts), 1)
        pairs = [pair_errors(flat[:, i], parts[group]) for i, group in enumerate(groups.wanted)]
        return torch.stack(pairs, 2)

    def withholding(self, decoder: FeatureDecoder) -> Withholding:
        """Which drawings to withhold, to redraw most of these heads."""
        drawings = self.drawings(decoder)
        learned_from = self.knowledge.places[self.learned_from[self.knowledge.places]]
        known = replace(self.knowledge, places=learned_from)
        return Withholding.chosen(known, drawings, self.errors(drawings), FALSE_POSITIVE_RATE)


def held_back_classes(
    labels: Tensor, counts: tuple[int, ...], generator: torch.Generator
) -> Tensor | None:
    """Records of whole classes, a share ``HELD_BACK`` of all; None where these make no head.

    A head of one class against the rest has a class that the prior need not hold, and a decoder
    redraws classes that it has seen better than others. Only the positives of two heads have to
    differ, so that few records make many heads.
    """
    classes = labels.unique()
    order = classes[torch.randperm(len(classes), generator=generator)]
    held = torch.nonzero(torch.isin(labels, order[: int(HELD_BACK * len(order))])).flatten()
    sizes = labels[held].unique(return_counts=True)[1]
    positives, negatives = counts
    if not len(held) or len(held) - int(sizes.max()) < negatives or int(sizes.max()) < positives:
        return None
    return held


def _positive_sets(labels: Tensor, positives: int) -> int:
    """Heads of one class against the rest that share no positive record."""
    return int((labels.unique(return_counts=True)[1] // positives).sum())


def pair_errors(drawings: Tensor, records: Tensor) -> Tensor:
    """Errors (s, s) of each head's drawing (s, p) to the nearest record of every head (s, k, p)."""
    flat = records.flatten(0, 1)
    gaps = drawings.square().sum(1)[:, None] + flat.square().sum(1) - 2 * drawings @ flat.T
    return gaps.view(len(drawings), len(records), -1).amin(2) / drawings.shape[1]


@dataclass(frozen=True)
class Chosen:
    """A recipe, the decoder it made, and the rates of all recipes on simulated heads.

    ``withholding`` says which drawings are not worth handing out; None where nothing was rehearsed.
    """

    recipe: Recipe
    decoder: FeatureDecoder
    rates: dict[str, float]
    withholding: Withholding | None = None


def choose(
    recipes: Sequence[Recipe],
    pool: Pool,
    estimator: Estimator,
    *,
    seconds: float,
    generator: torch.Generator,
) -> Chosen:
    """The decoder of the recipe that redraws most of simulated heads.

    It learns on with what the rehearsals leave of the budget, up to the recipe's examples, and is
    fine-tuned if that redraws more. If the records held back are more than a few it is trained
    again on all of them instead. The first recipe without fine-tuning, where there are too few
    records to rehearse on.
    """
    knowledge = pool.knowledge
    rehearsal = Rehearsal.of(knowledge, estimator, generator)
    if rehearsal is None:
        first = replace(recipes[0], fine_tuning=None).within(seconds, knowledge)
        return Chosen(first, first.made(pool, generator), {})
    share, rates, found = TRAINED_SHARE / len(recipes), {}, []
    for recipe in recipes:
        short = recipe.within(share * seconds, knowledge)
        whole = short.extended(pool, generator)
        decoder = short.train(rehearsal.without_held_back(whole), generator)
        rate = rehearsal.rate(decoder)
        rates[type(recipe.decoder).__name__] = rate
        found.append((rate, short, whole, decoder, recipe.examples))
    plain, recipe, whole, decoder, most = max(found, key=lambda one: one[0])
    rest, left = (1 - TRAINED_SHARE) * seconds, rehearsal.without_held_back(whole)
    again = float((~rehearsal.learned_from).double().mean()) > FEW
    if not again:
        more = min(most - recipe.examples, int(rest / recipe.cost(knowledge)))
        recipe = recipe.train_more(decoder, more, left, generator)
        plain = rates[type(recipe.decoder).__name__] = rehearsal.rate(decoder)
    before = copy.deepcopy(decoder)
    recipe.tune(decoder, left, generator)
    tuned = rehearsal.rate(decoder)
    rates[f"{type(recipe.decoder).__name__}, fine-tuned"] = tuned
    if not tuned > plain:
        recipe, decoder = replace(recipe, fine_tuning=None), before
    withholding = rehearsal.withholding(decoder)
    if again:
        # The pool has its copies already.
        recipe = replace(recipe.within(rest, knowledge), copies=recipe.copies)
        decoder = recipe.train(whole, generator)
        recipe.tune(decoder, whole, generator)
    return Chosen(recipe, decoder, rates, withholding)
