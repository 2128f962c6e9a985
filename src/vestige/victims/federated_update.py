"""A client that trains for a while and sends the difference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.bounds.mechanisms import LocalAggregation
from vestige.observations import Release, UpdateRelease
from vestige.records import Records
from vestige.simulation import (
    LocalTraining,
    Loss,
    Mode,
    Normalization,
    Reduction,
    Simulator,
    cross_entropy,
)
from vestige.victims.client import client_batch, client_copy, loss_of, seeded
from vestige.victims.description import describe_client


@dataclass(frozen=True)
class FederatedUpdate:
    """Federated averaging (McMahan et al. 2017): K local SGD steps, then new − old parameters.

    With ``reshuffle`` the client draws a new order at every epoch; an attacker that replays the
    fixed order is then wrong about who shared a batch with whom.
    """

    model: nn.Module
    local: LocalTraining
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    reshuffle: bool = False
    trained_steps: int = 0

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return UpdateRelease

    @property
    def mechanism(self) -> LocalAggregation:
        """Local steps alone."""
        return LocalAggregation(self.local.steps)

    @property
    def simulator(self) -> Simulator:
        """The same computation, differentiable, in the fixed order."""
        return Simulator(
            self.model, self.loss, self.reduction, self.mode, self.normalization, self.local
        )

    def release(self, secret: Records, *, generator: torch.Generator) -> UpdateRelease:
        """Train a copy with torch's SGD and return the difference of its trainable parameters."""
        simulator = self.simulator
        inputs, targets = client_batch(simulator, secret)
        model = client_copy(simulator)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        before = {n: p.detach().clone() for n, p in named.items()}
        optimizer = torch.optim.SGD(
            named.values(), lr=self.local.learning_rate, momentum=self.local.momentum
        )
        order = torch.arange(len(secret))
        with seeded(generator):
            for batch in self.local.batches(len(secret)):
                if self.reshuffle and batch.start == 0:
                    order = torch.randperm(len(secret), generator=generator)
                optimizer.zero_grad()
                loss_of(simulator, model, inputs[order[batch]], targets[order[batch]]).backward()
                optimizer.step()
        buffers = dict(model.named_buffers()) if self.mode == "train" else {}
        return UpdateRelease(
            {n: p.detach() - before[n] for n, p in named.items()},
            {n: b.detach().clone() for n, b in buffers.items()},
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        described = describe_client("FederatedUpdate", self.simulator, self.trained_steps)
        described["Local order"] = "new every epoch" if self.reshuffle else "fixed"
        return described
