"""A logistic or softmax regression that is trained to its optimum, and published."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.interfaces import ModelRelease
from vestige.records import Records
from vestige.simulation.convex import (
    ConvexFit,
    ConvexSimulator,
    features_of,
    layer_tensors,
    linear_classifier,
    minimized,
)
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import cross_entropy, logistic
from vestige.victims.client import client_batch, joined
from vestige.victims.description import describe_client
from vestige.victims.scikit_learn import estimator_fit


@dataclass(frozen=True)
class ReleasedConvexModel:
    """Logistic regression (two classes) or softmax regression on ``known`` ∪ {secret}.

    The convex model of Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed
    Adversaries" (2022), Section 3: the exact optimum of Σℓ + (nλ/2)‖θ‖² in float64. There is one
    optimum, so training has no initial weights, order or learning rate to know.
    """

    known: Records
    fit: ConvexFit = field(default_factory=lambda: ConvexFit(l2=1e-2))
    normalization: Normalization | None = None

    releases = ModelRelease

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def from_estimator(estimator: object, known: Records) -> ReleasedConvexModel:
        """The victim that trains as a fitted scikit-learn LogisticRegression did.

        Its C is read as a penalty over ``known`` and one record more.
        """
        return ReleasedConvexModel(known, estimator_fit(estimator, known))

    @cached_property
    def simulator(self) -> ConvexSimulator:
        """The same objective, on the known records and a candidate."""
        logits = 1 if self.known.classes == 2 else self.known.classes
        return ConvexSimulator(
            linear_classifier(math.prod(self.known.space.shape), logits, torch.float64),
            logistic if self.known.classes == 2 else cross_entropy,
            "sum",
            normalization=self.normalization,
            companions=self.known,
            fit=self.fit,
        )

    @cached_property
    def _without_the_secret(self) -> Tensor:
        """The optimum on the known records: close to every other one, so searches begin here."""
        return self._optimum(self.known, None)

    def _optimum(self, records: Records, start: Tensor | None) -> Tensor:
        inputs, targets = client_batch(self.simulator, records)
        goals = targets[:, 1:] if records.classes == 2 else targets
        return minimized(features_of(inputs), goals, self.fit, start)

    def release(self, secret: Records, *, generator: torch.Generator) -> ModelRelease:
        """Return weight and bias at the optimum, in float64."""
        theta = self._optimum(joined(self.known, secret), self._without_the_secret)
        weight, bias = theta[1:].T.contiguous(), theta[0].clone()
        return ModelRelease(layer_tensors(self.simulator.model, weight, bias))

    def describe(self) -> dict[str, str]:
        """Settings a reader needs to repeat it."""
        return describe_client("ReleasedConvexModel", self.simulator)
