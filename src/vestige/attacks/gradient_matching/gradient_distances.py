"""Distances of gradients: each tensor's own angle, and the likelihood under known noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from vestige.attacks.gradient_matching.matching import Matching, cosine_distance_to

Weighing = Literal["entries", "equal"]
SlopedDistance = Callable[[Tensor], tuple[Tensor, Tensor]]
# No entry counts more than it would with this share of the largest deviation.
LEAST_DEVIATION = 1e-3


def tensorwise_cosine(matching: Matching, weighing: Weighing) -> SlopedDistance:
    """Cosine distance of each tensor, averaged with weights: its number of entries, or equal ones.

    Entries that a mask took away do not count; a tensor that lost all of them has no weight.
    """
    counts = kept_entries(matching)
    weights = [float(count if weighing == "entries" else count > 0) for count in counts]
    total = sum(weights)
    parts = [
        (weight / total, cosine_distance_to(observed))
        for weight, observed in zip(weights, matching.observed.split(counts))
    ]

    def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
        values, slopes = simulated.new_zeros(len(simulated)), []
        for piece, (weight, to_observed) in zip(simulated.split(counts, 1), parts):
            if not weight:
                slopes.append(torch.zeros_like(piece))
                continue
            value, slope = to_observed(piece)
            values = values + weight * value
            slopes.append(weight * slope)
        return values, torch.cat(slopes, 1)

    return distance


def likelihood_distance(matching: Matching) -> SlopedDistance:
    """Σ (g − g̃)²/s² · s̄²/(2‖g̃‖²), s the noise of an entry and s̄² its mean square.

    The negative log-likelihood times the noise's share of the release: half the squared distance,
    relative to the release, where the noise is the same everywhere or there is none.
    """
    observed = matching.observed
    weights = torch.ones_like(observed)
    if matching.reading.noisy:
        deviation = torch.as_tensor(matching.reading.deviation).to(observed)
        if deviation.dim() and matching.kept is not None:
            deviation = deviation.index_select(0, matching.kept)
        deviation = deviation.clamp_min(LEAST_DEVIATION * float(deviation.max()))
        squares = deviation.square()
        weights = weights * (squares.mean() / squares)
    weights = weights / observed.square().sum().clamp_min(1e-30)

    def distance(simulated: Tensor) -> tuple[Tensor, Tensor]:
        difference = simulated - observed
        slopes = weights * difference
        return (slopes * difference).sum(-1) / 2, slopes

    return distance


def kept_entries(matching: Matching) -> list[int]:
    """How many entries of each tensor carry a value."""
    sizes = [matching.release.tensors[name].numel() for name in matching.names]
    if matching.kept is None:
        return sizes
    places = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.bincount(places[matching.kept.cpu()], minlength=len(sizes)).tolist()
