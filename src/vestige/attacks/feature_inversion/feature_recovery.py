"""Stage one of feature inversion: what enters the fully connected part, from its own gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.certificate import HIGHEST, UNCERTIFIED, uncertifiable
from vestige.attacks.exact_inversion.layers import (
    DenseHead,
    DenseLayer,
    Recovered,
    dense_head,
    dense_layers,
)
from vestige.attacks.exact_inversion.lifted import lift_feasible, lifted_inversion
from vestige.attacks.exact_inversion.linear_head import certify_features
from vestige.attacks.exact_inversion.mask_agreement import THRESHOLD
from vestige.attacks.exact_inversion.reading import read
from vestige.attacks.exact_inversion.sampling import sampling_inversion
from vestige.attacks.exact_inversion.undone import undo_alterations
from vestige.attacks.gradient_matching.labels import last_linear
from vestige.attacks.gradient_matching.lbfgs import BatchedLBFGS
from vestige.attacks.gradient_matching.matching import Matching, hinted_batch_size, labels_of
from vestige.errors import BadInput
from vestige.interfaces import Observation, Public, Release
from vestige.simulation.kinds import ClientSimulator, client_simulator
from vestige.simulation.losses import logits_of, one_hot
from vestige.simulation.simulator import Simulator

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.noise import Noise

FITTING_STEPS = 400
# Share of the head's gradient a fit may leave unexplained (squared) for its features to be used.
# Fits of up to K − 1 records end below 1e-10, wrong ones above 1e-4.
EXPLAINED = 1e-6


@dataclass(frozen=True)
class Head:
    """The fully connected part: the name of its first layer, and the exact chain if there is one.

    ``names`` are those of all its layers; with one, features are found by fitting.
    """

    names: tuple[str, ...]

    @property
    def first(self) -> str:
        """The layer that reads the features."""
        return self.names[0]

    def layers(self, public: Public, release: Release, batch_size: int | None) -> DenseHead:
        """Weights and gradients of its layers."""
        simulator = client_simulator(public.simulator)
        if len(self.names) > 1:
            shape = public.space.shape
            return dense_head(simulator, release, self.names, shape=shape, batch_size=batch_size)
        return DenseHead((_linear(simulator, release, self.first, batch_size),))

    def logits(self, simulator: Simulator, features: Tensor) -> Tensor:
        """What the head makes of features (n, d)."""
        for place, name in enumerate(self.names):
            layer = simulator.network.get_submodule(name)
            features = layer(torch.relu(features) if place else features)
        return features


def find_head(public: Public, named: tuple[str, ...] | None) -> Head:
    """Find the fully connected part: as named, all layers joined by ReLU, or the last alone."""
    simulator = public.simulator
    if not any(isinstance(module, nn.Linear) for module in simulator.network.modules()):
        raise BadInput(
            "The model has no fully connected layer whose gradient would hold features: try "
            "InvertingGradients, which needs none."
        )
    if named is not None and len(named) == 1:
        return _single(public, named[0])
    try:
        return Head(tuple(dense_layers(simulator, named, shape=public.space.shape)))
    except BadInput:
        if named is not None:
            raise
        return _single(public, last_linear(simulator, public.classes)[0])


def _single(public: Public, name: str) -> Head:
    """Return the last linear layer as head, if its output is the logits."""
    network, outputs = public.simulator.network, []
    try:
        layer = network.get_submodule(name)
    except AttributeError as error:
        raise BadInput(f"The model has no layer {name!r}: name one of named_modules.") from error
    hook = layer.register_forward_hook(lambda _m, _i, output: outputs.append(output))
    try:
        with torch.no_grad():
            probe = public.prior.records.x[:2].to(public.simulator.like)
            logits = public.simulator.outputs(probe)
    finally:
        hook.remove()
    if not outputs or not torch.equal(logits_of(outputs[-1]), logits):
        raise BadInput(
            f"The model's logits are not the output of {name!r}, so its features cannot be read "
            "off the gradient: try InvertingGradients, which needs no fully connected part."
        )
    return Head((name,))


def recover_features(
    head: Head,
    public: Public,
    observation: Observation,
    *,
    noise: Noise | None,
    generator: torch.Generator,
) -> Recovered:
    """Features (b, d) entering the head with labels and certificates, in no particular order.

    Pan et al. 2020 need exclusively activated neurons here (Algorithms 1–3); the lift and, where it
    certifies less than the whole batch, sampling do not. A head of one linear layer follows their
    Section 8.6.
    """
    size = hinted_batch_size(observation.hints)
    release, known = undo_alterations(Matching(public, observation.release, size))
    noise = known if noise is None else noise
    dense = head.layers(public, release, size)
    if len(dense.layers) == 1:
        return _fitted(dense.layers[0], public, observation, noise)
    reading = read(dense, noise, size)
    result = lifted_inversion(dense, batch_size=size, reading=reading, generator=generator)
    enough = usable_features(result) if uncertifiable(reading, size) else result.certified
    if len(enough) and bool(enough.all()):
        return result
    feasible, needed = lift_feasible(dense, size or max(1, len(result.certified)))
    sampled = sampling_inversion(
        dense, generator=generator, draws=40_000, batch_size=size, reading=reading
    )
    if _achieved(sampled) > _achieved(result):
        result = sampled
    if not feasible and not bool(usable_features(result).any()):
        live = int((dense.layers[0].weight_gradient.abs().amax(1) > 0).sum())
        raise BadInput(
            f"The fully connected part cannot separate this batch: its first layer has {live} live "
            f"neurons, and {size or len(result.certified)} records need {needed}. Try "
            "InvertingGradients, which does not separate records first, or a smaller batch."
        )
    return result


def usable_features(recovered: Recovered) -> Tensor:
    """Which features (b,) are worth matching: certified, or agreeing with the gradient's masks.

    Without a certificate they may be wrong, and their confidence says so.
    """
    return recovered.certificate >= UNCERTIFIED * THRESHOLD


def _achieved(recovered: Recovered) -> tuple[int, int]:
    """More certified features first, then more that can be used."""
    return int(recovered.certified.sum()), int(usable_features(recovered).sum())


def _linear(
    simulator: ClientSimulator, release: Release, name: str, batch_size: int | None
) -> DenseLayer:
    module = simulator.network.get_submodule(name)
    factor = 1 / simulator.gradient_scale
    if simulator.reduction == "sum" and batch_size:
        factor /= batch_size
    prefix = f"{name}." if name else ""
    weight = release.tensors.get(f"{prefix}weight")
    if weight is None:
        raise BadInput(
            f"The release holds no gradient of {prefix}weight, which would hold the features: try "
            "InvertingGradients."
        )
    bias = getattr(module, "bias", None)
    bias_gradient = release.tensors.get(f"{prefix}bias") if bias is not None else None
    return DenseLayer(
        module.get_parameter("weight").detach(),
        None if bias is None else bias.detach(),
        weight.detach() * factor,
        None if bias_gradient is None else bias_gradient.detach() * factor,
    )


def _fitted(
    layer: DenseLayer, public: Public, observation: Observation, noise: Noise | None
) -> Recovered:
    """Features of a single linear layer: labels first, then F with Σ (softmax(W·f) − y)·fᵀ = M·∂W.

    Pan et al. 2020, Section 8.6 (where "non-negative" must read "negative": only a row of ∂W whose
    class is in the batch has negative entries). Signs do not count how often a class occurs, so
    labels come from ``labels_of``. For up to K − 1 records with different labels the loss vectors
    are independent and F is determined; what explains the gradient to its precision is certified
    (``exact.linear_head``).
    """
    labels, _ = labels_of(public, observation)
    size, classes = len(labels), layer.weight.shape[0]
    weight, gradient = layer.weight.double(), layer.weight_gradient.double()
    bias = torch.zeros(classes).double() if layer.bias is None else layer.bias.double()
    if classes == 1:
        raise BadInput("A head with a single logit mixes all records: try InvertingGradients.")
    targets = one_hot(labels, classes, torch.float64)
    wanted = gradient if layer.bias_gradient is None else _joined(gradient, layer.bias_gradient)
    norm = wanted.square().sum().clamp_min(1e-300)

    def released(features: Tensor) -> Tensor:
        losses = torch.softmax(features @ weight.T + bias, -1) - targets
        slopes = losses.T @ features / size
        return slopes if layer.bias_gradient is None else _joined(slopes, losses.mean(0))

    def evaluate(points: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.detach().requires_grad_()
        value = (released(leaf.reshape(size, -1)) - wanted).square().sum() / norm
        (slope,) = torch.autograd.grad(value, leaf)
        return value.detach()[None], slope

    # Loss vectors of a network that knows nothing, then the features that explain ∂W with them.
    losses = torch.softmax(bias, -1) - targets
    start = torch.linalg.lstsq(losses.T, size * gradient, driver="gelsd").solution
    search = BatchedLBFGS(evaluate, start.reshape(1, -1))
    for _ in range(FITTING_STEPS):
        search.step()
    solution = search.points.reshape(size, -1)
    explained = float(search.values[0]) < EXPLAINED and size < classes
    explained = explained and len(set(labels.tolist())) == size
    labels_known = observation.hints.labels is not None
    certified = torch.zeros(size, dtype=torch.bool)
    if explained:
        solution, certified = certify_features(
            layer, solution, labels.cpu(), noise, labels_told=labels_known
        )
    weak = UNCERTIFIED * max(0.0, 1.0 - float(search.values[0]) ** 0.5) if explained else 0.0
    return Recovered(
        solution,
        labels.cpu(),
        torch.where(certified, HIGHEST, weak).double(),
        certified,
        "" if explained else "One linear layer does not determine the features of this batch.",
    )


def _joined(weight: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight, bias.to(weight)[:, None]], 1)
