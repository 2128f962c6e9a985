"""A client that trains for a while and sends the difference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import UpdateRelease
from vestige.mechanisms import DPSGD, LocalAggregation
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.simulation.simulator import Mode, Reduction
from vestige.simulation.update import UpdateSimulator
from vestige.victims.client import client_batch, client_copy, train_by_sgd
from vestige.victims.description import describe_client


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

    releases = UpdateRelease

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("trained_steps",))
        if self.private is not None and self.mode != "eval":
            raise BadInput("Private steps are computed record by record: say mode='eval'.")

    @property
    def mechanism(self) -> DPSGD | LocalAggregation:
        """Every local step counted as if the record were in it; or local steps alone."""
        if self.private is not None and self.private.noise_multiplier > 0:
            return self.private.mechanism(self.local.steps)
        return LocalAggregation(self.local.steps)

    @property
    def simulator(self) -> UpdateSimulator:
        """The same computation, differentiable, in the fixed order."""
        return UpdateSimulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            local=self.local,
            clipped_noise=self.private,
        )

    def release(self, secret: Records, *, generator: torch.Generator) -> UpdateRelease:
        """Train a copy with torch's SGD and return the difference of its trainable parameters."""
        simulator = self.simulator
        inputs, targets = client_batch(simulator, secret)
        model = client_copy(simulator)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        before = {n: p.detach().clone() for n, p in named.items()}
        train_by_sgd(
            simulator, model, inputs, targets, reshuffle=self.reshuffle, generator=generator
        )
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
