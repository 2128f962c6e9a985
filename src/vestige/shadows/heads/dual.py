"""Heads trained in the span of their features: N coefficients for an output instead of D weights.

A layer that sees the same N features in every step of gradient descent moves only in their span:
its weights stay α·W₀ + A·X with coefficients A, and its outputs on these features stay
P = α·P₀ + A·G with the Gram matrix G = X·Xᵀ + 1, the 1 being the bias. So a step costs N² products
for an output and not 2·N·D, and it is exact: for masked batches, momentum and weight decay too. The
first layer of a head with hidden units is such a layer; its second one is trained as it is.

Records come last in every tensor of this file, (heads, outputs, records): they are more than the
outputs, and the inner loops run along them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from vestige.shadows.heads.steps import HeadSteps
from vestige.shadows.heads.weight_space import FreeLayer
from vestige.simulation.head_training import HeadTraining


class SpannedLayer(Protocol):
    """A layer of many heads whose weights are known by what they make of the features."""

    products: Tensor
    """Outputs (s, outputs, n) on the features."""
    squared_norms: Tensor
    """Squared norms (s, 1, n) of the features with a 1 for the bias."""

    def step(self, slopes: Tensor, rate: float) -> None:
        """Go against gradients (s, outputs, n) of the loss with respect to ``products``."""
        ...

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights (s, outputs, d) and biases (s, outputs) at the end into these."""
        ...


def bias_gram(features: Tensor) -> Tensor:
    """Gram matrices (s, n, n) of features (s, n, d) with a 1 for the bias."""
    return torch.bmm(features, features.mT).add_(1)


class Span:
    """A layer under SGD, with momentum or without.

    ``blocks`` gives features (s, n, d) and initial weights (s, outputs, d) of a few heads at a
    time: their products are made while they are in the processor's cache, and all heads' steps are
    taken together. Biases start at zero. Behind the features, ``padding`` records without any
    effect fill what the processor handles at once. Where features require gradients, ``products``
    and ``coefficients`` are differentiable; otherwise steps overwrite them.
    """

    def __init__(
        self, training: HeadTraining, blocks: Iterable[tuple[Tensor, Tensor]], padding: int = 0
    ) -> None:
        self._training, self._left = training, training.steps
        self._blocks: list[tuple[Tensor, Tensor]] = []
        grams, products = [], []
        for features, start in blocks:
            self._blocks.append((features, start))
            grams.append(bias_gram(features))
            products.append(torch.bmm(start, features.mT))
        self._gram = nn.functional.pad(torch.cat(grams), (0, padding) * 2)
        self.products = nn.functional.pad(torch.cat(products), (0, padding))
        self.squared_norms = self._gram.diagonal(dim1=1, dim2=2).unsqueeze(1)
        self._in_place = not self._gram.requires_grad
        self._coefficients = torch.zeros_like(self.products)
        if training.momentum:
            self._velocity = torch.zeros_like(self.products)
            self._coefficient_velocity = torch.zeros_like(self.products)

    @property
    def coefficients(self) -> Tensor:
        """Coefficients A (s, outputs, n): the weights at the end are κ·W₀ + A·X, the biases A·1."""
        return self._coefficients[..., : self._blocks[0][0].shape[1]]

    def step(self, slopes: Tensor, rate: float) -> None:
        """Go against gradients of the loss with respect to ``products``."""
        training, self._left = self._training, self._left - 1
        if training.momentum:
            self._step_with_momentum(slopes, rate / training.learning_rate)
            return
        kept = training.decay
        self.products = self._plus_outputs(self.products, slopes, kept, -rate)
        # The decay of all later steps at once: one pass over memory less.
        self._coefficients = self._plus(self._coefficients, slopes, -rate * kept**self._left)

    def _step_with_momentum(self, slopes: Tensor, scale: float) -> None:
        momentum, decay = self._training.momentum, self._training.weight_decay
        rate = self._training.learning_rate
        velocity = self._plus_outputs(self._velocity, slopes, momentum, scale)
        of_coefficients = self._coefficient_velocity
        of_coefficients = torch.mul(of_coefficients, momentum, out=self._target(of_coefficients))
        of_coefficients = self._plus(of_coefficients, slopes, scale)
        if decay:
            velocity = self._plus(velocity, self.products, decay)
            of_coefficients = self._plus(of_coefficients, self._coefficients, decay)
        self.products = self._plus(self.products, velocity, -rate)
        self._coefficients = self._plus(self._coefficients, of_coefficients, -rate)
        self._velocity, self._coefficient_velocity = velocity, of_coefficients

    def _target(self, values: Tensor) -> Tensor | None:
        return values if self._in_place else None

    def _plus(self, values: Tensor, moved: Tensor, scale: float) -> Tensor:
        return torch.add(values, moved, alpha=scale, out=self._target(values))

    def _plus_outputs(self, values: Tensor, slopes: Tensor, share: float, scale: float) -> Tensor:
        """share·values + scale·slopes·G: what weights moved by ``slopes`` make of the features."""
        out = self._target(values)
        return torch.baddbmm(values, slopes, self._gram, beta=share, alpha=scale, out=out)

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights and biases at the end into these."""
        place, share = 0, self._training.initial_share
        for features, start in self._blocks:
            part = slice(place, place + len(start))
            coefficients = self._coefficients[part, :, : features.shape[1]]
            start.baddbmm_(coefficients, features, beta=share)
            weights[part] = start
            biases[part] = coefficients.sum(2)
            place += len(start)


def train_linear(steps: HeadSteps, layer: SpannedLayer) -> None:
    """Train linear heads; under DP-SGD a record's gradient has norm ‖p − y‖·√(‖x‖² + 1)."""
    rate = steps.training.learning_rate
    out = None if layer.squared_norms.requires_grad else torch.empty_like(layer.products)
    for share in steps.shares:
        slopes = steps.residuals(layer.products, out)
        if steps.training.private is None:
            factors = steps.weighted(share)
        else:
            squared = slopes.square().sum(1, keepdim=True) * layer.squared_norms
            factors = steps.clipped(share, squared)
        if isinstance(factors, float):
            layer.step(slopes, rate * factors)
        else:
            layer.step(torch.mul(slopes, factors, out=out), rate)


