"""A client that sends the gradient of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.bounds.mechanisms import DPSGD, NonPrivate
from vestige.errors import BadInput
from vestige.observations import GradientRelease, Release
from vestige.private_steps import ClippedNoise
from vestige.records import Records
from vestige.simulation import Loss, Mode, Normalization, Reduction, Simulator, cross_entropy
from vestige.victims.client import client_batch, client_copy, loss_of, seeded
from vestige.victims.description import describe_client
from vestige.victims.private_gradients import set_private_gradients


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

    def __post_init__(self) -> None:
        if self.private is not None and self.mode != "eval":
            raise BadInput("A private gradient is computed record by record: say mode='eval'.")

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return GradientRelease

    @property
    def mechanism(self) -> DPSGD | NonPrivate:
        """One step of DP-SGD in which the record takes part; or nothing."""
        if self.private is not None and self.private.noise_multiplier > 0:
            noise, norm = self.private.noise_multiplier, self.private.clipping_norm
            return DPSGD(noise, sampling_rate=1.0, steps=1, clipping_norm=norm)
        return NonPrivate("the gradient leaves as it was computed")

    @property
    def simulator(self) -> Simulator:
        """The same computation, differentiable."""
        return Simulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            clipped_noise=self.private,
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
