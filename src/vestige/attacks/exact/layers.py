"""The fully connected part of a network and its gradient, as the exact methods read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from vestige.attacks.exact.relu_chain import relu_chain
from vestige.errors import BadInput
from vestige.observations import Release, UpdateRelease
from vestige.simulation import Loss, Simulator, logits_of


@dataclass(frozen=True)
class DenseLayer:
    """One linear layer: weight (out, in), bias (out,) or None, and their gradients."""

    weight: Tensor
    bias: Tensor | None
    weight_gradient: Tensor
    bias_gradient: Tensor | None


@dataclass(frozen=True)
class DenseHead:
    """Linear layers with ReLU between them, from the first that sees the records (or the features
    of a convolutional body) to the logits; cross-entropy, averaged over the batch.
    """

    layers: tuple[DenseLayer, ...]


@dataclass(frozen=True)
class Recovered:
    """What an exact method recovered of the inputs of the first layer.

    inputs (b, in) with NaN rows where a record was not recovered, labels (b,) with −1 where
    unknown, certificate (b,) in [0, 1] and certified (b,), both made without the secret.
    ``reason`` says in a sentence why it stopped short, or is empty.
    """

    inputs: Tensor
    labels: Tensor
    certificate: Tensor
    certified: Tensor
    reason: str = ""

    @classmethod
    def nothing(cls, head: DenseHead, count: int, reason: str) -> Self:
        """Nothing recovered of this many records, and why."""
        return cls(
            torch.full((count, head.layers[0].weight.shape[1]), torch.nan, dtype=torch.float64),
            torch.full((count,), -1, dtype=torch.int64),
            torch.zeros(count, dtype=torch.float64),
            torch.zeros(count, dtype=torch.bool),
            reason,
        )


# Sides of pictures that are tried where nobody says what a record looks like.
USUAL_SIDES = (28, 32, 8, 16, 64, 224, 24, 25, 48, 96, 128, 256)


def dense_head(
    simulator: Simulator,
    release: Release,
    head: Sequence[str] | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    batch_size: int | None = None,
) -> DenseHead:
    """Find the linear layers with ReLU between them that end in the logits, and their gradients.

    The network runs once on noise. Its last linear layer must give the logits; a linear layer
    belongs to the head if the ReLU of its output is what the next one reads, whatever code is
    between them. Gradients of a sum over the batch are divided by the batch size where it is told.

    Parameters
    ----------
    simulator
        The client's computation.
    release
        A gradient, or the update of one step of gradient descent.
    head
        Names of the linear layers, first layer first, instead of all that qualify.
    shape
        Shape of a record; without it usual ones are tried.
    batch_size
        Number of records, if it is known.
    """
    found = dense_layers(simulator, head, shape=shape)
    factor = gradient_factor(simulator, release, batch_size)
    return DenseHead(tuple(_layer(*one, release, factor) for one in found.items()))


def dense_layers(
    simulator: Simulator,
    head: Sequence[str] | None = None,
    *,
    shape: tuple[int, ...] | None = None,
) -> dict[str, nn.Linear]:
    """Names and layers of the head, first layer first, as ``dense_head`` finds them."""
    _check_loss(simulator.loss)
    if not any(isinstance(module, nn.Linear) for module in simulator.network.modules()):
        raise BadInput(
            "The network has no fully connected layer (nn.Linear), and exact inversion reads one's "
            "gradient: try InvertingGradients, which needs none."
        )
    wanted = None if head is None else [_named(simulator.network, name) for name in head]
    chain = _chain(simulator, shape, wanted)
    if len(chain) < 2:
        others = _other_activations(simulator.network)
        raise BadInput(
            "The network's logits do not come from fully connected layers with ReLU between them"
            f"{f' (it has {others})' if others else ''}: exact inversion needs a hidden fully "
            "connected layer, then ReLU, before the last one; try InvertingGradients, which needs "
            "neither."
        )
    return _with_names(simulator.network, chain)


def joined_layers(
    simulator: Simulator,
    activation: Callable[[Tensor], Tensor],
    *,
    shape: tuple[int, ...] | None = None,
) -> dict[str, nn.Linear]:
    """Names and layers joined by an activation that end in the logits, first layer first.

    None if the logits are not a linear layer's output; whatever the loss.
    """
    return _with_names(simulator.network, _observed(simulator, shape, activation))


def _with_names(network: nn.Module, chain: list[nn.Linear]) -> dict[str, nn.Linear]:
    names = {id(m): name for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    return {names[id(module)]: module for module in chain}


def _other_activations(network: nn.Module) -> str:
    """Names of the network's activations that are not ReLU, as far as they are modules."""
    kinds = {type(m) for m in network.modules() if type(m).__module__ == nn.ReLU.__module__}
    return " and ".join(sorted(kind.__name__ for kind in kinds - {nn.ReLU}))


