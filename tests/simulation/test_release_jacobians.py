"""Jacobians of releases against finite differences, closed forms and autograd through clipping."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from vestige import networks
from vestige.bounds import ReleaseDefense, batch_jacobian, defended_jacobian
from vestige.errors import BadInput
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.jacobians import release_slopes
from vestige.simulation.losses import one_hot
from vestige.simulation.network import NetworkSimulator
from vestige.simulation.update import UpdateSimulator
from vestige.victims import ConvexFit, LocalTraining
from worlds import KNOWN, SPACE, draws, sequential


def smooth_network(inputs: int = 16) -> nn.Module:
    return sequential(
        nn.Flatten, lambda: nn.Linear(inputs, 5), nn.Tanh, lambda: nn.Linear(5, 3)
    ).double()


def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    records = draws(count, 3)
    return records.x.double(), one_hot(records.y, 3, torch.float64)


def release_jacobian(simulator, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The slopes of all parts of a release, side by side."""
    slopes = release_slopes(simulator, x, targets)
    return torch.from_numpy(batch_jacobian(list(slopes.jacobians), averaged=slopes.averaged))


def flat(release: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in release.values()])


def differences(function, x: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """Central differences, one value of x at a time."""
    columns = []
    for place in range(x.numel()):
        moved = torch.zeros(x.numel(), dtype=x.dtype)
        moved[place] = step
        moved = moved.reshape(x.shape)
        columns.append((function(x + moved) - function(x - moved)) / (2 * step))
    return torch.stack(columns, 1)


@pytest.mark.parametrize(
    "kind",
    [
        GradientSimulator,
        partial(GradientSimulator, reduction="sum"),
        partial(
            UpdateSimulator,
            local=LocalTraining(steps=3, learning_rate=0.4, batch_size=1, momentum=0.5),
        ),
        partial(
            GradientSimulator,
            clipped_noise=ClippedNoise(clipping_norm=0.3, noise_multiplier=1.0),
        ),
        partial(
            NetworkSimulator,
            companions=KNOWN[:3],
            local=LocalTraining(steps=2, learning_rate=0.5),
        ),
    ],
    ids=["gradient", "sum", "update", "clipped", "model"],
)
def test_the_jacobian_is_that_of_finite_differences(kind):
    simulator = kind(smooth_network())
    x, targets = batch(2)
    found = release_jacobian(simulator, x, targets)
    expected = differences(lambda moved: flat(simulator(moved, targets)), x)
    assert found.shape == (5 * 17 + 3 * 6, 32)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_a_linear_model_has_its_closed_form():
    # g = (p − y)xᵀ row by row, so ∂g_ki/∂x_l = (p_k − y_k)δ_il + x_i·(diag p − ppᵀ)_k·W_·l.
    model = sequential(lambda: nn.Linear(4, 3, bias=False)).double()
    weight = model[0].weight.detach().numpy()
    x = np.array([0.3, -1.2, 0.5, 2.0])
    logits = weight @ x
    p = np.exp(logits) / np.exp(logits).sum()
    residual = p - np.array([0.0, 1.0, 0.0])
    slope = (np.diag(p) - np.outer(p, p)) @ weight
    expected = np.einsum("k,il->kil", residual, np.eye(4)) + np.einsum("i,kl->kil", x, slope)
    found = release_jacobian(
        GradientSimulator(model), torch.tensor(x)[None], torch.tensor([[0.0, 1.0, 0.0]])
    )
    np.testing.assert_allclose(found.numpy(), expected.reshape(12, 4), atol=1e-12)


def test_a_release_shorter_than_its_records_is_differentiated_backwards():
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 3)).double()
    model[1].weight.requires_grad_(False)
    simulator = GradientSimulator(model)
    x, targets = batch(2)
    found = release_jacobian(simulator, x, targets)
    assert found.shape == (3, 32)
    expected = differences(lambda moved: flat(simulator(moved, targets)), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)


