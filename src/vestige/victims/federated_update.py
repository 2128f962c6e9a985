"""A client that trains for a while and sends the difference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.bounds.mechanisms import DPSGD, LocalAggregation
from vestige.errors import BadInput
from vestige.observations import Release, UpdateRelease
from vestige.private_steps import ClippedNoise
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
from vestige.victims.private_gradients import set_private_gradients


@dataclass(frozen=True)
class FederatedUpdate:
    """Federated averaging (McMahan et al. 2017): K local SGD steps, then new − old parameters.

    With ``reshuffle`` the client draws a new order at every epoch; an attacker that replays the
    fixed order is then wrong about who shared a batch with whom. With ``private`` every local step
    is one of DP-SGD (Abadi et al. 2016, Algorithm 1) on its batch.
    """

    model: nn.Module
    local: LocalTraining
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    reshuffle: bool = False
    trained_steps: int = 0
    private: ClippedNoise | None = None

    def __post_init__(self) -> None:
        if self.private is not None and self.mode != "eval":
            raise BadInput("Private steps are computed record by record: say mode='eval'.")

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return UpdateRelease

    @property
    def mechanism(self) -> DPSGD | LocalAggregation:
        """Every local step counted as if the record were in it; or local steps alone."""
        if self.private is not None and self.private.noise_multiplier > 0:
            noise, norm = self.private.noise_multiplier, self.private.clipping_norm
            return DPSGD(noise, sampling_rate=1.0, steps=self.local.steps, clipping_norm=norm)
        return LocalAggregation(self.local.steps)

    @property
    def simulator(self) -> Simulator:
        """The same computation, differentiable, in the fixed order."""
        return Simulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            self.local,
            clipped_noise=self.private,
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
                some, taught = inputs[order[batch]], targets[order[batch]]
                if self.private is None:
                    loss_of(simulator, model, some, taught).backward()
                else:
                    set_private_gradients(
                        simulator, model, some, taught, self.private, generator=generator
                    )
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