def _chain(
    simulator: Simulator, shape: tuple[int, ...] | None, wanted: list[nn.Linear] | None
) -> list[nn.Linear]:
    """Linear layers from the first of the head to the logits, by what flows between them."""
    found = _observed(simulator, shape)
    if not found:
        raise BadInput(
            "The network's logits are not the output of its last fully connected layer, and exact "
            "inversion cannot read through what comes after it: try InvertingGradients."
        )
    if wanted is None:
        return found
    if wanted != found[-len(wanted) :]:
        raise BadInput(
            "The layers named as head are not joined by ReLU up to the logits: name consecutive "
            "fully connected layers that end with the last one."
        )
    return wanted


def _observed(
    simulator: Simulator,
    shape: tuple[int, ...] | None,
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> list[nn.Linear]:
    """Run the network on noise and follow it back from its logits."""
    generator = torch.Generator().manual_seed(0)
    network, normalization = simulator.network, simulator.normalization
    like = next(m for m in network.modules() if isinstance(m, nn.Linear)).weight
    said = "nothing was tried"
    for tried in [shape] if shape is not None else _shapes(network):
        # Of both signs and many: a layer whose output happens to be positive is not a ReLU.
        noise = torch.randn((16, *tried), generator=generator).to(like)

        def run(noise: Tensor = noise) -> Tensor:
            with torch.no_grad():
                inputs = noise if normalization is None else normalization(noise)
                return logits_of(network(inputs))

        try:
            return relu_chain(network, run, activation)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    raise BadInput(f"The network could not be run on noise ({said[:200]}): give a record's shape.")


def _shapes(network: nn.Module) -> Iterator[tuple[int, ...]]:
    """Shapes a network may read, by its layers with weights: convolutions come before linear."""
    modules = list(network.modules())
    for module in modules:
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            axes = len(module.kernel_size)
            yield from ((module.in_channels, *(side,) * axes) for side in USUAL_SIDES)
            break
    for module in modules:
        if isinstance(module, nn.Linear):
            yield (module.in_features,)
            for channels in (1, 3):
                side = round((module.in_features / channels) ** 0.5)
                if channels * side * side == module.in_features:
                    yield channels, side, side


def _named(network: nn.Module, name: str) -> nn.Linear:
    try:
        module = network.get_submodule(name)
    except AttributeError as error:
        raise BadInput(
            f"The network has no layer {name!r}: use a name of named_modules."
        ) from error
    if not isinstance(module, nn.Linear):
        raise BadInput(f"{name!r} is a {type(module).__name__}, not a fully connected layer.")
    return module


def _layer(name: str, module: nn.Linear, release: Release, factor: float) -> DenseLayer:
    """Join a layer with its gradient."""

    def gradient(part: str) -> Tensor:
        full = f"{name}.{part}" if name else part
        if full not in release.tensors:
            raise BadInput(
                f"The release holds no gradient of {full!r}, and exact inversion needs those of "
                "all fully connected layers of the head: try InvertingGradients, which matches "
                "what was released."
            )
        tensor, like = release.tensors[full].detach(), module.get_parameter(part)
        if tensor.shape != like.shape:
            raise BadInput(
                f"The gradient of {full!r} has shape {tuple(tensor.shape)} where the layer has "
                f"{tuple(like.shape)}."
            )
        return tensor if factor == 1 else tensor.double() * factor

    bias = None if module.bias is None else module.bias.detach()
    return DenseLayer(
        module.weight.detach(),
        bias,
        gradient("weight"),
        None if bias is None else gradient("bias"),
    )


def gradient_factor(simulator: Simulator, release: Release, batch_size: int | None) -> float:
    """What turns the released tensors into the gradient of the mean loss."""
    factor = 1.0
    if isinstance(release, UpdateRelease):
        if simulator.local is None or simulator.local.steps != 1:
            raise BadInput(
                "The release is an update of several local steps: exact inversion reads one "
                "gradient."
            )
        factor = -1 / simulator.local.learning_rate
    if simulator.reduction == "sum" and batch_size is not None:
        factor /= batch_size
    return factor


def _check_loss(loss: Loss) -> None:
    """Try the loss on a few logits: its derivative must be softmax (or logistic) − target."""
    logits = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -0.4]], dtype=torch.float64)
    targets = torch.eye(3, dtype=torch.float64)[:2]
    for width, expected in (
        (3, torch.softmax(logits, -1) - targets),
        (1, torch.sigmoid(logits[:, :1]) - targets[:, 1:2]),
    ):
        given = logits[:, :width].clone().requires_grad_()
        wanted = targets if width == 3 else targets[:, :2]
        try:
            (slope,) = torch.autograd.grad(loss(given, wanted).sum(), given)
        except (RuntimeError, ValueError, IndexError):
            continue
        if slope.shape == expected.shape and torch.allclose(slope, expected, atol=1e-6):
            return
    raise BadInput(
        "Exact inversion needs cross-entropy, and the loss is another one: try InvertingGradients."
    )
