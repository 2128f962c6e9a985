"""Training of linear heads on groups of records, differentiable in the groups' mean features.

Gradient descent moves a layer's weights along the features it sees, so the trained first layer is
W = κ·W₀ + AᵀX with one row of coefficients A for each record, κ what weight decay leaves of the
initial weights W₀, and its bias the sum of the rows of A. A follows from the records' Gram matrix
(:mod:`vestige.shadows.heads.dual`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.head_inversion.groups import Groups
from vestige.shadows.heads.dual import Span, train_linear
from vestige.shadows.heads.steps import HeadSteps
from vestige.simulation.head_training import HeadTraining

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
    def noise_variance(self) -> float:
        """Variance of a released weight around AᵀX: initial weights, and the noise of DP-SGD."""
        training = self.training
        started = (training.initial_share * training.initial_deviation) ** 2
        return max(self.noise_factor * (started + training.final_noise**2), LEAST_NOISE)

    def coefficients(self, features: Tensor) -> Tensor:
        """Coefficients (s, g, outputs) of heads trained on features (s, g, d) from zero weights."""
        training, groups = self.training, self.groups
        taught = groups.goals(training.makeup.outputs).to(features)[None]
        goals = (taught[..., 1:] if self.outputs == 1 else taught).mT
        weights = None
        if training.class_weights is not None:
            weights = training.record_weights(taught).unsqueeze(1)
        shares = groups.shares.to(features).expand(1, 1, -1)
        start = features.new_zeros((len(features), self.outputs, features.shape[2]))
        layer = Span(training, [(features, start)])
        train_linear(HeadSteps(training, goals, weights, [shares] * training.steps), layer)
        return layer.coefficients.mT

    def is_stable(self, features: Tensor) -> bool:
        """Whether a step brings training on features (g, d) nearer to rest instead of past it.

        η·λ(G)/N·λ(diag p − ppᵀ) < 2 with the largest curvature that any p has: ½, or ¼ for a single
        logit.
        """
        root = self.groups.shares.to(features).sqrt()[:, None]
        gram = (root * features) @ (root * features).T + root * root.T
        curvature = 0.25 if self.outputs == 1 else 0.5
        slope = float(torch.linalg.eigvalsh(gram.double())[-1]) * curvature
        return self.training.learning_rate * slope / (1 - self.training.momentum) < 2
