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

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from vestige.errors import BadInput
from vestige.heads import HeadTraining
from vestige.shadows.head_steps import HeadSteps
from vestige.shadows.weight_space_heads import FreeLayer


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
    effect fill what the processor handles at once.
    """

    def __init__(
        self, training: HeadTraining, blocks: Iterable[tuple[Tensor, Tensor]], padding: int = 0
    ) -> None:
        self._training, self._left = training, training.steps
        self._start_share, self._start_speed = 1.0, 0.0
        self._blocks: list[tuple[Tensor, Tensor]] = []
        grams, products = [], []
        for features, start in blocks:
            self._blocks.append((features, start))
            grams.append(bias_gram(features))
            products.append(torch.bmm(start, features.mT))
        self._gram = nn.functional.pad(torch.cat(grams), (0, padding) * 2)
        self.products = nn.functional.pad(torch.cat(products), (0, padding))
        self.squared_norms = self._gram.diagonal(dim1=1, dim2=2).unsqueeze(1)
        self._coefficients = torch.zeros_like(self.products)
        if training.momentum:
            self._velocity = torch.zeros_like(self.products)
            self._coefficient_velocity = torch.zeros_like(self.products)

    def step(self, slopes: Tensor, rate: float) -> None:
        """Go against gradients of the loss with respect to ``products``."""
        training, self._left = self._training, self._left - 1
        if training.momentum:
            self._step_with_momentum(slopes, rate / training.learning_rate)
            return
        kept = training.decay
        self.products.baddbmm_(slopes, self._gram, beta=kept, alpha=-rate)
        # The decay of all later steps at once: one pass over memory less.
        self._coefficients.add_(slopes, alpha=-rate * kept**self._left)
        self._start_share *= kept

    def _step_with_momentum(self, slopes: Tensor, scale: float) -> None:
        momentum, decay = self._training.momentum, self._training.weight_decay
        rate = self._training.learning_rate
        self._velocity.baddbmm_(slopes, self._gram, beta=momentum, alpha=scale)
        self._coefficient_velocity.mul_(momentum).add_(slopes, alpha=scale)
        if decay:
            self._velocity.add_(self.products, alpha=decay)
            self._coefficient_velocity.add_(self._coefficients, alpha=decay)
        self.products.sub_(self._velocity, alpha=rate)
        self._coefficients.sub_(self._coefficient_velocity, alpha=rate)
        self._start_speed = momentum * self._start_speed + decay * self._start_share
        self._start_share -= rate * self._start_speed

    def finish(self, weights: Tensor, biases: Tensor) -> None:
        """Write the weights and biases at the end into these."""
        place = 0
        for features, start in self._blocks:
            part = slice(place, place + len(start))
            coefficients = self._coefficients[part, :, : features.shape[1]]
            start.baddbmm_(coefficients, features, beta=self._start_share)
            weights[part] = start
            biases[part] = coefficients.sum(2)
            place += len(start)


def train_linear(steps: HeadSteps, layer: SpannedLayer) -> None:
    """Train linear heads; under DP-SGD a record's gradient has norm ‖p − y‖·√(‖x‖² + 1)."""
    slopes, rate = torch.empty_like(layer.products), steps.training.learning_rate
    for share in steps.shares:
        steps.residuals_into(slopes, layer.products)
        if steps.training.private is None:
            factors = steps.weighted(share)
        else:
            squared = slopes.square().sum(1, keepdim=True).mul_(layer.squared_norms)
            factors = steps.clipped(share, squared)
        if isinstance(factors, float):
            layer.step(slopes, rate * factors)
        else:
            layer.step(slopes.mul_(factors), rate)


def train_hidden(steps: HeadSteps, first: SpannedLayer, second: FreeLayer) -> None:
    """Train heads with one hidden layer of ReLUs: the first layer in its span, the second as is."""
    training = steps.training
    rate = training.learning_rate
    hidden, slopes = torch.empty_like(first.products), torch.empty_like(first.products)
    residuals = hidden.new_empty((len(hidden), second.weights.shape[1], hidden.shape[2]))
    for share in steps.shares:
        torch.clamp(first.products, min=0, out=hidden)
        steps.residuals_into(residuals, second.outputs(hidden))
        torch.bmm(second.weights.mT, residuals, out=slopes).mul_(hidden > 0)
        if training.private is None:
            factors = steps.weighted(share)
        else:
            squared = slopes.square().sum(1, keepdim=True).mul_(first.squared_norms)
            inner = hidden.square().sum(1, keepdim=True).add_(1)
            squared.add_(residuals.square().sum(1, keepdim=True).mul_(inner))
            factors = steps.clipped(share, squared)
        if isinstance(factors, float):
            scaled = rate * factors
        else:
            scaled = rate
            residuals.mul_(factors)
            slopes.mul_(factors)
        first.step(slopes, scaled)
        second.step(residuals, hidden, scaled)


def dual_head(
    features: Tensor,
    targets: Tensor,
    training: HeadTraining,
    initial_weights: Tensor,
    order: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights (…, outputs, d) and biases (…, outputs) of trained linear heads, differentiable.

    From features (…, n, d), targets (…, n, labels of the head) and initial weights (…, outputs, d);
    a single output tells two labels apart. Shuffled batches come from ``order``, the same for all
    heads.
    """
    if training.optimizer != "sgd" or training.private is not None:
        raise BadInput(
            "Only plain SGD has a dual form that can be differentiated: train a head by Adam or "
            "DP-SGD with the simulator."
        )
    outputs = initial_weights.shape[-2]
    goals = (targets[..., 1:] if outputs == 1 else targets).mT
    weights = torch.ones_like(targets[..., 0])
    if training.class_weights is not None:
        weights = targets @ targets.new_tensor(training.class_weights)
    gram = features @ features.mT + 1
    products = initial_weights @ features.mT
    coefficients = torch.zeros_like(products)
    product_speed, coefficient_speed = products * 0, coefficients
    start_share, start_speed = 1.0, 0.0
    rate, momentum, decay = training.learning_rate, training.momentum, training.weight_decay
    for members in training.batches(features.shape[-2], order):
        share = weights.new_zeros(weights.shape[-1:])
        share[members.to(share.device)] = 1 / len(members)
        chances = products.sigmoid() if outputs == 1 else products.softmax(-2)
        slopes = (chances - goals) * (weights * share).unsqueeze(-2)
        product_speed = momentum * product_speed + slopes @ gram + decay * products
        coefficient_speed = momentum * coefficient_speed + slopes + decay * coefficients
        start_speed = momentum * start_speed + decay * start_share
        products = products - rate * product_speed
        coefficients = coefficients - rate * coefficient_speed
        start_share -= rate * start_speed
    return start_share * initial_weights + coefficients @ features, coefficients.sum(-1)
