"""All equations of a two-layer gradient, solved by Levenberg–Marquardt in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient

# Entries of a block of the Jacobian: 64 MB, so that one block is in memory at a time.
BLOCK = 8_000_000

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
class Normal:
    """Normal equations: sum of squares of the misfit e, JᵀJ (n, n) and Jᵀe (n,)."""

    cost: float
    matrix: Tensor
    slope: Tensor


class Equations:
    """Misfits of records x = u·Vᵀ with u (b, q) on an orthonormal basis V (d, q), and residuals.

    Equations are weighted by one over the noise; without noise each of the three gradients counts
    by its own mean square. Unknowns are u, then the residuals r (b, K), both flattened. On a basis
    the hidden weights' gradient is projected too, unless some of its entries are not known.
    """

    def __init__(self, gradient: TwoLayerGradient, basis: Tensor, *, with_slopes: bool) -> None:
        self.activation, self.basis = gradient.activation, basis
        self.projected = gradient.weights @ basis
        self.biases = gradient.biases
        self.output_weights = gradient.output_weights
        self.outputs = gradient.output_gradient
        self.output_scale = _scales(gradient.output_gradient, gradient.output_known, gradient.noise)
        self.slopes = self.slope_scale = self.written = None
        if with_slopes and gradient.weight_gradient is not None:
            if gradient.weight_known is None:
                self.slopes = gradient.weight_gradient @ basis
                self.written = torch.eye(basis.shape[1]).to(basis)
            else:
                self.slopes, self.written = gradient.weight_gradient, basis.T
            self.slope_scale = _scales(self.slopes, gradient.weight_known, gradient.noise)
        self.offsets = self.offset_scale = None
        if with_slopes and gradient.bias_gradient is not None:
            self.offsets = gradient.bias_gradient
            self.offset_scale = _scales(self.offsets, gradient.bias_known, gradient.noise)

    @property
    def count(self) -> int:
        """Number of equations."""
        scales = (self.output_scale, self.slope_scale, self.offset_scale)
        return sum(int((one > 0).sum()) for one in scales if one is not None)

    @property
    def size(self) -> float:
        """What the sum of squares is where nothing is explained."""
        zero = torch.zeros(1, self.basis.shape[1]).to(self.basis)
        return self.cost(zero, torch.zeros(1, len(self.outputs)).to(self.basis))

    def cost(self, u: Tensor, residuals: Tensor) -> float:
        """Sum of squares of the weighted misfits."""
        total = 0.0
        for units in self._blocks(u, residuals, with_slopes=False):
            total += sum(float(e.square().sum()) for e, _ in self._rows(u, residuals, units, False))
        return total

    def normal(self, u: Tensor, residuals: Tensor) -> Normal:
        """Normal equations at one point, block of units by block of units."""
        size = u.numel() + residuals.numel()
        matrix = torch.zeros(size, size, dtype=torch.float64)
        slope, cost = torch.zeros(size, dtype=torch.float64), 0.0
        for units in self._blocks(u, residuals, with_slopes=True):
            for misfit, jacobian in self._rows(u, residuals, units, True):
                assert jacobian is not None
                matrix.addmm_(jacobian.T, jacobian)
                slope.addmv_(jacobian.T, misfit)
                cost += float(misfit.square().sum())
        return Normal(cost, matrix, slope)

    def _blocks(self, u: Tensor, residuals: Tensor, *, with_slopes: bool) -> Iterator[slice]:
        written = 0 if self.written is None else self.written.shape[1]
        entries = max(len(self.outputs), written, 1)
        if with_slopes:
            entries *= u.numel() + residuals.numel()
        step = max(1, BLOCK // entries)
        m = len(self.projected)
        return (slice(start, min(start + step, m)) for start in range(0, m, step))

    def _rows(
        self, u: Tensor, residuals: Tensor, units: slice, with_slopes: bool
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Weighted misfits (rows,) and Jacobians (rows, n) of each gradient, for some units."""
        p = self.projected[units]
        z = p @ u.T
        if self.biases is not None:
            z = z + self.biases[units, None]
        value, slope = self.activation.value(z), self.activation.slope(z)
        scale = self.output_scale[:, units]
        misfit = scale * (residuals.T @ value.T - self.outputs[:, units])
        jacobian = None
        if with_slopes:
            jacobian = self._output_jacobian(residuals, p, value, slope, scale)
        yield misfit.flatten(), jacobian
        if self.slopes is None and self.offsets is None:
            return
        assert self.output_weights is not None
        a = self.output_weights[:, units].T
        sent = a @ residuals.T
        curvature = self.activation.curvature(z)
        if self.slopes is not None:
            assert self.written is not None
            assert self.slope_scale is not None
            x = u @ self.written
            scale = self.slope_scale[units]
            misfit = scale * ((sent * slope) @ x - self.slopes[units])
            jacobian = None
            if with_slopes:
                by_x = torch.einsum("ji,je,ie,jq->jeiq", sent * curvature, scale, x, p)
                by_x += torch.einsum("ji,je,qe->jeiq", sent * slope, scale, self.written)
                by_r = torch.einsum("ji,je,ie,jk->jeik", slope, scale, x, a)
                jacobian = torch.cat([by_x.flatten(2), by_r.flatten(2)], 2).flatten(0, 1)
            yield misfit.flatten(), jacobian
        if self.offsets is not None:
            assert self.offset_scale is not None
            scale = self.offset_scale[units]
            misfit = scale * ((sent * slope).sum(1) - self.offsets[units])
            jacobian = None
            if with_slopes:
                by_x = torch.einsum("ji,j,jq->jiq", sent * curvature, scale, p)
                by_r = torch.einsum("ji,j,jk->jik", slope, scale, a)
                jacobian = torch.cat([by_x.flatten(1), by_r.flatten(1)], 1)
            yield misfit, jacobian

    def _output_jacobian(
        self, residuals: Tensor, p: Tensor, value: Tensor, slope: Tensor, scale: Tensor
    ) -> Tensor:
        """Slopes of Σ_i r_ik·σ(z_ij) (K·m, n): r_ik·σ′·p_j by u_i, and σ by r_ik."""
        outputs, batch = len(scale), len(residuals)
        by_x = torch.einsum("kj,ik,ji,jq->kjiq", scale, residuals, slope, p)
        by_r = torch.zeros(outputs, len(p), batch, outputs, dtype=p.dtype)
        for k in range(outputs):
            by_r[k, :, :, k] = scale[k, :, None] * value
        return torch.cat([by_x.flatten(2), by_r.flatten(2)], 2).flatten(0, 1)


def _scales(gradient: Tensor, known: Tensor | None, noise: float) -> Tensor:
    """Weight of each equation: 1/noise, or one over the root mean square; 0 where not known."""
    mask = torch.ones_like(gradient) if known is None else known.to(gradient)
    if noise:
        return mask / noise
    size = math.sqrt(float((gradient * mask).square().sum() / mask.sum().clamp_min(1)))
    return mask / size if size else torch.zeros_like(mask)


@dataclass(frozen=True)
class Polished:
    """Coordinates u (b, q), residuals (b, K), the sum of squares left, and the steps taken."""

    u: Tensor
    residuals: Tensor
    cost: float
    steps: int


def polish_solution(
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