def train_hidden(steps: HeadSteps, first: SpannedLayer, outer: Sequence[FreeLayer]) -> None:
    """Train heads with hidden layers of ReLUs: the first layer in its span, the others as is.

    Gradients by backpropagation; under DP-SGD a record's squared norm is the sum over all layers of
    ‖slope of the layer's outputs‖²·(‖the layer's input‖² + 1).
    """
    training = steps.training
    rate = training.learning_rate
    hidden = [torch.empty_like(first.products)]
    hidden += [_outputs_like(layer, first) for layer in outer[:-1]]
    slopes = [torch.empty_like(values) for values in hidden]
    residuals = _outputs_like(outer[-1], first)
    moved = [*slopes[1:], residuals]
    for share in steps.shares:
        torch.clamp(first.products, min=0, out=hidden[0])
        for layer, below, above in zip(outer, hidden, hidden[1:]):
            torch.clamp(layer.outputs(below), min=0, out=above)
        steps.residuals(outer[-1].outputs(hidden[-1]), residuals)
        for place in reversed(range(len(outer))):
            torch.bmm(outer[place].weights.mT, moved[place], out=slopes[place])
            slopes[place].mul_(hidden[place] > 0)
        if training.private is None:
            factors = steps.weighted(share)
        else:
            squared = slopes[0].square().sum(1, keepdim=True).mul_(first.squared_norms)
            for slope, below in zip(moved, hidden):
                inner = below.square().sum(1, keepdim=True).add_(1)
                squared.add_(slope.square().sum(1, keepdim=True).mul_(inner))
            factors = steps.clipped(share, squared)
        if isinstance(factors, float):
            scaled = rate * factors
        else:
            scaled = rate
            for slope in (slopes[0], *moved):
                slope.mul_(factors)
        first.step(slopes[0], scaled)
        for layer, slope, below in zip(outer, moved, hidden):
            layer.step(slope, below, scaled)


def _outputs_like(layer: FreeLayer, first: SpannedLayer) -> Tensor:
    """Room (s, outputs, n) for the outputs of a layer."""
    products = first.products
    return products.new_empty((len(products), layer.weights.shape[1], products.shape[2]))
