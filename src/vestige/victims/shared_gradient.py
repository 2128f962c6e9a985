"""A client that sends the gradient of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.bounds.mechanisms import NonPrivate
from vestige.observations import GradientRelease, Release
from vestige.records import Records
from vestige.simulation import Loss, Mode, Normalization, Reduction, Simulator, cross_entropy
from vestige.victims.client import client_batch, client_copy, loss_of, seeded
from vestige.victims.description import describe_client


@dataclass(frozen=True)
class SharedGradient:
    """Distributed SGD: every client sends the gradient of its loss on one batch.

    The gradient is computed by ordinary training code (forward, backward), not by the simulator
    that attackers replay, so that comparing the two is a real check. In train mode the release
    carries the buffers (batch-norm statistics) as the client's state holds them afterwards;
    the threat model decides whether anybody sees them.
    """

    model: nn.Module
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    trained_steps: int = 0

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return GradientRelease

    @property
    def mechanism(self) -> NonPrivate:
        """Nothing is done to the gradient."""
        return NonPrivate("the gradient leaves as it was computed")

    @property
    def simulator(self) -> Simulator:
        """The same computation, differentiable."""
        return Simulator(self.model, self.loss, self.reduction, self.mode, self.normalization)

    def release(self, secret: Records, *, generator: torch.Generator) -> GradientRelease:
        """Return the gradient of the batch, by parameter name, trainable parameters only."""
        simulator = self.simulator
        inputs, targets = client_batch(simulator, secret)
        model = client_copy(simulator)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        with seeded(generator):
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
