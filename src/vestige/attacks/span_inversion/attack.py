"""Span inversion: the texts of a batch from one gradient of a transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vestige.attacks.exact_inversion.noise import ROUNDING, detected_precision
from vestige.attacks.exact_inversion.undone import undo_alterations
from vestige.attacks.gradient_matching.matching import (
    Matching,
    check_single_step,
    hinted_batch_size,
)
from vestige.attacks.span_inversion.last_tokens import OutputLayer, last_tokens
from vestige.attacks.span_inversion.prefixes import prefixes
from vestige.attacks.span_inversion.projections import Projection, Reach, projections
from vestige.attacks.span_inversion.sets import whole_texts
from vestige.attacks.span_inversion.span import Span
from vestige.attacks.span_inversion.tokens import TokenSets, token_sets
from vestige.attacks.span_inversion.verification import (
    labellings,
    multiplicities,
    repetitions,
    rows_of,
)
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
from vestige.networks.token_model import predicts_tokens
from vestige.records import TextSpace
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import one_hot

SUMMED = 3.0
"""Roundoffs in an entry of a gradient, which is a sum of rounded products."""

HIGHEST = 0.999
"""Confidence of a certified text: what is taken for granted is not certain."""


@dataclass(frozen=True)
class Found:
    """Texts read from a release, how often each was in the batch, and what that leaves over.

    ``certified`` says that these texts, and no others, make the release.
    """

    texts: tuple[tuple[int, ...], ...] = ()
    counts: tuple[int, ...] = ()
    labels: tuple[int, ...] = ()
    unexplained: float = 1.0
    certified: bool = False
    reason: str = ""
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class SpanInversion:
    """Reads the tokens of a batch off the span of a transformer's gradient, exactly.

    Petrov et al. 2024, DAGER. While a batch has fewer tokens than a layer has inputs, a token was
    at a position if and only if what the first layer reads of it lies in the span of that layer's
    gradient. A later layer tells which tokens follow each other: prefixes for models that attend to
    earlier tokens, a search over whole texts (``starts`` of them) for those that attend both ways.
    The last token of a language model's text is read by nothing; it is told by the output layer.
    Layers are found by running the model, so any transformer over token numbers will do, and the
    layers of low-rank adapters as well.

    Texts are certified only if members of both spans are told from others by a wide gap, the batch
    has as many texts as told, and the texts' own gradient equals the release to the release's
    precision. ``most_prefixes`` bounds the search where the gap is missing.
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
        layers = projections(
            simulator.network, simulator.parameters, space.vocabulary, min(space.length, 8)
        )
        first = [layer for layer in layers if layer.reach is Reach.OWN]
        if not first:
            raise BadInput(
                "No trainable linear layer reads the embedding of single tokens, so the span tells "
                "no tokens: train the first block, or its adapters, or use another attack."
            )
        return lambda observation, generator: self._invert(
            public, space, layers, observation, generator
        )

    def _invert(
        self,
        public: Public,
        space: TextSpace,
        layers: Sequence[Projection],
        observation: Observation,
        generator: torch.Generator,
    ) -> Reconstruction:
        simulator = client_simulator(public.simulator)
        told = hinted_batch_size(observation.hints)
        release, noise = undo_alterations(Matching(public, observation.release, told))
        scale = simulator.step_scale
        tensors = {name: tensor / scale for name, tensor in release.tensors.items()}
        deviation = noise if isinstance(noise, float) else 0.0
        roundoff = SUMMED * ROUNDING[detected_precision(*release.tensors.values())][0]
        found = self._found(
            simulator, space, layers, tensors, told, observation, (roundoff, deviation), generator
        )
        chosen = [
            text for text, count in zip(found.texts, found.counts) for _ in range(max(count, 1))
        ]
        labels = [
            label for label, count in zip(found.labels, found.counts) for _ in range(max(count, 1))
        ]
        confidence = HIGHEST if found.certified else 0.5 * max(0.0, 1 - found.unexplained)
        return Reconstruction(
            rows_of(chosen, space, simulator.like),
            # A language model has no labels to tell.
            torch.tensor(labels, dtype=torch.int64)
            if labels and not predicts_tokens(simulator.network)
            else None,
            torch.full((len(chosen),), confidence),
            found.unexplained,
            not chosen,
            {"certified": len(chosen) if found.certified else 0, **found.facts},
            found.reason,
        )

    def _found(
        self,
        simulator: ClientSimulator,
        space: TextSpace,
        layers: Sequence[Projection],
        tensors: Mapping[str, Tensor],
        told: int | None,
        observation: Observation,
        exactness: tuple[float, float],
        generator: torch.Generator,
    ) -> Found:
        first, span = _widest(layers, tensors, (Reach.OWN,), exactness)
        facts: dict[str, str | int | float | bool] = {
            "first layer": first.modules[0],
            "its rank": span.rank,
            "its inputs": first.width,
        }
        if span.full or span.rank == 0:
            what = "as many tokens as inputs, or noise" if span.full else "nothing"
            return Found(
                reason=f"The first layer's gradient spans {what}: no token can be told from "
                "others; try a search.",
                facts=facts,
            )
        sets = token_sets(simulator.network, first, span, space.vocabulary, space.length)
        facts |= {"tokens found": sets.count, "outside the span, tokens": sets.member}
        later, own = _widest(layers, tensors, (Reach.EARLIER, Reach.ALL), exactness)
        texts, clear = self._texts(simulator, later, own, sets, told, generator)
        texts = [text for text in texts if text]
        facts["later layer"] = later.modules[0]
        if not texts:
            return Found(reason="No text's inputs lie in the span of a later layer.", facts=facts)
        best, modelling = None, predicts_tokens(simulator.network)
        for counts in repetitions(len(texts), told) if modelling else [()]:
            whole = _with_last_tokens(simulator, space, tensors, texts, counts) if counts else texts
            found = _verified(
                simulator,
                space,
                tensors,
                whole,
                told,
                observation,
                sets.clear and clear,
                exactness,
                facts,
            )
            if best is None or found.unexplained < best.unexplained:
                best = found
            if found.certified:
                break
        assert best is not None
        return best

    def _texts(
        self,
        simulator: ClientSimulator,
        later: Projection,
        span: Span,
        sets: TokenSets,
        told: int | None,
        generator: torch.Generator,
    ) -> tuple[list[tuple[int, ...]], bool]:
        """Texts, and whether they are told from others by a gap."""
        network = simulator.network
        if later.reach is Reach.EARLIER:
            most = self.most_prefixes if told is None else max(4 * told, 16)
            grown = prefixes(network, later, span, sets.tokens, min(most, self.most_prefixes))
            clear = not grown.cut and grown.other > 10 * max(grown.member, span.finest)
            return list(grown.ended), clear
        wanted = told or max(len(one) for one in sets.tokens)
        texts, share = whole_texts(
            network, later, span, sets.tokens, wanted, self.starts, generator
        )
        return texts, share <= span.loosest


