"""Which tokens stood at which position: those whose input lies in the span of a first layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.attacks.span_inversion.projections import Projection, inputs_of
from vestige.attacks.span_inversion.span import Span

CHUNK_NUMBERS = 2**23
"""Numbers of one batch of inputs: tokens × positions × width."""

GAP = 10.0
"""Members and others must be this far apart for the two to be told apart."""


@dataclass(frozen=True)
class TokenSets:
    """Tokens found at each position, nearest to the span first.

    ``member`` is the largest share outside the span of a token that was kept, ``other`` the
    smallest of one that was not, among those that passed the screen.
    """

    tokens: tuple[tuple[int, ...], ...]
    member: float
    other: float

    @property
    def clear(self) -> bool:
        """Whether members are told from others by a wide gap."""
        return self.other > GAP * max(self.member, 1e-9)

    @property
    def count(self) -> int:
        """Pairs of token and position."""
        return sum(len(one) for one in self.tokens)


def token_sets(
    network: nn.Module, layer: Projection, span: Span, vocabulary: int, length: int
) -> TokenSets:
    """Tokens (at each position) whose input to a first layer lies in the span of its gradient.

    Petrov et al. 2024 (DAGER), Section 4.2. A layer that reads no position (rotary embeddings) has
    the same tokens at every position.
    """
    positions = length if layer.positional else 1
    device = next(network.parameters()).device
    chunk = max(1, CHUNK_NUMBERS // (length * layer.width))
    numbers, places, shares = [], [], []
    for start in range(0, vocabulary, chunk):
        tokens = torch.arange(start, min(start + chunk, vocabulary), device=device)
        rows = tokens.float()[:, None].expand(-1, length).contiguous()
        read = inputs_of(network, layer.modules[0], rows)[:, :positions]
        passed = torch.nonzero(span.may_hold(read))
        share = span.outside(read[passed[:, 0], passed[:, 1]])
        numbers.append(tokens[passed[:, 0]].cpu())
        places.append(passed[:, 1].cpu())
        shares.append(share.cpu())
        progress.report(start + len(tokens), vocabulary)
    number, place, share = torch.cat(numbers), torch.cat(places), torch.cat(shares)
    limit = threshold(share, span)
    kept = share <= limit
    found = []
    for position in range(positions):
        here = torch.nonzero(kept & (place == position)).flatten()
        ordered = here[share[here].argsort()]
        found.append(tuple(number[ordered].tolist()))
    if not layer.positional:
        found = found * length
    member = float(share[kept].max()) if bool(kept.any()) else 0.0
    other = float(share[~kept].min()) if bool((~kept).any()) else 1.0
    return TokenSets(tuple(found), member, other)


def threshold(shares: Tensor, span: Span) -> float:
    """Where members of a span end: the widest gap between shares outside it, on a log scale.

    Shares below the rounding of the release are alike, and above ``span.loosest`` nothing is a
    member.
    """
    ordered = shares.clamp_min(span.finest).sort().values
    ordered = torch.cat([ordered[ordered <= span.loosest], ordered.new_tensor([span.loosest])])
    if len(ordered) == 1:
        return 0.0
    best = int((ordered[1:].log10() - ordered[:-1].log10()).argmax())
    return float(ordered[best] * ordered[best + 1]) ** 0.5
