"""Texts of a causal model, token by token: prefixes whose inputs lie in the span of a later layer.

Petrov et al. 2024 (DAGER), Section 4.3: what a later layer reads at a position depends on the
tokens up to it, so a prefix is extended only by tokens for which that input lies in the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.span_inversion.projections import Projection, inputs_of
from vestige.attacks.span_inversion.span import Span
from vestige.attacks.span_inversion.tokens import threshold

CHUNK_TOKENS = 2**14
"""Tokens of one forward pass."""


@dataclass(frozen=True)
class Prefixes:
    """Texts found so far: ``ended`` had no further token, ``inner`` were extended.

    ``member`` and ``other`` are the largest share outside the span of a prefix that was kept and
    the smallest of one that was not.
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
) -> Prefixes:
    """Extend prefixes position by position; at most ``most`` are kept at each."""
    open_: list[tuple[int, ...]] = [()]
    ended: list[tuple[int, ...]] = []
    inner: list[tuple[int, ...]] = []
    member, other, cut = 0.0, 1.0, False
    for position, tokens in enumerate(sets):
        tried = [(*prefix, token) for prefix in open_ for token in tokens]
        if not tried:
            break
        shares = last_shares(network, layer, span, tried)
        limit = threshold(shares, span)
        order = shares.argsort().tolist()
        kept = [place for place in order if float(shares[place]) <= limit]
        cut |= len(kept) > most
        kept = kept[:most]
        if kept:
            member = max(member, float(shares[kept].max()))
        left = [place for place in order if place not in set(kept)]
        if left:
            other = min(other, float(shares[left[0]]))
        following = [tried[place] for place in kept]
        parents = {one[:-1] for one in following}
        ended += [one for one in open_ if one and one not in parents]
        inner += [one for one in open_ if one in parents and one]
        open_ = following
        progress.report(position + 1, len(sets))
        if not open_:
            break
    return Prefixes(tuple(ended + open_), tuple(inner), member, other, cut)


def last_shares(
    network: nn.Module, layer: Projection, span: Span, texts: Sequence[Sequence[int]]
) -> Tensor:
    """How much of what a layer reads at the last position of each text lies outside a span."""
    device = next(network.parameters()).device
    rows = torch.tensor(texts, dtype=torch.float32, device=device)
    parts = rows.split(max(1, CHUNK_TOKENS // rows.shape[1]))
    found = [span.outside(inputs_of(network, layer.modules[0], part)[:, -1]) for part in parts]
    return torch.cat(found).cpu()
