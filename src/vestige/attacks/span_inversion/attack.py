"""Span inversion: the texts of a batch from one gradient of a transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vestige.attacks.gradient_matching.matching import check_single_step
from vestige.attacks.span_inversion.attention import attending_texts
from vestige.attacks.span_inversion.last_tokens import last_tokens
from vestige.attacks.span_inversion.output_layer import OutputLayer
from vestige.attacks.span_inversion.prefixes import changed_share, prefixes
from vestige.attacks.span_inversion.problem import Problem
from vestige.attacks.span_inversion.projections import Projection, Reach, projections
from vestige.attacks.span_inversion.sets import loosest, whole_texts
from vestige.attacks.span_inversion.span import Span
from vestige.attacks.span_inversion.tokens import TokenSets, clear_gap, token_sets
from vestige.attacks.span_inversion.verification import (
    Explanation,
    explained,
    repetitions,
    rows_of,
    uncertified,
)
from vestige.attacks.text_space import text_space
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import (
    GradientRelease,
    Public,
    Reconstruction,
    Reconstructor,
    UpdateRelease,
)
from vestige.simulation.kinds import client_simulator

HIGHEST = 0.999
"""Confidence of a certified text: what is taken for granted is not certain."""

UNCERTIFIED = 0.5
"""Confidence of any other text at most."""

PROBED = 8
"""Tokens of the texts that show which layers read what."""

ALIKE, BLURRED = 0.9, 1e-3
"""Share of the largest rank that a whole span has, where noise moves vectors more than this."""

Facts = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class SpanInversion:
    """Reads the tokens of a batch off the span of a transformer's gradient, exactly.

    Petrov et al. 2024, DAGER. While a batch has fewer tokens than a layer has inputs, a token was
    at a position if and only if what the first layer reads of it lies in the span of that layer's
    gradient. A later layer tells which tokens follow each other: prefixes for models that attend to
    earlier tokens, a search over whole texts (``starts`` of them) for those that attend both ways.
    The last token of a language model's text is read by nothing; the output layer tells it. Layers
    are found by running the model, so any transformer over token numbers will do, and the layers of
    low-rank adapters as well. At most ``most_prefixes`` texts are followed where the span does not
    tell them apart.

    A certified text was in the batch (``verification.uncertified`` has the conditions); without a
    certificate confidence is at most one half. ``remark`` says why there is none.
    """

    most_prefixes: int = 256
    starts: int = 60

    name = "Span inversion"
    summary = "reads tokens off the span of the first layers' gradients; certifies what it found"
    needs = "the model, and fewer tokens in the batch than its layers have inputs"
    cites = "Petrov et al. 2024, DAGER: Exact Gradient Inversion for Large Language Models"
    reads = (GradientRelease, UpdateRelease)
    reads_texts = True

    def __post_init__(self) -> None:
        check_fields(self, counts=("most_prefixes", "starts"))

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Find the model's layers; nothing is trained."""
        space, simulator = text_space(public), client_simulator(public.simulator)
        check_single_step(public, "texts")
        length = min(space.length, PROBED)
        layers = projections(
            simulator.network, simulator.parameters, space.vocabulary, length, any_call=True
        )
        if not any(layer.reach is Reach.OWN for layer in layers):
            raise BadInput(
                "No trainable linear layer reads the embedding of single tokens, so the span tells "
                "no tokens: train the first block, or its adapters, or use another attack."
            )
        return lambda observation, generator: self._invert(
            Problem.of(public, space, observation), layers, generator
        )

    def _invert(
        self, problem: Problem, layers: Sequence[Projection], generator: torch.Generator
    ) -> Reconstruction:
        first, span = by_promise(problem.spans(layers, (Reach.OWN,)), lambda *_: 1.0)[0]
        facts: Facts = {"first layer": first.modules[0], "its inputs": first.width}
        facts["its rank"] = span.rank
        limit = problem.adapters_limit(layers)
        if span.full or span.rank == 0:
            what = "everything: too many tokens, or noise" if span.full else "nothing"
            return nothing(problem, f"The first layer's gradient spans {what}.{limit}", facts)
        space = problem.space
        sets = token_sets(
            problem.network, first, span, space.vocabulary, space.length, problem.told
        )
        facts["tokens found"] = sets.count
        texts: list[tuple[int, ...]] = []
        clear = False
        for later, own in by_promise(
            problem.spans(layers, (Reach.EARLIER, Reach.ALL)),
            lambda one, its: changed_share(
                problem.network, one, its, sets.tokens, space.vocabulary
            ),
        ):
            facts["later layer"], facts["its span"] = later.modules[0], own.rank
            texts, clear = self._texts(problem, first, later, own, sets, generator)
            texts = [text for text in texts if text]
            if texts:
                break
        if not texts:
            why = "No text's inputs lie in the span of a later layer."
            return nothing(problem, why + limit, facts)
        found = _best(problem, texts)
        reason = uncertified(problem, first, found, clear and sets.clear)
        reason += limit if reason and not (clear and sets.clear) else ""
        facts |= {"unexplained": found.unexplained, "scale": found.scale}
        facts["certified"] = 0 if reason else found.size
        chosen = [one for one, count in enumerate(found.counts) for _ in range(count)]
        confidence = UNCERTIFIED * max(0.0, 1 - found.unexplained) if reason else HIGHEST
        return Reconstruction(
            rows_of([found.texts[one] for one in chosen], problem),
            # A language model has no labels to tell.
            None if problem.modelling else torch.tensor([found.labels[one] for one in chosen]),
            torch.full((len(chosen),), confidence),
            found.unexplained,
            not chosen,
            facts,
            reason,
        )

    def _texts(
        self,
        problem: Problem,
        first: Projection,
        later: Projection,
        span: Span,
        sets: TokenSets,
        generator: torch.Generator,
    ) -> tuple[list[tuple[int, ...]], bool]:
        """Texts, and whether they are told from others by a gap."""
        network, told = problem.network, problem.told
        if later.reach is Reach.EARLIER:
            most = self.most_prefixes if told is None else max(4 * told, 16)
            most, vocabulary = min(most, self.most_prefixes), problem.space.vocabulary
            grown = prefixes(network, later, span, sets.tokens, most, vocabulary)
            clear = not grown.cut and clear_gap(grown.member, grown.other)
            return list(grown.ended), clear
        wanted = told or max(len(one) for one in sets.tokens)
        likely = attending_texts(network, first, problem.tensors, sets.tokens)
        texts, share = whole_texts(
            network, later, span, sets.tokens, wanted, self.starts, generator, likely
        )
        return texts, share <= loosest(span)


