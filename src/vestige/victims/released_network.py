"""A network that is trained on known records and one more, and published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.bounds.mechanisms import DPSGD, NonPrivate
from vestige.errors import BadInput
from vestige.observations import ModelRelease, Release
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
from vestige.victims.known_records import joined
from vestige.victims.private_gradients import set_private_gradients


@dataclass(frozen=True)
class ReleasedNetwork:
    """Any network trained by SGD on ``known`` ∪ {secret} from its given weights, then published.

    The released model of Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed
    Adversaries" (2022), Section 4. The secret comes last in the fixed order of training; without
    a batch size every step sees all records. With ``fresh_initialization`` every run draws its
    own initial weights, layer by layer (``reset_parameters``).

    With ``private`` it is trained by DP-SGD (Abadi et al. 2016) on the full batch: every
    record's gradient is clipped, Gaussian noise joins their sum, and only the last weights are
    published. The stated ``mechanism`` counts every step, as if all of them had been seen.
    """

    model: nn.Module
    known: Records
    training: LocalTraining
    loss: Loss = cross_entropy
    reduction: Reduction = "mean"
    mode: Mode = "train"
    normalization: Normalization | None = None
    fresh_initialization: bool = False
    private: ClippedNoise | None = None

    def __post_init__(self) -> None:
        if self.private is None:
            return
        if self.training.batch_size is not None:
            raise BadInput(
                "A private network is trained on all records at every step: leave batch_size at "
                "None, or audit sampled steps with PrivateTraining."
            )
        if self.mode == "train" and any(isinstance(m, _BatchNorm) for m in self.model.modules()):
            raise BadInput(
                "Batch norm mixes records, so no gradient is one record's own to clip: say "
                "mode='eval', or use group norm."
            )

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return ModelRelease

    @property
    def mechanism(self) -> DPSGD | NonPrivate:
        """DP-SGD in which every step sees every record; or why there is no guarantee."""
        private = self.private
        if private is None:
            return NonPrivate("the network is published as it was trained")
        if private.noise_multiplier == 0:
            return NonPrivate("gradients are clipped, but no noise is added")
        return DPSGD(
            private.noise_multiplier, 1.0, self.training.steps, clipping_norm=private.clipping_norm
        )

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
            clipped_noise=self.private,
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
                if self.private is None:
                    loss_of(simulator, model, inputs[batch], targets[batch]).backward()
                else:
                    set_private_gradients(
                        simulator, model, inputs, targets, self.private, generator=generator
                    )
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
