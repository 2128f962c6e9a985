"""Which tokens stood at which position: those whose input lies in the span of a first layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige import progress
from vestige.attacks.span_inversion.projections import Projection, inputs_of
from vestige.attacks.span_inversion.span import Span

CHUNK_NUMBERS = 2**23
"""Numbers of one batch of inputs: tokens × positions × width."""

CERTAIN = 20.0
"""Evidence, as a log likelihood ratio, by which members and others must each be clear."""

MOST_AT_ONCE = 4
"""Tokens kept at one position for each text of the batch where noise tells few apart, and …"""

LEAST_KEPT = 16
"""… as many in any case."""

MOST_KEPT = 1024
"""Tokens with clear evidence kept at one position: sums of other members are among them."""

SAMPLED = 512
"""Random tokens that show how far outside the span others lie."""


@dataclass(frozen=True)
class TokenSets:
    """Tokens found at each position, those with the most evidence first.

    ``member`` is the least evidence for a token that was kept, ``other`` the most for one that was
    not.
    """

    tokens: tuple[tuple[int, ...], ...]
    member: float
    other: float

    @property
    def clear(self) -> bool:
        """Whether members are told from others by a wide gap."""
        return clear_gap(self.member, self.other)

    @property
    def count(self) -> int:
        """Pairs of token and position."""
        return sum(len(one) for one in self.tokens)


def clear_gap(member: float, other: float) -> bool:
    """Whether the least evidence for a member and the most for another are far apart."""
    return member > CERTAIN and other < -CERTAIN


def token_sets(
    network: nn.Module,
    layer: Projection,
    span: Span,
    vocabulary: int,
    length: int,
    told: int | None = None,
) -> TokenSets:
    """Tokens (at each position) whose input to a first layer lies in the span of its gradient.

    Petrov et al. 2024 (DAGER), Section 4.2. A layer that reads no position (rotary embeddings) has
    the same tokens at every position.
    """
    positions = length if layer.positional else 1
    device = next(network.parameters()).device
    chunk = max(1, CHUNK_NUMBERS // (length * layer.width))
    usual = usual_share(network, layer, span, vocabulary, length)
    numbers, places, found = [], [], []
    for start in range(0, vocabulary, chunk):
        tokens = torch.arange(start, min(start + chunk, vocabulary), device=device)
        rows = tokens.float()[:, None].expand(-1, length).contiguous()
        read = inputs_of(network, layer.modules[0], rows)[:, :positions]
        passed = torch.nonzero(span.may_hold(read, usual))
        numbers.append(tokens[passed[:, 0]].cpu())
        places.append(passed[:, 1].cpu())
        found.append(span.evidence(read[passed[:, 0], passed[:, 1]], usual).cpu())
        progress.report(start + len(tokens), vocabulary)
    number, place, evidence = torch.cat(numbers), torch.cat(places), torch.cat(found)
    most = max(MOST_AT_ONCE * (told or 1), LEAST_KEPT)
    if not layer.positional:
        most *= length
    kept = torch.zeros_like(evidence, dtype=torch.bool)
    sets = []
    for position in range(positions):
        here = torch.nonzero((evidence > 0) & (place == position)).flatten()
        certain = int((evidence[here] > CERTAIN).sum())
        ordered = here[evidence[here].argsort(descending=True)][
            : max(most, min(certain, MOST_KEPT))
        ]
        kept[ordered] = True
        sets.append(tuple(number[ordered].tolist()))
    if not layer.positional:
        sets = sets * length
    member = float(evidence[kept].min()) if bool(kept.any()) else 0.0
    other = float(evidence[~kept].max()) if bool((~kept).any()) else -torch.inf
    return TokenSets(tuple(sets), member, other)


def usual_share(
    network: nn.Module, layer: Projection, span: Span, vocabulary: int, length: int
) -> float:
    """What part of a random token's input to a layer usually lies outside its span."""
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(vocabulary, (max(1, SAMPLED // length), length), generator=generator)
    return float(
        span.outside(inputs_of(network, layer.modules[0], rows.float().to(device))).median()
    )
