"""Signs of directions and residuals of records: what moments leave open, from the equations."""

from __future__ import annotations

import torch
from torch import Tensor

from vestige.attacks.tensor_features.two_layer_gradient import Solution, TwoLayerGradient

# Lengths tried where a record's length is not known, in units of one over the weights' spread.
LENGTHS = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0)


def resolve_signs(
    gradient: TwoLayerGradient, directions: Tensor, lengths: tuple[float, ...]
) -> Solution:
    """Records (b, d) along unit directions (b, d), signed, of the length that fits best.

    The outputs' gradient is linear in residuals: it is fitted by both signs of every direction at
    once, and the sign that takes more of it is kept. For odd activations both are the same
    equation, and the sign stays as it was.
    """
    best: tuple[float, Solution] | None = None
    for length in lengths:
        x = length * directions
        if not gradient.activation.odd or gradient.biases is not None:
            both, _ = fit_residuals(gradient, torch.cat([x, -x]))
            plus, minus = both.square().sum(1).chunk(2)
            x = torch.where((plus >= minus)[:, None], x, -x)
        residuals, missed = fit_residuals(gradient, x)
        if best is None or missed < best[0]:
            best = missed, Solution(x, residuals)
    assert best is not None
    return best[1]


def fit_residuals(gradient: TwoLayerGradient, x: Tensor) -> tuple[Tensor, float]:
    """Residuals (b, K) of records x (b, d) by least squares, and the sum of squares they miss."""
    z = gradient.weights @ x.T
    if gradient.biases is not None:
        z = z + gradient.biases[:, None]
    values, known = gradient.activation.value(z), gradient.output_known
    # A trace of damping: two records that are alike share their residual.
    damping = 1e-9 * values.square().sum() * torch.eye(len(x)).to(x)
    if known is None:
        wanted = values.T @ gradient.output_gradient.T
        residuals = torch.linalg.solve(values.T @ values + damping, wanted)
        misfit = gradient.output_gradient.T - values @ residuals
        return residuals, float(misfit.square().sum())
    columns, missed = [], 0.0
    for one, mask in zip(gradient.output_gradient, known):
        system = values[mask]
        column = torch.linalg.solve(system.T @ system + damping, system.T @ one[mask])
        missed += float((one[mask] - system @ column).square().sum())
        columns.append(column)
    return torch.stack(columns, 1), missed


def correct_by_biases(gradient: TwoLayerGradient, solution: Solution) -> Solution:
    """Sign or length of each record from the biases' gradient, where outputs leave it open.

    That gradient is Σ_i (Σ_k A_kj·r_ik)·σ′(w_jᵀx_i), and σ′ of an odd activation is even, of a
    homogeneous one independent of the length: a record's share t in it, found by least squares,
    turns (x, r) into (x/t, t·r).
    """
    offsets, a = gradient.bias_gradient, gradient.output_weights
    activation = gradient.activation
    open_ = gradient.biases is None and (activation.odd or activation.homogeneous)
    if offsets is None or a is None or not open_:
        return solution
    slope = activation.slope(gradient.weights @ solution.x.T)
    columns = slope * (solution.residuals @ a).T
    known = gradient.bias_known
    if known is not None:
        columns, offsets = columns[known], offsets[known]
    share = torch.linalg.lstsq(columns, offsets[:, None], driver="gelsd").solution
    # Where noise hides a share, or a record passes nothing on, it stays as it was.
    spread = torch.linalg.pinv(columns.T @ columns).diagonal()[:, None].clamp_min(0).sqrt()
    seen = share.abs() > (3 * gradient.noise * spread).clamp_min(0.01)
    if activation.odd:
        share = share.sign()
    share = torch.where(seen & (activation.odd | (share > 0)), share, 1.0)
    return Solution(solution.x / share, share * solution.residuals)