def test_parts_add_up_to_the_release():
    simulator = GradientSimulator(smooth_network())
    x, targets = batch(3)
    slopes = release_slopes(simulator, x, targets)
    assert slopes.values.shape == (3, 103)
    assert slopes.averaged
    np.testing.assert_allclose(slopes.values.mean(0), flat(simulator(x, targets)).numpy())
    np.testing.assert_allclose(
        defended_jacobian(slopes, ReleaseDefense()),
        release_jacobian(simulator, x, targets).numpy(),
        atol=1e-12,
    )


def test_records_that_mix_are_one_part():
    x, targets = batch(2)
    update = UpdateSimulator(smooth_network(), local=LocalTraining(steps=2, learning_rate=0.4))
    slopes = release_slopes(update, x, targets)
    assert slopes.jacobians.shape == (1, 103, 32)
    assert slopes.records == 2
    with_norm = sequential(
        nn.Flatten, lambda: nn.Linear(16, 5), lambda: nn.BatchNorm1d(5), lambda: nn.Linear(5, 3)
    )
    assert len(release_slopes(GradientSimulator(with_norm, mode="train"), x, targets).values) == 1
    assert len(release_slopes(GradientSimulator(with_norm, mode="eval"), x, targets).values) == 2


@pytest.mark.parametrize("norm", [0.2, 0.9, 50.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_clipping_each_record_is_autograd_through_the_clipping(norm, reduction):
    simulator = GradientSimulator(smooth_network(), reduction=reduction)
    x, targets = batch(3)
    slopes = release_slopes(simulator, x, targets)
    found = defended_jacobian(slopes, ReleaseDefense(record_clipping_norm=norm))
    clipping = replace(simulator, clipped_noise=ClippedNoise(norm, 0.0))
    expected = release_jacobian(clipping, x, targets).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("norms", [(0.2, None), (0.2, 0.4), (50.0, None)])
def test_clipping_the_whole_is_autograd_through_the_clipping(norms):
    whole, each = norms
    simulator = GradientSimulator(smooth_network())
    x, targets = batch(2)

    def clipped(points: torch.Tensor) -> torch.Tensor:
        gradients = simulator.record_gradients(simulator.parameters, points, targets)
        if each is not None:
            length = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            gradients = gradients * (each / length).clamp(max=1)
        mean = gradients.mean(0)
        return mean * (whole / torch.linalg.vector_norm(mean)).clamp(max=1)

    expected = torch.autograd.functional.jacobian(clipped, x).flatten(1)
    defense = ReleaseDefense(clipping_norm=whole, record_clipping_norm=each)
    found = defended_jacobian(release_slopes(simulator, x, targets), defense)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-12)


def test_layers_that_jump_are_found():
    x, targets = batch(1)
    assert not release_slopes(GradientSimulator(smooth_network()), x, targets).jumps
    generator = torch.Generator().manual_seed(0)
    relu = networks.mlp(SPACE, hidden=(4,), generator=generator)
    assert release_slopes(GradientSimulator(relu), x, targets).jumps


def test_float32_models_are_replayed_in_float64_and_left_alone():
    model = smooth_network().float()
    x, targets = batch(1)
    found = release_jacobian(GradientSimulator(model), x.float(), targets.float())
    assert found.dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32


def test_refusals_are_one_sentence():
    x, targets = batch(2)
    huge = GradientSimulator(sequential(nn.Flatten, lambda: nn.Linear(3000, 600)))
    wide = torch.zeros(10, 3000)
    with pytest.raises(BadInput, match="smaller batch"):
        release_jacobian(huge, wide, torch.zeros(10, 600))
    with pytest.raises(BadInput, match="at least one record"):
        release_jacobian(GradientSimulator(smooth_network()), x[:0], targets[:0])
    with pytest.raises(BadInput, match="one row of targets"):
        release_slopes(GradientSimulator(smooth_network()), x, targets[:1])
    fitted = ConvexSimulator(
        sequential(nn.Flatten, lambda: nn.Linear(16, 3)), companions=KNOWN, fit=ConvexFit(l2=0.1)
    )
    with pytest.raises(BadInput, match="convex fit"):
        release_jacobian(fitted, x, targets)
