"""A head that is trained on the features of a few records, and published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.bounds.mechanisms import Mechanism, NonPrivate
from vestige.errors import BadInput
from vestige.heads import HeadedModel, HeadTraining
from vestige.observations import ModelRelease, Release
from vestige.records import Records
from vestige.simulation import Normalization, Simulator, cross_entropy, logistic
from vestige.victims.client import client_batch
from vestige.victims.description import describe_client


@dataclass(frozen=True)
class ReleasedHead:
    """The head of a ``HeadedModel``, trained from fresh weights on the secret batch alone.

    The released model of Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks
    to Data Reconstruction Attacks in Small-Data Regime" (2025), Section 3. The loss is
    cross-entropy, for a single logit the logistic one.
    """

    model: HeadedModel
    training: HeadTraining
    normalization: Normalization | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, HeadedModel):
            raise BadInput(
                f"A {type(self.model).__name__} has no backbone and head that are told apart: "
                "write HeadedModel(backbone, width, outputs)."
            )
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
        simulator = self.simulator.started(generator)
        assert isinstance(simulator.model, HeadedModel)
        inputs, targets = client_batch(simulator, secret)
        taught = training.taught(targets)
        weights = training.record_weights(taught)
        with torch.no_grad():
            features = simulator.model.features(inputs)
        head = simulator.model.head
        if training.private is not None:
            _train_privately(head, simulator, features, taught, weights, generator)
        else:
            order = torch.Generator().manual_seed(simulator.order or 0)
            optimizer = _optimizer(training, head)
            for members in training.batches(len(secret), order):
                optimizer.zero_grad()
                losses = simulator.loss(head(features[members]), taught[members])
                (weights[members] * losses).mean().backward()
                optimizer.step()
        return ModelRelease(
            {f"head.{name}": value.detach().clone() for name, value in head.named_parameters()}
        )

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return describe_client("ReleasedHead", self.simulator)


def _optimizer(training: HeadTraining, head: nn.Module) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(head.parameters(), lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        head.parameters(), lr=rate, weight_decay=decay, momentum=training.momentum
    )


def _train_privately(
    head: nn.Module,
    simulator: Simulator,
    features: Tensor,
    taught: Tensor,
    weights: Tensor,
    generator: torch.Generator,
) -> None:
    """DP-SGD by ordinary code: every record's own backward pass, clipped, summed, noised."""
    training = simulator.head
    assert training is not None
    assert training.private is not None
    private, parameters = training.private, list(head.parameters())
    limit = private.clipping_norm
    assert limit is not None
    for _ in range(private.steps):
        sampled = torch.rand(len(features), generator=generator) < private.sampling_rate
        total = [torch.zeros_like(p) for p in parameters]
        for member in torch.nonzero(sampled).flatten().tolist():
            own = slice(member, member + 1)
            loss = (weights[own] * simulator.loss(head(features[own]), taught[own])).sum()
            slopes = torch.autograd.grad(loss, parameters)
            norm = torch.stack([g.square().sum() for g in slopes]).sum().sqrt()
            for sum_, slope in zip(total, slopes):
                sum_ += slope * (limit / norm.clamp_min(limit))
        expected = private.sampling_rate * len(features)
        with torch.no_grad():
            for parameter, sum_ in zip(parameters, total):
                noise = torch.randn(sum_.shape, generator=generator).to(sum_)
                step = (sum_ + private.noise_multiplier * limit * noise) / expected
                parameter.mul_(training.decay).sub_(training.learning_rate * step)
