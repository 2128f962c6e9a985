"""The convex solver against scikit-learn and against the condition of an optimum."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from vestige.errors import BadInput
from vestige.simulation.convex import (
    ConvexSimulator,
    features_of,
    linear_classifier,
    linear_layer,
    minimized,
    residuals,
)
from vestige.simulation.losses import cross_entropy, logistic, one_hot
from vestige.victims import ConvexFit
from worlds import draws, sequential

RECORDS = draws(40, 3)
FEATURES = features_of(RECORDS.x)


def targets_of(classes: int) -> torch.Tensor:
    labels = RECORDS.y % classes
    return one_hot(labels, classes, torch.float64)[:, 1 if classes == 2 else 0 :]


def by_scikit_learn(l2: float, classes: int, free: bool) -> torch.Tensor:
    """Σℓ + (nλ/2)‖θ‖² is C·Σℓ + ½‖θ‖² at C = 1/(nλ); a penalised bias is a constant feature."""
    model = LogisticRegression(
        C=1 / (40 * l2), fit_intercept=free, solver="newton-cholesky", tol=1e-13, max_iter=1000
    )
    model.fit((FEATURES[:, 1:] if free else FEATURES).numpy(), (RECORDS.y % classes).numpy())
    if free:
        return torch.from_numpy(np.vstack([model.intercept_, model.coef_.T]))
    return torch.from_numpy(model.coef_.T)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("l2", [1.0, 1e-3])
def test_is_what_scikit_learn_finds(classes, free, l2):
    found = minimized(FEATURES, targets_of(classes), ConvexFit(l2, penalize_bias=not free))
    expected = by_scikit_learn(l2, classes, free)
    # A free bias of a softmax is free up to a shift of all classes.
    shift = (expected - found)[0].mean() if free and classes > 2 else 0.0
    expected[0] -= shift
    assert torch.allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_gradient_vanishes_to_the_last_digits(classes):
    """By autograd on the objective as it is written, with a weak penalty."""
    found = minimized(FEATURES, targets_of(classes), ConvexFit(1e-5)).requires_grad_()
    logits, labels = FEATURES @ found, RECORDS.y % classes
    if classes == 2:
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits[:, 0], labels.double(), reduction="sum"
        )
    else:
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
    (loss + 40 * 1e-5 / 2 * found.square().sum()).backward()
    assert found.grad is not None
    assert float(found.grad.abs().max()) < 1e-12


def test_what_a_certain_record_leaves_is_not_rounded_away():
    """σ(60) − 1 = −1/(1 + e⁶⁰), which 1 − p would call zero; softmax of (60, 0, 0) likewise."""
    one = torch.ones(1, 1, dtype=torch.float64)
    single = residuals(one, one, torch.tensor([[60.0]], dtype=torch.float64))
    assert float(single) == pytest.approx(-1 / (1 + math.exp(60)), rel=1e-12)
    logits = torch.tensor([[60.0, 0.0, 0.0]], dtype=torch.float64)
    several = residuals(one, torch.tensor([[1.0, 0, 0]], dtype=torch.float64), logits)[0]
    other = 1 / (math.exp(60) + 2)
    assert several.tolist() == pytest.approx([-2 * other, other, other], rel=1e-12)


def test_start_changes_nothing_but_the_way():
    fit = ConvexFit(0.01)
    far = torch.full((17, 3), 5.0, dtype=torch.float64)
    found = [minimized(FEATURES, targets_of(3), fit, start) for start in (None, far)]
    assert torch.allclose(*found, atol=1e-10)


@pytest.mark.parametrize(
    ("l2", "said"),
    [(0.0, "positive"), (-1.0, "positive"), (float("nan"), "finite"), (float("inf"), "finite")],
)
def test_penalty_is_positive_and_finite(l2, said):
    with pytest.raises(BadInput, match=said):
        ConvexFit(l2)


def test_only_one_linear_layer_is_convex():
    assert linear_layer(linear_classifier(3, 2, torch.float64))[0] == "1"
    deep = sequential(lambda: nn.Linear(3, 3), nn.ReLU, lambda: nn.Linear(3, 2))
    without_bias = sequential(lambda: nn.Linear(3, 2, bias=False))
    for model in (deep, without_bias):
        with pytest.raises(BadInput, match=r"one torch\.nn\.Linear"):
            linear_layer(model)


def test_simulator_notices_a_loss_that_the_solver_does_not_minimise():
    """The optimum is certified through the model and its own loss, not by the solver."""
    fit, x = ConvexFit(0.01), RECORDS.x[:1].double()
    targets = one_hot(RECORDS.y[:1], 3, torch.float64)
    honest = ConvexSimulator(
        linear_classifier(16, 3, torch.float64), cross_entropy, companions=RECORDS[1:], fit=fit
    )
    assert honest(x, targets).keys() == {"1.weight", "1.bias"}

    def doubled(outputs, targets):
        return 2 * cross_entropy(outputs, targets)

    with pytest.raises(BadInput, match="no optimum of this model and loss"):
        dataclasses.replace(honest, loss=doubled)(x, targets)
    single = dataclasses.replace(honest, model=linear_classifier(16, 1, torch.float64))
    with pytest.raises((BadInput, RuntimeError)):
        dataclasses.replace(single, loss=logistic)(x, targets)
