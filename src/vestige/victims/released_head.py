"""A head that is trained on the features of a few records, and published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.errors import BadInput
from vestige.heads import HeadedModel, HeadTraining
from vestige.observations import ModelRelease, Release
from vestige.records import Records
from vestige.simulation import Normalization, Simulator, cross_entropy, logistic
from vestige.training_sets import OneAgainstRest
from vestige.victims.client import client_batch
from vestige.victims.description import describe_client
from vestige.victims.head_dp_sgd import train_by_opacus, train_by_own_loop


@dataclass(frozen=True)
class ReleasedHead:
    """The head of a ``HeadedModel``, trained from fresh weights on the secret batch alone.

    The released model of Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks
    to Data Reconstruction Attacks in Small-Data Regime" (2025), Section 3. The loss is
    cross-entropy, for a single logit the logistic one. ``private_by`` says whose code runs DP-SGD
    where the training is private.
    """

    model: HeadedModel
    training: HeadTraining
    normalization: Normalization | None = None
    private_by: Literal["own loop", "opacus"] = "own loop"

    def __post_init__(self) -> None:
        if not isinstance(self.model, HeadedModel):
            raise BadInput(
                f"A {type(self.model).__name__} has no backbone and head that are told apart: "
                "write HeadedModel(backbone, width, outputs)."
            )
        if self.private_by not in ("own loop", "opacus"):
            raise BadInput(f"DP-SGD runs by 'own loop' or 'opacus', not by {self.private_by!r}.")
        if self.private_by == "opacus" and self.training.private is None:
            raise BadInput("Opacus trains privately: give the training its DPSGD mechanism.")
        labels = self.training.makeup.outputs
        fits = (labels, 1) if labels == 2 else (labels,)
        if self.model.outputs not in fits:
            raise BadInput(
                f"The head has {self.model.outputs} outputs, but its training set teaches "
                f"{labels} labels: make them equal."
            )

    @property
    def releases(self) -> type[Release]:
        """The kind of release."""
        return ModelRelease

    @property
    def simulator(self) -> Simulator:
        """The same training, differentiable; every run draws its own initial weights."""
        return Simulator(
            self.model,
            logistic if self.model.outputs == 1 else cross_entropy,
            normalization=self.normalization,
            head=self.training,
            fresh_initialization=True,
        )

    @property
    def mechanism(self) -> Mechanism:
        """DP-SGD where the training is private; it draws its samples itself."""
        return self.training.private or NonPrivate("a head is trained without noise")

    def release(self, secret: Records, *, generator: torch.Generator) -> ModelRelease:
        """Train a head with torch's optimisers and return its parameters."""
        training = self.training
        if len(secret) != training.makeup.size:
            raise BadInput(
                f"The head is trained on {training.makeup.size} records, not {len(secret)}: set "
                f"batch_size={training.makeup.size}, or change the makeup of its training."
            )
        if isinstance(training.makeup, OneAgainstRest) and secret.classes != 2:
            raise BadInput(
                "One class against the rest is taught two labels: label the secret's records 1 "
                "(this one) and 0 (another), in a space of two classes."
            )
        simulator = self.simulator.started(generator)
        assert isinstance(simulator.model, HeadedModel)
        inputs, targets = client_batch(simulator, secret)
        taught = training.taught(targets)
        weights = training.record_weights(taught)
        with torch.no_grad():
            features = simulator.model.features(inputs)
        head = simulator.model.head

        def losses(of: nn.Module, members: Tensor) -> Tensor:
            return weights[members] * simulator.loss(of(features[members]), taught[members])

        if training.private is not None:
            opacus = self.private_by == "opacus"
            train = train_by_opacus if opacus else train_by_own_loop
            train(head, training, losses, generator=generator)
        else:
            order = torch.Generator().manual_seed(simulator.order or 0)
            optimizer = _optimizer(training, head)
            for members in training.batches(len(secret), order):
                optimizer.zero_grad()
                losses(head, members).mean().backward()
                optimizer.step()
        return ModelRelease(
            {f"head.{name}": value.detach().clone() for name, value in head.named_parameters()}
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        described = describe_client("ReleasedHead", self.simulator)
        if self.private_by == "opacus":
            described["DP-SGD"] = "by Opacus"
        return described


def _optimizer(training: HeadTraining, head: nn.Module) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(head.parameters(), lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        head.parameters(), lr=rate, weight_decay=decay, momentum=training.momentum
    )
