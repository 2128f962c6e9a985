"""The dense head replayed in float64: forwards, backwards, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, softmax
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.layers import DenseHead


@dataclass(frozen=True)
class Propagation:
    """Forward and backward pass of a dense head with cross-entropy, in float64.

    Layer i maps the activations a_i (…, in) to a_{i+1} = relu(W_i·a_i + b_i); the last layer gives
    logits.
    """

    head: DenseHead

    @cached_property
    def weights(self) -> list[np.ndarray]:
        """Weights (out, in), first layer first."""
        return [_array(layer.weight) for layer in self.head.layers]

    @cached_property
    def biases(self) -> list[np.ndarray]:
        """Biases (out,), zeros where a layer has none."""
        return [_array(layer.bias, len(layer.weight)) for layer in self.head.layers]

    @cached_property
    def biased(self) -> list[bool]:
        """Whether each layer has a bias whose gradient was released."""
        return [
            layer.bias is not None and layer.bias_gradient is not None for layer in self.head.layers
        ]

    @cached_property
    def weight_gradients(self) -> list[np.ndarray]:
        """Released gradients of the weights (out, in)."""
        return [_array(layer.weight_gradient) for layer in self.head.layers]

    @cached_property
    def bias_gradients(self) -> list[np.ndarray]:
        """Released gradients of the biases (out,), zeros where there is none."""
        return [_array(layer.bias_gradient, len(layer.weight)) for layer in self.head.layers]

    @cached_property
    def record_scale(self) -> np.ndarray:
        """What a unit of each input (D,) is in the record: one without a normalisation."""
        width = self.weights[0].shape[1]
        return np.ones(width) if self.head.records is None else _array(self.head.records.scale)

    @cached_property
    def record_shift(self) -> np.ndarray:
        """Record (D,) whose normalised input is zero."""
        records = self.head.records
        return _array(None if records is None else records.shift, self.weights[0].shape[1])

    @property
    def last(self) -> int:
        """Index of the layer that gives the logits."""
        return len(self.head.layers) - 1

    @property
    def classes(self) -> int:
        """Number of logits."""
        return len(self.head.layers[-1].weight)

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """What enters the first ReLU (b, n) for inputs (b, D)."""
        return x @ self.weights[0].T + self.biases[0]

    def forward(self, activations: np.ndarray, start: int = 0) -> list[np.ndarray]:
        """Activations a_start, …, a_last and the logits, for a_start (…, in)."""
        layers = [activations]
        for index in range(start, self.last + 1):
            layers.append(layers[-1] @ self.weights[index].T + self.biases[index])
            if index < self.last:
                np.maximum(layers[-1], 0, out=layers[-1])
        return layers

    def backward(self, activations: list[np.ndarray], losses: np.ndarray) -> list[np.ndarray]:
        """Derivatives of the loss by the outputs of each layer, from loss vectors (…, classes).

        ``activations`` is what ``forward`` gave, from whichever layer it started. Several loss
        vectors for each record (…, o, classes) give derivatives (…, o, out).
        """
        several = losses.ndim > activations[-1].ndim
        signals = [losses]
        start = self.last + 2 - len(activations)
        for index in range(self.last, start, -1):
            active = activations[index - start] > 0
            active = active[..., None, :] if several else active
            signals.append((signals[-1] @ self.weights[index]) * active)
        return signals[::-1]

    def sent_back(self, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of each record's loss: first layer (b, n), second layer (b, d₂)."""
        activations = self.forward(x)
        signals = self.backward(activations, loss_vectors(activations[-1], labels))
        return signals[0], signals[1]

    def gradients(
        self, inputs: np.ndarray, labels: np.ndarray, shares: np.ndarray, start: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weight and bias gradient of layers start … last for a weighted batch."""
        activations = self.forward(inputs, start)
        signals = self.backward(activations, loss_vectors(activations[-1], labels))
        return [
            ((signal * shares[:, None]).T @ a, shares @ signal)
            for signal, a in zip(signals, activations)
        ]

    def residual(self, inputs: np.ndarray, labels: np.ndarray) -> float:
        """Distance of the recomputed gradient of a whole batch, relative to the released one.

        The largest over layers: a deep layer with large entries must not hide a shallow one.
        """
        shares = np.full(len(inputs), 1 / max(len(inputs), 1))
        worst = 0.0
        for index, (weight, bias) in enumerate(self.gradients(inputs, labels, shares)):
            off = np.sum((weight - self.weight_gradients[index]) ** 2)
            size = np.sum(self.weight_gradients[index] ** 2)
            if self.biased[index]:
                off += np.sum((bias - self.bias_gradients[index]) ** 2)
                size += np.sum(self.bias_gradients[index] ** 2)
            worst = max(worst, float(np.sqrt(off / max(size, 1e-300))))
        return worst


def possible_losses(logits: np.ndarray) -> np.ndarray:
    """Loss vectors p − y at logits (…, classes) for every label: (…, options, classes).

    Pan et al. 2020, Eq. 3. A single logit has two options, and p is logistic.
    """
    if logits.shape[-1] == 1:
        return np.stack([expit(logits), -expit(-logits)], -2)
    # 1 − p of the label as a sum over the others: the difference would round a small loss away.
    chance = softmax(logits, axis=-1)
    losses = np.broadcast_to(chance[..., None, :], (*chance.shape, chance.shape[-1])).copy()
    own = np.arange(chance.shape[-1])
    losses[..., own, own] = 0
    losses[..., own, own] = -losses.sum(-1)
    return losses


def loss_vectors(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss vectors p − y (n, classes) of records with known labels (n,)."""
    rows = np.arange(len(labels))
    if logits.shape[-1] == 1:
        return possible_losses(logits)[rows, labels]
    losses = softmax(logits, axis=-1)
    losses[rows, labels] = 0
    losses[rows, labels] = -losses.sum(-1)
    return losses


def gradient_matrix(head: DenseHead, layer: int) -> np.ndarray:
    """Gradient of one layer, [∂W | ∂b] (out, in + 1), or ∂W alone without a bias."""
    chosen = head.layers[layer]
    weight = _array(chosen.weight_gradient)
    if chosen.bias_gradient is None:
        return weight
    return np.hstack([weight, _array(chosen.bias_gradient)[:, None]])


def _array(tensor: Tensor | None, units: int = 0) -> np.ndarray:
    """Copy a tensor to float64, or make zeros where there is none."""
    return np.zeros(units) if tensor is None else tensor.detach().cpu().double().numpy()
