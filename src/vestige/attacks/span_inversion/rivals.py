"""Texts that a model does not tell from those that were found: then nothing is certified.

A search looks at some texts and stops at the first that explain a release. Whether others would
explain it too is a property of the model: it may have two tokens with one embedding, read no
positions, fold token numbers, or never look at the end of a text. So close relatives of each text
take its place, one at a time, and the batch is compared with the release again. They are a list of
known blind spots of models, not all texts there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vestige.attacks.span_inversion.output_layer import OutputLayer
from vestige.attacks.span_inversion.problem import Problem
from vestige.attacks.span_inversion.projections import Projection, inputs_of

NEAR = 0.1
"""Tokens whose vectors differ by less than this part of their length are tried for each other."""

MOST_TOKENS = 96
"""Pairs of such tokens that are tried, the nearest first."""

SWAPPED = 2
"""Places of a text at which two neighbours change places."""

MARGIN, NOISE_MARGIN = 3.0, 0.5
"""A rival that changes less than so many tolerances, or than this part of told noise, stands."""

CHUNK = 4096
"""Tokens whose vectors are computed at once."""


def rival(
    problem: Problem,
    first: Projection,
    texts: Sequence[Sequence[int]],
    labels: Sequence[int],
    scale: float,
) -> tuple[int, ...] | None:
    """A text that could stand in place of one of a batch without changing its gradient, or None.

    The release is Σ wg / Σ w over the batch's texts, times ``scale``, so only the gradient of the
    text that is replaced has to be computed again.
    """
    batch = [tuple(text) for text in texts]
    noise = 1.02 * problem.noise_share
    least = MARGIN * (problem.tolerance - noise) + NOISE_MARGIN * problem.noise_share
    total = sum(problem.weight(text) for text in batch)
    alike, tensors = _lookalikes(problem, first, batch), (problem.compared, tuple(problem.tensors))
    for text, label in dict(zip(batch, labels)).items():
        own, weight = problem.made([text], [label]), problem.weight(text)
        for other in dict.fromkeys((*_reshaped(problem, batch, text), *_replaced(text, alike))):
            made, its = problem.made([other], [label]), problem.weight(other)
            parts = (own, weight, made, its, total, scale)
            # What some tensors leave is the least that all of them do.
            if all(_change(problem, some, *parts) <= least for some in tensors):
                return other
    return None


def _change(
    problem: Problem,
    names: Sequence[str],
    own: dict[str, Tensor],
    weight: float,
    made: dict[str, Tensor],
    its: float,
    total: float,
    scale: float,
) -> float:
    """What the batch with another text leaves of tensors at its best scale, as a share of all.

    The batch that was found is taken to explain all of the release.
    """
    both = square = whole = 0.0
    for name in names:
        one = problem.tensors[name].double()
        moved = scale * (its * made[name].double() - weight * own[name].double())
        new = one + (moved + (weight - its) * one) / (total - weight + its)
        both += float((one * new).sum())
        square += float(new.square().sum())
        whole += float(one.square().sum())
    left = whole - both**2 / square if square > 0 else whole
    return max(0.0, left) ** 0.5 / problem.norm


def _reshaped(
    problem: Problem, batch: Sequence[tuple[int, ...]], text: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """The same text, longer, shorter or in another order."""
    length = problem.space.length
    if len(text) < length:
        yield (*text, text[-1])
        held = {problem.space.padding, *(token for one in batch for token in one)}
        strange = next((one for one in range(problem.space.vocabulary) if one not in held), None)
        if strange is not None:
            yield (*text, strange)
    if 2 * len(text) <= length:
        yield (*text, *text)
    if len(text) > 1 + problem.modelling:
        yield text[:-1]
    places = [one for one in range(len(text) - 1) if text[one] != text[one + 1]]
    for one in places[:: max(1, -(-len(places) // SWAPPED))]:
        yield (*text[:one], text[one + 1], text[one], *text[one + 2 :])


def _replaced(text: tuple[int, ...], alike: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """The same text with one token in place of another that looks like it."""
    for token, other in alike:
        for place in (one for one, its in enumerate(text) if its == token):
            yield (*text[:place], other, *text[place + 1 :])


def _lookalikes(
    problem: Problem, first: Projection, batch: Sequence[tuple[int, ...]]
) -> list[tuple[int, int]]:
    """Pairs of a token of the batch and another whose vector is near, the nearest first.

    The vectors are what the first layer reads, and rows of the output layer.
    """
    network, vocabulary = problem.network, problem.space.vocabulary
    device = problem.simulator.like.device
    numbers = torch.arange(vocabulary, device=device)
    parts = [
        inputs_of(network, first.modules[0], part.float()[:, None].expand(-1, 2).contiguous())[:, 0]
        for part in numbers.split(CHUNK)
    ]
    kinds = [torch.cat(parts)]
    layer = OutputLayer.of(network, problem.simulator.parameters, vocabulary)
    if problem.modelling and layer is not None:
        kinds.append(layer.weight)
    tokens = torch.tensor(sorted({token for text in batch for token in text}), device=device)
    found: dict[tuple[int, int], float] = {}
    for vectors in kinds:
        unit = vectors.double() if len(vectors) <= CHUNK else vectors.float()
        own = unit[tokens]
        lengths = own.norm(dim=1).clamp_min(1e-30)
        distances = torch.cdist(own, unit, compute_mode="donot_use_mm_for_euclid_dist")
        share = distances / lengths[:, None]
        share[torch.arange(len(tokens)), tokens] = torch.inf
        for row, column in torch.nonzero(share < NEAR).tolist():
            pair = (int(tokens[row]), column)
            found[pair] = min(float(share[row, column]), found.get(pair, torch.inf))
    return sorted(found, key=lambda pair: found[pair])[:MOST_TOKENS]
