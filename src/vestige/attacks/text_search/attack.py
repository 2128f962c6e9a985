"""Text search: texts that explain a gradient and that a language model finds likely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.embedding_reading import embedding_of
from vestige.attacks.gradient_matching.matching import (
    Matching,
    batch_size_of,
    check_single_step,
    labels_of,
)
from vestige.attacks.span_inversion.attack import SpanInversion
from vestige.attacks.span_inversion.projections import Projection, projections
from vestige.attacks.text_search.decoding import Text, chosen_batch, decode, pooled
from vestige.attacks.text_search.moves import Descent, State, as_numpy
from vestige.attacks.text_search.objective import Objective, Texts
from vestige.attacks.text_search.reading import Evidence
from vestige.attacks.text_search.relaxation import cosine, tag
from vestige.attacks.text_space import text_space
from vestige.choices import check_fields
from vestige.errors import BadInput, VestigeError
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
from vestige.streams import stream

PROBED = 8
"""Tokens of the texts that show which layers read what."""

HIGHEST = 0.5
"""Confidence at most: a search does not certify."""

POOL = 12
"""Decoded texts for each of a batch that are tried, beside the best one of each length."""

SWEEPS = 2
"""How often each text of a batch is decoded from what the others leave."""

KEPT_NUMBERS = 2**25
"""Numbers of single texts' gradients that are kept for the next time."""

NORM_WEIGHT = 0.1
"""Weight of the mean length of embeddings in continuous steps."""


@dataclass(frozen=True)
class TextSearch:
    """Searches texts whose gradient matches the release and that read like public ones.

    For releases that span inversion cannot solve: noise, pruning, clipping, few digits. It never
    certifies. The parts, each in a module of this package:

    - Where nothing was altered, span inversion goes first. If its texts explain the release up to
      rounding, they are the answer and nothing is searched.
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
    all others are rounds of discrete moves. The search ends as soon as its best batch explains the
    release up to rounding or known noise. Confidence is half of 1 − distance, at most.
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
    uneven = True

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
        exact = _span_inversion(public, generator)
        known = public.prior.records
        ngrams = TokenNgrams.of(known if public.prior.collected else known[:0])

        def reconstruct(observation: Observation, generator: torch.Generator) -> Reconstruction:
            return _Search(self, public, space, layers, ngrams, observation).run(generator, exact)

        return reconstruct


def _span_inversion(public: Public, generator: torch.Generator) -> Reconstructor | None:
    """Span inversion, where the model has layers for it."""
    try:
        return SpanInversion().prepare(public, generator=generator)
    except VestigeError:
        return None


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
        self.observation, self.stopped = observation, False
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
        self._gradients: dict[tuple[Text, int], Tensor] = {}
        self._pools: dict[tuple[tuple[Text, int, float], ...], list[Text]] = {}

    def run(self, generator: torch.Generator, exact: Reconstructor | None) -> Reconstruction:
        """The best batch of all restarts; none is made where span inversion explains all."""
        settings, objective = self.settings, self.objective
        solved = self._solved(exact)
        if solved is not None:
            return self._reconstruction(solved, searched=False)
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
            if objective.explains(best.distance) or self.stopped:
                break
        assert best is not None
        return self._reconstruction(best)

    def _solved(self, exact: Reconstructor | None) -> State | None:
        """Span inversion's batch, where nothing was altered and it explains the release."""
        matching, objective = self.matching, self.objective
        if exact is None or matching.noise_share or matching.kept is not None:
            return None
        try:  # a stream of its own: the search draws the same numbers with and without it
            found = exact(self.observation, stream(0, "span inversion"))
        except VestigeError:
            return None
        if len(found.candidates) != len(self.labels):
            return None
        texts = [tuple(self.space.tokens(row)) for row in found.candidates]
        if found.labels is not None:
            own, told = found.labels.argsort(stable=True), self.labels.argsort(stable=True)
            if not torch.equal(found.labels[own].cpu(), self.labels[told].cpu()):
                return None
            places = dict(zip(told.tolist(), own.tolist()))
            texts = [texts[places[slot]] for slot in range(len(texts))]
        distance = objective.distances([tuple(texts)])[0]
        if not objective.explains(distance):
            return None
        return State(tuple(texts), distance, objective.score(tuple(texts), distance))

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
            if self.objective.explains(state.distance) or self.stopped:
                break
            texts = self._decoded_again(state, done)
            state = descent.run(texts, part, done, self.settings.iterations)
            self.stopped |= descent.stopped
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
        if (text, label) not in self._gradients:
            targets = self.matching.targets(torch.tensor([label]))
            rows = self.objective.rows((text,))
            if (len(self._gradients) + 1) * len(self.matching.observed) > KEPT_NUMBERS:
                self._gradients.clear()
            made = self.matching.simulated(rows, targets, functional=False).detach()
            self._gradients[text, label] = made
        return self._gradients[text, label]

    def _batch(self, pool: Sequence[Text]) -> Texts:
        """Of decoded texts those that explain the release together."""
        slots = self.labels.tolist()
        pairs = [(text, label) for label in sorted(set(slots)) for text in pool]
        gradients = torch.stack([self._gradient(*pair) for pair in pairs])
        picked = chosen_batch(gradients, self.matching.observed, [p[1] for p in pairs], slots)
        return tuple(pairs[number][0] for number in picked)

    def _decoded_again(self, state: State, done: int) -> Texts:
        """Each text decoded from what the gradients of the others leave, while that helps."""
        objective, best = self.objective, state
        for _ in range(SWEEPS if len(state.texts) > 1 else 0):
            before = best.score
            for place in range(len(best.texts)):
                total = self.settings.iterations
                if objective.explains(best.distance):
                    return best.texts
                if progress.report(min(done, total), total, best.distance):
                    self.stopped = True
                    return best.texts
                head, tail = best.texts[:place], best.texts[place + 1 :]
                tried = [(*head, one, *tail) for one in self._left_by_others(best.texts, place)]
                for texts, distance in zip(tried, objective.distances(tried)):
                    score = objective.score(texts, distance)
                    if score < best.score:
                        best = State(texts, distance, score)
            if best.score >= before:
                break
        return best.texts

    def _left_by_others(self, texts: Texts, place: int) -> list[Text]:
        """Texts decoded from what the gradients of all but one leave of the release."""
        labels, weights = self.labels.tolist(), [self._weight(text) for text in texts]
        others = [
            (text, label, weight / sum(weights))
            for number, (text, label, weight) in enumerate(zip(texts, labels, weights))
            if number != place
        ]
        key = tuple(sorted(others))
        if key not in self._pools:
            left = self.matching.observed.clone()
            for text, label, share in others:
                left -= self._gradient(text, label) * share
            self._pools[key] = self._decoded(self._evidence(left))
        return self._pools[key]

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

    def _reconstruction(self, best: State, *, searched: bool = True) -> Reconstruction:
        size, objective = len(self.labels), self.objective
        confidence = HIGHEST * max(0.0, 1 - best.distance)
        remark = "A search does not certify what it finds."
        if not searched:
            remark += " Nothing was searched: the texts of span inversion explain the release."
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
            {
                "gradients computed": objective.evaluations,
                "labels": self.origin,
                "searched": searched,
            },
            remark,
        )
