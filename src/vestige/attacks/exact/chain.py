"""A fully connected ReLU network replayed in float64: forwards, backwards, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from vestige.attacks.exact.layers import DenseHead
from vestige.errors import BadInput


@dataclass(frozen=True)
class Chain:
    """The layers of a DenseHead in float64: weights (out, in), biases, and the released gradients.

    Layer i maps the activations a_i (n, in) to a_{i+1} = relu(W_i·a_i + b_i); the last layer gives
    logits. A missing bias is zero here; ``biased[i]`` says whether the layer has one.
    """

    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    biased: tuple[bool, ...]
    weight_gradients: tuple[np.ndarray, ...]
    bias_gradients: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, head: DenseHead) -> Chain:
        """Copy a head's layers to float64."""
        if not head.layers:
            raise BadInput("The fully connected part has no layers: there is nothing to invert.")
        return cls(
            tuple(_double(layer.weight) for layer in head.layers),
            tuple(_double(layer.bias, layer.weight.shape[0]) for layer in head.layers),
            tuple(
                layer.bias is not None and layer.bias_gradient is not None for layer in head.layers
            ),
            tuple(_double(layer.weight_gradient) for layer in head.layers),
            tuple(_double(layer.bias_gradient, layer.weight.shape[0]) for layer in head.layers),
        )

    @cached_property
    def last(self) -> int:
        """Index of the layer that gives the logits."""
        return len(self.weights) - 1

    @property
    def classes(self) -> int:
        """Number of logits."""
        return self.weights[-1].shape[0]

    def forward(self, activations: np.ndarray, start: int = 0) -> list[np.ndarray]:
        """Activations a_start, …, a_last and the logits, for a_start (n, in)."""
        found = [activations]
        for index in range(start, self.last + 1):
            found.append(found[-1] @ self.weights[index].T + self.biases[index])
            if index < self.last:
                np.maximum(found[-1], 0, out=found[-1])
        return found

    def backward(self, activations: list[np.ndarray], losses: np.ndarray) -> list[np.ndarray]:
        """Derivatives of the loss by the outputs of each layer, for loss vectors (n, classes).

        ``activations`` is what ``forward`` gave, from whichever layer it started.
        """
        signals = [losses]
        start = self.last + 2 - len(activations)
        for index in range(self.last, start, -1):
            active = activations[index - start] > 0
            signals.append((signals[-1] @ self.weights[index]) * active)
        return signals[::-1]

    def gradients(
        self, inputs: np.ndarray, labels: np.ndarray, shares: np.ndarray, start: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weight and bias gradient of layers start … last for a weighted batch."""
        activations = self.forward(inputs, start)
        losses = loss_vectors(activations[-1], labels)
        signals = self.backward(activations, losses)
        return [
            ((signal * shares[:, None]).T @ a, shares @ signal)
            for signal, a in zip(signals, activations)
        ]

    def outgoing(self, activations: list[np.ndarray], row: int) -> np.ndarray:
        """B (units, classes) with δ = B·g: how a loss vector reaches the outputs of the layer that
        ``forward`` started from, for one record.
        """
        start = self.last + 2 - len(activations)
        matrix = np.eye(self.classes)
        for index in range(self.last, start, -1):
            active = activations[index - start][row] > 0
            matrix = (self.weights[index].T @ matrix) * active[:, None]
        return matrix

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


def softmax(logits: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def loss_vectors(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss vectors softmax(f) − e_y (n, classes): Pan et al. 2020, Eq. 3."""
    found = softmax(logits)
    rows = np.arange(len(labels))
    # 1 − p_y as the sum of the others: the difference would round a small loss away.
    others = found.copy()
    others[rows, labels] = 0
    found[rows, labels] = -others.sum(-1)
    return found


def polished(
    chain: Chain, inputs: np.ndarray, labels: np.ndarray, *, rounds: int = 3
) -> tuple[np.ndarray, float]:
    """Solve the gradient equation of the first layer again, with masks and losses from the inputs.

    Pan et al. 2020, Eq. 5 with i = 0: Δ·X = M·G₀ for known Δ (units, M) averages over all rows what
    a few rows gave first. A round that does not lower the residual is undone.
    """
    best, residual = inputs, chain.residual(inputs, labels)
    for _ in range(rounds):
        activations = chain.forward(best)
        signals = chain.backward(activations, loss_vectors(activations[-1], labels))[0]
        moved = solved(signals.T, len(best) * chain.weight_gradients[0])
        found = chain.residual(moved, labels)
        if not found < residual:
            break
        best, residual = moved, found
    return best, residual


def solved(signals: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Least squares Δ·X = G for Δ (units, M), G (units, in), columns of Δ scaled to one first.

    A record with a small loss has a small column; unscaled, it would count as rank-deficient.
    """
    size = np.maximum(np.linalg.norm(signals, axis=0), 1e-300)
    return np.linalg.lstsq(signals / size, gradient, rcond=None)[0] / size[:, None]


def solved_despite_outliers(
    signals: np.ndarray, gradient: np.ndarray, *, rounds: int = 6
) -> np.ndarray:
    """Δ·X = G where a few entries of Δ may be wrong: rows are reweighted by what they miss.

    A hidden neuron within rounding of zero may be taken for active or silent; its row of Δ is then
    wrong and every other right.
    """
    size = np.maximum(np.linalg.norm(gradient, axis=1), 1e-300)
    signals, gradient = signals / size[:, None], gradient / size[:, None]
    weight = np.ones(len(size))
    found = solved(signals, gradient)
    for _ in range(rounds):
        missed = np.linalg.norm(signals @ found - gradient, axis=1)
        floor = max(float(np.median(missed)), 1e-300)
        weight = 1 / np.maximum(missed, floor)
        found = solved(signals * weight[:, None], gradient * weight[:, None])
    return found


def _double(tensor: Tensor | None, units: int = 0) -> np.ndarray:
    """Copy a tensor to float64, or make zeros where there is none."""
    return np.zeros(units) if tensor is None else tensor.detach().cpu().double().numpy().copy()
