"""What the spans of noisy gradients say of single tokens, in nats.

A linear layer's gradient is Xᵀ·∂L/∂Z, a sum of its inputs (Petrov et al. 2024, DAGER, Section 4).
Under noise no vector lies in its span exactly. The singular vectors of a low-rank matrix plus noise
keep a known part of what they were (Benaych-Georges and Nadakuditi 2012, Section 3.1), and that
part is their weight: a differentiable distance in place of a yes or no.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.attacks.span_inversion.projections import Projection, Reach

CHUNK_NUMBERS = 2**23
"""Numbers of one batch of inputs: tokens × positions × width."""

FINEST = 1e-4
"""Shares outside a span below this are alike: closer ones are told apart by the whole gradient."""

SURE = 15.0
"""Nats of a token that is surely there; more would outweigh what else is known."""

ROUNDING = 1e-7
"""Singular values are not known better than to this share of the largest."""

SHY = 5.0
"""Nats from which on the middle between members and others is taken for the line between them."""

USELESS = 0.02
"""A span that leaves less than this share of all directions outside tells nothing."""


def kept_shares(values: Tensor, deviation: float, rows: int, columns: int) -> Tensor:
    """Squared cosine of each observed left singular vector with the true one under noise.

    Benaych-Georges and Nadakuditi 2012, Section 3.1, for (rows, columns) with normal noise of one
    ``deviation`` and observed singular ``values``; zero below the noise's own largest one. Singular
    vectors without noise keep everything.
    """
    if deviation <= 0:
        return (values > 1e-6 * values.max().clamp_min(1e-300)).to(values)
    ratio = rows / columns
    squares = (values / (deviation * math.sqrt(columns))).square()
    above = values > deviation * (math.sqrt(rows) + math.sqrt(columns))
    middle = squares - 1 - ratio
    true = (middle + (middle.square() - 4 * ratio).clamp_min(0).sqrt()) / 2
    true = true.clamp_min(1e-300)
    share = 1 - ratio * (1 / true + 1) / (true + ratio)
    return torch.where(above, share, 0.0).clamp(0, 1)


def estimated_deviation(values: Tensor, rows: int, columns: int) -> float:
    """Noise that explains the smallest quarter of the singular values of (rows, columns)."""
    lowest = values.sort().values[: max(1, rows // 4)]
    least = ROUNDING * float(values.max())
    return max(least, float(lowest.square().mean().sqrt())) / math.sqrt(columns)


@dataclass(frozen=True)
class WeighedSpan:
    """A layer's span: directions (width, width), the weight of each, and what others have outside.

    ``apart`` is the mean share of a random vector outside, ``free`` the dimensions that tell.
    """

    layer: Projection
    directions: Tensor
    weights: Tensor

    @property
    def apart(self) -> float:
        """Mean share of a random vector's squared length that lies outside."""
        return 1 - float(self.weights.sum()) / len(self.weights)

    @property
    def tells(self) -> bool:
        """Whether anything is outside, and anything inside."""
        return USELESS < self.apart < 1 - 0.5 / len(self.weights)

    def outside(self, inputs: Tensor) -> Tensor:
        """Weighed share of each vector's (…, width) squared length outside the span."""
        parts = (inputs.to(self.directions) @ self.directions).square()
        lengths = parts.sum(-1).clamp_min(1e-300)
        return 1 - (parts @ self.weights) / lengths

    def nats(self, shares: Tensor) -> Tensor:
        """Evidence that vectors with such shares outside were inputs, against random ones.

        Log-likelihood ratio of normal vectors in the dimensions outside: of the variance that is
        seen, against that of a random vector.
        """
        free = len(self.weights) * self.apart
        share = shares.clamp_min(FINEST) / self.apart
        return (free / 2) * torch.where(share < 1, -share.log() - (1 - share), 0.0)


