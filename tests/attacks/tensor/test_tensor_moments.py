"""Hermite contractions against dense tensors, and moments against their expectation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from two_layer_worlds import ACTIVATIONS, CUBIC, directions, normal, stream, world

from vestige.attacks.tensor_features import hermite, subspace
from vestige.attacks.tensor_features.activations import APPROXIMATE_GELU, GELU, RELU, TANH
from vestige.attacks.tensor_features.decomposition import decompose, unexplained_share
from vestige.attacks.tensor_features.moments import first_moments, streams, without_lower_orders

SMOOTH = {"cubic": CUBIC, "tanh": TANH, "gelu": GELU, "tanh form of gelu": APPROXIMATE_GELU}


def dense(w: Tensor, order: int) -> Tensor:
    """H_order(w), entry by entry, as products of one-dimensional Hermite polynomials."""
    d = len(w)
    result = torch.zeros((d,) * order, dtype=torch.float64)
    for entry in itertools.product(range(d), repeat=order):
        value = 1.0
        for axis in range(d):
            z, times = float(w[axis]), entry.count(axis)
            value *= (1.0, z, z**2 - 1, z**3 - 3 * z, z**4 - 6 * z**2 + 3)[times]
        result[entry] = value
    return result


W, G, H = normal(5, 4, seed=1), normal(5, seed=2), normal(5, 4, seed=3)


def summed(order: int) -> Tensor:
    return torch.stack([g * dense(w, order) for g, w in zip(G, W)]).sum(0)


def outer(order: int) -> Tensor:
    """Σ h ⊗ H_order(w), averaged over all arrangements of the axes."""
    raw = torch.stack([torch.tensordot(h, dense(w, order), 0) for h, w in zip(H, W)]).sum(0)
    arranged = [raw.permute(axes) for axes in itertools.permutations(range(order + 1))]
    return torch.stack(arranged).mean(0)


def test_contractions_are_those_of_dense_tensors():
    a = normal(4, seed=4)
    torch.testing.assert_close(hermite.second(W, G), summed(2))
    torch.testing.assert_close(hermite.third(W, G), summed(3))
    torch.testing.assert_close(hermite.fourth(W, G), summed(4))
    along = torch.einsum("abc,c->ab", summed(3), a)
    torch.testing.assert_close(hermite.third_along(W, G, a), along)


def test_projected_contractions_are_projections_of_dense_tensors():
    basis = torch.linalg.qr(normal(4, 2, seed=5))[0]
    p = W @ basis
    third, fourth = summed(3), summed(4)
    half_open = torch.einsum("abc,bx,cy->axy", third, basis, basis)
    torch.testing.assert_close(hermite.third_open(W, basis, p, G), half_open)
    closed = torch.einsum("abcd,aw,bx,cy,dz->wxyz", fourth, basis, basis, basis, basis)
    torch.testing.assert_close(hermite.fourth(p, G), closed)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_slopes_are_symmetrised_outer_products(order):
    function = (hermite.slopes_second, hermite.slopes_third, hermite.slopes_fourth)[order - 2]
    torch.testing.assert_close(function(H, W), outer(order - 1))


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_autograd(name):
    z = torch.linspace(-3, 3, 41, dtype=torch.float64, requires_grad=True)
    activation = SMOOTH[name]
    (slope,) = torch.autograd.grad(activation.value(z).sum(), z, create_graph=True)
    torch.testing.assert_close(activation.slope(z), slope)
    (curvature,) = torch.autograd.grad(slope.sum(), z)
    torch.testing.assert_close(activation.curvature(z), curvature)


def test_gelu_is_that_of_torch():
    z = torch.linspace(-4, 4, 33, dtype=torch.float64)
    torch.testing.assert_close(GELU.value(z), torch.nn.functional.gelu(z))
    form = torch.nn.functional.gelu(z, approximate="tanh")
    torch.testing.assert_close(APPROXIMATE_GELU.value(z), form)


def test_hermite_coefficients_in_closed_form():
    """z² + z³ = 1 + 3·He₁ + He₂ + He₃; ReLU's kink gives φ(0), 0 and φ″(0)."""
    found = CUBIC.hermite_coefficients(1.0)
    torch.testing.assert_close(found, torch.tensor([1, 3, 2, 6, 0]).double(), atol=1e-9, rtol=0)
    density = 1 / math.sqrt(2 * math.pi)
    expected = torch.tensor([density, 0.5, density, 0, -density], dtype=torch.float64)
    torch.testing.assert_close(RELU.hermite_coefficients(1.0), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_moments_tend_to_tensor_powers(name, order):
    """E[σ(wᵀx)·H_k(w)] = E[σ⁽ᵏ⁾]·x⊗…⊗x, contracted with x, to 4.5 standard errors.

    A false alarm has a probability below 1e-5 in each of twelve cases, and the seed is fixed.
    """
    x, w = directions(1, 6, seed=7)[0], normal(200_000, 6, seed=8)
    activation = ACTIVATIONS[name]
    g = activation.value(w @ x) / len(w)
    function = (hermite.second, hermite.third, hermite.fourth)[order - 2]
    moment = function(w, g)
    for _ in range(order):
        moment = moment @ x
    z = w @ x
    single = (z**2 - 1, z**3 - 3 * z, z**4 - 6 * z**2 + 3)[order - 2] * activation.value(z)
    expected = float(activation.hermite_coefficients(1.0)[order])
    standard_error = float(single.std()) / math.sqrt(len(w))
    assert abs(float(moment) - expected) < 4.5 * standard_error


def test_first_moment_tends_to_the_weighted_sum_of_records():
    """Its error is √(d/m) times the deviation of g, here within twice that."""
    x, residuals, gradient = world(TANH, units=20_000)
    given = streams(gradient, 3, torch.arange(20_000), 1.0, None)
    expected = float(TANH.hermite_coefficients(1.0)[1]) * residuals[:, 0] @ x
    found = first_moments(given)[0]
    allowed = 2 * math.sqrt(12 / 20_000) * float(given.values.std())
    assert float((found - expected).norm()) < allowed
    assert float(expected.norm()) > 5 * allowed


def test_lower_orders_are_taken_out_on_known_entries_alone():
    design = torch.cat([torch.ones(300, 1).double(), normal(300, 4, seed=1)], 1)
    wanted = normal(2, 300, seed=2)
    exact = (design @ normal(5, 2, seed=3)).T
    shares = torch.full((2, 300), 1 / 300).double()
    spoilt = exact.clone()
    spoilt[:, :100], shares[:, :100] = 1e6, 0.0
    assert float(without_lower_orders(spoilt, shares, design).abs().max()) < 1e-9
    left = without_lower_orders(wanted, torch.full((2, 300), 1 / 300).double(), design)
    assert float((left @ design).abs().max()) < 1e-9


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_span_is_found_from_moments(name):
    """The records' part outside the span is √(d/m)-small: .05 to .2 here, and 0.87 by chance."""
    x, _, gradient = world(ACTIVATIONS[name], units=8000, batch=3)
    given = streams(gradient, 3, torch.arange(8000), 1.0, None)
    basis = subspace.from_moments(given, 3)
    torch.testing.assert_close(basis.T @ basis, torch.eye(3).double())
    outside = (x - x @ basis @ basis.T).norm(dim=1)
    assert float(outside.max()) < 0.4


def test_span_of_slopes_is_exact_and_survives_missing_entries():
    x, _, gradient = world(TANH, everything=True)
    for known in (None, torch.rand(1500, 12, generator=stream(1)) < 0.6):
        object.__setattr__(gradient, "weight_known", known)
        basis = subspace.from_slopes(gradient, 3)
        assert basis is not None
        assert float((x - x @ basis @ basis.T).norm()) < 1e-8
    few = torch.rand(1500, 12, generator=stream(1)) < 0.1
    object.__setattr__(gradient, "weight_known", few)
    assert subspace.from_slopes(gradient, 3) is None


def test_span_that_noise_hides_is_not_used():
    _, _, gradient = world(TANH, everything=True)
    object.__setattr__(gradient, "noise", float(gradient.weight_gradient.abs().max()))
    assert subspace.from_slopes(gradient, 3) is None


@pytest.mark.parametrize("size", [1, 2, 5])
def test_exact_matrices_are_decomposed(size):
    columns = directions(size, size, seed=3).T
    weights = normal(4, size, seed=4)
    matrices = torch.einsum("ni,ai,bi->nab", weights, columns, columns)
    found = decompose(matrices, 6, stream(1))[0]
    cosines = (columns.T @ found).abs()
    assert float((cosines.max(1).values - 1).abs().max()) < 1e-9
    assert unexplained_share(matrices, found) < 1e-18
    assert len(set(cosines.argmax(1).tolist())) == size


def test_noise_moves_a_decomposition_a_little():
    columns = directions(4, 4, seed=3).T
    weights = normal(12, 4, seed=4)
    matrices = torch.einsum("ni,ai,bi->nab", weights, columns, columns)
    noise = normal(12, 4, 4, seed=5)
    found = decompose(matrices + 0.01 * (noise + noise.mT), 6, stream(1))[0]
    assert float((columns.T @ found).abs().max(1).values.min()) > 0.99
