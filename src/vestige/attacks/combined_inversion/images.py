"""What the optimiser moves: pixels, whitened coordinates of a prior, or an untrained network."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from vestige.errors import BadInput
from vestige.records import ImageSpace, Space

if TYPE_CHECKING:
    from vestige.priors.gaussian import GaussianPrior

WIDTH = 32


class Images(Protocol):
    """Candidates (b, *shape) as a differentiable function of what is moved."""

    leaves: list[Tensor]

    def __call__(self) -> Tensor:
        """Return the candidates."""
        ...

    def project(self) -> None:
        """Move the leaves to where candidates are allowed to be."""
        ...


class Pixels:
    """The candidates themselves, kept inside the bounds of their space."""

    def __init__(self, start: Tensor, bounds: tuple[float, float] | None) -> None:
        self.leaves = [start.detach().clone().requires_grad_()]
        self.bounds = bounds
        self.project()

    def __call__(self) -> Tensor:
        """Return the candidates."""
        return self.leaves[0]

    def project(self) -> None:
        """Clip."""
        if self.bounds is not None:
            self.leaves[0].data.clamp_(*self.bounds)


class Whitened:
    """Candidates mean + root·z of a Gaussian prior; each direction of z varies by 1."""

    def __init__(self, prior: GaussianPrior, labels: Tensor, start: Tensor, space: Space) -> None:
        self.prior, self.mean, self.shape = prior, prior.mean(labels), space.shape
        self.leaves = [start.detach().flatten(1).clone().requires_grad_()]

    def __call__(self) -> Tensor:
        """Return the candidates."""
        return (self.mean + self.prior.rooted(self.leaves[0])).reshape(-1, *self.shape)

    def project(self) -> None:
        """Leave them where they are."""


class Generated:
    """Images of an untrained convolutional network with fixed noise at its input.

    Ulyanov, Vedaldi and Lempitsky 2018, "Deep Image Prior". One small network draws the batch, each
    image from its own noise at a quarter of the size; two doublings, values by a sigmoid.
    """

    def __init__(
        self, count: int, space: Space, like: Tensor, generator: torch.Generator, width: int = WIDTH
    ) -> None:
        if not isinstance(space, ImageSpace):
            raise BadInput("An untrained network draws images only: set image_prior='pixels'.")
        self.size = (space.height, space.width)
        sizes = [max(2, math.ceil(side / 4)) for side in self.size]
        self.noise = torch.randn((count, width, *sizes), generator=generator).to(like)
        channels = [width, width, width, width, space.channels]
        self.leaves = []
        for before, after in pairwise(channels):
            deviation = math.sqrt(2 / (9 * before))
            kernel = deviation * torch.randn((after, before, 3, 3), generator=generator)
            self.leaves.append(kernel.to(like).requires_grad_())
            self.leaves.append(torch.zeros(after).to(like).requires_grad_())

    def __call__(self) -> Tensor:
        """Return the candidates."""
        values = self.noise
        sizes = [None, [math.ceil(side / 2) for side in self.size], list(self.size), None]
        for place, (weight, bias) in enumerate(zip(self.leaves[::2], self.leaves[1::2])):
            target = sizes[place]
            if target is not None:
                values = functional.interpolate(values, size=target, mode="bilinear")
            values = functional.conv2d(values, weight, bias, padding=1)
            values = functional.leaky_relu(values, 0.1) if place < 3 else values
        return torch.sigmoid(values)

    def project(self) -> None:
        """Leave them where they are."""