def weighed_spans(
    layers: Sequence[Projection], tensors: Mapping[str, Tensor], deviation: float
) -> list[WeighedSpan]:
    """Spans of the layers that were released, in their order; those that tell nothing left out."""
    found = []
    for layer in layers:
        if any(name not in tensors for name in layer.weights):
            continue
        matrix = layer.matrix(tensors)
        if not bool((matrix != 0).any()):
            continue
        left, values, _ = torch.linalg.svd(matrix, full_matrices=True)
        rows, columns = matrix.shape
        values = torch.cat([values, values.new_zeros(rows - len(values))])
        noise = deviation or estimated_deviation(values, rows, columns)
        span = WeighedSpan(layer, left.float(), kept_shares(values, noise, rows, columns).float())
        if span.tells:
            found.append(span)
    return found


class _AllSeen(Exception):
    """Every layer whose input is wanted was called: the rest of the network need not run."""


def _read(network: nn.Module, names: Sequence[str], rows: Tensor) -> dict[str, Tensor]:
    """Inputs of layers while the network runs on token rows; the rest does not run."""
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, args: tuple[object, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                seen.setdefault(name, args[0])
            if len(seen) == len(names):
                raise _AllSeen

        return hook

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_pre_hook(keep(name)) for name in names]
    try:
        with torch.no_grad(), suppress(_AllSeen):
            network(rows)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def last_nats(network: nn.Module, spans: Sequence[WeighedSpan], rows: Tensor) -> Tensor:
    """Evidence (n,) of the last position of token rows (n, length), summed over spans."""
    total = torch.zeros(len(rows))
    if spans:
        names = [span.layer.modules[0] for span in spans]
        seen = _read(network, names, rows)
        for span, name in zip(spans, names):
            total = total + span.nats(span.outside(seen[name][:, -1])).cpu()
    return total


def token_nats(
    network: nn.Module, spans: Sequence[WeighedSpan], vocabulary: int, length: int
) -> Tensor:
    """Evidence (length, vocabulary) that a token stood at a place, by a layer that reads it alone.

    It is counted from halfway between members and the same tokens elsewhere, which share their
    embedding, and it ends at ``SURE``: of two tokens that are both there, one may be clearer.
    """
    device = next(network.parameters()).device
    own = [span for span in spans if span.layer.reach is Reach.OWN]
    if not own:
        return torch.zeros(length, vocabulary)
    best = max(own, key=lambda span: span.apart * (1 - span.apart))
    shares = torch.ones(length, vocabulary)
    name, chunk = best.layer.modules[0], max(1, CHUNK_NUMBERS // (length * best.layer.width))
    for start in range(0, vocabulary, chunk):
        tokens = torch.arange(start, min(start + chunk, vocabulary), device=device)
        rows = tokens.float()[:, None].expand(-1, length).contiguous()
        read = _read(network, (name,), rows)[name]
        shares[:, start : start + len(tokens)] = best.outside(read).T.cpu()
    nats = best.nats(shares)
    middle = _halfway(nats, best.layer.positional)
    return (nats - middle**2 / (middle + SHY)).clamp(-SURE, SURE)


def _halfway(nats: Tensor, positional: bool) -> float:
    """Evidence between that of members and that of the same tokens at other positions."""
    most, tokens = nats.max(1)
    member = float(most.quantile(0.75))
    if not positional:
        return member / 2
    elsewhere = nats[:, tokens[most >= member]].median()
    return (member + float(elsewhere)) / 2


def row_nats(rows: Tensor, vocabulary: int, deviation: float, absent: float) -> Tensor:
    """Evidence (vocabulary,) that tokens were read, by rows (·, width) of the embedding's gradient.

    Melis et al. 2019, Section 4.1. Rows that are exactly zero were not read, which is ``absent``
    nats against them. Of noise of a known deviation it is the log-likelihood ratio of the row's own
    variance against the noise alone.
    """
    energy = rows[:vocabulary].double().square().mean(1)
    if deviation <= 0:
        return torch.where(energy > 0, 0.0, -absent).float()
    share = (energy / deviation**2).clamp_min(1.0)
    nats = rows.shape[1] / 2 * (share - 1 - share.log())
    return nats.clamp_max(absent).float() - absent
