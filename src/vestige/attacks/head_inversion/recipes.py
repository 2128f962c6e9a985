"""Recipes: how a decoder is trained on public records, from its form to its fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.channels import Channel
from vestige.attacks.head_inversion.fine_tuning import FineTuning
from vestige.attacks.head_inversion.knowledge import PriorKnowledge
from vestige.priors.feature_decoders import DecoderForm, FeatureDecoder, train_decoder
from vestige.records import ImageSpace

NOMINAL_RATE = 8e10
"""Floating-point operations of training in a CPU second, those around them included."""

PICTURES_FOR_COMPONENTS = 6_000
"""Most pictures that principal components are found from."""

CHUNK = 2_048
"""Examples of a closed-form fit at a time."""

RECORDS_FOR_SCALES = 400
"""Records of a class whose nearest neighbours say how far apart its records are."""


@dataclass(frozen=True)
class Recipe:
    """What a decoder is made of, what it learns from and for how long."""

    decoder: DecoderForm
    copies: AffineCopies | None
    examples: int
    batch_size: int
    learning_rate: float
    fine_tuning: FineTuning | None

    def pool(self, knowledge: PriorKnowledge, generator: torch.Generator) -> PriorKnowledge:
        """The records to learn from: the prior's, and copies of them."""
        if self.copies is None or not isinstance(knowledge.public.space, ImageSpace):
            return knowledge
        return knowledge.with_copies(self.copies, generator)

    def train(
        self, pool: PriorKnowledge, channel: Channel, generator: torch.Generator
    ) -> FeatureDecoder:
        """Train a decoder on the records of a pool as they would be estimated from heads."""
        decoder = self._started(pool, channel, generator)
        steps = -(-len(pool.places) // self.batch_size)
        epochs = -(-self.examples // (steps * self.batch_size))
        if epochs == 1:
            steps = -(-self.examples // self.batch_size)

        def examples(epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            order = torch.randperm(len(pool.places), generator=generator)
            for batch in order.split(self.batch_size)[:steps]:
                yield pool.examples(batch, channel, generator)

        train_decoder(
            decoder, examples, epochs=epochs, steps=steps, learning_rate=self.learning_rate
        )
        return decoder

    def tune(
        self,
        decoder: FeatureDecoder,
        pool: PriorKnowledge,
        channel: Channel,
        generator: torch.Generator,
    ) -> None:
        """Fine-tune a trained decoder, if the recipe says so."""
        if self.fine_tuning is None:
            return

        def batches(size: int) -> tuple[Tensor, Tensor, Tensor]:
            chosen = torch.randint(len(pool.places), (size,), generator=generator)
            return pool.examples(chosen, channel, generator)

        scales = torch.ones(len(pool.groups))
        if self.fine_tuning.normalized:
            scales = group_scales(pool, generator)
        self.fine_tuning(decoder, batches, scales.to(pool.device))

    def within(self, seconds: float, knowledge: PriorKnowledge) -> Recipe:
        """The same with as many examples as ``seconds`` of CPU are enough for, if that is fewer.

        Counted, not timed, so that the same seed draws the same on every machine.
        """
        inputs = knowledge.features.shape[1] + len(knowledge.groups)
        with torch.random.fork_rng(devices=[]):
            network = self.decoder.network(inputs, knowledge.public.space)
        numbers = sum(p.numel() for p in network.parameters())
        numbers += sum(b.numel() for b in network.buffers())
        # A step goes forward once and backward twice, each with a product and a sum per number.
        cost = 6 * numbers / NOMINAL_RATE
        tuned = self.fine_tuning
        spent = 0.0 if tuned is None else cost * tuned.steps * tuned.batch_size
        affordable = int((seconds - spent) / cost)
        least = 20 * self.batch_size
        return replace(self, examples=max(least, min(self.examples, affordable)))

    def _started(
        self, pool: PriorKnowledge, channel: Channel, generator: torch.Generator
    ) -> FeatureDecoder:
        own = pool.features[pool.places]
        decoder = FeatureDecoder(
            self.decoder,
            own.mean(0),
            own.std(0).clamp_min(1e-6 + 1e-3 * float(own.std())),
            len(pool.groups),
            pool.public.space,
            generator,
        ).to(pool.device)
        some = pool.places[torch.randperm(len(pool.places), generator=generator)]
        pictures = pool.pictures[some[:PICTURES_FOR_COMPONENTS]].float().to(pool.device)
        places = torch.arange(len(pool.places))
        decoder.begin(
            pictures, (pool.examples(batch, channel, generator) for batch in places.split(CHUNK))
        )
        return decoder


def group_scales(knowledge: PriorKnowledge, generator: torch.Generator) -> Tensor:
    """Mean squared error (g,) of a group's records to the nearest other one, in some of them."""
    scales = []
    for label in knowledge.groups.classes:
        own = knowledge.places
        if label is not None:
            own = own[knowledge.labels[own] == label]
        chosen = own[torch.randperm(len(own), generator=generator)[:RECORDS_FOR_SCALES]]
        flat = knowledge.pictures[chosen].float().flatten(1)
        gaps = torch.cdist(flat, flat).square() / flat.shape[1]
        gaps.fill_diagonal_(math.inf)
        nearest = gaps.amin(1)
        # Copies of a record would be its neighbours at no distance worth the name.
        scales.append(nearest.median() if len(chosen) > 1 else torch.ones(()))
    found = torch.stack(scales)
    return found.clamp_min(1e-3 * float(found.max()) + 1e-12)
