"""The fully connected part of a network and its gradient, as the exact methods read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.relu_chain import relu_chain
from vestige.errors import BadInput, first_line
from vestige.interfaces import Hints, Release, UpdateRelease
from vestige.simulation.losses import Loss, logits_of
from vestige.simulation.released_tensors import check_tensors

if TYPE_CHECKING:
    from vestige.simulation.kinds import ClientSimulator
    from vestige.simulation.local_training import Normalization
    from vestige.simulation.simulator import Simulator


@dataclass(frozen=True)
class DenseLayer:
    """One linear layer: weight (out, in), bias (out,) or None, and their gradients."""

    weight: Tensor
    bias: Tensor | None
    weight_gradient: Tensor
    bias_gradient: Tensor | None


@dataclass(frozen=True)
class RecordScale:
    """How inputs of the first layer become records: input · scale + shift, each (features,)."""

    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, normalization: Normalization, shape: tuple[int, ...]) -> Self:
        """Scale and shift that undo a normalisation of records of a shape (channels, …)."""
        channels = (-1,) + (1,) * (len(shape) - 1)
        return cls(
            *(
                torch.tensor(values, dtype=torch.float64).reshape(channels).expand(shape).flatten()
                for values in (normalization.std, normalization.mean)
            )
        )


@dataclass(frozen=True)
class DenseHead:
    """Linear layers with ReLU between them, from the first that sees the records (or the features
    of a convolutional body) to the logits; cross-entropy, averaged over the batch, or ``summed``
    where the batch size that would turn a sum into a mean is not known. ``grain`` is the standard
    deviation of rounding that comes from elsewhere than the gradient's own format: an update is the
    difference of rounded parameters. ``records`` says how inputs become records, None where they
    are the records (or features).
    """

    layers: tuple[DenseLayer, ...]
    summed: bool = False
    grain: float = 0.0
    records: RecordScale | None = None


@dataclass(frozen=True)
class Recovered:
    """What an exact method recovered of the inputs of the first layer.

    inputs (b, in) with NaN rows where a record was not recovered, labels (b,) with −1 where
    unknown, certified (b,) and the confidence of each, certificate (b,) in [0, 1], both made
    without the secret (``exact.certificate`` says what they claim). ``reason`` says in a sentence
    why it stopped short, or is empty.
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

    def uncounted(self) -> Self:
        """The same without certificates: the batch size is unknown.

        Several records can then look like one, their mean (``exact.certificate``, condition 1).
        """
        reason = self.reason or "The batch size is unknown: several records can look like one."
        return self._uncertified(reason)

    def unnormalized(self) -> Self:
        """The same without certificates: inputs may be records that were shifted and scaled."""
        return self._uncertified(self.reason or "The normalisation of inputs is unknown.")

    def contradicted(self, hints: Hints) -> Self:
        """The same without certificates where hints contradict each other or the labels found."""
        labels = hints.labels
        if labels is None or not bool(self.certified.any()):
            return self
        size = len(labels) if hints.batch_size is None else hints.batch_size
        if size != len(labels):
            return self._uncertified(
                f"{size} records and {len(labels)} labels were given as hints."
            )
        if not torch.equal(labels.cpu().long().sort().values, self.labels.sort().values):
            return self._uncertified("The inferred labels differ from the hints.")
        return self

    def _uncertified(self, reason: str) -> Self:
        return replace(
            self,
            certificate=self.certificate.clamp(max=0.5),
            certified=torch.zeros_like(self.certified),
            reason=reason,
        )


def dense_head(
    simulator: ClientSimulator,
    release: Release,
    head: Sequence[str] | None = None,
    *,
    shape: tuple[int, ...],
    batch_size: int | None = None,
) -> DenseHead:
    """Find the linear layers with ReLU between them that end in the logits, and their gradients.

    The network runs once on noise. Its last linear layer must give the logits; a linear layer
    belongs to the head if the ReLU of its output is what the next one reads, whatever code is
    between them. Gradients of a sum over the batch are divided by the batch size where it is told.

    ``head`` names the linear layers, first to last, instead of all that qualify; ``shape`` is that
    of a record.
    """
    dense = dense_layers(simulator, head, shape=shape)
    factor = gradient_factor(simulator, batch_size)
    summed = simulator.reduction == "sum" and batch_size is None
    layers = tuple(_layer(*one, release, factor) for one in dense.items())
    grain = abs(factor) * _grain(layers) if isinstance(release, UpdateRelease) else 0.0
    return DenseHead(layers, summed, grain)


def _grain(layers: tuple[DenseLayer, ...]) -> float:
    """Deviation of the parameters' rounding: half a unit in the last place at most, uniform."""
    deviations = []
    for layer in layers:
        size = layer.weight.detach().abs()
        last_place = torch.nextafter(size, torch.full_like(size, torch.inf)) - size
        deviations.append(float(last_place.double().square().mean().sqrt()) / 12**0.5)
    return max(deviations)


def dense_layers(
    simulator: Simulator, head: Sequence[str] | None = None, *, shape: tuple[int, ...]
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
    simulator: Simulator, activation: Callable[[Tensor], Tensor], *, shape: tuple[int, ...]
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
    simulator: Simulator, shape: tuple[int, ...], wanted: list[nn.Linear] | None
) -> list[nn.Linear]:
    """Linear layers from the first of the head to the logits, by what flows between them."""
    layers = _observed(simulator, shape)
    if not layers:
        raise BadInput(
            "The network's logits are not the output of its last fully connected layer, and exact "
            "inversion cannot read through what comes after it: try InvertingGradients."
        )
    if wanted is None:
        return layers
    if wanted != layers[-len(wanted) :]:
        raise BadInput(
            "The layers named as head are not joined by ReLU up to the logits: name consecutive "
            "fully connected layers that end with the last one."
        )
    return wanted


def _observed(
    simulator: Simulator,
    shape: tuple[int, ...],
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> list[nn.Linear]:
    """Run the network on noise and follow it back from its logits."""
    network = simulator.network
    like = next(m for m in network.modules() if isinstance(m, nn.Linear)).weight
    # Of both signs and many: a layer whose output happens to be positive is not a ReLU.
    noise = torch.randn((16, *shape), generator=torch.Generator().manual_seed(0)).to(like)

    def run() -> Tensor:
        with torch.no_grad():
            return logits_of(network(simulator.inputs(noise)))

    try:
        return relu_chain(network, run, activation)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = first_line(error)
        raise BadInput(
            f"The network could not be run on noise ({reason[:200]}): give a record's shape."
        ) from error


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
        check_tensors({full: tensor}, {full: like})
        return tensor if factor == 1 else tensor.double() * factor

    bias = None if module.bias is None else module.bias.detach()
    return DenseLayer(
        module.weight.detach(), bias, gradient("weight"), None if bias is None else gradient("bias")
    )


def gradient_factor(simulator: ClientSimulator, batch_size: int | None) -> float:
    """What turns the released tensors into the gradient of the mean loss."""
    if simulator.steps > 1:
        raise BadInput(
            "The release is an update of several local steps: exact inversion reads one gradient."
        )
    factor = 1 / simulator.gradient_scale
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
