"""Gradients of single records, where torch.func.vmap can compute them and where it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige.errors import BadInput
from vestige.simulation.each_record import each_gradient


def losses(parameters, record, target):
    return ((parameters["w"] @ record) * target).square().sum()


def branching(parameters, record, target):
    """The same, behind a choice that depends on values: vmap refuses it."""
    return losses(parameters, record, target) * float(record.sum().item() == record.sum().item())


def world():
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(*shape, generator=generator) for shape in ((2, 4), (5, 4), (5, 2))]
    return {"w": made[0]}, made[1], made[2]


@pytest.mark.parametrize("own_loss", [losses, branching])
def test_each_record_has_the_gradient_of_its_own_loss(own_loss):
    """d/dw Σ (t·(w x))² = 2 t² (w x) xᵀ, record by record."""
    parameters, x, targets = world()
    expected = [
        2 * torch.outer(t.square() * (parameters["w"] @ row), row) for row, t in zip(x, targets)
    ]
    found = each_gradient(own_loss, parameters, x, targets)["w"]
    torch.testing.assert_close(found, torch.stack(expected))


def test_gradients_in_a_loop_stay_differentiable_in_the_records():
    parameters, x, targets = world()
    slopes = []
    for own_loss in (losses, branching):
        leaf = x.clone().requires_grad_()
        each_gradient(own_loss, parameters, leaf, targets)["w"].square().sum().backward()
        slopes.append(leaf.grad)
    assert slopes[0] is not None
    torch.testing.assert_close(slopes[1], slopes[0])


def test_what_neither_way_computes_is_one_sentence():
    def broken(parameters, record, target):
        return nn.functional.linear(record, parameters["w"].T).sum()

    with pytest.raises(BadInput, match='attn_implementation="eager"'):
        each_gradient(broken, *world())
