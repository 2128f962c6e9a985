"""Text search: texts that explain a gradient and that a language model finds likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige.attacks.embedding_reading import embedding_of
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    check_single_step,
    labels_of,
)
from vestige.attacks.span_inversion.projections import Projection, projections
from vestige.attacks.text_search.decoding import Text, chosen_batch, decode, pooled
from vestige.attacks.text_search.moves import Descent, State, as_numpy
from vestige.attacks.text_search.objective import Objective, Texts
from vestige.attacks.text_search.reading import Evidence
from vestige.attacks.text_search.relaxation import cosine, tag
from vestige.attacks.text_space import text_space
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.priors.token_ngrams import TokenNgrams
from vestige.records import TextSpace
from vestige.simulation.kinds import client_simulator

PROBED = 8
"""Tokens of the texts that show which layers read what."""

HIGHEST = 0.5
"""Confidence at most: a search does not certify."""

POOL = 12
"""Decoded texts for each of a batch that are tried, beside the best one of each length."""

SWEEPS = 2
"""How often each text of a batch is decoded from what the others leave."""

NORM_WEIGHT = 0.1
"""Weight of the mean length of embeddings in continuous steps."""


@dataclass(frozen=True)
class TextSearch:
    """Searches texts whose gradient matches the release and that read like public ones.

    For releases that span inversion cannot solve: noise, pruning, clipping, few digits. It never
    certifies. The parts, each in a module of this package:

    - Spans under noise: each token gets a likelihood by how much of its first layer's input lies in
      the span of that layer's gradient, whose singular vectors count by what noise leaves of them
      (Petrov et al. 2024, DAGER, made soft). Rows of an untied embedding's gradient count too.
    - A language model of interpolated 3-grams, counted from the prior's texts. A beam search
      decodes texts that evidence and language agree on; in models that attend to earlier tokens
      later layers confirm prefixes. Of a batch each text is decoded again from what the gradients
      of the others leave of the release.
    - Restarts after the first take continuous steps in the space of embeddings before that, on the
      distance of TAG (Deng et al. 2021, Eq. 5; ``distance="tag"``) or on the cosine distance of
      LAMP (Balunović et al. 2022, Eq. 4).
    - Discrete moves: tokens that the slope of the distance suggests (HotFlip, which LAMP lacks),
      and LAMP's swaps and moves of tokens and parts, cuts, insertions and exchanged ends.

    The score of a batch is ``trust`` times the logarithm of the cosine distance for each position,
    plus ``language_weight`` times the texts' surprise in nats; of noise of a known size the part it
    explains is taken off first. Half of the ``iterations`` of later restarts are continuous steps,
    all others are rounds of discrete moves. Confidence is half of 1 − distance, at most.
    """

    iterations: int = 90
    restarts: int = 3
    distance: Literal["cosine", "tag"] = "cosine"
    trust: float = 3.0
    language_weight: float = 1.0
    beam: int = 32

    name = "Text search"
    summary = "searches likely texts whose gradient matches: soft spans, slopes, moves of tokens"
    needs = "the model, the batch size, and other texts of the same kind"
    cites = (
        "Balunović et al. 2022, LAMP: Extracting Text from Gradients with Language Model Priors, "
        "§4; Deng et al. 2021, TAG: Gradient Attack on Transformer-based Language Models, Eq. 5"
    )
    reads = (GradientRelease, UpdateRelease)
    reads_texts = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            counts=("iterations", "restarts", "beam"),
            positive=("trust",),
            not_negative=("language_weight",),
        )

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the model's layers and count the prior's texts."""
        space, simulator = text_space(public), client_simulator(public.simulator)
        check_single_step(public, "texts")
        layers = projections(
            simulator.network, simulator.parameters, space.vocabulary, min(space.length, PROBED)
        )
        known = public.prior.records
        ngrams = TokenNgrams.of(known if public.prior.collected else known[:0])

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            return _Search(self, public, space, layers, ngrams, observation).run(generator)

        return reconstruct


