"""Moments (1/m)·Σ_j g_j·H_k(w_j) with Hermite tensors, without a tensor of d³ entries.

H₂(w) = ww − I, H₃(w) = www − Σ³ w·I, H₄(w) = wwww − Σ⁶ ww·I + Σ³ I·I, each sum over the ways to
deal out the axes. With w ~ N(0, I) Stein's identity gives E[σ(wᵀx)·H_k(w)] = E[σ⁽ᵏ⁾]·x⊗…⊗x (Wang,
Lee and Lei 2023, Section 3). On an orthonormal basis V a projected Hermite tensor is the Hermite
tensor of Vᵀw, so third and fourth orders are only taken with all, or all but one, of their axes
projected. Everywhere g (m,) and slopes h (m, b) are divided by m already: a sum is a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor


def second(w: Tensor, g: Tensor) -> Tensor:
    """Σ_j g_j·H₂(w_j) (d, d) of w (m, d) and g (m,)."""
    return w.T @ (g[:, None] * w) - g.sum() * torch.eye(w.shape[1]).to(w)


def third_along(w: Tensor, g: Tensor, a: Tensor) -> Tensor:
    """Σ_j g_j·H₃(w_j)(I, I, a) (d, d) for a vector a (d,)."""
    along = g * (w @ a)
    first = torch.outer(w.T @ g, a)
    return second(w, along) - first - first.T


def third(p: Tensor, g: Tensor) -> Tensor:
    """Σ_j g_j·H₃(p_j) (b, b, b) of projections p (m, b)."""
    return third_open(p, torch.eye(p.shape[1]).to(p), p, g)


def third_open(w: Tensor, basis: Tensor, p: Tensor, g: Tensor) -> Tensor:
    """Σ_j g_j·H₃(w_j)(I, V, V) (d, b, b), with V = basis (d, b) and p = w·V."""
    b = p.shape[1]
    raw = (w * g[:, None]).T @ _pairs(p)
    mean_w, mean_p = w.T @ g, p.T @ g
    eye = torch.eye(b).to(p)
    return (
        raw.reshape(-1, b, b)
        - mean_w[:, None, None] * eye
        - basis[:, :, None] * mean_p
        - basis[:, None, :] * mean_p[:, None]
    )


def fourth(p: Tensor, g: Tensor) -> Tensor:
    """Σ_j g_j·H₄(p_j) (b, b, b, b) of projections p (m, b)."""
    b, eye = p.shape[1], torch.eye(p.shape[1]).to(p)
    products = _pairs(p)
    result = ((products * g[:, None]).T @ products).reshape(b, b, b, b)
    pairs, total = (p * g[:, None]).T @ p, g.sum()
    for spelt in ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd"):
        placed = torch.einsum(spelt, pairs, eye) + torch.einsum(spelt, eye, pairs)
        result = result - placed + total * torch.einsum(spelt, eye, eye)
    return result


def slopes_second(h: Tensor, p: Tensor) -> Tensor:
    """Σ_j h_j ⊗ p_j (b, b), symmetrised, of slopes h (m, b) such as ∇_{w_j}L on the basis."""
    return symmetric(h.T @ p)


def slopes_third(h: Tensor, p: Tensor) -> Tensor:
    """Σ_j h_j ⊗ H₂(p_j) (b, b, b), symmetrised.

    By Stein's identity its mean is that of Σ g_j·H₃, with one Hermite order less of noise.
    """
    b = p.shape[1]
    raw = (h.T @ _pairs(p)).reshape(b, b, b)
    return symmetric(raw - h.sum(0)[:, None, None] * torch.eye(b).to(p))


def slopes_fourth(h: Tensor, p: Tensor) -> Tensor:
    """Σ_j h_j ⊗ H₃(p_j) (b, b, b, b), symmetrised."""
    b, eye = p.shape[1], torch.eye(p.shape[1]).to(p)
    left = (h[:, :, None] * p[:, None, :]).reshape(len(h), -1)
    result = (left.T @ _pairs(p)).reshape(b, b, b, b)
    once = h.T @ p
    for spelt in ("ab,cd->abcd", "ac,bd->abcd", "ad,bc->abcd"):
        result = result - torch.einsum(spelt, once, eye)
    return symmetric(result)


def _pairs(p: Tensor) -> Tensor:
    """Products of all pairs of entries (m, b²)."""
    return (p[:, :, None] * p[:, None, :]).reshape(len(p), -1)


def symmetric(tensor: Tensor) -> Tensor:
    """Mean over the places of the first axis: symmetric if the others already are."""
    order = tensor.dim()
    moved = [tensor.movedim(0, place) for place in range(order)]
    return torch.stack(moved).mean(0)
