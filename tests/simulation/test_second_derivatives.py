"""Networks whose operations torch differentiates once only can be attacked; others say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import run
from vestige.attacks import InvertingGradients
from vestige.reports.parts import VerdictKind
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot
from vestige.simulation.refusals import missing_derivative
from vestige.simulation.second_derivatives import twice_differentiable
from vestige.simulation.simulator import Simulator
from vestige.victims import SharedGradient
from worlds import SPACE, sequential, small_audit


class SqueezeAndExcitation(nn.Module):
    """The block of MobileNetV3 (Howard et al. 2019): hard swish, hard sigmoid as a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.last = nn.Linear(6 * 16, 3)

    def forward(self, x):
        x = nn.functional.hardswish(self.first(x))
        gate = nn.functional.hardsigmoid(self.gate(x.mean((2, 3), keepdim=True)), inplace=True)
        return self.last((gate * x).flatten(1))


class Distances(nn.Module):
    """Distances from learned prototypes, which start at no record."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.linspace(-1, 1, 48).reshape(3, 16))

    def forward(self, x):
        return -torch.cdist(x.flatten(1), self.prototypes)


class Attention(nn.Module):
    """One encoder layer on four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.encoder(x.reshape(-1, 4, 4)).flatten(1))


class Segments(nn.Module):
    """Sums of hidden units by an operation that torch differentiates once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(2, 3)

    def forward(self, x):
        units = self.first(x.flatten(1)).T.contiguous()
        sums = torch.segment_reduce(units, "sum", lengths=torch.tensor([4, 4]))
        return self.last(sums.T.square())


NETWORKS = [SqueezeAndExcitation, Distances, Attention]


def slope_norms(simulator: Simulator, x: torch.Tensor, *, functional: bool) -> torch.Tensor:
    """‖gradient‖² of a batch, by which the batch can be differentiated."""
    targets = one_hot(torch.arange(len(x)) % 3, 3, x.dtype)
    gradient = simulator(x, targets, functional=functional)
    return sum(value.square().sum() for value in gradient.values())


@pytest.mark.parametrize("network", NETWORKS)
def test_second_derivatives_agree_with_finite_differences(network, generator):
    simulator = GradientSimulator(sequential(network).double())
    x = torch.rand((2, *SPACE.shape), generator=generator, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(slope_norms(simulator, leaf, functional=False), leaf)
    stacked = torch.func.vmap(
        torch.func.grad(lambda one: slope_norms(simulator, one, functional=True))
    )(torch.stack([x, x + 0.01]))
    assert torch.allclose(stacked[0], slope, rtol=1e-9, atol=1e-12)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    step = 1e-5 * direction
    ends = [slope_norms(simulator, x + sign * step, functional=False) for sign in (1, -1)]
    measured = float((ends[0] - ends[1]).detach()) / 2e-5
    assert float((slope * direction).sum()) == pytest.approx(measured, rel=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_replaced_operations_keep_values_and_first_derivatives(inplace, generator):
    ends = torch.tensor([-3.0, 3.0, 0.0, torch.nan])
    x = torch.cat([4 * torch.randn(200, generator=generator), ends])
    plain, replaced = (x.clone().requires_grad_() for _ in range(2))
    wanted = nn.functional.hardsigmoid(plain)
    with twice_differentiable():
        found = nn.Hardsigmoid(inplace)(replaced * 1)
    assert torch.equal(found.nan_to_num(9.0), wanted.nan_to_num(9.0))
    slopes = [
        torch.autograd.grad(y.sum(), leaf)[0] for y, leaf in ((wanted, plain), (found, replaced))
    ]
    assert torch.equal(slopes[0], slopes[1])
    rows, others = torch.randn((2, 5, 3), generator=generator, dtype=torch.float64).unbind()
    others[0] = rows[0]
    for power in (1.0, 2.0, 3.0):
        with twice_differentiable():
            distances = torch.cdist(rows, others, p=power)
        assert torch.allclose(distances, torch.cdist(rows, others, p=power), atol=1e-12)


def test_torch_is_as_it_was_outside_the_block():
    before = nn.functional.hardsigmoid, torch.cdist, torch.backends.cuda.flash_sdp_enabled()
    with twice_differentiable():
        pass
    after = nn.functional.hardsigmoid, torch.cdist, torch.backends.cuda.flash_sdp_enabled()
    assert before == after
    leaf = torch.zeros(3, requires_grad=True)
    (slope,) = torch.autograd.grad(nn.functional.hardsigmoid(leaf).sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        slope.sum().backward()


@pytest.mark.parametrize("restarts", [1, 2])
def test_mobile_networks_can_be_audited(restarts):
    attack = InvertingGradients(iterations=3, restarts=restarts)
    audit = small_audit([attack], victim=SharedGradient(sequential(SqueezeAndExcitation)))
    report = run(replace(audit, trials=2))
    assert report.findings.failure is None
    assert report.verdict.kind is not VerdictKind.INVALID


def test_what_still_fails_is_named_in_a_sentence():
    audit = small_audit(
        [InvertingGradients(iterations=3)], victim=SharedGradient(sequential(Segments))
    )
    report = run(replace(audit, trials=2))
    assert report.verdict.kind is VerdictKind.INVALID
    assert report.findings.failure is not None
    assert report.findings.failure.message.startswith(
        "There is no second derivative of the operation 'segment_reduce'"
    )


@pytest.mark.parametrize(
    ("said", "operation"),
    [
        ("derivative for aten::hardsigmoid_backward is not implemented", "'hardsigmoid'"),
        ("the derivative for '_cdist_backward' is not implemented.", "'cdist'"),
        (
            "derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward is not "
            "implemented",
            "'scaled_dot_product_flash_attention_for_cpu'",
        ),
        (
            "trying to differentiate twice a function that was marked with @once_differentiable",
            "once_differentiable",
        ),
    ],
)
def test_the_operation_is_read_off_what_torch_says(said, operation):
    sentence = missing_derivative(RuntimeError(said))
    assert sentence is not None
    assert operation in sentence
    assert "write it" in sentence
    assert missing_derivative(RuntimeError("shapes do not fit")) is None
