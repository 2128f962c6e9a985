"""A client that sends the gradient of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease
from vestige.mechanisms import DPSGD, NonPrivate
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.simulation.refusals import refusing
from vestige.simulation.simulator import Mode, Reduction
from vestige.victims.client import client_batch, client_copy, loss_of, seeded, set_private_gradients
from vestige.victims.description import describe_client


@dataclass(frozen=True)
class SharedGradient:
    """Distributed SGD: every client sends the gradient of its loss on one batch.

    The gradient is computed by ordinary training code (forward, backward), not by the simulator
    that attackers replay, so that comparing the two is a real check. In train mode the release
    carries the buffers (batch-norm statistics) as the client's state holds them afterwards;
    the threat model decides whether anybody sees them.

    With ``private`` the gradient is that of one step of DP-SGD (Abadi et al. 2016, Algorithm 1):
    every record's gradient is clipped and Gaussian noise joins their sum; the network then runs in
    eval mode, because batch norm would mix records.
    """

    model: nn.Module
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    trained_steps: int = 0
    private: ClippedNoise | None = None

    releases = GradientRelease

    def __post_init__(self) -> None:
        check_fields(self, not_negative=("trained_steps",))
        if self.private is not None and self.mode != "eval":
            raise BadInput("A private gradient is computed record by record: say mode='eval'.")

    @property
    def mechanism(self) -> DPSGD | NonPrivate:
        """One step of DP-SGD in which the record takes part; or nothing."""
        if self.private is not None and self.private.noise_multiplier > 0:
            return self.private.mechanism(steps=1)
        return NonPrivate("the gradient leaves as it was computed")

    @property
    def simulator(self) -> GradientSimulator:
        """The same computation, differentiable."""
        return GradientSimulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            self.private,
        )

    def release(self, secret: Records, *, generator: torch.Generator) -> GradientRelease:
        """Return the gradient of the batch, by parameter name, trainable parameters only."""
        simulator = self.simulator
        inputs, targets = client_batch(simulator, secret)
        model = client_copy(simulator)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if self.private is not None:
            set_private_gradients(
                simulator, model, inputs, targets, self.private, generator=generator
            )
            return GradientRelease(
                {n: p.grad.detach() for n, p in named.items() if p.grad is not None}
            )
        with seeded(generator), refusing():
            loss = loss_of(simulator, model, inputs, targets)
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        tensors = {
            n: (torch.zeros_like(p) if g is None else g).detach()
            for (n, p), g in zip(named.items(), found)
        }
        buffers = dict(model.named_buffers()) if self.mode == "train" else {}
        return GradientRelease(tensors, {n: b.detach().clone() for n, b in buffers.items()})

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return describe_client("SharedGradient", self.simulator, self.trained_steps)