class _Search:
    """The search behind one release."""

    def __init__(
        self,
        settings: TextSearch,
        public: Public,
        space: TextSpace,
        layers: Sequence[Projection],
        ngrams: TokenNgrams,
        observation: Observation,
    ) -> None:
        self.settings, self.space, self.layers = settings, space, layers
        self.matching = Matching(public, observation.release, batch_size_of(observation))
        self.labels, self.origin = labels_of(public, observation)
        self.objective = Objective(
            self.matching,
            space,
            self.matching.targets(self.labels),
            ngrams,
            settings.trust,
            settings.language_weight,
        )

    def run(self, generator: torch.Generator) -> Reconstruction:
        """The best batch of all restarts."""
        settings, objective = self.settings, self.objective
        evidence = self._evidence(self.matching.observed)
        rounds = -(-settings.iterations // settings.restarts)
        best, done = None, 0
        for _ in range(min(settings.restarts, settings.iterations)):
            steps = rounds // 2 if best is not None and objective.relaxation is not None else 0
            table = (
                evidence.table if best is None else self._moved(best, evidence, steps, generator)
            )
            start = self._batch(self._decoded(Evidence(evidence.network, table, evidence.later)))
            found = self._improved(start, evidence, rounds - steps, done + steps, generator)
            if best is None or found.score < best.score:
                best = found
            done += rounds
            if objective.explains(best.distance):
                break
        assert best is not None
        return self._reconstruction(best)

    def _evidence(self, vector: Tensor) -> Evidence:
        """What a vector of the matched entries says of single tokens."""
        try:
            name = embedding_of(self.matching.simulator, self.space)
        except BadInput:  # frozen, or tied to the output layer
            name = ""
        return Evidence.of(self.matching, self.space, self.layers, name, vector)

    def _improved(
        self, start: Texts, evidence: Evidence, rounds: int, done: int, generator: torch.Generator
    ) -> State:
        """Discrete moves from a start; of a batch, texts are decoded again before and halfway."""
        descent = Descent(self.objective, evidence.table, as_numpy(generator))
        parts = (rounds,) if len(start) == 1 else (rounds - rounds // 2, rounds // 2)
        state = descent.state(start)
        for part in parts:
            texts = self._decoded_again(state)
            state = descent.run(texts, part, done, self.settings.iterations)
            done += part
        return state

    def _decoded(self, evidence: Evidence) -> list[Text]:
        """Texts that evidence and language agree on."""
        settings, size = self.settings, len(self.labels)
        ended = decode(
            evidence.table,
            self.objective.ngrams,
            settings.language_weight,
            settings.beam * size,
            evidence.prefixes,
            unread_end=self.objective.modelling,
        )
        return pooled(ended, POOL * size)

    def _gradient(self, text: Text, label: int) -> Tensor:
        """What a text alone would have released."""
        targets = self.matching.targets(torch.tensor([label]))
        rows = self.objective.rows((text,))
        return self.matching.simulated(rows, targets, functional=False).detach()

    def _batch(self, pool: Sequence[Text]) -> Texts:
        """Of decoded texts those that explain the release together."""
        slots = self.labels.tolist()
        pairs = [(text, label) for label in sorted(set(slots)) for text in pool]
        gradients = torch.stack([self._gradient(*pair) for pair in pairs])
        picked = chosen_batch(gradients, self.matching.observed, [p[1] for p in pairs], slots)
        return tuple(pairs[number][0] for number in picked)

    def _decoded_again(self, state: State) -> Texts:
        """Each text decoded from what the gradients of the others leave, while that helps."""
        objective, labels = self.objective, self.labels.tolist()
        best, score = state.texts, state.score
        for _ in range(SWEEPS if len(best) > 1 else 0):
            before = score
            for place in range(len(best)):
                weights = [self._weight(text) for text in best]
                left = self.matching.observed.clone()
                for other, text in enumerate(best):
                    if other != place:
                        part = self._gradient(text, labels[other])
                        left -= part * (weights[other] / sum(weights))
                evidence = self._evidence(left)
                pool = self._decoded(evidence)
                tried = [(*best[:place], one, *best[place + 1 :]) for one in pool]
                scores = objective.scores(tried)
                lowest = min(range(len(tried)), key=scores.__getitem__)
                if scores[lowest] < score:
                    best, score = tried[lowest], scores[lowest]
            if score >= before:
                break
        return best

    def _weight(self, text: Text) -> float:
        """How much a text counts in the mean over a batch: by its predicted tokens, or as one."""
        private = self.matching.simulator.clipped_noise is not None
        return float(max(len(text) - 1, 1)) if self.objective.modelling and not private else 1.0

    def _moved(
        self, best: State, evidence: Evidence, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Evidence with that of continuous steps, from the best texts' embeddings blurred.

        Texts of a batch share one table: at each position the nearest of them counts.
        """
        relaxation = self.objective.relaxation
        if relaxation is None or steps == 0:
            noise = torch.rand(evidence.table.shape, generator=generator).clamp_min(1e-9)
            return evidence.table - (-noise.log()).log()
        rows = self.objective.rows(best.texts)
        start = relaxation.embedding(rows.long()).detach()
        blur = torch.randn(start.shape, generator=generator).to(start)
        start = start + relaxation.table.detach().std() * blur
        distance = tag if self.settings.distance == "tag" else cosine
        vectors = relaxation.descend(rows, start, steps, distance, NORM_WEIGHT)
        near = relaxation.similarities(vectors).log_softmax(-1).amax(0).cpu()
        return evidence.table + near.clamp_min(-10.0)

    def _reconstruction(self, best: State) -> Reconstruction:
        size, objective = len(self.labels), self.objective
        confidence = HIGHEST * max(0.0, 1 - best.distance)
        remark = "A search does not certify what it finds."
        if not objective.explains(best.distance):
            remark += f" Its gradient is at a cosine distance of {best.distance:.2g} of the release"
            noise = objective.unavoidable
            remark += f", of which noise explains {noise:.2g}." if noise else "."
        return Reconstruction(
            objective.rows(best.texts).reshape(size, self.space.length),
            None if objective.modelling else self.labels,
            torch.full((size,), confidence),
            best.distance,
            not any(best.texts),
            {"gradients computed": objective.evaluations, "labels": self.origin},
            remark,
        )
