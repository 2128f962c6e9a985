"""Texts of a causal model, token by token: prefixes whose inputs lie in the span of a later layer.

Petrov et al. 2024 (DAGER), Section 4.3: what a later layer reads at a position depends on the
tokens up to it, so a prefix is extended only by tokens for which that input lies in the span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.span_inversion.projections import Projection, inputs_of
from vestige.attacks.span_inversion.span import Span

CHUNK_TOKENS = 2**14
"""Tokens of one forward pass."""

CHANGED = 64
"""Texts with a wrong token that show how far outside the span they lie."""

MOST_SHOWN = 100.0
"""Evidence of one token counts this much at most among that of a text."""


@dataclass(frozen=True)
class Prefixes:
    """Texts found so far: ``ended`` had no further token, ``inner`` were extended.

    ``member`` and ``other`` are the least evidence for a prefix that was kept and the most for one
    that was not.
    """

    ended: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[int, ...], ...]
    member: float
    other: float
    cut: bool


def prefixes(
    network: nn.Module,
    layer: Projection,
    span: Span,
    sets: Sequence[Sequence[int]],
    most: int,
    vocabulary: int,
) -> Prefixes:
    """Extend prefixes position by position; the ``most`` with the most evidence are kept."""
    open_: dict[tuple[int, ...], float] = {(): 0.0}
    ended: list[tuple[int, ...]] = []
    inner: list[tuple[int, ...]] = []
    member, other, cut = math.inf, -math.inf, False
    usual = changed_share(network, layer, span, sets, vocabulary)
    for position, tokens in enumerate(sets):
        tried: list[tuple[int, ...]] = [(*prefix, token) for prefix in open_ for token in tokens]
        if not tried:
            break
        evidence = last_evidence(network, layer, span, tried, usual).tolist()
        kept = [place for place, one in enumerate(evidence) if one > 0]
        left = [one for one in evidence if one <= 0]
        sums = [open_[one[:-1]] + min(own, MOST_SHOWN) for one, own in zip(tried, evidence)]
        kept.sort(key=lambda place: -sums[place])
        cut |= len(kept) > most
        kept = kept[:most]
        member = min([member, *(evidence[place] for place in kept)])
        other = max([other, *left])
        following = {tried[place]: sums[place] for place in kept}
        parents = {one[:-1] for one in following}
        ended += [one for one in open_ if one and one not in parents]
        inner += [one for one in open_ if one in parents and one]
        open_ = following
        progress.report(position + 1, len(sets))
        if not open_:
            break
    return Prefixes((*ended, *open_), tuple(inner), member, other, cut)


def last_evidence(
    network: nn.Module, layer: Projection, span: Span, texts: Sequence[Sequence[int]], usual: float
) -> Tensor:
    """Evidence that what a layer reads at the last position of each text is in the span."""
    device = next(network.parameters()).device
    rows = torch.tensor(texts, dtype=torch.float32, device=device)
    parts = rows.split(max(1, CHUNK_TOKENS // rows.shape[1]))
    read = (inputs_of(network, layer.modules[0], part)[:, -1] for part in parts)
    return torch.cat([span.evidence(one, usual) for one in read]).cpu()


def changed_share(
    network: nn.Module,
    layer: Projection,
    span: Span,
    sets: Sequence[Sequence[int]],
    vocabulary: int,
) -> float:
    """What part of a later layer's input usually lies outside the span after a wrong token.

    Texts of tokens that were found, with one changed: what the layer reads after it.
    """
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(0)
    length = next((place for place, one in enumerate(sets) if not one), len(sets))
    if length < 2:
        return 1.0

    def drawn(size: int) -> int:
        return int(torch.randint(size, (), generator=generator))

    texts, places = [], []
    for _ in range(CHANGED):
        text, place = [one[drawn(len(one))] for one in sets[:length]], drawn(length - 1)
        text[place] = drawn(vocabulary)
        texts.append(text)
        places.append(place + 1)
    rows = torch.tensor(texts, dtype=torch.float32, device=device)
    read = inputs_of(network, layer.modules[0], rows)[torch.arange(len(rows)), places]
    return max(float(span.outside(read).median()), 1e-12)