def text_space(public: Public) -> TextSpace:
    """The space of texts; raise BadInput where records are no texts."""
    if not isinstance(public.space, TextSpace):
        raise BadInput("This attack reads texts: give records of a TextSpace.")
    return public.space


def _widest(
    layers: Sequence[Projection],
    tensors: Mapping[str, Tensor],
    reaches: Sequence[Reach],
    exactness: tuple[float, float],
) -> tuple[Projection, Span]:
    """The layer whose span leaves most room, and is best known, among the first ones that fit."""
    fitting = [one for one in layers if one.reach in reaches and _moved(one, tensors)][:4]
    if not fitting:
        raise BadInput(
            "No trainable linear layer reads what the first block makes of a text, so tokens could "
            "be told and their order could not: train more layers, or use another attack."
        )
    spans = [(one, _span(one, tensors, exactness)) for one in fitting]
    usable = [pair for pair in spans if not pair[1].full and pair[1].rank] or spans
    most = max(pair[1].rank for pair in usable)
    usable = [pair for pair in usable if pair[1].rank >= 0.9 * most]
    return min(usable, key=lambda pair: pair[1].floor)


def _moved(layer: Projection, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the layer's gradient was released and is not zero, as that of an adapter's A is."""
    return all(name in tensors for name in layer.weights) and any(
        bool((tensors[name] != 0).any()) for name in layer.weights
    )


def _span(layer: Projection, tensors: Mapping[str, Tensor], exactness: tuple[float, float]) -> Span:
    matrix = layer.matrix(tensors)
    roundoff, deviation = exactness
    largest = float(torch.linalg.matrix_norm(matrix, 2)) if deviation else 1.0
    noise = deviation * (matrix.shape[0] ** 0.5 + matrix.shape[1] ** 0.5) / max(largest, 1e-300)
    return Span.of(matrix, roundoff + noise)


def _with_last_tokens(
    simulator: ClientSimulator,
    space: TextSpace,
    tensors: Mapping[str, Tensor],
    texts: Sequence[tuple[int, ...]],
    counts: Sequence[int],
) -> list[tuple[int, ...]]:
    """Texts with the token that is only predicted, where it can be told."""
    layer = OutputLayer.of(simulator.network, simulator.parameters, space.vocabulary)
    if layer is None:
        return list(texts)
    pairs = [(text, often) for text, often in zip(texts, counts) if len(text) < space.length]
    if not pairs:
        return list(texts)
    fitting, often = zip(*pairs)
    last = last_tokens(simulator.network, layer, tensors, fitting, often, space.padding)
    return [text if token is None else (*text, token) for text, token in zip(fitting, last)]


def _verified(
    simulator: ClientSimulator,
    space: TextSpace,
    tensors: Mapping[str, Tensor],
    texts: Sequence[tuple[int, ...]],
    told: int | None,
    observation: Observation,
    clear: bool,
    exactness: tuple[float, float],
    facts: Mapping[str, str | int | float | bool],
) -> Found:
    """Labels and multiplicities by least squares, and a certificate if nothing is left over."""
    names = [name for name in simulator.parameters if name in tensors]
    released = torch.cat([tensors[name].flatten().double() for name in names])
    modelling = predicts_tokens(simulator.network)
    rows = rows_of(texts, space, simulator.like)
    classes = len(space.class_names)

    def alone(text: int, label: int) -> Tensor:
        target = one_hot(torch.tensor([label], device=rows.device), classes, simulator.like.dtype)
        length = len(texts[text])
        made = simulator(rows[text : text + 1, :length], target, functional=False)
        # An update is a step along the gradient.
        return torch.cat([made[name].detach().flatten() for name in names]) / simulator.step_scale

    weights = [float(max(len(text) - 1, 1)) if modelling else 1.0 for text in texts]
    hints = observation.hints.labels
    ways = labellings(
        1 if modelling else classes, len(texts), None if hints is None else hints.tolist()
    )
    kept = {
        (t, label): alone(t, label) for t in range(len(texts)) for label in {w[t] for w in ways}
    }
    best: tuple[float, tuple[int, ...], list[int]] | None = None
    for way in ways:
        each = torch.stack([kept[text, label] for text, label in enumerate(way)])
        counts, left = multiplicities(released, each, weights)
        if best is None or left < best[0]:
            best = (left, way, counts)
    assert best is not None
    left, labels, counts = best
    keep = [place for place, count in enumerate(counts) if count > 0]
    roundoff, deviation = exactness
    noise = deviation * len(released) ** 0.5 / max(float(released.norm()), 1e-300)
    tolerance = 30 * roundoff + 1.5 * noise
    total = sum(counts)
    reason = ""
    if not clear:
        reason = "Tokens are not told from others by a clear gap."
    elif told is None:
        reason = "The batch size was not told, so nothing is certified."
    elif total != told:
        reason = f"{total} texts were found where {told} were told."
    elif left > tolerance:
        reason = f"The texts leave {left:.1e} of the gradient unexplained."
    return Found(
        tuple(texts[place] for place in keep),
        tuple(counts[place] for place in keep),
        tuple(labels[place] for place in keep),
        left,
        not reason and deviation == 0,
        reason,
        {**facts, "unexplained": left},
    )
