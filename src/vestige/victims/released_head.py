"""A head that is trained on the features of a few records, and published."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.errors import BadInput, extra
from vestige.interfaces import ModelRelease
from vestige.mechanisms import Mechanism, NonPrivate
from vestige.networks.headed_model import HeadedModel
from vestige.records import Records
from vestige.simulation.backbone_features import features_of_inputs
from vestige.simulation.dp_sgd import clipping_factors
from vestige.simulation.head import HeadSimulator
from vestige.simulation.head_training import HeadTraining
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import cross_entropy, logistic
from vestige.simulation.training_sets import OneAgainstRest
from vestige.victims.client import client_batch
from vestige.victims.description import describe_client


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

    releases = ModelRelease

    def __post_init__(self) -> None:
        if isinstance(self.model, nn.Module) and not isinstance(self.model, HeadedModel):
            raise BadInput(
                f"A {type(self.model).__name__} has no backbone and head that are told apart: "
                "write HeadedModel(backbone, width, outputs)."
            )
        check_fields(self)
        if self.private_by == "opacus" and self.training.private is None:
            raise BadInput("Opacus trains privately: give the training its DPSGD mechanism.")
        labels = self.training.makeup.outputs
        fits = (labels, 1) if labels == 2 else (labels,)
        if self.model.outputs not in fits:
            raise BadInput(
                f"The head has outputs={self.model.outputs}, but its training set teaches {labels} "
                "labels: make them equal."
            )

    @property
    def simulator(self) -> HeadSimulator:
        """The same training, differentiable; every run draws its own initial weights."""
        return HeadSimulator(
            self.model,
            logistic if self.model.outputs == 1 else cross_entropy,
            normalization=self.normalization,
            training=self.training,
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
        inputs, targets = client_batch(simulator, secret)
        taught = training.taught(targets)
        weights = training.record_weights(taught)
        with torch.no_grad():
            features = features_of_inputs(simulator.model, inputs)
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
            for step, members in enumerate(training.batches(len(secret), order), 1):
                for group in optimizer.param_groups:
                    group["lr"] = training.rate(step)
                optimizer.zero_grad()
                losses(head, members).mean().backward()
                optimizer.step()
        if not all(bool(value.isfinite().all()) for value in head.parameters()):
            raise BadInput(
                "The training of the head diverges, its weights become NaN or infinite: lower the "
                "learning_rate."
            )
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
    if training.adaptive:
        kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
        return kind(head.parameters(), lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        head.parameters(), lr=rate, weight_decay=decay, momentum=training.momentum
    )


LossOfRecords = Callable[[nn.Module, Tensor], Tensor]
"""(head, members) → weighted loss of each of these records."""


def train_by_own_loop(
    head: nn.Module,
    training: HeadTraining,
    losses: LossOfRecords,
    *,
    generator: torch.Generator,
) -> None:
    """Every record's own backward pass, clipped, summed, noised."""
    private, parameters, records = training.private, list(head.parameters()), training.makeup.size
    assert private is not None
    assert private.clipping_norm is not None
    limit = private.clipping_norm
    for _ in range(private.steps):
        sampled = torch.rand(records, generator=generator) < private.sampling_rate
        total = [torch.zeros_like(p) for p in parameters]
        for member in torch.nonzero(sampled):
            slopes = torch.autograd.grad(losses(head, member).sum(), parameters)
            norm = torch.stack([g.square().sum() for g in slopes]).sum().sqrt()
            for sum_, slope in zip(total, slopes):
                sum_ += slope * clipping_factors(norm, limit)
        expected = private.sampling_rate * records
        with torch.no_grad():
            for parameter, sum_ in zip(parameters, total):
                noise = torch.randn(sum_.shape, generator=generator).to(sum_)
                step = (sum_ + private.noise_multiplier * limit * noise) / expected
                parameter.mul_(training.decay).sub_(training.learning_rate * step)


def train_by_opacus(
    head: nn.Module,
    training: HeadTraining,
    losses: LossOfRecords,
    *,
    generator: torch.Generator,
) -> None:
    """Opacus' sampler, per-sample gradients and optimiser.

    Opacus divides by a gradient's norm plus 1e-6, so it clips that much harder than it says.
    """
    try:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    except ImportError as error:
        raise BadInput(
            "Training a head with Opacus needs Opacus, which is not installed: "
            f"{extra('dp')}, or set private_by='own loop'."
        ) from error
    private, records = training.private, training.makeup.size
    assert private is not None
    assert private.clipping_norm is not None
    wrapped = GradSampleModule(head, loss_reduction="sum")
    plain = torch.optim.SGD(
        wrapped.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    optimizer = DPOptimizer(
        plain,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.clipping_norm,
        expected_batch_size=private.sampling_rate * records,  # pyright: ignore[reportArgumentType]
        generator=generator,
    )
    sampler = UniformWithReplacementSampler(
        num_samples=records,
        sample_rate=private.sampling_rate,
        steps=private.steps,
        generator=generator,
    )
    with warnings.catch_warnings():
        # Features need no gradient, which Opacus' hooks are told of at every step.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for members in sampler:
            optimizer.zero_grad()
            losses(wrapped, torch.tensor(members, dtype=torch.int64)).sum().backward()
            optimizer.step()
    wrapped.to_standard_module()
