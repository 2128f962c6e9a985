"""The unknown record of a convex model, read off its vanishing gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.exact_inversion.attack import records_of
from vestige.errors import BadInput
from vestige.interfaces import (
    ModelRelease,
    Observation,
    Public,
    Reconstruction,
    Reconstructor,
    Release,
)
from vestige.simulation.convex import (
    ConvexFit,
    ConvexSimulator,
    features_of,
    layer_tensors,
    linear_layer,
    probabilities,
    residuals,
)
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator

NOISE_MARGIN = 10.0
"""How far above rounding the unknown record's share of the bias gradient must stand: below this
its features would have less than one digit."""

SMALLEST_BIAS = 1e-9
"""Share of the constant in a record's direction below which the record would be astronomical."""

UNEXPLAINED = 0.05
"""Largest misfit with which an answer still explains the model. A loose optimum (scikit-learn's
default tolerance leaves 0.01 to 0.1 on a few hundred digits) and a second unknown record look alike
beyond it."""


@dataclass(frozen=True)
class ClosedForm:
    """Solve the optimality condition of a linear classifier for its one unknown record.

    Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries" (2022),
    Section 3: at the optimum all gradients add up to zero, so the known records' gradients and the
    penalty's leave the unknown one's, −B = x·rᵀ with r its predicted minus its true probabilities.
    Features begin with a constant 1, so x = B/B₁ and r = −B₁, B₁ being the bias's row.

    Beyond the paper: for softmax regression B has one column for each class and rank
    one, and its first singular vectors use all of them; the bias may be free of the penalty; a
    record whose share of the gradient is below rounding is called not identifiable and no
    candidate is returned; the answer is compared with the model, because r must be what the model
    predicts for x minus a label (``confidence`` is the number of digits in which it is).
    """

    name = "Closed form"
    summary = "solves the vanishing gradient of a convex model for the one unknown record"
    needs = "the trained model, its penalty and all other training records"
    cites = (
        "Balle, Cherubin, Hayes 2022, Reconstructing Training Data with Informed Adversaries, §3"
    )
    reads = (ModelRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Check that the model is a convex fit; there is nothing to train."""
        simulator = public.simulator
        if not isinstance(simulator, ConvexSimulator):
            raise BadInput(
                "The closed form reads linear classifiers trained to their optimum beside known "
                "records: give a ReleasedConvexModel."
            )
        linear_layer(simulator.network)
        known = _Known.of(simulator)
        return lambda observation, generator: _solved(known, public, observation)


@dataclass(frozen=True)
class _Known:
    """The known records as the model reads them: features (n − 1, 1 + d), targets, the fit."""

    features: Tensor
    targets: Tensor
    fit: ConvexFit

    @classmethod
    def of(cls, simulator: ConvexSimulator) -> _Known:
        records = simulator.companions
        inputs = simulator.inputs(records.x.double().cpu())
        targets = one_hot(records.y.cpu(), records.classes, torch.float64)
        _, layer = linear_layer(simulator.network)
        goals = targets[:, 1:] if layer.out_features == 1 else targets
        return cls(features_of(inputs), goals, simulator.fit)

    def remainder(self, theta: Tensor) -> tuple[Tensor, float]:
        """B (1 + d, K), and how much of its first row rounding of θ can make.

        n counts the unknown record. Rounding θ by a relative ε changes a logit by at most
        ε·|x|ᵀ|θ| and with it every residual, by the curvature.
        """
        slopes = residuals(self.features, self.targets, theta)
        penalty = self.fit.penalty(len(self.features) + 1, theta)
        left = self.features.T @ slopes + penalty * theta
        chances = probabilities(self.features @ theta)
        shaken = chances * (1 - chances) * (self.features.abs() @ theta.abs())
        shares = slopes.abs().sum(0) + shaken.sum(0) + (penalty * theta).abs()[0]
        return left, float(shares.norm())


def _solved(known: _Known, public: Public, observation: Observation) -> Reconstruction:
    simulator, release = public.simulator, observation.release
    simulator.check(release)
    theta, precision = _released_theta(simulator, release)
    left, rounding = known.remainder(theta)
    share, noise = float(left[0].norm()), rounding * precision
    facts: dict[str, str | int | float | bool] = {"bias gradient": share, "rounding": noise}

    def unidentifiable(why: str) -> Reconstruction:
        remark = f"A record was not identifiable: {why}."
        nothing = public.prior.records.x[:0].cpu()
        return Reconstruction(nothing, diverged=True, info=facts, remark=remark)

    if share <= NOISE_MARGIN * noise:
        return unidentifiable(
            "the model predicts it so well that it leaves no trace above rounding"
        )
    # B = −x·rᵀ: its first left singular vector is x up to scale, and x begins with 1.
    vectors, values, _ = torch.linalg.svd(left, full_matrices=False)
    if float(vectors[0, 0].abs()) < SMALLEST_BIAS:
        return unidentifiable("no record whose first feature is 1 fits")
    x = vectors[:, 0] / vectors[0, 0]
    slopes = -(left.T @ x) / x.square().sum()
    label, misfit = _label(x, slopes, theta)
    if len(values) > 1:
        # What is left of B beside its first singular vectors is no single record's.
        misfit = max(misfit, float(values[1] / values[0]))
    facts["misfit"] = misfit
    remark = ""
    if misfit > UNEXPLAINED:
        remark = (
            "An answer does not explain the model: it is not at its optimum, its penalty is "
            "another, or more than one record is unknown."
        )
    candidate = records_of(x[1:].unsqueeze(0), public.space, simulator.normalization)
    return Reconstruction(
        candidate.to(public.prior.records.x.dtype),
        torch.tensor([label]),
        torch.tensor([-math.log10(max(misfit, 1e-16))]),
        info=facts,
        remark=remark,
    )


def _released_theta(simulator: Simulator, release: Release) -> tuple[Tensor, float]:
    """θ (1 + d, K) in float64, bias first, and the precision it was released in."""
    _, layer = linear_layer(simulator.network)
    names = list(layer_tensors(simulator.network, layer.weight, layer.bias))
    if any(name not in release.tensors for name in names):
        raise BadInput("The closed form needs weight and bias of the model: release both.")
    weight, bias = (release.tensors[name].detach().cpu() for name in names)
    precision = max(torch.finfo(tensor.dtype).eps for tensor in (weight, bias))
    return torch.cat([bias.double().unsqueeze(0), weight.double().T]), precision


def _label(x: Tensor, slopes: Tensor, theta: Tensor) -> tuple[int, float]:
    """The label behind r = p − y, and how far r + y is from what the model predicts for x.

    Only the true class has a negative entry; a single logit is that of class 1.
    """
    truth = torch.zeros_like(slopes)
    if len(slopes) == 1:
        label = int(slopes[0] < 0)
        truth[0] = label
    else:
        label = int(slopes.argmin())
        truth[label] = 1
    predicted = probabilities((x @ theta).unsqueeze(0))[0]
    return label, float((slopes + truth - predicted).abs().max())
