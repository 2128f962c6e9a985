"""A network that is trained on known records and one more, and published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vestige.observations import ModelRelease, Release
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
from vestige.victims.known_records import joined


@dataclass(frozen=True)
class ReleasedNetwork:
    """Any network trained by SGD on ``known`` ∪ {secret} from its given weights, then published.

    The released model of Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed
    Adversaries" (2022), Section 4. The secret comes last in the fixed order of training; without
    a batch size every step sees all records. With ``fresh_initialization`` every run draws its
    own initial weights, layer by layer (``reset_parameters``).
    """

    model: nn.Module
    known: Records
    training: LocalTraining
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    fresh_initialization: bool = False

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return ModelRelease

    @property
    def simulator(self) -> Simulator:
        """The same training, differentiable, on the known records and a candidate."""
        return Simulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            self.training,
            companions=self.known,
            fresh_initialization=self.fresh_initialization,
        )

    def release(self, secret: Records, *, generator: torch.Generator) -> ModelRelease:
        """Train a copy with torch's SGD and return its trained parameters and its buffers."""
        simulator = self.simulator.started(generator)
        records = joined(self.known, secret)
        inputs, targets = client_batch(simulator, records)
        model = client_copy(simulator)
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.SGD(
            named.values(), lr=self.training.learning_rate, momentum=self.training.momentum
        )
        with seeded(generator):
            for batch in self.training.batches(len(records)):
                optimizer.zero_grad()
                loss_of(simulator, model, inputs[batch], targets[batch]).backward()
                optimizer.step()
        return ModelRelease(
            {n: p.detach().clone() for n, p in named.items()},
            {n: b.detach().clone() for n, b in model.named_buffers()},
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        described = describe_client("ReleasedNetwork", self.simulator)
        described["Initial weights"] = "new in every run" if self.fresh_initialization else "fixed"
        return described
