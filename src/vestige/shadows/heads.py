"""Shadow heads: many heads of one training algorithm, each on its own training set, at once.

Maciazek and Allison 2025, Algorithm 1. A linear head trained by gradient descent stays in the span
of its features and initial weights, so its N×C coefficients are trained with the N×N Gram matrix
instead of C×D weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.heads import HeadedModel, HeadTraining
from vestige.simulation import Simulator, one_hot
from vestige.training_sets import TrainingSets


@dataclass(frozen=True)
class ShadowHeads:
    """Trained heads: ``weights`` (s, size), parameters in the simulator's order, and their sets."""

    weights: Tensor
    sets: TrainingSets


@dataclass(frozen=True)
class HeadFactory:
    """Trains heads as a simulator describes, on sets drawn from records with these features."""

    simulator: Simulator
    features: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.simulator.head is None:
            raise BadInput("Shadow heads need a simulator with the training of a head.")

    @property
    def training(self) -> HeadTraining:
        """How the heads are trained."""
        assert self.simulator.head is not None
        return self.simulator.head

    def draw(
        self, count: int, *, disjoint: bool = False, generator: torch.Generator
    ) -> ShadowHeads:
        """Draw training sets and train a head on each; ``disjoint`` ones share no record."""
        makeup = self.training.makeup
        sets = makeup.draw(self.labels, count, disjoint=disjoint, generator=generator)
        return self.trained(sets, generator=generator)

    def trained(self, sets: TrainingSets, *, generator: torch.Generator) -> ShadowHeads:
        """Train a head on each of these sets."""
        model, training = self.simulator.model, self.training
        assert isinstance(model, HeadedModel)
        features = self.features[sets.members]
        count, size, width = features.shape
        goals = one_hot(sets.targets, training.makeup.outputs, features.dtype)
        start = torch.randn((count, model.outputs, width), generator=generator)
        start *= training.initial_deviation
        gram = features @ features.mT + 1
        logits = features @ start.mT
        coefficients = torch.zeros_like(logits)
        rate, kept = training.learning_rate / size, training.decay
        for _ in range(training.epochs):
            residuals = logits.softmax(-1) - goals
            logits = kept * logits - rate * (gram @ residuals)
            coefficients = kept * coefficients - rate * residuals
        weights = kept**training.epochs * start + coefficients.mT @ features
        rows = torch.cat([weights.flatten(1), coefficients.sum(1)], 1)
        return ShadowHeads(rows, sets)
