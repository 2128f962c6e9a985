"""How a release moves with its records: the Jacobian that bounds on the error are made of.

The release is replayed by a ``Simulator`` in float64 and differentiated in every value of every
record: forwards (``torch.func.jvp``), one pass for each value of the batch, or backwards where
the release is the shorter of the two. Noise is no part of it.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vestige.bounds.errors.defended import ReleaseSlopes
from vestige.errors import BadInput
from vestige.simulation.convex import ConvexSimulator
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.simulator import Simulator

LARGEST = 50_000_000
"""Entries of a Jacobian at most: 400 MB in float64."""

AT_A_TIME = 64
"""Directions that are pushed through the network together."""

JUMPING = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.SELU,
    nn.Threshold,
    nn.Hardtanh,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
)
"""Layers whose slope jumps, and with it the gradient of any network they stand in."""


def release_slopes(simulator: Simulator, x: Tensor, targets: Tensor) -> ReleaseSlopes:
    """The release for records x (n, *shape) with its slopes, as ``bounds.bound_errors`` takes them.

    Rows follow the parameters in the simulator's order, columns the values of the first record,
    then of the second. The release is a gradient, an update after local steps, or a trained model;
    where the simulator clips each record's gradient, the slopes are those of the clipped ones.
    Each record's gradient is a part of its own where the release is their sum or mean; otherwise
    (local steps, batch norm in train mode, a simulator that clips) all records make one part.
    """
    simulator, x, targets = _in_float64(simulator, x, targets)
    _check_size(simulator, x.numel())
    jumps = any(
        isinstance(module, JUMPING) or (isinstance(module, nn.ELU) and module.alpha != 1)
        for module in simulator.network.modules()
    )
    if not _adds_up(simulator):
        values, jacobian = _jacobian(simulator, x, targets)
        return ReleaseSlopes(
            values[None].cpu().numpy(), jacobian[None].cpu().numpy(), len(x), jumps=jumps
        )
    alone = replace(simulator, reduction="sum")
    parts = [_jacobian(alone, x[i : i + 1], targets[i : i + 1]) for i in range(len(x))]
    return ReleaseSlopes(
        torch.stack([values for values, _ in parts]).cpu().numpy(),
        torch.stack([jacobian for _, jacobian in parts]).cpu().numpy(),
        len(x),
        averaged=simulator.reduction == "mean",
        jumps=jumps,
    )


def _in_float64(
    simulator: Simulator, x: Tensor, targets: Tensor
) -> tuple[Simulator, Tensor, Tensor]:
    """Simulator, records and targets in float64, or what is wrong with them."""
    if isinstance(simulator, ConvexSimulator):
        raise BadInput(
            "An optimum of a convex fit is not unrolled, so it has no Jacobian here: use a "
            "simulator of a gradient or of local training."
        )
    if len(x) == 0 or len(x) != len(targets):
        raise BadInput("A Jacobian needs at least one record, and one row of targets for each.")
    double = replace(simulator, model=copy.deepcopy(simulator.model).double())
    return double, x.detach().double(), targets.detach().double()


def _check_size(simulator: Simulator, unknowns: int) -> None:
    released = sum(value.numel() for value in simulator.parameters.values())
    if released * unknowns > LARGEST:
        raise BadInput(
            f"The Jacobian of {released:,} released values in {unknowns:,} unknown ones exceeds "
            f"{LARGEST:,} entries: use a smaller network, smaller records or a smaller batch."
        )


def _adds_up(simulator: Simulator) -> bool:
    """Whether the release is the sum or mean of what each record gives alone."""
    mixes = simulator.mode == "train" and any(
        isinstance(module, _BatchNorm) for module in simulator.network.modules()
    )
    alone = isinstance(simulator, GradientSimulator) and simulator.clipped_noise is None
    return alone and not mixes


def _jacobian(simulator: Simulator, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The release (P,) and its Jacobian (P, values of x)."""

    def released(flat: Tensor) -> Tensor:
        found = simulator(flat.reshape(x.shape), targets)
        return torch.cat([found[name].reshape(-1) for name in simulator.parameters])

    flat = x.reshape(-1)
    values = released(flat).detach()
    if len(values) < len(flat):
        return values, torch.func.jacrev(released, chunk_size=AT_A_TIME)(flat).detach()

    def moved(direction: Tensor) -> Tensor:
        return torch.func.jvp(released, (flat,), (direction,))[1]

    # jacfwd by hand, for it takes no chunk size: columns of the identity, some at a time.
    directions = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
    columns = torch.func.vmap(moved, out_dims=1, chunk_size=AT_A_TIME)(directions)
    return values, columns.detach()
