"""Recipes: how a decoder is trained on public records, from its form to its fine-tuning."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from vestige.attacks.head_inversion.scales import group_scales
from vestige.priors.feature_decoders import DecoderForm, FeatureDecoder, train_decoder
from vestige.records import ImageSpace

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.affine_copies import AffineCopies
    from vestige.attacks.head_inversion.fine_tuning import FineTuning
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge
    from vestige.attacks.head_inversion.pools import Pool

NOMINAL_RATE = 8e10
"""Floating-point operations of training in a CPU second, those around them included."""

FEATURE_RATE = 5e10
"""The same of a backbone, which has layers that do little with much memory."""

PICTURES_FOR_COMPONENTS = 6_000
"""Most pictures that principal components are found from."""

CHUNK = 2_048
"""Examples of a closed-form fit at a time."""

EXAMPLES_OF_FIT = 60_000
"""Most examples of a closed-form fit."""

RATE_OF_MORE = 0.5
"""Of the learning rate, when a trained decoder goes on learning."""

STEPS_BETWEEN_REPORTS = 100
"""Steps of training between two reports of progress."""


@dataclass(frozen=True)
class Recipe:
    """What a decoder is made of, what it learns from and for how long."""

    decoder: DecoderForm
    copies: AffineCopies | None
    examples: int
    batch_size: int
    learning_rate: float
    fine_tuning: FineTuning | None

    def extended(self, pool: Pool, generator: torch.Generator) -> Pool:
        """The pool with copies of its records, if the recipe says so."""
        known = pool.knowledge
        if self.copies is None or not isinstance(known.public.space, ImageSpace):
            return pool
        return pool.learned_from(known.with_copies(self.copies, generator))

    def made(self, pool: Pool, generator: torch.Generator) -> FeatureDecoder:
        """The finished decoder: copies, training and fine-tuning."""
        whole = self.extended(pool, generator)
        decoder = self.train(whole, generator)
        self.tune(decoder, whole, generator)
        return decoder

    def train(self, pool: Pool, generator: torch.Generator) -> FeatureDecoder:
        """Train a decoder on examples of a pool."""
        decoder = self._started(pool, generator)
        self._taught(decoder, pool, self.examples, self.learning_rate, generator)
        return decoder

    def train_more(
        self, decoder: FeatureDecoder, examples: int, pool: Pool, generator: torch.Generator
    ) -> Recipe:
        """Let a trained decoder learn from more examples; the recipe that counts them too."""
        if examples < self.batch_size:
            return self
        decoder.network.requires_grad_()
        self._taught(decoder, pool, examples, RATE_OF_MORE * self.learning_rate, generator)
        return replace(self, examples=self.examples + examples)

    def tune(self, decoder: FeatureDecoder, pool: Pool, generator: torch.Generator) -> None:
        """Fine-tune a trained decoder, if the recipe says so."""
        tuning = self.fine_tuning
        if tuning is None:
            return
        known = pool.knowledge
        scales = torch.ones(len(known.groups))
        if tuning.normalized:
            scales = group_scales(known, generator)
        tuning(decoder, pool.batches(tuning.batch_size, generator), scales.to(known.device))

    def within(self, seconds: float, knowledge: PriorKnowledge) -> Recipe:
        """The same with as many examples as ``seconds`` of CPU are enough for, if that is fewer.

        Features of copies may take as long again: over a large backbone there are fewer copies.
        Counted, not timed, so that the same seed draws the same on every machine.
        """
        cost, tuned = self.cost(knowledge), self.fine_tuning
        spent = 0.0 if tuned is None else cost * tuned.steps * tuned.batch_size
        affordable = int((seconds - spent) / cost)
        least, copies = 20 * self.batch_size, self.copies
        if copies is not None:
            whole_set = len(knowledge.pictures) * knowledge.record_operations / FEATURE_RATE
            sets = int(seconds / max(whole_set, 1e-9)) - copies.mirrored
            copies = replace(copies, number=max(0, min(copies.number, sets)))
        return replace(self, copies=copies, examples=max(least, min(self.examples, affordable)))

    def cost(self, knowledge: PriorKnowledge) -> float:
        """Nominal CPU seconds of learning from one example."""
        inputs = knowledge.features.shape[1] + len(knowledge.groups)
        with torch.random.fork_rng(devices=[]):
            network = self.decoder.network(inputs, knowledge.public.space)
        numbers = sum(p.numel() for p in network.parameters())
        numbers += sum(b.numel() for b in network.buffers())
        # A step goes forward once and backward twice, each with a product and a sum per number.
        return 6 * numbers / NOMINAL_RATE

    def _taught(
        self,
        decoder: FeatureDecoder,
        pool: Pool,
        examples: int,
        learning_rate: float,
        generator: torch.Generator,
    ) -> None:
        batches = pool.batches(self.batch_size, generator)
        steps = -(-examples // self.batch_size)
        epochs = -(-steps // STEPS_BETWEEN_REPORTS)
        steps = -(-steps // epochs)
        train_decoder(
            decoder,
            lambda epoch: itertools.islice(batches, steps),
            epochs=epochs,
            steps=steps,
            learning_rate=learning_rate,
        )

    def _started(self, pool: Pool, generator: torch.Generator) -> FeatureDecoder:
        known, batches = pool.knowledge, pool.batches(CHUNK, generator)
        first = next(batches)[0]
        mean, deviation = first.mean(0), first.std(0)
        decoder = FeatureDecoder(
            self.decoder,
            mean,
            deviation.clamp_min(1e-6 + 1e-3 * float(first.std())),
            len(known.groups),
            known.public.space,
            generator,
        ).to(known.device)
        order = torch.randperm(len(known.places), generator=generator)
        some = known.places[order[:PICTURES_FOR_COMPONENTS]]
        pictures = known.pictures[some].float().to(known.device)
        count = -(-min(len(known.places), EXAMPLES_OF_FIT) // CHUNK)
        decoder.begin(pictures, itertools.islice(batches, count))
        return decoder
