"""Two-layer networks whose batch is known, and how far a recovery is from it."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vestige.attacks.tensor_features.activations import GELU, RELU, TANH, Activation, polynomial
from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient

CUBIC = polynomial((0.0, 0.0, 1.0, 1.0))
ACTIVATIONS = {"cubic": CUBIC, "tanh": TANH, "gelu": GELU, "relu": RELU}


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=stream(seed), dtype=torch.float64)


def directions(count: int, inputs: int, seed: int) -> Tensor:
    x = normal(count, inputs, seed=seed)
    return x / x.norm(dim=1, keepdim=True)


def world(
    activation: Activation,
    *,
    inputs: int = 12,
    units: int = 1500,
    batch: int = 3,
    outputs: int = 1,
    seed: int = 0,
    everything: bool = False,
    lengths: bool = False,
    biases: bool = False,
) -> tuple[Tensor, Tensor, TwoLayerGradient]:
    """Records (batch, inputs), residuals (batch, outputs) and the gradient, by autograd.

    ``everything`` releases the hidden layer's gradient too.
    """
    weights = normal(units, inputs, seed=seed).requires_grad_()
    offsets = 0.5 * normal(units, seed=seed + 1) if biases else torch.zeros(units).double()
    offsets.requires_grad_()
    a = (normal(outputs, units, seed=seed + 2) / units).requires_grad_()
    x = directions(batch, inputs, seed + 3)
    if lengths:
        x = x * torch.linspace(0.6, 1.6, batch).double()[:, None]
    f = activation.value(x @ weights.T + offsets) @ a.T
    if outputs == 1:
        labels = 2.0 * (torch.arange(batch) % 2) - 1
        losses = torch.nn.functional.softplus(-labels * f[:, 0])
    else:
        losses = torch.nn.functional.cross_entropy(
            f, torch.arange(batch) % outputs, reduction="none"
        )
    (residuals,) = torch.autograd.grad(losses.sum(), f, retain_graph=True)
    by_weights, by_offsets, by_outputs = torch.autograd.grad(losses.sum(), (weights, offsets, a))
    hidden = (a.detach(), by_weights, by_offsets) if everything else (None, None, None)
    return x, residuals, TwoLayerGradient(weights, activation, by_outputs, offsets, *hidden)


def error(found: Tensor, x: Tensor, *, sign: bool = True) -> float:
    """Mean distance after the best assignment; with ``sign`` the better sign of each record."""
    distances = (x[:, None] - found).norm(dim=2)
    if sign:
        distances = torch.minimum(distances, (x[:, None] + found).norm(dim=2))
    rows, columns = linear_sum_assignment(distances.numpy())
    return float(distances[rows, columns].mean())
