"""The lift recovers every record of a simulated batch, and knows when it did not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.layers import DenseHead, DenseLayer, Recovered, dense_head
from vestige.attacks.exact_inversion.lifted import lift_feasible, lifted_inversion
from vestige.attacks.exact_inversion.noise import detected_precision
from vestige.attacks.exact_inversion.propagation import Propagation, gradient_matrix
from vestige.attacks.exact_inversion.reading import read
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease
from vestige.networks import mlp
from vestige.records import Column, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import logistic, one_hot

FEATURES, CLASSES = 40, 5
SPACE = TableSpace(
    tuple(Column(f"feature {i}") for i in range(FEATURES)), tuple(str(c) for c in range(CLASSES))
)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(size: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    generator = stream(seed)
    x = torch.rand(size, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (size,), generator=generator)


def head_of(network: nn.Module, x: Tensor, y: Tensor, change=None) -> DenseHead:
    simulator = GradientSimulator(network)
    like = next(network.parameters())
    gradient = simulator(x.to(like), one_hot(y, CLASSES, like.dtype))
    tensors = {name: t.detach() for name, t in gradient.items()}
    if change is not None:
        tensors = {name: change(t) for name, t in tensors.items()}
    return dense_head(simulator, GradientRelease(tensors), shape=(FEATURES,))


def trained(network: nn.Module, steps: int = 60) -> nn.Module:
    """Train on records whose class is the largest of their first features."""
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(steps):
        x = torch.rand(64, FEATURES, generator=stream(step))
        loss = nn.functional.cross_entropy(network(x), x[:, :CLASSES].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def errors(found: Recovered, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared error of each record to its nearest candidate, and which that is."""
    candidates = torch.nan_to_num(found.inputs, nan=1e3)
    return (candidates[:, None] - x.double()).square().mean(2).min(0)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("hidden", [(200,), (200, 30)], ids=["two layers", "three layers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recovers_records_labels_and_batch_size(bias, hidden, dtype):
    x, y = batch(6)
    network = mlp(SPACE, hidden, bias=bias, generator=stream(0)).to(dtype)
    found = lifted_inversion(head_of(network, x, y), generator=stream(1))
    assert len(found.inputs) == 6
    error, which = errors(found, x)
    assert error.max() < 1e-6
    assert torch.equal(found.labels[which], y)
    assert found.certified.all()
    assert found.reason == ""


def test_recovers_from_a_trained_network():
    network = trained(mlp(SPACE, (200,), generator=stream(0)))
    x, y = torch.randn(6, FEATURES, generator=stream(7)), torch.arange(6) % CLASSES
    found = lifted_inversion(head_of(network, x, y), generator=stream(1))
    error, which = errors(found, x)
    assert error.max() < 1e-6
    assert torch.equal(found.labels[which], y)


def test_same_stream_same_answer():
    x, y = batch(5)
    head = head_of(mlp(SPACE, (200,), generator=stream(0)), x, y)
    one, two = (lifted_inversion(head, generator=stream(3)) for _ in range(2))
    assert torch.equal(one.inputs, two.inputs)


def test_sum_of_unknown_batch_size():
    x, y = batch(5)
    head = head_of(mlp(SPACE, (200,), bias=False, generator=stream(0)), x, y, lambda t: 5 * t)
    found = lifted_inversion(head, generator=stream(3))
    assert errors(found, x)[0].max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x, y = batch(4)
    network = mlp(SPACE, (200,), generator=stream(0))
    head = head_of(network, x, y, lambda t: t.to(dtype).float())
    assert detected_precision(head.layers[0].weight_gradient) == str(dtype)[6:]
    found = lifted_inversion(head, bounds=(0, 1), generator=stream(1))
    assert errors(found, x)[0].max() < 1e-3


@pytest.mark.parametrize("told", [True, False], ids=["level told", "level estimated"])
def test_gaussian_noise(told):
    x, y = batch(3)
    network = mlp(SPACE, (300,), generator=stream(0))
    exact = head_of(network, x, y)
    level = 0.01 * float(exact.layers[0].weight_gradient.square().mean().sqrt())
    noise = stream(5)
    head = head_of(network, x, y, lambda t: t + level * torch.randn(t.shape, generator=noise))
    found = lifted_inversion(
        head, noise=level if told else None, bounds=(0, 1), generator=stream(1)
    )
    assert len(found.inputs) == 3
    assert errors(found, x)[0].max() < 1e-3


def test_pruned_gradient_is_filled():
    def pruned(t: Tensor) -> Tensor:
        return torch.where(t.abs() <= t.abs().flatten().quantile(0.5), 0, t)

    x, y = batch(3)
    head = head_of(mlp(SPACE, (300,), generator=stream(0)), x, y, pruned)
    found = lifted_inversion(head, batch_size=3, bounds=(0, 1), generator=stream(1))
    assert errors(found, x)[0].max() < 1e-3


def test_dead_neurons_are_not_taken_for_pruning():
    # Many classes: the second layer's gradient has many entries of one size, and columns of zeros.
    space = TableSpace(SPACE.columns, tuple(str(c) for c in range(100)))
    x, y = batch(3)
    network = mlp(space, (200,), generator=stream(0))
    gradient = GradientSimulator(network)(x - 0.5, one_hot(y, 100))
    release = GradientRelease({name: t.detach() for name, t in gradient.items()})
    head = dense_head(GradientSimulator(network), release, shape=(FEATURES,))
    assert (head.layers[1].weight_gradient == 0).all(0).any()
    assert read(head, None, None).missing is None
    found = lifted_inversion(head, generator=stream(1))
    assert found.certified.all()
    assert errors(found, x - 0.5)[0].max() < 1e-8


def test_binary_records_with_nearly_equal_masks():
    x = (torch.rand(6, FEATURES, generator=stream(2)) < 0.2).float()
    x[1] = x[0]
    x[1, 3] = 1 - x[1, 3]
    y = torch.arange(6) % CLASSES
    network = trained(mlp(SPACE, (60,), generator=stream(0)))
    found = lifted_inversion(head_of(network, x, y), binary=True, generator=stream(1))
    error, which = errors(found, x)
    assert error.max() == 0
    assert torch.equal(found.labels[which], y)


def test_single_logit():
    x, _ = batch(4)
    y = torch.tensor([0, 1, 1, 0])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(FEATURES, 200), nn.ReLU(), nn.Linear(200, 1))
    simulator = GradientSimulator(network, loss=logistic)
    gradient = simulator(x, one_hot(y, 2))
    release = GradientRelease({n: t.detach() for n, t in gradient.items()})
    head = dense_head(simulator, release, shape=(FEATURES,))
    found = lifted_inversion(head, generator=stream(1))
    error, which = errors(found, x)
    assert error.max() < 1e-6
    assert torch.equal(found.labels[which], y)


def test_two_classes_without_bias_certify_no_length():
    """Directions come back, but lengths may be wrong: nothing is vouched for."""
    space = TableSpace(SPACE.columns, ("no", "yes"))
    x, _ = batch(4)
    network = mlp(space, (200,), bias=False, generator=stream(0))
    simulator = GradientSimulator(network)
    gradient = simulator(x, one_hot(torch.tensor([0, 1, 1, 0]), 2))
    release = GradientRelease({n: t.detach() for n, t in gradient.items()})
    head = dense_head(simulator, release, shape=(FEATURES,))
    found = lifted_inversion(head, generator=stream(1))
    unit, own = nn.functional.normalize(found.inputs), nn.functional.normalize(x.double())
    assert (unit @ own.T).max(0).values.min() > 0.9999
    assert not found.certified.any()
    assert "length" in found.reason


def test_infeasible_batch_says_how_many_neurons_it_needs():
    x, y = batch(12)
    head = head_of(mlp(SPACE, (60,), generator=stream(0)), x, y)
    assert lift_feasible(head, 4) == (True, 4 * 5 // 2 + 4 * 4 - 4)
    assert lift_feasible(head, 12) == (False, 12 * 13 // 2 + 12 * 5 - 12)
    found = lifted_inversion(head, generator=stream(1))
    assert not found.certified.any()
    assert found.inputs.isnan().all()
    assert (found.labels == -1).all()
    assert "need 126 live neurons" in found.reason


def test_certificate_does_not_vouch_for_another_networks_gradient():
    x, y = batch(4)
    right = head_of(mlp(SPACE, (200,), generator=stream(0)), x, y)
    other = mlp(SPACE, (200,), generator=stream(9))
    layers = tuple(
        DenseLayer(module.weight.detach(), module.bias.detach(), *parts)
        for module, parts in zip(
            (m for m in other if isinstance(m, nn.Linear)),
            ((layer.weight_gradient, layer.bias_gradient) for layer in right.layers),
        )
    )
    found = lifted_inversion(DenseHead(layers), generator=stream(1))
    assert not found.certified.any()


def test_zero_gradient_and_single_layer():
    x, y = batch(2)
    head = head_of(mlp(SPACE, (50,), generator=stream(0)), x, y, torch.zeros_like)
    found = lifted_inversion(head, generator=stream(1))
    assert len(found.inputs) == 0
    assert "zero" in found.reason
    with pytest.raises(BadInput, match="two adjacent"):
        lifted_inversion(DenseHead(head.layers[:1]), generator=stream(1))
    with pytest.raises(BadInput, match="bfloat16"):
        lifted_inversion(head, noise="float8", generator=stream(1))


@pytest.mark.parametrize("hidden", [(30,), (30, 20), (30, 20, 10)])
def test_propagation_is_the_networks_own_gradient(hidden):
    x, y = batch(3)
    head = head_of(mlp(SPACE, hidden, generator=stream(0)).double(), x, y)
    first, second = Propagation(head).sent_back(x.double().numpy(), y.numpy())
    full = np.hstack([x.double().numpy(), np.ones((3, 1))])
    np.testing.assert_allclose(first.T @ full / 3, gradient_matrix(head, 0), atol=1e-14)
    np.testing.assert_allclose(second.mean(0), gradient_matrix(head, 1)[:, -1], atol=1e-14)
