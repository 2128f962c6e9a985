"""The last two layers of a model as a two-layer network, and what it says of signs and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.labels_and_scale import find_scales
from vestige.attacks.exact_inversion.layers import (
    DenseHead,
    DenseLayer,
    gradient_factor,
    joined_layers,
)
from vestige.attacks.exact_inversion.propagation import Propagation
from vestige.attacks.tensor_features.activations import RELU, Activation, activation_of
from vestige.attacks.tensor_features.two_layer_gradient import Solution, TwoLayerGradient
from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.interfaces import Release
    from vestige.simulation.kinds import ClientSimulator
    from vestige.simulation.simulator import Simulator


@dataclass(frozen=True)
class TwoLayers:
    """Names and modules of the hidden layer and of the logits, and the activation between them."""

    hidden_name: str
    hidden: nn.Linear
    output_name: str
    output: nn.Linear
    activation: Activation


def two_layers(simulator: Simulator, shape: tuple[int, ...]) -> TwoLayers:
    """Find the last two linear layers, joined by an activation that is known here."""
    network = simulator.network
    if not any(isinstance(module, nn.Linear) for module in network.modules()):
        raise BadInput(
            "The model has no fully connected layer, and tensor features are read off the gradient "
            "of two: try InvertingGradients, which needs none."
        )
    for function, activation in _activations(network):
        chain = joined_layers(simulator, function, shape=shape)
        if len(chain) >= 2:
            (first, hidden), (last, output) = list(chain.items())[-2:]
            return TwoLayers(first, hidden, last, output, activation)
    raise BadInput(
        "The logits do not come from a hidden fully connected layer followed by ReLU, tanh, GELU "
        "or a Polynomial: tensor features need such a head (gaussian_head makes one); try "
        "InvertingGradients, which does not."
    )


def _activations(network: nn.Module) -> list[tuple[Callable[[Tensor], Tensor], Activation]]:
    """Activations that the network's modules are, and ReLU, which code often calls itself."""
    activations: dict[object, tuple[Callable[[Tensor], Tensor], Activation]] = {}
    for module in network.modules():
        activation = activation_of(module)
        if activation is not None and activation is not RELU:
            key = getattr(module, "coefficients", activation.name)
            # Modules and not formulas: what flows is compared bit by bit.
            activations.setdefault(key, (module, activation))
    return [(torch.relu, RELU), *activations.values()]


def read_gradient(
    layers: TwoLayers,
    simulator: ClientSimulator,
    release: Release,
    batch_size: int,
    *,
    known: Mapping[str, Tensor] | None = None,
    noise: float = 0.0,
) -> TwoLayerGradient:
    """The released gradient of the two layers, of the mean loss.

    ``known`` are masks by parameter name, ``noise`` is the standard deviation in the release.
    """
    factor = gradient_factor(simulator, batch_size)

    def gradient(layer: str, part: str) -> Tensor | None:
        tensor = release.tensors.get(_full(layer, part))
        return None if tensor is None else tensor.detach().double() * factor

    def mask(layer: str, part: str) -> Tensor | None:
        return None if known is None else known.get(_full(layer, part))

    outputs = gradient(layers.output_name, "weight")
    if outputs is None:
        raise BadInput(
            f"The release holds no gradient of {_full(layers.output_name, 'weight')!r}, which "
            "tensor features are read off: try InvertingGradients."
        )
    bias = layers.hidden.bias
    return TwoLayerGradient(
        layers.hidden.weight,
        layers.activation,
        outputs,
        None if bias is None else bias.detach(),
        layers.output.weight,
        gradient(layers.hidden_name, "weight"),
        None if bias is None else gradient(layers.hidden_name, "bias"),
        mask(layers.output_name, "weight"),
        mask(layers.hidden_name, "weight"),
        mask(layers.hidden_name, "bias"),
        noise * abs(factor),
    )


def complete_signs(
    gradient: TwoLayerGradient, layers: TwoLayers, solution: Solution, nonnegative: bool
) -> Solution:
    """Signs and lengths that the equations leave open, by what a loss's slopes look like.

    For an odd activation without biases: of three slopes of cross-entropy or more, the label's is
    negative and the largest; with fewer, features that are ``nonnegative`` decide. For ReLU without
    biases the length is the one at which the softmax of the outputs gives the residuals.
    """
    if gradient.biases is not None or gradient.bias_gradient is not None:
        return solution
    x, residuals = solution
    if gradient.activation.odd and (residuals.shape[1] > 2 or nonnegative):
        largest = residuals.gather(1, residuals.abs().argmax(1, keepdim=True))
        turned = largest > 0 if residuals.shape[1] > 2 else x.sum(1, keepdim=True) < 0
        sign = torch.where(turned, -1.0, 1.0).to(x)
        x, residuals = sign * x, sign * residuals
    if gradient.activation is RELU:
        factors, _ = find_scales(
            Propagation(_head(gradient, layers)), x.numpy(), residuals.numpy(), (float(len(x)),)
        )
        length = torch.from_numpy(factors)[:, None]
        x, residuals = length * x, residuals / length
    return Solution(x, residuals)


def _head(gradient: TwoLayerGradient, layers: TwoLayers) -> DenseHead:
    """The two layers as the exact methods read them; only their weights are looked at."""
    weight, bias = layers.output.weight.detach(), layers.output.bias
    output = DenseLayer(weight, None if bias is None else bias.detach(), weight, None)
    return DenseHead((DenseLayer(gradient.weights, None, gradient.weights, None), output))


def _full(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part
