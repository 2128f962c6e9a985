"""Floors of a comparison's cells against the closed form of a linear network."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vestige import Comparison
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.defenses import (
    Defense,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    Undefended,
)
from vestige.simulation.losses import one_hot
from vestige.studies import ComparedServer, UtilityTraining
from vestige.studies.comparison.error_floors import GAUSSIAN, NOISELESS, error_floor
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import sequential


def plan_of(activation: nn.Module) -> Comparison:
    digits = load("digits").split(seed=0)
    model = sequential(
        nn.Flatten, lambda: nn.Linear(64, 8), lambda: activation, lambda: nn.Linear(8, 10)
    )
    return Comparison(
        [
            ComparedServer(
                "server", SharedGradient(model, mode="eval"), [InvertingGradients()], HonestServer()
            )
        ],
        [GradientNoise(0.01)],
        digits.train,
        digits.prior,
        UtilityTraining(digits.train, digits.held_out),
        false_positive_rate=0.05,
    )


def floor(plan: Comparison, defense: Defense):
    return error_floor(plan, plan.servers[0], defense)


@pytest.mark.slow
def test_van_trees_of_one_record_is_that_of_its_jacobian() -> None:
    plan = plan_of(nn.Tanh())
    deviation = 0.05
    found = floor(plan, GradientNoise(deviation))
    # By hand: the same mean information, from autograd's Jacobians of the same records.
    simulator = plan.servers[0].victim.simulator
    spread = float(plan.prior.records.x.double().var(0, unbiased=False).mean())
    bounds = []
    for index in range(64):
        record = plan.prior.records[index : index + 1]
        taught = one_hot(record.y, 10)

        def released(x: torch.Tensor, taught: torch.Tensor = taught) -> torch.Tensor:
            return torch.cat([g.flatten() for g in simulator(x, taught).values()])

        jacobian = torch.autograd.functional.jacobian(released, record.x).flatten(1).double()
        bounds.append(jacobian.T @ jacobian)
    information = torch.stack(bounds).mean(0) / deviation**2 + torch.eye(64) / spread
    by_hand = math.sqrt(float(torch.linalg.inv(information).trace()) / 64)
    assert found.reason == GAUSSIAN
    # Four records stand for the prior here, sixty-four there.
    assert found.all_attacks == pytest.approx(by_hand, rel=0.1)


def test_more_noise_raises_the_floor_and_never_above_the_prior() -> None:
    plan = plan_of(nn.Tanh())
    floors = [floor(plan, GradientNoise(s)).all_attacks for s in (0.001, 0.01, 0.1, 10.0)]
    assert all(value is not None for value in floors)
    assert floors == sorted(floors)
    spread = plan.prior.records.x.double().var(0, unbiased=False).mean().sqrt()
    assert floors[-1] == pytest.approx(float(spread), rel=0.02)


def test_where_no_theorem_speaks_the_reason_does() -> None:
    smooth, jumping = plan_of(nn.Tanh()), plan_of(nn.ReLU())
    assert floor(smooth, Undefended()).reason == NOISELESS
    assert floor(smooth, GradientPruning(0.9)).reason == NOISELESS
    assert "rounded" in floor(smooth, GradientQuantization(4)).reason
    found = floor(jumping, GradientNoise(0.01))
    assert found.all_attacks is None
    assert "ReLU" in found.reason
