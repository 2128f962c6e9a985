"""A private client whose clipping and noise are computed by Opacus: a second hand, to compare."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vestige.errors import BadInput, extra
from vestige.interfaces import GradientRelease, Release, UpdateRelease
from vestige.mechanisms import Mechanism
from vestige.networks.token_model import TokenModel
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.losses import logits_of
from vestige.simulation.simulator import Simulator
from vestige.simulation.update import UpdateSimulator
from vestige.victims.client import client_batch, client_copy, loss_of

if TYPE_CHECKING:
    from opacus import GradSampleModule


@dataclass(frozen=True)
class OpacusClient:
    """A ``SharedGradient`` or ``FederatedUpdate`` with ``private`` set, computed by Opacus.

    Opacus divides by a gradient's norm plus 1e-6, so it clips that much harder than it says. Its
    hooks have no gradients of single texts: embeddings of positions are looked up once for all
    texts of a batch, not once for each. Those of a ``TokenModel`` are computed text by text, and
    Opacus clips them, adds them up and adds the noise.
    """

    victim: Any

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return self.victim.releases

    @property
    def mechanism(self) -> Mechanism:
        """That of the victim: Opacus computes the same."""
        return self.victim.mechanism

    @property
    def simulator(self) -> GradientSimulator | UpdateSimulator:
        """The same computation, differentiable."""
        return self.victim.simulator

    def release(self, secret: Records, *, generator: torch.Generator) -> Release:
        """Return the private gradient of the batch, or the update of private local steps."""
        simulator = self.simulator
        inputs, targets = client_batch(simulator, secret)
        model = client_copy(simulator)
        with torch.no_grad():
            loss_of(simulator, model, inputs[:1], targets[:1])  # refuses what does not fit
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        before = {n: p.detach().clone() for n, p in named.items()}
        federated = isinstance(simulator, UpdateSimulator)
        local = simulator.local if federated else LocalTraining(1, 1.0)
        assert simulator.clipped_noise is not None
        texts = isinstance(model, TokenModel)
        wrapped = model if texts else _wrapped(model)
        optimizer = _optimizer(wrapped, simulator.clipped_noise, local, simulator, generator)
        with warnings.catch_warnings():
            # Records need no gradient, which Opacus' hooks are told of at every step.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            for batch in local.batches(len(secret)):
                optimizer.zero_grad()
                optimizer.expected_batch_size = len(inputs[batch])
                if texts:
                    _keep_gradients(model, simulator, inputs[batch], targets[batch])
                else:
                    outputs = logits_of(wrapped(inputs[batch]))
                    simulator.loss(outputs, targets[batch]).sum().backward()
                if federated:
                    optimizer.step()
                else:
                    optimizer.pre_step()
        if not federated:
            return GradientRelease(
                {n: p.grad.detach().clone() for n, p in named.items() if p.grad is not None}
            )
        return UpdateRelease({n: p.detach() - before[n] for n, p in named.items()})

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return {**self.victim.describe(), "Clipping and noise by": "Opacus"}


def _keep_gradients(model: nn.Module, simulator: Simulator, x: Tensor, targets: Tensor) -> None:
    """Keep each record's gradient where Opacus' optimizer looks for it, one record at a time."""
    named = [p for p in model.parameters() if p.requires_grad]
    rows: list[list[Tensor]] = []
    for place in range(len(x)):
        one = slice(place, place + 1)
        loss = simulator.loss(logits_of(model(x[one])), targets[one]).sum()
        found = torch.autograd.grad(loss, named, allow_unused=True)
        pairs = zip(found, named)
        rows.append([torch.zeros_like(p) if grad is None else grad for grad, p in pairs])
    for place, parameter in enumerate(named):
        parameter.grad_sample = torch.stack([row[place] for row in rows])  # pyright: ignore[reportAttributeAccessIssue]


def _wrapped(model: nn.Module) -> GradSampleModule:
    try:
        from opacus import GradSampleModule
    except ImportError as error:
        raise BadInput(
            "Training by Opacus needs Opacus, which is not installed: "
            f"{extra('dp')}, or say by='victim'."
        ) from error
    mixing = nn.modules.batchnorm._NormBase
    if any(isinstance(module, mixing) for module in model.modules()):
        raise BadInput(
            "Opacus has no gradients of single records behind batch norm: use group norm, or say "
            "by='victim'."
        )
    wrapped = GradSampleModule(model, loss_reduction="sum")
    # Its hooks keep gradients of records in train mode only, and the client runs in eval mode:
    # what differs between the two stays as it is.
    for module in wrapped.modules():
        module.training = not isinstance(module, nn.modules.dropout._DropoutNd)
    return wrapped


def _optimizer(
    wrapped: nn.Module,
    private: ClippedNoise,
    local: LocalTraining,
    simulator: Simulator,
    generator: torch.Generator,
) -> Any:
    from opacus.optimizers import DPOptimizer

    plain = torch.optim.SGD(
        [p for p in wrapped.parameters() if p.requires_grad],
        lr=local.learning_rate,
        momentum=local.momentum,
    )
    return DPOptimizer(
        plain,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.clipping_norm,
        expected_batch_size=1,
        loss_reduction=simulator.reduction,
        generator=generator,
    )
