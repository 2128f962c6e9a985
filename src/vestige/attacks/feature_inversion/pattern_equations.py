"""Pictures from linear equations: what a network computes once its activation patterns are fixed.

Pan et al. 2020, "Exploring the Security Boundary of Data Reconstruction via Neuron Exclusivity
Analysis", Section 4: with the patterns of ReLUs and maxima given, the features are affine in the
record, by filters that all places share. With the slopes at the features known too, the gradients
of convolutions are affine as well, and more equations of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Differences of neighbouring pixels below this count as equal (in units of the pixel).
EVEN = 1e-2
STEPS = (1.0, 0.5, 0.25, 0.1)


def solve_patterns(
    simulated: Callable[[Tensor], Tensor],
    wanted: Tensor,
    weights: Tensor,
    x: Tensor,
    *,
    rounds: int,
    bounds: tuple[float, float] | None = None,
    total_variation: float = 0.0,
    ridge: float = 1e-4,
    products: int = 30,
) -> Tensor:
    """Records (n, *shape) near x that minimise ‖weights·(simulated(x) − wanted)‖² with its bounds.

    Each round takes the patterns of the current records, solves the linear equations they give by
    conjugate gradients (the matrix is never formed) and keeps the step if the true misfit falls;
    that is Levenberg–Marquardt, exact in one round if the patterns are right. The paper has the
    patterns from exclusive neurons and no rounds; the bounds, the ridge on the step and the total
    variation (reweighted least squares) stand in for what the equations leave open.

    ``total_variation`` weighs as in ``inverting_gradients.total_variation``; ``products`` is the
    number of conjugate-gradient steps in a round.
    """
    low, high = bounds or (-torch.inf, torch.inf)
    variation = total_variation if x.dim() > 2 else 0.0
    x = x.detach().clamp(low, high)
    best = _misfit(simulated, wanted, weights, x, variation)
    for _ in range(rounds):
        leaf = x.clone().requires_grad_()
        values = simulated(leaf) * weights
        # J·d as the slope of Jᵀ·u for u: two backward passes, and no forward mode needed.
        u = torch.zeros_like(values, requires_grad=True)
        (pulled,) = torch.autograd.grad(values, leaf, u, create_graph=True)
        smooth = _smoothing(x, variation)

        def normal(
            step: Tensor,
            values: Tensor = values,
            leaf: Tensor = leaf,
            pulled: Tensor = pulled,
            u: Tensor = u,
            smooth: Callable[[Tensor], Tensor] = smooth,
        ) -> Tensor:
            (moved,) = torch.autograd.grad(pulled, u, step, retain_graph=True)
            (back,) = torch.autograd.grad(values, leaf, moved, retain_graph=True)
            return back + smooth(step)

        residual = values.detach() - wanted * weights
        (slope,) = torch.autograd.grad(values, leaf, residual, retain_graph=True)
        slope = slope + smooth(x)
        stuck = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
        step = _conjugate_gradients(normal, -slope, ~stuck, ridge, products)
        for length in STEPS:
            moved = (x + length * step).clamp(low, high)
            value = _misfit(simulated, wanted, weights, moved, variation)
            if value < best:
                x, best = moved, value
                ridge = ridge / 2 if length == 1 else ridge * 4
                break
        else:
            ridge = ridge * 16
    return x


def _misfit(
    simulated: Callable[[Tensor], Tensor],
    wanted: Tensor,
    weights: Tensor,
    x: Tensor,
    variation: float,
) -> float:
    value = ((simulated(x).detach() - wanted) * weights).square().sum()
    if variation:
        value = value + variation * sum(x.diff(dim=d).abs().mean() for d in (-1, -2))
    return float(value)


def _smoothing(x: Tensor, variation: float) -> Callable[[Tensor], Tensor]:
    """Half the slope of the total variation, as the quadratic form that touches it at x."""
    if not variation:
        return torch.zeros_like
    weights = {
        dim: variation / 2 / (x.diff(dim=dim).abs() + EVEN) / x.diff(dim=dim).numel()
        for dim in (-1, -2)
    }

    def smooth(step: Tensor) -> Tensor:
        total = torch.zeros_like(step)
        for dim, weight in weights.items():
            flow = weight * step.diff(dim=dim)
            length = step.shape[dim] - 1
            total.narrow(dim, 1, length).add_(flow)
            total.narrow(dim, 0, length).sub_(flow)
        return total

    return smooth


def _conjugate_gradients(
    normal: Callable[[Tensor], Tensor], wanted: Tensor, free: Tensor, ridge: float, products: int
) -> Tensor:
    """Solve (normal + ridge)·step = wanted among the free entries; the others stay."""
    step, left = torch.zeros_like(wanted), wanted * free
    direction, size = left, left.square().sum()
    stop = 1e-12 * size
    for _ in range(products):
        if size <= stop:
            break
        turned = (normal(direction) + ridge * direction) * free
        length = size / (direction * turned).sum().clamp_min(torch.finfo(wanted.dtype).tiny)
        step, left = step + length * direction, left - length * turned
        size, before = left.square().sum(), size
        direction = left + size / before * direction
    return step
