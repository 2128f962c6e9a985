"""A network that is trained on known records and one more, and published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.interfaces import ModelRelease
from vestige.mechanisms import DPSGD, NonPrivate
from vestige.records import Records
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import Loss, cross_entropy
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.simulator import Mode, Reduction
from vestige.victims.client import client_batch, client_copy, joined, train_by_sgd
from vestige.victims.description import describe_client


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

    releases = ModelRelease

    def __post_init__(self) -> None:
        check_fields(self)
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
    def mechanism(self) -> DPSGD | NonPrivate:
        """DP-SGD in which every step sees every record; or why there is no guarantee."""
        private = self.private
        if private is None:
            return NonPrivate("the network is published as it was trained")
        if private.noise_multiplier == 0:
            return NonPrivate("gradients are clipped, but no noise is added")
        return private.mechanism(self.training.steps)

    @property
    def simulator(self) -> NetworkSimulator:
        """The same training, differentiable, on the known records and a candidate."""
        return NetworkSimulator(
            self.model,
            self.loss,
            self.reduction,
            self.mode,
            self.normalization,
            local=self.training,
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
        train_by_sgd(simulator, model, inputs, targets, generator=generator)
        return ModelRelease(
            {n: p.detach().clone() for n, p in named.items()},
            {n: b.detach().clone() for n, b in model.named_buffers()},
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        described = describe_client("ReleasedNetwork", self.simulator)
        described["Initial weights"] = "new in every run" if self.fresh_initialization else "fixed"
        return described
