"""A head's training in its coefficients: differentiable in the features it is trained on.

Gradient descent moves a layer's weights along the features it sees, so the trained first layer is
W = κ·W₀ + AᵀX with one row of coefficients A for each record, κ what weight decay leaves of the
initial weights W₀, and its bias the sum of the rows of A. A follows from the records' Gram matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.heads.groups import Groups
from vestige.heads import HeadTraining

LEAST_NOISE = 1e-12
"""Variance of a weight that began at zero: rounding."""


@dataclass(frozen=True)
class LinearTraining:
    """Training of a linear head on a group's mean instead of its records, every batch the whole.

    With one record in each group and full batches it is the training itself. The order of shuffled
    batches is unknown: as many steps are taken, each with the mean over all. Of DP-SGD clipping is
    repeated; its noise enters as ``noise_variance``. Logits under the initial weights are unknown,
    too, and change the coefficients: ``noise_factor`` multiplies the noise to allow for that.
    """

    training: HeadTraining
    groups: Groups
    outputs: int
    noise_factor: float = 1.0

    @property
    def kept(self) -> float:
        """What is left of the initial weights."""
        weight, speed = 1.0, 0.0
        for _ in range(self.training.steps):
            speed = self.training.momentum * speed + self.training.weight_decay * weight
            weight -= self.training.learning_rate * speed
        return weight

    @property
    def private_variance(self) -> float:
        """Variance that the noise of DP-SGD leaves in each parameter."""
        training, total = self.training, 0.0
        for _ in range(training.steps):
            total = training.decay**2 * total + private_scale(training) ** 2
        return total

    @property
    def noise_variance(self) -> float:
        """Variance of a released weight around AᵀX: initial weights, and the noise of DP-SGD."""
        started = (self.kept * self.training.initial_deviation) ** 2
        return max(self.noise_factor * (started + self.private_variance), LEAST_NOISE)

    def coefficients(self, features: Tensor, start: Tensor | None = None) -> Tensor:
        """Coefficients (s, g, outputs) of heads trained on features (s, g, d).

        ``start`` (s, g, outputs) are the logits under the initial weights; zero if unknown.
        """
        training, groups = self.training, self.groups
        goals = groups.goals(training.makeup.outputs).to(features)
        shares = torch.tensor(groups.counts).to(features) / groups.size
        shares = (shares * training.record_weights(goals))[:, None]
        gram = features @ features.mT + 1
        norms = gram.diagonal(dim1=1, dim2=2)[:, :, None].sqrt()
        logits = features.new_zeros((*features.shape[:2], self.outputs)) if start is None else start
        found = torch.zeros_like(logits)
        speeds = (torch.zeros_like(logits), torch.zeros_like(logits))
        for _ in range(training.steps):
            pull = shares * clipped(training, residuals(logits, goals), norms)
            if not training.momentum:  # the same in fewer operations: the polish waits for them
                pull = training.learning_rate * pull
                logits = torch.baddbmm(logits, gram, pull, beta=training.decay, alpha=-1)
                found = training.decay * found - pull
                continue
            slopes = (
                gram @ pull + training.weight_decay * logits,
                pull + training.weight_decay * found,
            )
            speeds = tuple(training.momentum * v + g for v, g in zip(speeds, slopes))
            logits = logits - training.learning_rate * speeds[0]
            found = found - training.learning_rate * speeds[1]
        return found

    def is_stable(self, features: Tensor) -> bool:
        """Whether a step brings training on features (g, d) nearer to rest instead of past it.

        η·λ(G)/N·λ(diag p − ppᵀ) < 2 with the largest curvature that any p has: ½, or ¼ for a single
        logit.
        """
        shares = torch.tensor(self.groups.counts).to(features) / self.groups.size
        root = shares.sqrt()[:, None] * features
        gram = root @ root.T + shares.sqrt()[:, None] * shares.sqrt()
        curvature = 0.25 if self.outputs == 1 else 0.5
        slope = float(torch.linalg.eigvalsh(gram.double())[-1]) * curvature
        return self.training.learning_rate * slope / (1 - self.training.momentum) < 2


def residuals(logits: Tensor, goals: Tensor) -> Tensor:
    """Slopes (…, outputs) of the losses at the logits; a single logit tells two labels apart."""
    if logits.shape[-1] == 1:
        return logits.sigmoid() - goals[..., 1:]
    return logits.softmax(-1) - goals


def clipped(training: HeadTraining, slopes: Tensor, norms: Tensor) -> Tensor:
    """Slopes as DP-SGD clips them: a record's gradient has the norm ‖slope‖·√(‖x‖² + 1)."""
    if training.private is None:
        return slopes
    limit = training.private.clipping_norm
    assert limit is not None
    size = slopes.norm(dim=-1, keepdim=True) * norms
    return slopes * (limit / size.clamp_min(limit))


def private_scale(training: HeadTraining) -> float:
    """Deviation of the noise that one step of DP-SGD adds to a parameter."""
    private = training.private
    if private is None:
        return 0.0
    assert private.clipping_norm is not None
    expected = private.sampling_rate * training.makeup.size
    return training.learning_rate * private.noise_multiplier * private.clipping_norm / expected
