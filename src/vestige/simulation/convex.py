"""Linear classifiers trained to the optimum of a convex objective, solved by Newton's method.

The objective of Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed
Adversaries" (2022), Section 3: Σℓ(θ; record) + (nλ/2)‖θ‖², over n records whose features begin
with a constant 1, so that θ's first row is the bias. What an attack reads off the optimum is its
vanishing gradient, so the gradient is driven to the last digits of float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige.choices import check_fields
from vestige.errors import BadInput
from vestige.records import Records
from vestige.simulation.losses import logits_of
from vestige.simulation.releases import ModelRelease
from vestige.simulation.simulator import Simulator, beside

ITERATIONS = 200
"""Newton steps after which a fit is given up; ten are usual."""

REACHED = 1e-9
"""Largest gradient, as a share of the sum it cancels from, that counts as an optimum."""


@dataclass(frozen=True)
class ConvexFit:
    """Logistic or softmax regression to its optimum: Σℓ + (nλ/2)‖θ‖², n counts every record.

    ``penalize_bias=False`` leaves the bias out of the penalty, as scikit-learn does.
    """

    l2: float
    penalize_bias: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.l2) and self.l2 > 0):
            raise BadInput(
                f"The penalty l2 is a positive number, not {self.l2}: without one the optimum "
                "need not exist."
            )

    def penalty(self, count: int, like: Tensor) -> Tensor:
        """Weight of each row of θ (1 + features, …) in the penalty: nλ, or 0 for a free bias."""
        weights = torch.full((like.shape[0], 1), count * self.l2, dtype=like.dtype)
        if not self.penalize_bias:
            weights[0] = 0
        return weights.to(like.device)


@dataclass(frozen=True, kw_only=True)
class ConvexSimulator(Simulator):
    """A linear classifier at the optimum over ``companions``, which are known, and others."""

    companions: Records
    fit: ConvexFit

    releases = ModelRelease

    def __call__(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The optimum in float64, certified by the gradient that autograd finds; values only."""
        x, targets = beside(self.companions, x, targets)
        inputs, taught = self.inputs(x).double(), targets.double()
        _, layer = linear_layer(self.network)
        goals = taught[:, 1:] if layer.out_features == 1 else taught
        theta = minimized(features_of(inputs), goals, self.fit)
        found = layer_tensors(self.network, theta[1:].T.contiguous(), theta[0].clone())

        def objective(parameters: Mapping[str, Tensor]) -> Tensor:
            called = torch.func.functional_call(self.network, dict(parameters), (inputs,))
            weights = list(parameters.values())
            penalized = weights if self.fit.penalize_bias else weights[:1]
            penalty = sum(p.square().sum() for p in penalized)
            return self.loss(logits_of(called), taught).sum() + len(x) * self.fit.l2 / 2 * penalty

        slopes = torch.func.grad(objective)(found)
        if max(float(slope.abs().max()) for slope in slopes.values()) > 1e-6:
            raise BadInput(
                "The convex fit is no optimum of this model and loss: use cross_entropy with one "
                "logit for each class, or logistic with a single logit for two classes."
            )
        return found


def linear_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """Name and module of the one linear layer, with a bias, that a linear classifier is."""
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    held = sum(1 for _ in model.parameters())
    if len(found) != 1 or found[0][1].bias is None or held != 2:
        raise BadInput(
            "A convex fit trains one torch.nn.Linear with a bias and nothing else: give such a "
            "model, or audit a network as a ReleasedNetwork."
        )
    return found[0]


def linear_classifier(features: int, logits: int, dtype: torch.dtype) -> nn.Sequential:
    """One linear layer on flattened records, all zero.

    Made without drawing weights: an optimum does not depend on where the search for it begins.
    """
    layer = nn.utils.skip_init(nn.Linear, features, logits, dtype=dtype)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


