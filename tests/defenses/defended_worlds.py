"""Defences in small worlds: one of each kind, the clients they defend, naive gradients."""

from __future__ import annotations

import torch
from torch import nn

from vestige.defenses import (
    ClientAggregation,
    Combined,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    GradientSign,
    HalfPrecision,
    LocalAggregation,
    PrivateGradients,
    RecordClipping,
    TopKSparsification,
    Undefended,
)
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
from worlds import draws, linear_network

EARLIER = draws(30, 5)

DEFENSES = {
    "none": Undefended(),
    "noise": GradientNoise(0.05),
    "pruning": GradientPruning(0.9),
    "pruning by tensor": GradientPruning(0.5, "tensor"),
    "top-k": TopKSparsification(0.1),
    "top-k after rounds": TopKSparsification(0.1, rounds=2, earlier=EARLIER),
    "dropout": GradientDropout(0.9),
    "clipping": GradientClipping(0.1),
    "clipping of records": RecordClipping(0.1),
    "DP-SGD": PrivateGradients(0.2, 0.5),
    "random quantisation": GradientQuantization(4),
    "quantisation": GradientQuantization(3, stochastic=False),
    "sign": GradientSign(),
    "half": HalfPrecision(),
    "sum": ClientAggregation(2),
    "noise, dropout": Combined((GradientNoise(0.05), GradientDropout(0.5))),
    "dropout, noise": Combined((GradientDropout(0.5), GradientNoise(0.02))),
    "noise, pruning": Combined((GradientNoise(0.05), GradientPruning(0.5))),
    "noise, clipping": Combined((GradientNoise(0.05), GradientClipping(0.1))),
    "clipping, noise": Combined((GradientClipping(0.1), GradientNoise(0.01))),
    "DP-SGD, dropout": Combined((PrivateGradients(0.2, 0.5), GradientDropout(0.5))),
    "noise, sum": Combined((GradientNoise(0.05), ClientAggregation(2))),
    "dropout, sum": Combined((GradientDropout(0.5), ClientAggregation(2))),
    "local steps": LocalAggregation(3),
}
"""One of each kind, and what they become together. Local steps are for updates alone."""


def gradient_client() -> SharedGradient:
    return SharedGradient(linear_network(), mode="eval")


def update_client(steps: int = 1, rate: float = 0.1, **changes) -> FederatedUpdate:
    local = LocalTraining(steps, rate, **changes)
    return FederatedUpdate(linear_network(), local, mode="eval")


def client_of(defense) -> SharedGradient | FederatedUpdate:
    return update_client() if isinstance(defense, LocalAggregation) else gradient_client()


def naive_gradient(model: nn.Module, records) -> dict[str, torch.Tensor]:
    """The gradient of the mean cross-entropy, by backward."""
    model.zero_grad()
    nn.functional.cross_entropy(model(records.x), records.y).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def joined(tensors) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
