"""Heads trained in the space of their weights, many at once: batched products, every optimiser.

Adam divides by root mean squares of single weights, so it leaves the span of the features and has
no dual form. Where records are more than features, this is also the cheaper way for SGD.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from vestige.simulation.head_training import BETAS, STABILITY, HeadTraining


class FreeLayer:
    """A layer of many heads, its weights moved by the training's optimiser.

    ``weights`` (s, outputs, inputs) are overwritten; biases start at zero. A ``generator`` draws
    the noise of DP-SGD.
    """

    def __init__(
        self,
        training: HeadTraining,
        weights: Tensor,
        generator: torch.Generator | None = None,
    ) -> None:
        self.weights, self.biases = weights, torch.zeros_like(weights[..., 0])
        self._training, self._generator = training, generator
        self._taken = 0
        if training.momentum or training.adaptive:
            self._means = [torch.zeros_like(weights), torch.zeros_like(self.biases)]
        if training.adaptive:
            self._squares = [torch.zeros_like(weights), torch.zeros_like(self.biases)]

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs (s, outputs, n) for inputs (s, inputs, n)."""
        return torch.baddbmm(self.biases.unsqueeze(2), self.weights, inputs)

    def step(self, slopes: Tensor, inputs: Tensor, rate: float) -> None:
        """Go against gradients (s, outputs, n) of the loss with respect to the outputs.

        ``rate`` is the learning rate, times what multiplies the gradients.
        """
        training = self._training
        self._taken += 1
        if training.optimizer == "sgd" and not training.momentum:
            self.weights.baddbmm_(slopes, inputs.mT, beta=training.decay, alpha=-rate)
            self.biases.mul_(training.decay).sub_(slopes.sum(2), alpha=rate)
            if training.private is not None:
                self._add_noise()
            return
        scale = rate / training.learning_rate
        found = [torch.bmm(slopes, inputs.mT).mul_(scale), slopes.sum(2).mul_(scale)]
        for place, (values, slope) in enumerate(zip((self.weights, self.biases), found)):
            if training.optimizer == "adamw":
                values.mul_(1 - training.rate(self._taken) * training.weight_decay)
            elif training.weight_decay:
                slope.add_(values, alpha=training.weight_decay)
            if training.adaptive:
                self._move_by_adam(place, values, slope)
            else:
                mean = self._means[place].mul_(training.momentum).add_(slope)
                values.sub_(mean, alpha=training.learning_rate)

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights and biases at the end into these."""
        weights.copy_(self.weights)
        biases.copy_(self.biases)

    def _move_by_adam(self, place: int, values: Tensor, slope: Tensor) -> None:
        mean = self._means[place].lerp_(slope, 1 - BETAS[0])
        square = self._squares[place].mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
        first, second = 1 - BETAS[0] ** self._taken, 1 - BETAS[1] ** self._taken
        scale = square.div(second).sqrt_().add_(STABILITY)
        values.addcdiv_(mean, scale, value=-self._training.rate(self._taken) / first)

    def _add_noise(self) -> None:
        for values in (self.weights, self.biases):
            noise = drawn_normal(values.shape, self._training.step_noise, values, self._generator)
            values.add_(noise)


class FeatureLayer:
    """A first layer in the space of its weights: sees the same features (s, n, d) in every step."""

    def __init__(
        self,
        training: HeadTraining,
        features: Tensor,
        start: Tensor,
        generator: torch.Generator | None = None,
    ) -> None:
        self._layer = FreeLayer(training, start, generator)
        self._inputs = features.mT
        self.squared_norms = features.square().sum(2).add_(1).unsqueeze(1)
        self.products = self._layer.outputs(self._inputs)

    def step(self, slopes: Tensor, rate: float) -> None:
        """Go against gradients (s, outputs, n) of the loss with respect to ``products``."""
        self._layer.step(slopes, self._inputs, rate)
        self.products = self._layer.outputs(self._inputs)

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights and biases at the end into these."""
        self._layer.finish(weights, biases)


class Drawing(Protocol):
    """Draws normal numbers: :func:`drawn_normal`, or the same numbers by compiled kernels."""

    def __call__(
        self,
        shape: torch.Size | tuple[int, ...],
        deviation: float,
        like: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Draw numbers of this shape and deviation, as ``like``."""
        ...


def drawn_normal(
    shape: torch.Size | tuple[int, ...],
    deviation: float,
    like: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Normal numbers of this deviation, always drawn as float32 on the CPU, then as ``like``."""
    found = torch.empty(shape, dtype=torch.float32)
    found.normal_(0, deviation, generator=generator)
    return found.to(like)
