"""Texts of a model that attends both ways: a choice of one token at each position.

What a later layer reads depends on the whole text, so no prefix can be checked alone. Texts whose
tokens attended to each other are tried first (``attention``); from there, and from random ones, one
token is changed at a time, whichever brings all inputs closest to the span (coordinate descent;
Petrov et al. 2024 enumerate, which a batch of two texts of 16 tokens already makes long).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.span_inversion.projections import Projection, inputs_of
from vestige.attacks.span_inversion.span import Span

SWEEPS = 6
"""Rounds over all positions before a search begins anew."""


def whole_texts(
    network: nn.Module,
    layer: Projection,
    span: Span,
    sets: Sequence[Sequence[int]],
    wanted: int,
    starts: int,
    generator: torch.Generator,
    likely: Sequence[tuple[int, ...]] = (),
) -> tuple[list[tuple[int, ...]], float]:
    """Up to ``wanted`` texts whose inputs all lie in the span, and the largest share outside.

    ``likely`` texts are tried before random ones.
    """
    found: dict[tuple[int, ...], float] = {}
    for text in likely:
        text = _climb(network, layer, span, sets[: len(text)], generator, text)
        share = float(_shares(network, layer, span, [text]).max())
        if share <= loosest(span):
            found[text] = share
    for start in range(starts):
        if len(found) >= wanted or progress.report(start, starts):
            break
        lengths = [n for n in range(1, len(sets) + 1) if n == len(sets) or len(sets[n]) < wanted]
        lengths = [n for n in lengths if all(len(one) for one in sets[:n])]
        if not lengths:
            break
        length = lengths[-1 - start % len(lengths)]
        choices = [list(tokens) for tokens in sets[:length]]
        if start % 4 < 2:  # a text that shares tokens with a found one is near it, and hides others
            choices = _without(choices, found)
        text = _climb(network, layer, span, choices, generator)
        share = float(_shares(network, layer, span, [text]).max())
        if share <= loosest(span):
            found[text] = share
    return list(found), max(found.values(), default=0.0)


def _without(sets: list[list[int]], found: dict[tuple[int, ...], float]) -> list[list[int]]:
    """Tokens at each position that no found text has there, or all where there are none."""
    used = {(place, token) for text in found for place, token in enumerate(text)}
    return [
        [token for token in tokens if (place, token) not in used] or tokens
        for place, tokens in enumerate(sets)
    ]


def _climb(
    network: nn.Module,
    layer: Projection,
    span: Span,
    sets: Sequence[Sequence[int]],
    generator: torch.Generator,
    start: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """One text that no change of a single token improves, from a random or a given one on."""
    text = (
        list(start)
        if start
        else [one[int(torch.randint(len(one), (), generator=generator))] for one in sets]
    )
    shares = _shares(network, layer, span, [text])
    best = float(_score(shares, span)[0])
    if float(shares.max()) <= loosest(span):
        return tuple(text)
    for _ in range(SWEEPS):
        changed = False
        for place in torch.randperm(len(sets), generator=generator).tolist():
            others = [token for token in sets[place] if token != text[place]]
            if not others:
                continue
            tried = [[*text[:place], token, *text[place + 1 :]] for token in others]
            scores = _score(_shares(network, layer, span, tried), span)
            value, which = scores.min(0)
            if float(value) < best:
                best, text, changed = float(value), tried[int(which)], True
        if not changed:
            break
    return tuple(text)


def _shares(
    network: nn.Module, layer: Projection, span: Span, texts: Sequence[Sequence[int]]
) -> Tensor:
    """How much of what a layer reads at each position lies outside the span (n, length)."""
    device = next(network.parameters()).device
    rows = torch.tensor(texts, dtype=torch.float32, device=device)
    return span.outside(inputs_of(network, layer.modules[0], rows)).cpu()


def loosest(span: Span) -> float:
    """No text of the batch lies further outside the span than this share."""
    return max(1e-3, 2 * span.weakest)


def _score(shares: Tensor, span: Span) -> Tensor:
    return shares.clamp_min(max(1e-6, span.weakest / 30)).log().mean(1)