def by_promise(
    pairs: Sequence[tuple[Projection, Span]], shown: Callable[[Projection, Span], float]
) -> list[tuple[Projection, Span]]:
    """Layers in the order in which they are tried: whole spans first, then larger ones.

    A layer may miss inputs: where a classifier reads the first token alone, the last attention's
    gradient has rank 2·heads + 1 at most. So a smaller span counts as whole only where noise blurs
    its rank. Of whole spans the one that shows most above its noise comes first.
    """
    most = max(span.rank for _, span in pairs)

    def whole(span: Span) -> bool:
        return span.rank >= (ALIKE if span.weakest > BLURRED else 1.0) * most

    def worth(pair: tuple[Projection, Span]) -> tuple[float, float]:
        own = whole(pair[1])
        return (most if own else pair[1].rank, shown(*pair) / pair[1].weakest if own else 0.0)

    return sorted(pairs, key=worth, reverse=True) if len(pairs) > 1 else list(pairs)


def nothing(problem: Problem, reason: str, facts: Facts) -> Reconstruction:
    """No text, and why."""
    rows = rows_of([], problem)
    return Reconstruction(rows, diverged=True, info={**facts, "certified": 0}, remark=reason)


def _best(problem: Problem, texts: Sequence[tuple[int, ...]]) -> Explanation:
    """What explains most of the release: texts as they are, or with the token that ends them.

    How often a text was in the batch decides what its last token leaves in the gradient, so ways to
    repeat texts are tried until one explains all.
    """
    if not problem.modelling:
        return explained(problem, texts)
    best = None
    if problem.told is not None and len(texts) > problem.told:
        # Without their last tokens the true texts already explain more than others.
        best = explained(problem, texts)
        some = _largest(best, problem.told)
        if some:
            best = explained(problem, _with_last_tokens(problem, some, [1] * len(some)))
        if best.unexplained <= problem.tolerance:
            return best
    for counts in repetitions(len(texts), problem.told):
        found = explained(problem, _with_last_tokens(problem, texts, counts))
        if best is None or found.unexplained < best.unexplained:
            best = found
        if best.unexplained <= problem.tolerance:
            break
    assert best is not None
    return best


def _largest(found: Explanation, count: int) -> list[tuple[int, ...]]:
    """The texts that make most of a release."""
    order = sorted(range(len(found.texts)), key=lambda one: -found.counts[one])
    return [found.texts[one] for one in order[:count]]


def _with_last_tokens(
    problem: Problem, texts: Sequence[tuple[int, ...]], counts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Texts with the token that is only predicted, where it can be told."""
    layer = OutputLayer.of(problem.network, problem.simulator.parameters, problem.space.vocabulary)
    pairs = [pair for pair in zip(texts, counts) if len(pair[0]) < problem.space.length]
    if layer is None or not pairs:
        return list(texts)
    fitting, often = zip(*pairs)
    last = last_tokens(
        problem.network, layer, problem.tensors, fitting, often, problem.space.padding
    )
    return [text if token is None else (*text, token) for text, token in zip(fitting, last)]
