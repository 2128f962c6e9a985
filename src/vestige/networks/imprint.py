"""Imprint layers: what a malicious server puts in front of a model so that gradients are images.

Fowl, Geiping, Czaja, Goldblum and Goldstein, "Robbing the Fed: Directly Obtaining Private Data in
Federated Learning with Modified Models" (2022), Section 3; under DP-SGD Schwethelm et al., "Visual
Privacy Auditing with Diffusion Models" (2025), Sections 2.2, 3.1 and 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vestige.choices import (
    check_fields,
    check_module,
    check_number,
    check_object,
    check_whole,
    describe_value,
)
from vestige.errors import BadInput
from vestige.records import ImageSpace, Records, Space, TableSpace

Sides = Literal["cumulative", "two-sided"]


@dataclass(frozen=True)
class Bins:
    """Intervals of a record's brightness, its mean value: ``edges`` (k + 1,), increasing.

    Records outside the outer edges fall into the first and the last bin where bins are cumulative,
    and into none where they are two-sided.
    """

    edges: Tensor
    sides: Sides = "cumulative"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.edges.dim() != 1 or len(self.edges) < 2:
            raise BadInput("Bins need at least two edges.")
        if not bool((self.edges[1:] > self.edges[:-1]).all()):
            raise BadInput(
                "The edges of bins must increase: the prior holds too few different records for "
                "so many bins; ask for fewer, or give a larger prior."
            )

    @classmethod
    def from_prior(cls, records: Records, count: int, sides: Sides = "cumulative") -> Bins:
        """Place bins so that records of a prior are equally likely in each."""
        check_whole("count of Bins.from_prior", count)
        if count < 1:
            raise BadInput(f"An imprint layer needs at least one bin, not {count}.")
        if len(records) < 2:
            raise BadInput("One record says nothing about where others fall: give a larger prior.")
        values = brightness(records.x).double()
        edges = torch.quantile(values, torch.linspace(0, 1, count + 1, dtype=torch.float64))
        # Halfway between values that occur: a record on an edge would be in two bins, or in none.
        known = values.unique()
        above = torch.searchsorted(known, edges[1:-1]).clamp(1, max(len(known) - 1, 1))
        edges[1:-1] = (known[above - 1] + known[above.clamp(max=len(known) - 1)]) / 2
        # Records beyond the prior's extremes should still fall into the outer bins.
        margin = (edges[-1] - edges[0]).clamp_min(1e-6) / 2
        edges[0], edges[-1] = edges[0] - margin, edges[-1] + margin
        return cls(edges.float(), sides)

    @property
    def count(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    def of(self, x: Tensor) -> Tensor:
        """The bin of each record (n,); −1 for one that two-sided bins miss."""
        place = torch.bucketize(brightness(x), self.edges.to(x), right=True) - 1
        if self.sides == "cumulative":
            return place.clamp(0, self.count - 1)
        return torch.where((place >= 0) & (place < self.count), place, -1)


def brightness(x: Tensor) -> Tensor:
    """Mean value of each record (n,)."""
    return x.flatten(1).mean(1)


def share_alone(batch_size: int, bins: int) -> float:
    """Expected share of a batch that is alone in its bin, all bins being equally likely."""
    return (1 - 1 / bins) ** (batch_size - 1)


class ImprintedModel(nn.Module):
    """An imprint layer, and behind it the model that the clients believe they train.

    The layer has one row for each bin, all measuring brightness. Behind cumulative bins stands a
    ReLU, so that a row is active for every record above its edge, and the difference of two
    adjacent rows' gradients holds the records between their edges. Two-sided bins saturate at both
    edges and are active for the records between them alone. The sum of activations is added to
    every pixel, ``gain`` times; all rows then have the same slope of the loss, so that a row's
    gradient is Σ slope · record over the records that it sees, and its bias' gradient Σ slope.

    The published layer has a second linear layer, back to the size of an image, whose columns are
    equal; adding the sum to the image is that with the image passed along.
    """

    def __init__(self, model: nn.Module, space: Space, bins: Bins, gain: float = 1.0) -> None:
        super().__init__()
        check_module("model of ImprintedModel", model)
        check_object("bins of ImprintedModel", bins, Bins)
        check_number("gain of ImprintedModel", gain)
        if not isinstance(space, ImageSpace):
            raise BadInput("An imprint layer stands in front of an image model: give images.")
        if not gain > 0:
            raise BadInput(f"The gain of an imprint layer is positive, not {gain!r}.")
        size = space.channels * space.height * space.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # overwritten below
            self.imprint = nn.Linear(size, bins.count)
        edges = bins.edges.to(self.imprint.weight)
        width = edges[1:] - edges[:-1] if bins.sides == "two-sided" else torch.ones(bins.count)
        with torch.no_grad():
            self.imprint.weight.copy_(1 / (size * width[:, None]).expand(-1, size))
            self.imprint.bias.copy_(-edges[:-1] / width)
        self.model, self.bins, self.gain = model, bins, gain

    def forward(self, x: Tensor) -> Tensor:
        """What the model says of images with the imprint added."""
        measured = self.imprint(x.flatten(1))
        active = measured.clamp(0, 1) if self.bins.sides == "two-sided" else measured.relu()
        total = self.gain * active.sum(1)
        return self.model(x + total.reshape(-1, *(1,) * (x.dim() - 1)))


class BareImprint(nn.Module):
    """One row of weights whose output is the loss: ℓ = Wx, so that ∂ℓ/∂W = x.

    Ziller et al. 2024, as in Schwethelm et al. 2025, Section 2.2: the worst that a server can send.
    Use it with ``outputs_are_losses`` as the loss.
    """

    def __init__(self, space: Space) -> None:
        super().__init__()
        if not isinstance(space, (ImageSpace, TableSpace)):
            raise BadInput(f"BareImprint needs a space, not {describe_value(space)}.")
        size = torch.Size(space.shape).numel()
        self.imprint = nn.Parameter(torch.zeros(1, size))

    def forward(self, x: Tensor) -> Tensor:
        """The loss of each record (n, 1)."""
        return x.flatten(1) @ self.imprint.T


def outputs_are_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each record's output is its loss; labels do not matter."""
    return outputs.reshape(outputs.shape[0])
