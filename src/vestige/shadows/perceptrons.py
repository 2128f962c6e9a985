"""Many fully connected networks trained at once by explicit batched products.

All networks see the same known records, and each one stand-in of its own. The known records meet
the first layer, where nearly all the work is, in one matrix product for all networks together.

The first layer is kept in one of two forms, whichever costs less. In *weight* form a step is two
products with the known records X (k × d): pre-activations W Xᵀ and gradient Δ X. In *dual* form the
weights are W₀ − A·X, since a gradient is a combination of inputs, and a step is one product with
the Gram matrix X Xᵀ (k × k); weights are made once, at the end. Noise on the gradient leaves that
span, so noisy training takes the weight form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.simulation.local_training import LocalTraining
from vestige.simulation.losses import Loss, cross_entropy, logistic

if TYPE_CHECKING:
    from vestige.simulation.dp_sgd import ClippedNoise

Backward = Callable[[Tensor, Tensor], Tensor]
"""(slope at an activation's output, that output) → slope at its input."""


def backward_of(activation: nn.Module) -> Backward | None:
    """The derivative of an activation from its output, for those this file can train.

    These are the operations that autograd itself calls: each is one pass over memory.
    """
    if isinstance(activation, nn.ReLU):
        return lambda slope, output: torch.ops.aten.threshold_backward(slope, output, 0)
    if isinstance(activation, nn.ELU) and activation.alpha >= 0:
        alpha = activation.alpha
        return lambda slope, output: torch.ops.aten.elu_backward(slope, alpha, 1, 1, True, output)
    if isinstance(activation, nn.Tanh):
        return torch.ops.aten.tanh_backward
    if isinstance(activation, nn.Sigmoid):
        return torch.ops.aten.sigmoid_backward
    return None


@dataclass(frozen=True)
class Perceptron:
    """A fully connected network as its parameters' names, layer by layer, and its activations."""

    weights: tuple[str, ...]
    biases: tuple[str | None, ...]
    activations: tuple[nn.Module, ...]

    @classmethod
    def read(cls, network: nn.Module) -> Perceptron | None:
        """Describe a Sequential of linear layers with activations between, or return None."""
        if not isinstance(network, nn.Sequential):
            return None
        weights: list[str] = []
        biases: list[str | None] = []
        activations: list[nn.Module] = []
        for name, module in network.named_children():
            if isinstance(module, nn.Flatten) and not weights:
                continue
            if isinstance(module, nn.Linear) and len(weights) == len(activations):
                weights.append(f"{name}.weight")
                biases.append(None if module.bias is None else f"{name}.bias")
            elif backward_of(module) is not None and len(weights) == len(activations) + 1:
                activations.append(module)
            else:
                return None
        named = dict(network.named_parameters())
        trainable = {name for name, parameter in named.items() if parameter.requires_grad}
        used = {name for name in (*weights, *biases) if name is not None}
        if len(weights) != len(activations) + 1 or used != set(named) or trainable != used:
            return None
        return cls(tuple(weights), tuple(biases), tuple(activations))


@dataclass(frozen=True)
class KnownInputs:
    """What all networks see: known records (k, d), their label targets (k, c), X Xᵀ or None."""

    x: Tensor
    targets: Tensor
    gram: Tensor | None

    @classmethod
    def of(cls, x: Tensor, targets: Tensor, private: ClippedNoise | None) -> KnownInputs:
        """Multiply the known records by each other, if the dual form is open and cheaper."""
        noisy = private is not None and private.noise_multiplier > 0
        dual = not noisy and len(x) < 2 * x.shape[1]
        return cls(x, targets, x @ x.T if dual else None)


@dataclass(frozen=True)
class Descent:
    """Full-batch SGD on ``scale`` times the sum of the records' losses, as ``torch.optim.SGD``."""

    training: LocalTraining
    private: ClippedNoise | None
    scale: float
    generator: torch.Generator

    def add_noise(self, gradient: Tensor) -> None:
        """Add the noise of one private step to a gradient, in place."""
        if self.private is not None:
            self.private.add_noise(gradient, self.scale, self.generator)

    def move(self, parameter: Tensor, speed: Tensor, gradient: Tensor) -> None:
        """Move a parameter along its sum of gradients, in place."""
        gradient.mul_(self.scale)
        self.add_noise(gradient)
        speed.mul_(self.training.momentum).add_(gradient)
        parameter.sub_(speed, alpha=self.training.learning_rate)


def train_perceptrons(
    perceptron: Perceptron,
    descent: Descent,
    loss: Loss,
    known: KnownInputs,
    stand_ins: tuple[Tensor, Tensor],
    initial: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Train s networks; return their parameters by name, each (s, *shape).

    ``stand_ins`` holds inputs (s, d) and label targets (s, c). ``initial`` has one set of
    parameters for each network, (s, *shape). Arrays inside are (networks, units, records), the
    stand-in last.
    """
    x, its_target = stand_ins
    first = _first_layer(perceptron, descent, known, x, initial)
    upper = [
        _Layer(descent, initial[weight].clone(), None if bias is None else initial[bias].clone())
        for weight, bias in zip(perceptron.weights[1:], perceptron.biases[1:])
    ]
    targets = torch.cat([known.targets.expand(len(x), -1, -1), its_target[:, None]], 1).mT
    # A copy in this layout: a transposed view would slow every step down.
    targets = targets.contiguous()
    found_backwards = map(backward_of, perceptron.activations)
    backwards = [backward for backward in found_backwards if backward is not None]
    for _ in range(descent.training.steps):
        outputs = first.outputs()
        hidden: list[Tensor] = []
        for layer, activation in zip(upper, perceptron.activations):
            hidden.append(activation(outputs))
            outputs = layer.outputs(hidden[-1])
        deltas = [_loss_slope(loss, outputs, targets)]
        for layer, backward, below in zip(reversed(upper), reversed(backwards), reversed(hidden)):
            deltas.append(backward(layer.weight.mT @ deltas[-1], below))
        deltas.reverse()
        if descent.private is not None:
            _clip(descent.private, deltas, hidden, first, upper)
        first.step(deltas[0])
        for layer, delta, below in zip(upper, deltas[1:], hidden):
            layer.step(delta, below)
    trained = [first.parameters(), *((layer.weight, layer.bias) for layer in upper)]
    found: dict[str, Tensor] = {}
    for weight, bias, (value, offset) in zip(perceptron.weights, perceptron.biases, trained):
        found[weight] = value
        if bias is not None and offset is not None:
            found[bias] = offset
    return found


def _loss_slope(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Slope of every record's loss at the logits, (s, c, n)."""
    if loss is cross_entropy:
        slope = torch.softmax(outputs, 1)
        slope[:, : targets.shape[1]] -= targets  # outputs beyond the classes are padding
        return slope
    if loss is logistic:
        return outputs.sigmoid() - targets[:, 1:]
    # Any other loss: autograd on the logits alone. Losses take (records, classes).
    leaf = outputs.mT.flatten(0, 1).detach().requires_grad_()
    with torch.enable_grad():
        total = loss(leaf, targets.mT.flatten(0, 1)).sum()
    (slope,) = torch.autograd.grad(total, leaf)
    return slope.reshape(outputs.shape[0], outputs.shape[2], -1).mT.contiguous()


def _clip(
    private: ClippedNoise,
    deltas: list[Tensor],
    hidden: list[Tensor],
    first: _FirstLayer,
    upper: list[_Layer],
) -> None:
    """Cut every record's gradient to the clipping norm by scaling its slopes, in place.

    A layer's gradient for one record is δ·[h 1]ᵀ, of squared norm ‖δ‖²(‖h‖² + 1).
    """
    squared = deltas[0].square().sum(1) * first.squared_inputs
    for layer, delta, below in zip(upper, deltas[1:], hidden):
        inputs = below.square().sum(1) + float(layer.bias is not None)
        squared += delta.square().sum(1) * inputs
    factor = private.factors(squared)
    for delta in deltas:
        delta.mul_(factor[:, None])


class _Layer:
    """A layer above the first: weight (s, out, in), bias (s, out), and their velocities."""

    def __init__(self, descent: Descent, weight: Tensor, bias: Tensor | None) -> None:
        self._descent, self.weight, self.bias = descent, weight, bias
        self._speed = torch.zeros_like(weight)
        self._bias_speed = weight.new_zeros(weight.shape[:2])

    def outputs(self, below: Tensor) -> Tensor:
        """Pre-activations (s, out, n)."""
        if self.bias is None:
            return self.weight @ below
        return torch.baddbmm(self.bias[:, :, None], self.weight, below)

    def step(self, delta: Tensor, below: Tensor) -> None:
        """Move by the slopes of the losses at the pre-activations."""
        self._descent.move(self.weight, self._speed, delta @ below.mT)
        if self.bias is not None:
            self._descent.move(self.bias, self._bias_speed, delta.sum(2))


class _WeightForm:
    """The first layer as its weights (s, u, d)."""

    def __init__(
        self,
        descent: Descent,
        known: KnownInputs,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self._descent, self._known, self._x = descent, known.x, x
        self._weight = weight.clone(memory_format=torch.contiguous_format)
        self._bias = None if bias is None else bias.clone()
        self._speed = torch.zeros_like(self._weight)
        self._bias_speed = weight.new_zeros(weight.shape[:2])
        self.squared_inputs = _squared_inputs(known.x, x, bias is not None)

    def outputs(self) -> Tensor:
        """Pre-activations (s, u, n)."""
        networks, units, size = self._weight.shape
        count = len(self._known)
        found = self._weight.new_empty((networks, units, count + 1))
        flat = found.view(-1, count + 1)[:, :count]
        torch.mm(self._weight.view(-1, size), self._known.T, out=flat)
        found[:, :, count:] = self._weight @ self._x[:, :, None]
        return found if self._bias is None else found.add_(self._bias[:, :, None])

    def step(self, delta: Tensor) -> None:
        """Move by the slopes of the losses at the pre-activations."""
        training, scale, count = self._descent.training, self._descent.scale, len(self._known)
        flat = delta.view(-1, count + 1)[:, :count]
        speed = self._speed.view(flat.shape[0], -1)
        speed.addmm_(flat, self._known, beta=training.momentum, alpha=scale)
        self._speed.baddbmm_(delta[:, :, count:], self._x[:, None], alpha=scale)
        self._descent.add_noise(self._speed)
        self._weight.sub_(self._speed, alpha=training.learning_rate)
        if self._bias is not None:
            self._descent.move(self._bias, self._bias_speed, delta.sum(2))

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias."""
        return self._weight, self._bias


class _DualForm:
    """The first layer as its pre-activations (s, u, n) and coefficients A of the same shape."""

    def __init__(
        self,
        descent: Descent,
        known: KnownInputs,
        gram: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> None:
        self._descent, self._known, self._x, self._start = descent, known.x, x, (weight, bias)
        # A bias is one more input, the constant 1.
        constant = float(bias is not None)
        self._gram = gram + constant
        self._cross = x @ known.x.T + constant
        self._own = x.square().sum(1)[:, None] + constant
        start = _WeightForm(descent, known, x, weight, bias)
        self.squared_inputs = start.squared_inputs
        self._outputs = _aligned(start.outputs())
        self._speed = _aligned(torch.zeros_like(self._outputs))
        self._coefficients = torch.zeros_like(self._outputs)

    def outputs(self) -> Tensor:
        """Pre-activations (s, u, n)."""
        return self._outputs

    def step(self, delta: Tensor) -> None:
        """Move by the slopes of the losses at the pre-activations."""
        training, scale, count = self._descent.training, self._descent.scale, len(self._known)
        rate = training.learning_rate
        speed = self._speed.mul_(training.momentum).add_(delta, alpha=scale)
        self._coefficients.add_(speed)
        known, own = speed[:, :, :count], speed[:, :, count]
        flat = self._outputs[:, :, :count].flatten(0, 1)
        flat.addmm_(known.flatten(0, 1), self._gram, alpha=-rate)
        self._outputs[:, :, :count].addcmul_(own[:, :, None], self._cross[:, None], value=-rate)
        moved = (known @ self._cross[:, :, None])[:, :, 0].addcmul_(own, self._own)
        self._outputs[:, :, count].sub_(moved, alpha=rate)

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias."""
        (weight, bias), count = self._start, len(self._known)
        used = self._coefficients * -self._descent.training.learning_rate
        moved = used[:, :, :count].flatten(0, 1) @ self._known
        moved = moved.view(weight.shape).baddbmm_(used[:, :, count:], self._x[:, None])
        return moved.add_(weight), None if bias is None else bias + used.sum(2)


_FirstLayer = _WeightForm | _DualForm


def _aligned(values: Tensor) -> Tensor:
    """The same numbers (s, u, n) in rows that begin at multiples of 16: products are faster."""
    networks, units, count = values.shape
    room = values.new_empty((networks, units, -(-count // 16) * 16))[:, :, :count]
    return room.copy_(values)


def _first_layer(
    perceptron: Perceptron,
    descent: Descent,
    known: KnownInputs,
    x: Tensor,
    initial: Mapping[str, Tensor],
) -> _FirstLayer:
    name = perceptron.biases[0]
    weight, bias = initial[perceptron.weights[0]], None if name is None else initial[name]
    if known.gram is None:
        return _WeightForm(descent, known, x, weight, bias)
    return _DualForm(descent, known, known.gram, x, weight, bias)


def _squared_inputs(known: Tensor, x: Tensor, bias: bool) -> Tensor:
    """Squared norms of the inputs (s, n), with the constant that the bias multiplies."""
    shared = known.square().sum(1).expand(len(x), -1)
    return torch.cat([shared, x.square().sum(1)[:, None]], 1) + float(bias)
