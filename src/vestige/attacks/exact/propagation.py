"""The dense head in float64: logits, activity, and the loss vectors that flow back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, softmax
from torch import Tensor

from vestige.attacks.exact.layers import DenseHead


@dataclass(frozen=True)
class Propagation:
    """Forward and backward pass of a dense head with cross-entropy, in float64."""

    head: DenseHead

    @cached_property
    def weights(self) -> list[np.ndarray]:
        """Weights (out, in), first layer first."""
        return [_array(layer.weight) for layer in self.head.layers]

    @cached_property
    def biases(self) -> list[np.ndarray]:
        """Biases (out,), zeros where a layer has none."""
        return [
            np.zeros(len(layer.weight)) if layer.bias is None else _array(layer.bias)
            for layer in self.head.layers
        ]

    @property
    def options(self) -> int:
        """Number of labels: a single logit has two."""
        return max(len(self.weights[-1]), 2)

    def hidden(self, x: np.ndarray) -> np.ndarray:
        """What enters the first ReLU (b, n) for inputs (b, D)."""
        return x @ self.weights[0].T + self.biases[0]

    def above(self, hidden: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """What enters each ReLU, from (…, n) on, and the logits."""
        entering, current = [], hidden
        for weight, bias in zip(self.weights[1:], self.biases[1:]):
            entering.append(current)
            current = np.maximum(current, 0) @ weight.T + bias
        return entering, current

    def errors(self, logits: np.ndarray) -> np.ndarray:
        """Loss vectors p − y at the logits (…, options, classes), for every possible label."""
        if logits.shape[-1] == 1:
            return expit(logits)[..., None, :] - np.arange(2.0)[:, None]
        # 1 − p of the label as a sum over the others: the difference would lose small losses.
        chance = softmax(logits, axis=-1)
        rest = np.broadcast_to(chance[..., None, :], (*chance.shape, chance.shape[-1])).copy()
        own = np.arange(chance.shape[-1])
        rest[..., own, own] = 0
        rest[..., own, own] = -rest.sum(-1)
        return rest

    def returned(self, entering: list[np.ndarray], errors: np.ndarray) -> np.ndarray:
        """Carry loss vectors at the logits (…, o, classes) back to the second layer (…, o, d₂)."""
        current = errors
        for layer in range(len(self.weights) - 1, 1, -1):
            active = entering[layer - 1] > 0
            current = (current @ self.weights[layer]) * active[..., None, :]
        return current

    def sent_back(self, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Derivatives of each sample's loss: first layer (b, n), second layer (b, d₂)."""
        entering, logits = self.above(self.hidden(x))
        errors = self.errors(logits)[np.arange(len(x)), labels][:, None, :]
        second = self.returned(entering, errors)[:, 0]
        return (second @ self.weights[1]) * (entering[0] > 0), second


def gradient_matrix(head: DenseHead, layer: int) -> np.ndarray:
    """Gradient of one layer, [∂W | ∂b] (out, in + 1), or ∂W alone without a bias."""
    chosen = head.layers[layer]
    weight = _array(chosen.weight_gradient)
    if chosen.bias_gradient is None:
        return weight
    return np.hstack([weight, _array(chosen.bias_gradient)[:, None]])


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()