def layer_tensors(model: nn.Module, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Weight and bias by the names they have in a linear classifier."""
    name, _ = linear_layer(model)
    prefix = f"{name}." if name else ""
    return {f"{prefix}weight": weight, f"{prefix}bias": bias}


def features_of(inputs: Tensor) -> Tensor:
    """Features (n, 1 + d) in float64: a constant 1, then the inputs (n, …) flattened."""
    flat = inputs.detach().double().flatten(1)
    return torch.cat([flat.new_ones(len(flat), 1), flat], 1)


def probabilities(logits: Tensor) -> Tensor:
    """Sigmoid of one logit (n, 1), softmax of several (n, K)."""
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)


def residuals(features: Tensor, targets: Tensor, theta: Tensor) -> Tensor:
    """Predicted minus true probabilities (n, K): the slopes of the losses in the logits.

    targets (n, K) are one-hot, for a single logit (n, 1) whether it is class 1. What a certain
    record leaves is tiny, and 1 − p would round it away: it is summed from the other classes.
    """
    logits = features @ theta
    if logits.shape[1] == 1:
        return (1 - targets) * logits.sigmoid() - targets * (-logits).sigmoid()
    wrong = logits.softmax(1) * (1 - targets)
    return wrong - targets * wrong.sum(1, keepdim=True)


@torch.no_grad()
def minimized(
    features: Tensor, targets: Tensor, fit: ConvexFit, start: Tensor | None = None
) -> Tensor:
    """The optimal θ (1 + d, K), by Newton steps with backtracking; ``start`` saves steps.

    features (n, 1 + d) float64 and targets (n, K) as in ``residuals``. A step is found by
    conjugate gradients. The preconditioner is the Hessian with every class given the mean
    curvature of its record: exact for one logit.
    """
    theta = features.new_zeros(features.shape[1], targets.shape[1]) if start is None else start
    penalty = fit.penalty(len(features), theta)
    gradient = _gradient(features, targets, theta, penalty)
    scale = 1 + float((features.abs().T @ torch.ones_like(targets)).max())
    for _ in range(ITERATIONS):
        step = _newton_step(features, theta, penalty, gradient)
        moved = _moved(features, targets, theta, penalty, gradient, step)
        # Rounding alone moves the gradient now: these are the last digits there are.
        if moved is None:
            break
        theta, gradient = moved
    if float(gradient.abs().max()) > REACHED * scale:
        raise BadInput(
            f"The convex fit did not reach its optimum with a penalty of {fit.l2:g}: give a larger "
            "one, or bring the features to a common scale."
        )
    return theta


def _gradient(features: Tensor, targets: Tensor, theta: Tensor, penalty: Tensor) -> Tensor:
    return features.T @ residuals(features, targets, theta) + penalty * theta


def _objective(features: Tensor, targets: Tensor, theta: Tensor, penalty: Tensor) -> float:
    logits = features @ theta
    if logits.shape[1] == 1:
        losses = nn.functional.softplus(logits) - targets * logits
    else:
        losses = logits.logsumexp(1, keepdim=True) - (targets * logits).sum(1, keepdim=True)
    return float(losses.sum() + (penalty * theta.square()).sum() / 2)


def _newton_step(features: Tensor, theta: Tensor, penalty: Tensor, gradient: Tensor) -> Tensor:
    """H⁻¹·gradient to about three digits, by preconditioned conjugate gradients."""
    chances = probabilities(features @ theta)
    curvature = (chances * (1 - chances)).mean(1, keepdim=True)
    mean_hessian = features.T @ (curvature * features) + torch.diag(penalty[:, 0])
    # A tiny ridge: curvature underflows to zero where every record is certain and the bias free.
    mean_hessian.diagonal().add_(1e-14 * float(mean_hessian.diagonal().max()))
    factor = torch.linalg.cholesky(mean_hessian)

    def hessian(direction: Tensor) -> Tensor:
        change = features @ direction
        spread = chances * change
        if change.shape[1] == 1:
            spread = spread * (1 - chances)
        else:
            spread = spread - chances * spread.sum(1, keepdim=True)
        return features.T @ spread + penalty * direction

    step, rest = torch.zeros_like(theta), gradient.clone()
    solved = torch.cholesky_solve(rest, factor)
    direction, product = solved, float((rest * solved).sum())
    goal = 1e-6 * product
    for _ in range(10 * theta.numel()):
        bent = hessian(direction)
        curve = float((direction * bent).sum())
        if product <= goal or curve <= 0:
            break
        length = product / curve
        step = step + length * direction
        rest = rest - length * bent
        solved = torch.cholesky_solve(rest, factor)
        before, product = product, float((rest * solved).sum())
        direction = solved + (product / before) * direction
    return step


def _moved(
    features: Tensor,
    targets: Tensor,
    theta: Tensor,
    penalty: Tensor,
    gradient: Tensor,
    step: Tensor,
) -> tuple[Tensor, Tensor] | None:
    """θ and its gradient after the longest halved step that helps, or None if none does.

    Near the optimum the objective no longer shows progress, the gradient's size still does, and
    the full step is the right one.
    """
    value = _objective(features, targets, theta, penalty)
    slope, size = float((gradient * step).sum()), float(gradient.norm())
    visible = slope > 1e-12 * abs(value)
    for halving in range(40 if visible else 1):
        length = 0.5**halving
        candidate = theta - length * step
        after = _gradient(features, targets, candidate, penalty)
        if float(after.norm()) < 0.9 * size:
            return candidate, after
        fallen = value - _objective(features, targets, candidate, penalty)
        if visible and fallen > 0.1 * length * slope:
            return candidate, after
    return None
