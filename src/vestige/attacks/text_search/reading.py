"""What a release, or what others leave of it, says of single tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.attacks.gradient_matching.matching import Matching
from vestige.attacks.span_inversion.projections import Projection, Reach
from vestige.attacks.text_search.decoding import Prefixes, Text
from vestige.attacks.text_search.evidence import (
    WeighedSpan,
    last_nats,
    row_nats,
    token_nats,
    weighed_spans,
)
from vestige.records import TextSpace
from vestige.simulation.alterations import split_like

ABSENT, ABSENT_MASKED = 12.0, 3.0
"""Nats against a token whose row of the embedding's gradient is zero, or noise.

The second number is for releases under a mask, which may have removed the row.
"""

LEAST = -40.0
"""Nats against a text that later layers do not confirm, at most at each position."""


@dataclass(frozen=True)
class Evidence:
    """Evidence (length, vocabulary) in nats that a token stood at a position, and later layers."""

    network: nn.Module
    table: Tensor
    later: Sequence[WeighedSpan]

    @classmethod
    def of(
        cls,
        matching: Matching,
        space: TextSpace,
        layers: Sequence[Projection],
        embedding: str,
        vector: Tensor,
    ) -> Evidence:
        """Evidence in a vector of the entries that are matched.

        ``embedding`` names the weight whose rows name tokens, empty where there is none.
        """
        like = {name: matching.release.tensors[name] for name in matching.names}
        if matching.kept is not None:
            full = vector.new_zeros(sum(tensor.numel() for tensor in like.values()))
            full[matching.kept] = vector
            vector = full
        tensors = split_like(vector, like)
        deviation = float(torch.as_tensor(matching.reading.deviation).max())
        network = matching.simulator.network
        spans = weighed_spans(layers, tensors, deviation)
        table = token_nats(network, spans, space.vocabulary, space.length)
        if embedding in tensors:
            absent = ABSENT if matching.kept is None else ABSENT_MASKED
            table = table + row_nats(tensors[embedding].cpu(), space.vocabulary, deviation, absent)
        return cls(network, table, [one for one in spans if one.layer.reach is Reach.EARLIER])

    @property
    def prefixes(self) -> Prefixes | None:
        """Evidence of later layers for the last token of texts of one length, the best being 0."""
        if not self.later:
            return None

        def confirmed(texts: Sequence[Text]) -> Tensor:
            device = next(self.network.parameters()).device
            rows = torch.tensor(texts, dtype=torch.float32, device=device)
            nats = last_nats(self.network, self.later, rows)
            return (nats - nats.max()).clamp_min(LEAST)

        return confirmed
