"""Moments of a two-layer gradient: small symmetric tensors that share their rank-one components."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vestige.attacks.tensor_features import hermite

if TYPE_CHECKING:
    from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient

# Hermite coefficients below this share of the largest one are taken to vanish.
VANISHING = 1e-3
# Eigenvalues of the output weights' second moment below this share of the largest one are zero.
INDEPENDENT = 1e-8


@dataclass(frozen=True)
class Streams:
    """What the moments are taken of, over the units whose weights are Gaussian.

    ``weights`` (m, d) have unit variance, ``spread`` is what they were divided by. ``values``
    (c, m) are gradients of outputs, with ``shares`` (c, m): one over the number of known entries, 0
    where an entry is not known. ``slopes`` (e, m, b) are gradients of hidden weights, each brought
    to one output, on the basis of the span, or None where the span is not known.
    ``coefficients`` are the Hermite coefficients c₀ … c₄ of the activation.
    """

    weights: Tensor
    spread: float
    values: Tensor
    shares: Tensor
    slopes: Tensor | None
    coefficients: Tensor

    def signal(self, order: int) -> float:
        """|c_k|/√k!, the part of the activation that order k sees, as a share of the largest."""
        sizes = self.coefficients[1:].abs() / torch.tensor(
            [math.sqrt(math.factorial(k)) for k in range(1, len(self.coefficients))]
        )
        share = float(sizes[order - 1] / sizes.max().clamp_min(1e-300))
        return share if share > VANISHING else 0.0


def streams(
    gradient: TwoLayerGradient, batch: int, units: Tensor, length: float, span: Tensor | None
) -> Streams:
    """Collect what moments are taken of.

    Gradients of K outputs are Rᵀ·σ(XWᵀ), of rank ``batch`` at most: where every entry is known, the
    leading combinations of outputs hold all of it with less noise.

    ``units`` (m,) have Gaussian weights, ``length`` is that of a record, and ``span`` is an
    orthonormal basis (d, b) of the records' span, if the hidden weights' gradient is used.
    """
    weights = gradient.weights[units]
    spread = float(weights.square().mean().sqrt())
    values, output_weights = gradient.output_gradient[:, units], gradient.output_weights
    output_weights = None if output_weights is None else output_weights[:, units]
    if gradient.output_known is None:
        if len(values) > batch:
            turn = torch.linalg.svd(values @ values.T)[0][:, :batch]
            values = turn.T @ values
        shares = torch.full_like(values, 1 / values.shape[1])
    else:
        # An output that lost every entry says nothing, and its spread of zero would divide.
        left = gradient.output_known[:, units].any(1)
        values, known = values[left], gradient.output_known[left][:, units].to(values)
        shares = known / known.sum(1, keepdim=True).clamp_min(1)
    slopes = None
    if span is not None and gradient.weight_gradient is not None and output_weights is not None:
        slopes = _slopes(gradient, gradient.weight_gradient[units], output_weights, units, span)
    offsets = gradient.biases
    offset = 0.0 if offsets is None else float(offsets[units].mean())
    coefficients = gradient.activation.hermite_coefficients(spread * length, offset)
    return Streams(weights / spread, spread, values, shares, slopes, coefficients)


def _slopes(
    gradient: TwoLayerGradient,
    weight_gradient: Tensor,
    output_weights: Tensor,
    units: Tensor,
    span: Tensor,
) -> Tensor:
    """∇_{w_j}L on the span, brought to single outputs (e, m, b).

    With one output A_j is divided out. With several, regression on the independent combinations
    of A's rows separates their residuals on average; constant rows leave one combination.
    """
    known = gradient.weight_known
    if known is not None:
        chosen = known[units].to(weight_gradient)
        weight_gradient = weight_gradient * chosen / chosen.mean(0).clamp_min(1e-12)
    usual = output_weights.square().mean()
    if len(output_weights) == 1 and gradient.noise == 0:
        a = output_weights[0]
        # Units that pass nothing on say nothing: their quotient would be rounding.
        factors = torch.where(a.square() > 1e-8 * usual, 1 / a, 0.0)[None]
    else:
        values, vectors = torch.linalg.eigh(output_weights @ output_weights.T / len(units))
        significant = values > INDEPENDENT * values.max()
        factors = (vectors[:, significant] / values[significant]).T @ output_weights
    return factors[:, :, None] * (weight_gradient @ span)


def without_lower_orders(values: Tensor, shares: Tensor, design: Tensor) -> Tensor:
    """Values (c, m) less their least-squares fit by the design (m, n), on known entries.

    Orders of Hermite tensors are orthogonal, so what lower orders explain is only noise to higher
    ones. Not in the paper; it takes away most of the error for activations with a linear part.
    """
    if design.shape[1] * 2 > len(design):
        return values
    known = shares > 0
    if bool(known.all()):
        # Normal equations: columns are nearly orthogonal, and a QR would cost ten times as much.
        fit = torch.linalg.solve(design.T @ design, design.T @ values.T)
        return values - (design @ fit).T
    rows = []
    for one, mask in zip(values, known):
        selected = design[mask]
        if design.shape[1] * 2 > len(selected):
            rows.append(torch.where(mask, one, 0.0))
            continue
        fit = torch.linalg.solve(selected.T @ selected, selected.T @ one[mask])
        rows.append(torch.where(mask, one - design @ fit, 0.0))
    return torch.stack(rows)


def first_moments(given: Streams) -> Tensor:
    """Σ_i r_ic·c₁·x_i (c, d), by regression on the weights."""
    constant = given.shares.sum(1, keepdim=True).clamp_min(1e-300)
    centred = given.values - (given.values * given.shares).sum(1, keepdim=True) / constant
    return (centred * given.shares) @ given.weights


def small_matrices(given: Streams, basis: Tensor) -> Tensor:
    """Slices (n, b, b) of all moments on the basis (d, b): each is Σ_i λ_i·u_i·u_iᵀ plus noise.

    Every slice is divided by the standard deviation of its noise, and orders that the activation
    does not have are left out: for ReLU and GELU without biases the third.
    """
    p = given.weights @ basis
    size, slices = p.shape[1], []
    # On a known span nothing else explains anything.
    seen = given.weights if given.slopes is None else p
    linear = torch.cat([torch.ones(len(p), 1).to(p), seen], 1)
    squares = torch.stack([p[:, a] * p[:, b] for a in range(size) for b in range(a + 1)], 1)

    def added(tensor: Tensor, deviation: Tensor, order: int) -> None:
        weight = given.signal(order) / (deviation.clamp_min(1e-300) * math.sqrt(len(p)))
        slices.append(weight * tensor.reshape(-1, size, size))

    values = without_lower_orders(given.values, given.shares, linear)
    if given.signal(2):
        for one, share in zip(values, given.shares):
            added(hermite.second(p, one * share), one.std() * math.sqrt(2), 2)
    values = without_lower_orders(values, given.shares, torch.cat([linear, squares], 1))
    for one, share in zip(values, given.shares):
        if given.signal(3):
            added(hermite.third(p, one * share), one.std() * math.sqrt(6), 3)
        if given.signal(4):
            added(hermite.fourth(p, one * share), one.std() * math.sqrt(24), 4)
    for one in () if given.slopes is None else given.slopes:
        h = one / len(p)
        size_of_noise = h.std() * len(p)
        if given.signal(2):
            added(hermite.slopes_second(h, p), size_of_noise, 2)
        if given.signal(3):
            added(hermite.slopes_third(h, p), size_of_noise * math.sqrt(2), 3)
        if given.signal(4):
            added(hermite.slopes_fourth(h, p), size_of_noise * math.sqrt(6), 4)
    return torch.cat(slices)
