"""The victim's computation as a differentiable function of its records.

A victim runs this computation with ordinary training code; an attacker who was told the protocol
replays it here, on candidates, and differentiates through it. Everything is functional
(``torch.func``), so a stack of restarts runs under ``vmap``. Each kind of release has a simulator
of its own in this package; this module holds what they share.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.alterations import (
    Alteration,
    Reading,
    expected_release,
    join_tensors,
    joint_reading,
    split_like,
)
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.each_record import each_gradient
from vestige.simulation.losses import Loss, cross_entropy, logits_of, one_hot
from vestige.simulation.released_tensors import check_kind, check_tensors, joined
from vestige.simulation.replayed_network import replay_network
from vestige.simulation.second_derivatives import twice_differentiable

if TYPE_CHECKING:
    from vestige.simulation.local_training import Normalization
    from vestige.simulation.releases import Release

Mode = Literal["train", "eval"]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Simulator(ABC):
    """What a victim computes, as far as it is known: records and targets → named tensors."""

    model: nn.Module
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "eval"
    normalization: Normalization | None = None

    releases: ClassVar[type[Release]]
    """The kind of release that is replayed."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def __call__(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What the victim would release for these records."""

    def started(self, generator: torch.Generator) -> Self:
        """The simulator of one run; where runs draw their initial weights, with those of this one.

        Victims start from the same draw, so that a run can be replayed.
        """
        return self

    def check(self, release: Release) -> None:
        """Raise BadInput unless a release is of this kind and fits the model."""
        check_kind(release, self.releases)
        check_tensors(release.tensors, self.parameters)

    def unexplained(self, release: Release, records: Records) -> Tensor:
        """What a replay of records leaves of a release, as one vector in float64."""
        with torch.no_grad():
            made = self(*self.batch(records))
        return joined(release.tensors, release.tensors) - joined(made, release.tensors)

    def copied(self) -> Self:
        """The same simulator with a model and known records of its own."""
        own = {"model", "companions"} & {field.name for field in fields(self)}
        return replace(self, **{name: copy.deepcopy(getattr(self, name)) for name in own})

    @cached_property
    def network(self) -> nn.Module:
        """A private copy in the right mode, without dropout, that never writes to its state."""
        return replay_network(self.model, self.mode)

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The trainable parameters at the time of the release."""
        return {n: p.detach() for n, p in self.network.named_parameters() if p.requires_grad}

    @property
    def like(self) -> Tensor:
        """A parameter: records have its precision and device."""
        return next(iter(self.parameters.values()))

    @property
    def classes(self) -> int | None:
        """Number of logits of the last linear layer, if there is one."""
        linear = [m for m in self.network.modules() if isinstance(m, nn.Linear)]
        return linear[-1].out_features if linear else None

    def logit_layer(self, classes: int) -> tuple[str, nn.Linear] | None:
        """Name and module of the layer that makes the logits: the last linear one that fits.

        If none has exactly these outputs, the last one with more of them: those are padding.
        """
        sizes = (classes, 1) if classes == 2 else (classes,)
        layers = [
            (name, module)
            for name, module in self.network.named_modules()
            if isinstance(module, nn.Linear)
        ]
        fitting = [one for one in layers if one[1].out_features in sizes]
        padded = [one for one in layers if one[1].out_features > classes]
        found = fitting or padded
        return found[-1] if found else None

    def inputs(self, x: Tensor) -> Tensor:
        """Records as the network reads them: normalised, where the client normalises.

        Always a copy, which a network may change in place.
        """
        return x.clone() if self.normalization is None else self.normalization(x)

    def batch(self, records: Records) -> tuple[Tensor, Tensor]:
        """Values and one-hot targets of records, with the model's precision and device.

        Token numbers stay float32, whatever the model's precision.
        """
        like = self.like
        targets = one_hot(records.y.to(like.device), records.classes, like.dtype)
        return records.inputs(like), targets

    def outputs(self, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits (n, classes) of records in their own space."""
        chosen = dict(self.parameters if parameters is None else parameters)
        with twice_differentiable():
            called = torch.func.functional_call(self.network, chosen, (self.inputs(x),))
            return logits_of(called)

    def reduced(self, losses: Tensor) -> Tensor:
        """Mean or sum of the losses of records."""
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def loss_of(self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        """Reduced loss, a scalar."""
        return self.reduced(self.loss(self.outputs(x, parameters), targets))

    def record_gradients(
        self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor
    ) -> Tensor:
        """Gradient of each record's own loss (n, P), flattened in the order of the parameters."""

        def own_loss(current: Mapping[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            return self.loss(self.outputs(record.unsqueeze(0), current), target.unsqueeze(0)).sum()

        if len(x) == 0:
            return x.new_zeros((0, sum(value.numel() for value in parameters.values())))
        found = each_gradient(own_loss, parameters, x, targets)
        return torch.cat([found[name].flatten(1) for name in parameters], 1)


@dataclass(frozen=True)
class ClientSimulator(Simulator):
    """What clients send of a batch: it can be clipped, altered and averaged.

    With ``clipped_noise`` clients take steps of DP-SGD. ``alterations`` are what a client does to
    its gradient before it leaves; ``clients`` of them share the batch evenly, and only the mean of
    what they send is seen.
    """

    clipped_noise: ClippedNoise | None = None
    alterations: tuple[Alteration, ...] = ()
    clients: int = 1

    def __post_init__(self) -> None:
        check_fields(self, counts=("clients",))

    @property
    def steps(self) -> int:
        """Local steps of each client."""
        return 1

    @property
    def step_scale(self) -> float:
        """What turns a gradient into the step along it."""
        return 1.0

    @property
    def gradient_scale(self) -> float:
        """What turns a gradient into the release, if it were the same at every step."""
        return 1.0

    @property
    def defended(self) -> bool:
        """Whether clients do anything to gradients before they leave."""
        return bool(self.alterations or self.clipped_noise or self.clients > 1)

    @property
    def random(self) -> bool:
        """Whether two runs on the same records are altered differently."""
        return any(alteration.random for alteration in self.alterations)

    @abstractmethod
    def unaltered(
        self, x: Tensor, targets: Tensor, *, functional: bool = True
    ) -> dict[str, Tensor]:
        """What one client computes before it is altered."""

    @abstractmethod
    def summed_noise(self, records: int) -> float:
        """Deviation of the released noise if each clipped sum has unit noise."""

    def __call__(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> dict[str, Tensor]:
        """What a reader expects to be released; differentiable in x and targets.

        ``functional=False`` gives the same by plain autograd: cheaper for one batch, and open to
        models that ``torch.func`` cannot handle, but not to be used under ``vmap``. Records are
        clipped where the victim clips them, one by one, which is functional always; noise is left
        out.
        """

        def computed(part: Tensor, taught: Tensor) -> dict[str, Tensor]:
            return self.unaltered(part, taught, functional=functional)

        if not self.alterations and self.clients == 1:
            return computed(x, targets)
        sizes = [value.numel() for value in self.parameters.values()]

        def altered(gradient: Tensor) -> Tensor:
            return expected_release(self.alterations, gradient, sizes)

        return self.mean_of(computed, altered, x, targets)

    def reading(self, released: Mapping[str, Tensor], *, records: int | None = None) -> Reading:
        """What released tensors show of alterations and private noise, in the order of their names.

        ``records`` are those behind the release: private noise is divided by them where the loss is
        a mean, and is left out where their number is unknown.
        """
        rate, clients = abs(self.step_scale), self.clients
        sizes = [tensor.numel() for tensor in released.values()]
        unknown = records is None and self.reduction == "mean"
        deviation = 0.0 if unknown else self.private_deviation(max((records or 0) // clients, 1))
        private = Reading(deviation=deviation)
        found = joint_reading(self.alterations, join_tensors(released) / rate, sizes, private)
        # A mean shows neither the mask nor the grid of one client.
        mixed = found.kept is not None or isinstance(found.deviation, Tensor)
        certain = found.certain and not (mixed and clients > 1)
        return Reading(found.kept, found.deviation * (rate / clients**0.5), certain)

    def private_deviation(self, records: int) -> float:
        """Standard deviation of DP-SGD's noise in one client's gradient, or in its summed steps."""
        private = self.clipped_noise
        return 0.0 if private is None else private.deviation * self.summed_noise(records)

    def mean_of(
        self,
        computed: Callable[[Tensor, Tensor], dict[str, Tensor]],
        altered: Callable[[Tensor], Tensor],
        x: Tensor,
        targets: Tensor,
    ) -> dict[str, Tensor]:
        """Mean of what clients send who share records evenly, each altering its own gradient."""
        clients, scale = self.clients, 1 / self.step_scale
        if len(x) % clients:
            raise BadInput(
                f"{len(x)} records cannot be shared evenly by {clients} clients: choose a batch "
                f"size that {clients} divides."
            )
        sent, like = [], {}
        for part, taught in zip(x.chunk(clients), targets.chunk(clients)):
            like = computed(part, taught)
            sent.append(altered(join_tensors(like) * scale))
        return split_like(torch.stack(sent).mean(0) / scale, like)


def beside(companions: Records, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Values and targets of known records, then those given."""
    known = companions.to(x.device)
    taught = one_hot(known.y, targets.shape[1], targets.dtype)
    return torch.cat([known.x.to(x.dtype), x]), torch.cat([taught, targets])
