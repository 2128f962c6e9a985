"""The victim's computation as a differentiable function of its records.

A victim runs this computation with ordinary training code; an attacker who was told the protocol
replays it here, on candidates, and differentiates through it. Everything is functional
(``torch.func``), so a stack of restarts runs under ``vmap``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from vestige.alterations import (
    Alteration,
    Reading,
    expected_of,
    flat,
    joint_reading,
    mean_over_clients,
)
from vestige.convex import ConvexFit, features_of, layer_tensors, linear_layer, minimized
from vestige.errors import BadInput
from vestige.heads import HeadedModel, HeadTraining, initial_parameters, unrolled
from vestige.local_training import LocalTraining, Normalization
from vestige.losses import Loss, cross_entropy, logits_of
from vestige.losses import logistic as logistic
from vestige.private_steps import ClippedNoise, PrivateSteps
from vestige.records import Records

Mode = Literal["train", "eval"]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Simulator:
    """What a victim computes, as far as somebody was told: records and targets → named tensors.

    ``local`` is training by SGD, with ``clipped_noise`` by DP-SGD on the full batch (without
    training, one gradient of clipped records); ``fit`` is training to the optimum of a convex
    objective, ``private`` DP-SGD whose gradients are all seen, ``head`` training of the head of a
    ``HeadedModel``, which is then released (``order`` seeds the shuffles of one run). With
    ``companions``, records that take part in every run before the given ones, a trained model is
    released, or by ``private`` the sequence of its gradients; without them an update, or, if there
    is no training, a gradient.
    ``fresh_initialization`` says that every run draws its own initial weights: those of ``model``
    are then only an example (see ``started``).
    ``alterations`` are what a client does to its gradient or update before it leaves; ``clients``
    of them share the batch evenly, and only the mean of what they send is seen.
    """

    model: nn.Module
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "eval"
    normalization: Normalization | None = None
    local: LocalTraining | None = None
    companions: Records | None = None
    fit: ConvexFit | None = None
    fresh_initialization: bool = False
    private: PrivateSteps | None = None
    head: HeadTraining | None = None
    order: int | None = None
    clipped_noise: ClippedNoise | None = None
    alterations: tuple[Alteration, ...] = ()
    clients: int = 1

    def __post_init__(self) -> None:
        if self.head is not None and not isinstance(self.model, HeadedModel):
            raise BadInput("Training of a head needs a HeadedModel: wrap the backbone in one.")
        if self.clipped_noise is not None and self.companions is not None and self.local is None:
            raise BadInput(
                "Clipping and noise beside known records are part of a training: give a "
                "LocalTraining too."
            )
        if (self.alterations or self.clients > 1) and (self.companions or self.head):
            raise BadInput(
                "Alterations and sums over clients belong to gradients and updates, not to a "
                "trained model."
            )
        if self.companions is None and self.fit is None and self.private is None:
            return
        ways = [way for way in (self.local, self.fit, self.private) if way is not None]
        if self.companions is None or len(ways) != 1:
            raise BadInput(
                "A trained model needs the records that are always trained on, and one of a "
                "LocalTraining, a ConvexFit or PrivateSteps."
            )

    @cached_property
    def network(self) -> nn.Module:
        """A private copy in the right mode that never writes to its own state.

        In train mode batch norm uses the batch's own statistics and forgets running ones.
        Dropout is off: nobody but the client knows the mask.
        """
        network = copy.deepcopy(self.model).train(self.mode == "train")
        for module in network.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
            elif isinstance(module, _BatchNorm) and self.mode == "train":
                module.running_mean = module.running_var = module.num_batches_tracked = None
                module.track_running_stats = False
        return network

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The trainable parameters at the time of the release."""
        return {n: p.detach() for n, p in self.network.named_parameters() if p.requires_grad}

    @cached_property
    def classes(self) -> int | None:
        """Number of logits of the last linear layer, if there is one."""
        linear = [m for m in self.network.modules() if isinstance(m, nn.Linear)]
        return linear[-1].out_features if linear else None

    def logit_layer(self, classes: int) -> tuple[str, nn.Linear] | None:
        """Name and module of the layer that makes the logits: the last linear one that fits."""
        sizes = (classes, 1) if classes == 2 else (classes,)
        found = [
            (name, module)
            for name, module in self.network.named_modules()
            if isinstance(module, nn.Linear) and module.out_features in sizes
        ]
        return found[-1] if found else None

    def outputs(self, x: Tensor, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Logits (n, classes) of records in their own space."""
        inputs = x if self.normalization is None else self.normalization(x)
        chosen = dict(self.parameters if parameters is None else parameters)
        with _twice_differentiable():
            return logits_of(torch.func.functional_call(self.network, chosen, (inputs,)))

    def loss_of(self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor) -> Tensor:
        """Reduced loss, a scalar."""
        losses = self.loss(self.outputs(x, parameters), targets)
        return losses.mean() if self.reduction == "mean" else losses.sum()

    def gradient(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> dict[str, Tensor]:
        """Gradient of the loss at the released parameters; differentiable in x and targets.

        ``functional=False`` gives the same by plain autograd: cheaper for one batch, and open to
        models that ``torch.func`` cannot handle, but not to be used under ``vmap``. Records are
        clipped where the victim clips them, one by one, which is functional always; noise is left
        out. Alterations are those that a reader expects.
        """
        return self._sent_by_all(
            lambda *batch: self._gradient(*batch, functional=functional), x, targets, 1.0
        )

    def _gradient(self, x: Tensor, targets: Tensor, *, functional: bool) -> dict[str, Tensor]:
        """Gradient of one client before it is altered."""
        if self.clipped_noise is not None:
            return self._clipped_step(self.clipped_noise, self.parameters, x, targets)
        if functional:
            return torch.func.grad(self.loss_of)(self.parameters, x, targets)
        own = {n: p for n, p in self.network.named_parameters() if p.requires_grad}
        inputs = x if self.normalization is None else self.normalization(x)
        with _twice_differentiable():
            losses = self.loss(logits_of(self.network(inputs)), targets)
        return _slopes(losses.mean() if self.reduction == "mean" else losses.sum(), own)

    def record_gradients(
        self, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor
    ) -> Tensor:
        """Gradient of each record's own loss (n, P), flattened in the order of the parameters."""

        def own_loss(current: Mapping[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            return self.loss(self.outputs(record.unsqueeze(0), current), target.unsqueeze(0)).sum()

        if len(x) == 0:
            return x.new_zeros((0, sum(value.numel() for value in parameters.values())))
        found = torch.func.vmap(torch.func.grad(own_loss), in_dims=(None, 0, 0))(
            dict(parameters), x, targets
        )
        return torch.cat([found[name].flatten(1) for name in parameters], 1)

    def update(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> dict[str, Tensor]:
        """Difference of parameters after local training, unrolled; differentiable.

        ``functional`` as in ``gradient``.
        """

        def moved(x: Tensor, targets: Tensor) -> dict[str, Tensor]:
            trained = self.trained(x, targets, functional=functional)
            return {n: trained[n] - p for n, p in self.parameters.items()}

        rate = 1.0 if self.local is None else self.local.learning_rate
        return self._sent_by_all(moved, x, targets, -1 / rate)

    def _sent_by_all(
        self,
        computed: Callable[[Tensor, Tensor], dict[str, Tensor]],
        x: Tensor,
        targets: Tensor,
        scale: float,
    ) -> dict[str, Tensor]:
        """Mean over the clients of what each is expected to send; ``scale`` makes it a gradient."""
        if not self.alterations and self.clients == 1:
            return computed(x, targets)
        sizes = [value.numel() for value in self.parameters.values()]

        def altered(gradient: Tensor) -> Tensor:
            return expected_of(self.alterations, gradient, sizes)

        return mean_over_clients(computed, altered, (x, targets), self.clients, scale)

    def reading(
        self, released: Mapping[str, Tensor], *, update: bool, records: int | None = None
    ) -> Reading:
        """What released tensors show of alterations and private noise, in the order of their names.

        ``records`` are those behind the release: private noise is divided by them where the loss is
        a mean, and is left out where their number is unknown.
        """
        rate = self.local.learning_rate if update and self.local is not None else 1.0
        sizes = [tensor.numel() for tensor in released.values()]
        private = Reading(deviation=self._private_deviation(records, update=update))
        found = joint_reading(self.alterations, flat(released) / rate, sizes, private)
        # A mean shows neither the mask nor the grid of one client.
        mixed = found.kept is not None or isinstance(found.deviation, Tensor)
        certain = found.certain and not (mixed and self.clients > 1)
        return Reading(found.kept, found.deviation * (rate / self.clients**0.5), certain)

    def _private_deviation(self, records: int | None, *, update: bool) -> float:
        """Standard deviation of DP-SGD's noise in one client's gradient, or in its summed steps."""
        private, mean = self.clipped_noise, self.reduction == "mean"
        if private is None or (records is None and mean):
            return 0.0
        own = max((records or 0) // self.clients, 1)
        steps = self.local if update and self.local is not None else LocalTraining(1, 1.0)
        noise = private.noise_multiplier * private.clipping_norm
        return noise * steps.summed_noise(own, mean=mean)

    def trained(self, x: Tensor, targets: Tensor, *, functional: bool = True) -> dict[str, Tensor]:
        """Parameters after training on the companions, if any, and then x.

        SGD is unrolled and differentiable; a convex fit gives values only, in float64. Gradients
        are clipped where the victim clips them; noise cannot be replayed and is left out.
        ``functional`` as in ``gradient``.
        """
        if self.head is not None:
            return self._head_trained(self.head, x, targets)
        if self.companions is not None:
            known = self.companions.to(x.device)
            x = torch.cat([known.x.to(x.dtype), x])
            targets = torch.cat([one_hot(known.y, targets.shape[1], targets.dtype), targets])
        if self.fit is not None:
            return self._fitted(self.fit, x, targets)
        if self.local is None:
            raise BadInput("This simulator knows no local training: give it a LocalTraining.")
        current, velocity = dict(self.parameters), None
        if not functional:
            current = {n: p.detach().requires_grad_() for n, p in current.items()}
        for batch in self.local.batches(x.shape[0]):
            if self.clipped_noise is not None:
                step = self._clipped_step(self.clipped_noise, current, x[batch], targets[batch])
            elif functional:
                step = torch.func.grad(self.loss_of)(current, x[batch], targets[batch])
            else:
                step = _slopes(self.loss_of(current, x[batch], targets[batch]), current)
            if velocity is not None:
                step = {n: self.local.momentum * velocity[n] + g for n, g in step.items()}
            velocity = step if self.local.momentum else None
            current = {n: p - self.local.learning_rate * step[n] for n, p in current.items()}
        return current

    def started(self, generator: torch.Generator) -> Simulator:
        """Itself; where every run draws its initial weights, one run's, the first thing it draws.

        Victims start from the same draw, so that a run can be replayed.
        """
        if not self.fresh_initialization:
            return self
        if self.head is not None:
            return self._head_started(self.head, generator)
        drawn = reinitialized(self.model, generator)
        return replace(self, model=drawn, fresh_initialization=False)

    def __call__(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What the victim would release for these records."""
        if self.private is not None:
            raise BadInput(
                "Noise and sampling of DP-SGD cannot be replayed: hold candidates against the "
                "release with vestige.gradient_sequences."
            )
        if self.companions is not None or self.head is not None:
            return self.trained(x, targets)
        return self.gradient(x, targets) if self.local is None else self.update(x, targets)

    def _head_started(self, head: HeadTraining, generator: torch.Generator) -> Simulator:
        drawn = initial_parameters(self.parameters, head.initial_deviation, generator)
        order = int(torch.randint(2**62, (), generator=generator))
        model = copy.deepcopy(self.model)
        model.load_state_dict(drawn, strict=False)
        return replace(self, model=model, fresh_initialization=False, order=order)

    def _head_trained(self, head: HeadTraining, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        network = self.network
        assert isinstance(network, HeadedModel)
        features = network.features(x if self.normalization is None else self.normalization(x))
        taught = head.taught(targets)

        def losses(parameters: Mapping[str, Tensor], members: Tensor) -> Tensor:
            outputs = network.head_outputs(parameters, features[members])
            return self.loss(outputs, taught[members])

        order = None if self.order is None else torch.Generator().manual_seed(self.order)
        return unrolled(head, losses, head.record_weights(taught), self.parameters, order)

    def _clipped_step(
        self, private: ClippedNoise, parameters: Mapping[str, Tensor], x: Tensor, targets: Tensor
    ) -> dict[str, Tensor]:
        """The reduced gradient of clipped records, by name."""
        gradients = self.record_gradients(parameters, x, targets)
        total = private.factors(gradients.square().sum(1)) @ gradients
        pieces = total.split([value.numel() for value in parameters.values()])
        scale = 1 / max(len(x), 1) if self.reduction == "mean" else 1.0
        return {
            name: scale * piece.reshape(value.shape)
            for (name, value), piece in zip(parameters.items(), pieces)
        }

    def _fitted(self, fit: ConvexFit, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The optimum, certified by the gradient that autograd finds through the model itself."""
        _, layer = linear_layer(self.network)
        inputs = (x if self.normalization is None else self.normalization(x)).double()
        goals = targets.double()[:, 1:] if layer.out_features == 1 else targets.double()
        theta = minimized(features_of(inputs), goals, fit)
        found = layer_tensors(self.network, theta[1:].T.contiguous(), theta[0].clone())

        def objective(parameters: Mapping[str, Tensor]) -> Tensor:
            called = torch.func.functional_call(self.network, dict(parameters), (inputs,))
            logits, weights = logits_of(called), list(parameters.values())
            penalized = weights if fit.penalize_bias else weights[:1]
            penalty = sum(p.square().sum() for p in penalized)
            return self.loss(logits, targets.double()).sum() + len(x) * fit.l2 / 2 * penalty

        slopes = torch.func.grad(objective)(found)
        if max(float(slope.abs().max()) for slope in slopes.values()) > 1e-6:
            raise BadInput(
                "The convex fit is no optimum of this model and loss: use cross_entropy with one "
                "logit for each class, or logistic with a single logit for two classes."
            )
        return found


def reinitialized(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy whose layers have drawn their weights anew, each by its own reset_parameters."""
    seed = int(torch.randint(2**62, (), generator=generator))
    drawn = copy.deepcopy(model)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for module in drawn.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                raise BadInput(
                    f"{type(module).__name__} has no reset_parameters, so its initial weights "
                    "cannot be drawn anew: add that method, or use known initial weights."
                )
    return drawn


def _twice_differentiable() -> AbstractContextManager[object]:
    """Attention by its plain formula: the fused kernels have no second derivative."""
    return sdpa_kernel(SDPBackend.MATH)


def _slopes(loss: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradient of a loss by plain autograd, itself differentiable; zero where nothing depends."""
    slopes = torch.autograd.grad(
        loss,
        list(parameters.values()),
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(parameters, slopes))


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Targets (n, classes) from labels (n,)."""
    return nn.functional.one_hot(labels, classes).to(dtype)
