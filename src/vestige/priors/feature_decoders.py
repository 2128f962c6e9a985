"""Decoders: networks that draw a record from estimated features of it.

The stage that Maciazek and Allison 2025 leave to one reconstructor network, after the features have
been found by inference: a decoder sees public records only, through the noise that is left in
estimated features.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vestige import progress
from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import ImageSpace, Space

SHARPNESS = 100.0
"""α of the paper's loss, which lets the record nearest to the drawing count most."""

Examples = Iterable[tuple[Tensor, Tensor, Tensor]]
"""Batches: estimated features (b, d), their groups (b,), the group's records (b, k, *shape)."""


class DecoderForm(Protocol):
    """What a decoder is made of."""

    @property
    def logistic(self) -> bool:
        """Whether a logistic function brings values into a record's bounds; else they are cut."""
        ...

    def network(self, inputs: int, space: Space) -> nn.Module:
        """Build a network from ``inputs`` numbers to the unbounded values of a record."""
        ...


@runtime_checkable
class BegunNetwork(Protocol):
    """A network that is fitted in closed form before it is trained."""

    def begin(self, pictures: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Fit it to some pictures (n, *shape), and to batches of inputs and pictures."""
        ...


@dataclass(frozen=True)
class FullyConnectedDecoder:
    """Hidden layers of GELUs: the best at minutes of CPU."""

    hidden: tuple[int, ...] = (1024, 1024)

    logistic = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.hidden or min(self.hidden) < 1:
            raise BadInput("A decoder needs hidden layers of at least one unit.")

    def network(self, inputs: int, space: Space) -> nn.Module:
        """Build it."""
        sizes = (inputs, *self.hidden)
        layers = [
            part
            for before, after in itertools.pairwise(sizes)
            for part in (nn.Linear(before, after), nn.GELU())
        ]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], math.prod(space.shape)))


@dataclass(frozen=True)
class ConvolutionalDecoder:
    """Transposed convolutions (:func:`convolutional_network`)."""

    channels: int = 64

    logistic = True

    def __post_init__(self) -> None:
        check_fields(self, least={"channels": 2})

    def network(self, inputs: int, space: Space) -> nn.Module:
        """Build it; only pictures have convolutions."""
        if not isinstance(space, ImageSpace):
            raise BadInput("A convolutional decoder draws images: use a FullyConnectedDecoder.")
        return convolutional_network(inputs, space, self.channels, nn.GELU)


def convolutional_network(
    inputs: int, space: ImageSpace, channels: int, activation: Callable[[], nn.Module]
) -> nn.Module:
    """A linear layer to pictures of a quarter of the size, which transposed convolutions double."""
    height, width = -(-space.height // 4), -(-space.width // 4)
    return nn.Sequential(
        nn.Linear(inputs, 2 * channels * height * width),
        activation(),
        nn.Unflatten(1, (2 * channels, height, width)),
        nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
        activation(),
        nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1),
        activation(),
        nn.Conv2d(channels // 2, space.channels, 3, padding=1),
        _Cropped(space.height, space.width),
    )


class _Cropped(nn.Module):
    """The top left part of a picture, as a row of numbers."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        """Crop pictures (n, channels, …)."""
        return x[:, :, : self.height, : self.width].flatten(1)


class FeatureDecoder(nn.Module):
    """Features (n, d) and their groups (n,) → records (n, *shape), within the space's bounds."""

    def __init__(
        self,
        form: DecoderForm,
        mean: Tensor,
        deviation: Tensor,
        groups: int,
        space: Space,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.mean, self.deviation = nn.Buffer(mean), nn.Buffer(deviation)
        self.groups, self.space, self.logistic = groups, space, form.logistic
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = form.network(len(mean) + groups, space)
        self.to(mean.device)

    def forward(self, features: Tensor, groups: Tensor) -> Tensor:
        """Draw."""
        output = self.network(self._inputs(features, groups)).reshape(-1, *self.space.shape)
        if self.space.bounds is None:
            return output
        low, high = self.space.bounds
        if self.logistic:
            return low + (high - low) * output.sigmoid()
        return output if self.training else output.clamp(low, high)  # a cut value has no slope

    def begin(self, pictures: Tensor, examples: Examples) -> None:
        """Fit what has a closed form, to some pictures (n, *shape) and to examples."""
        if isinstance(self.network, BegunNetwork):
            batches = (
                (self._inputs(f, groups), records.mean(1)) for f, groups, records in examples
            )
            self.network.begin(pictures, batches)

    def _inputs(self, features: Tensor, groups: Tensor) -> Tensor:
        rows = (features - self.mean) / self.deviation
        return torch.cat([rows, nn.functional.one_hot(groups, self.groups).to(rows)], 1)


def train_decoder(
    decoder: FeatureDecoder,
    examples: Callable[[int], Examples],
    *,
    epochs: int,
    steps: int,
    learning_rate: float,
) -> None:
    """Train by Adam, the rate warmed up and brought to zero; ``steps`` batches in an epoch.

    ``examples(epoch)`` gives the batches of an epoch.
    """
    parameters = list(decoder.network.parameters())
    fused = parameters[0].device.type in ("cpu", "cuda")
    optimizer = torch.optim.Adam(parameters, lr=learning_rate, fused=fused)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=epochs * steps, pct_start=0.15
    )
    with training_mode(decoder):
        for epoch in range(epochs):
            total = 0.0
            for features, groups, records in examples(epoch):
                with torch.enable_grad():
                    loss = nearest_loss(decoder(features, groups), records).mean()
                    slopes = torch.autograd.grad(loss, parameters)
                for parameter, slope in zip(parameters, slopes):
                    parameter.grad = slope
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) / steps
            if progress.report(epoch + 1, epochs, total):
                break
    for parameter in parameters:
        parameter.grad = None
        parameter.requires_grad_(False)


@contextmanager
def training_mode(decoder: nn.Module) -> Iterator[None]:
    """A decoder in training, with random numbers of its own for dropout."""
    device = next(decoder.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        decoder.train()
        try:
            yield
        finally:
            decoder.eval()


def nearest_loss(drawings: Tensor, records: Tensor) -> Tensor:
    """Squared error (b,) of drawings (b, *shape) to their groups' records (b, k, *shape).

    Σℓe^{−αℓ}/Σe^{−αℓ} over a group: the loss of Maciazek and Allison 2025, with the squared error
    alone as ℓ, because it is what success is measured by.
    """
    errors = (drawings[:, None] - records).flatten(2).square().mean(2)
    if records.shape[1] == 1:
        return errors[:, 0]
    return (errors * torch.softmax(-SHARPNESS * errors.detach(), 1)).sum(1)
