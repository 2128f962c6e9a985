"""Levenberg–Marquardt on the equations of a two-layer gradient, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.attacks.tensor.equations import Equations

# Marquardt 1963; growth and shrinkage of the damping after Nielsen 1999, "Damping Parameter in
# Marquardt's Method".
FIRST_DAMPING = 1e-2
LEAST_DAMPING, MOST_DAMPING = 1e-14, 1e10
# Without noise: the sum of squares, relative to that of nothing explained, at float64's rounding.
EXACT = 1e-29
# With noise: a step that would lower the sum of squares, in units of the noise's variance, by less
# than this changes nothing that the noise does not hide.
BELOW_NOISE = 1e-2
# Steps in a row that gain less than this share of the sum of squares end the search.
STALLED, PATIENCE = 1e-6, 4


@dataclass(frozen=True)
class Polished:
    """Coordinates u (b, q), residuals (b, K), the sum of squares left, and the steps taken."""

    u: Tensor
    residuals: Tensor
    cost: float
    steps: int


def polished(
    equations: Equations, u: Tensor, residuals: Tensor, *, steps: int, noisy: bool
) -> Polished:
    """Least-squares solution near a start u (b, q), residuals (b, K)."""
    size = equations.size
    normal = equations.normal(u, residuals)
    damping, growth, stalled, taken = FIRST_DAMPING, 2.0, 0, 0
    while taken < steps and normal.cost > EXACT * size and stalled < PATIENCE:
        taken += 1
        scale = normal.matrix.diagonal().clamp_min(1e-12 * float(normal.matrix.diagonal().max()))
        damped = normal.matrix + torch.diag(damping * scale)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            damping, growth = damping * growth, growth * 2
            stalled += damping > MOST_DAMPING
            continue
        step = -torch.cholesky_solve(normal.slope[:, None], factor)[:, 0]
        # The fall of the quadratic model: twice −slope·step less the curvature's share.
        expected = float(step @ (damping * scale * step - normal.slope))
        if noisy and expected < BELOW_NOISE:
            break
        moved_u = u + step[: u.numel()].reshape(u.shape)
        moved_r = residuals + step[u.numel() :].reshape(residuals.shape)
        cost = equations.cost(moved_u, moved_r)
        gain = (normal.cost - cost) / max(expected, 1e-300)
        if cost < normal.cost:
            stalled = stalled + 1 if normal.cost - cost < STALLED * normal.cost else 0
            u, residuals = moved_u, moved_r
            normal = equations.normal(u, residuals)
            damping = max(damping * max(1 / 3, 1 - (2 * gain - 1) ** 3), LEAST_DAMPING)
            growth = 2.0
        else:
            damping, growth = damping * growth, growth * 2
            stalled += damping > MOST_DAMPING
    return Polished(u, residuals, normal.cost, taken)
