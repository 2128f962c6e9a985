"""Batches of small two-layer networks are recovered exactly, also from parts of a gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from two_layer_worlds import ACTIVATIONS, CUBIC, error, normal, stream, world

from vestige.attacks.tensor_features.activations import RELU, TANH
from vestige.attacks.tensor_features.equations import Equations
from vestige.attacks.tensor_features.recovery import recover_batch
from vestige.attacks.tensor_features.two_layer_gradient import TwoLayerGradient
from vestige.errors import BadInput


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("batch", [1, 3])
def test_outputs_alone_give_unit_records_exactly(name, batch):
    x, residuals, gradient = world(ACTIVATIONS[name], batch=batch)
    found = recover_batch(gradient, batch, generator=stream())
    assert found.solved
    assert error(found.features, x, sign=name == "tanh") < 1e-10
    assert error(found.residuals.abs(), residuals.abs()) < 1e-10
    # The tensor step alone is near, and no more than that.
    assert 1e-4 < error(found.estimate, x) < 0.6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_all_gradients_give_signs_and_lengths_too(name):
    x, residuals, gradient = world(ACTIVATIONS[name], everything=True, lengths=True)
    found = recover_batch(gradient, 3, generator=stream(), unit_norm=False)
    assert found.span_known
    assert error(found.features, x, sign=False) < 1e-9
    assert error(found.residuals, residuals, sign=False) < 1e-9


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_several_outputs_and_biases(name):
    x, residuals, gradient = world(
        ACTIVATIONS[name], outputs=5, batch=4, everything=True, biases=True, lengths=True
    )
    found = recover_batch(gradient, 4, generator=stream(), unit_norm=False)
    assert error(found.features, x, sign=False) < 1e-9
    assert found.residuals.shape == (4, 5)
    assert error(found.residuals, residuals, sign=False) < 1e-9


def test_constant_output_weights_do_not_hide_records():
    """The head of Liu et al.: every hidden unit is sent the same."""
    x, residuals, gradient = world(CUBIC, outputs=3)
    rows = torch.arange(1.0, 4.0).double()[:, None].expand(3, 1500) / 1500
    z = gradient.weights @ x.T
    sent = (residuals @ rows).T * CUBIC.slope(z)
    gradient = replace(
        gradient, output_weights=rows, weight_gradient=sent @ x, bias_gradient=sent.sum(1)
    )
    found = recover_batch(gradient, 3, generator=stream())
    assert error(found.features, x, sign=False) < 1e-9


def masked(gradient: TwoLayerGradient, share: float) -> TwoLayerGradient:
    """Drop entries at random and overwrite them, so that nobody can read them."""
    changed: dict[str, Tensor] = {}
    for place, name in enumerate(("output", "weight", "bias")):
        tensor = getattr(gradient, f"{name}_gradient")
        if tensor is not None:
            known = torch.rand(tensor.shape, generator=stream(place)) < share
            changed[f"{name}_known"] = known
            changed[f"{name}_gradient"] = torch.where(known, tensor, 1e3)
    return replace(gradient, **changed)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("name", ["cubic", "relu"])
def test_unknown_entries_are_left_out(name, everything):
    x, _, gradient = world(ACTIVATIONS[name], everything=everything)
    found = recover_batch(masked(gradient, 0.5), 3, generator=stream())
    assert error(found.features, x, sign=False) < 1e-9


def test_pruned_outputs_are_exact_once_the_mask_is_told():
    """The kept entries are the large ones: the moments are off, the equations are not."""
    x, _, gradient = world(CUBIC)
    known = gradient.output_gradient.abs() > gradient.output_gradient.abs().median()
    pruned = replace(gradient, output_gradient=torch.where(known, gradient.output_gradient, 0.0))
    told = recover_batch(replace(pruned, output_known=known), 3, generator=stream())
    untold = recover_batch(pruned, 3, generator=stream())
    assert error(told.features, x) < 1e-10
    assert error(untold.features, x) > 1e-2
    assert not untold.solved


def test_an_output_that_lost_every_entry_is_left_out():
    x, residuals, gradient = world(CUBIC)
    extra = torch.cat([gradient.output_gradient, torch.zeros_like(gradient.output_gradient[:1])])
    known = torch.ones_like(extra, dtype=torch.bool)
    known[-1] = False
    found = recover_batch(
        replace(gradient, output_gradient=extra, output_known=known), 3, generator=stream()
    )
    assert error(found.features, x) < 1e-10
    assert error(found.residuals[:, :-1].abs(), residuals.abs()) < 1e-10


@pytest.mark.parametrize("name", ["cubic", "relu"])
def test_with_noise_the_error_is_that_of_efficient_estimation(name):
    """About √(d·B/m)·σ/slope: falling noise tenfold makes the error fall about tenfold."""
    x, _, gradient = world(ACTIVATIONS[name])
    size = float(gradient.output_gradient.square().mean().sqrt())
    errors = []
    for level in (0.1, 0.01):
        noise = level * size * normal(*gradient.output_gradient.shape, seed=9)
        noisy = replace(
            gradient, output_gradient=gradient.output_gradient + noise, noise=level * size
        )
        found = recover_batch(noisy, 3, generator=stream())
        assert found.solved
        # Mean square misfit in units of the noise, less the 39 unknowns of 1,500 equations; its
        # standard deviation is √(2/1500) = .037.
        assert abs(found.unexplained - (1 - 39 / 1500)) < 0.15
        errors.append(error(found.features, x))
    assert errors[0] < 0.1
    assert 5 < errors[0] / errors[1] < 20


def test_noise_above_the_hidden_gradient_does_not_spoil_the_outputs():
    x, _, gradient = world(CUBIC, everything=True)
    noise = 0.01 * float(gradient.output_gradient.square().mean().sqrt())
    assert gradient.weight_gradient is not None
    assert noise > 10 * float(gradient.weight_gradient.abs().mean())
    changed = {
        name: getattr(gradient, name) + noise * normal(*getattr(gradient, name).shape, seed=place)
        for place, name in enumerate(("output_gradient", "weight_gradient", "bias_gradient"))
    }
    found = recover_batch(replace(gradient, **changed, noise=noise), 3, generator=stream())
    assert not found.span_known
    assert error(found.features, x) < 0.02


def test_units_that_are_not_random_stay_out_of_the_moments():
    x, _, gradient = world(RELU, units=1500)
    weights = gradient.weights.clone()
    weights[:700] = weights[:700, :1] + 0.1 * weights[:700]
    outputs = gradient.output_gradient.clone()
    old = RELU.value(gradient.weights[:700] @ x.T)
    new = RELU.value(weights[:700] @ x.T)
    residuals = torch.linalg.lstsq(
        RELU.value(gradient.weights @ x.T), outputs.T, driver="gelsd"
    ).solution
    outputs[:, :700] += ((new - old) @ residuals).T
    trained = replace(gradient, weights=weights, output_gradient=outputs)
    random = torch.arange(700, 1500)
    found = recover_batch(trained, 3, generator=stream(), polish=False, random_units=random)
    everything = recover_batch(trained, 3, generator=stream(), polish=False)
    assert error(found.features, x) < 0.5 < error(everything.features, x)


@pytest.mark.parametrize("known", [False, True])
def test_normal_equations_are_those_of_autograd(known):
    """JᵀJ, Jᵀe and cost against the Jacobian of a plain re-implementation."""
    _, _, gradient = world(
        TANH, inputs=4, units=30, batch=2, outputs=3, everything=True, biases=True
    )
    if known:
        gradient = masked(gradient, 0.7)
    basis = torch.linalg.qr(normal(4, 3, seed=1))[0]
    equations = Equations(gradient, basis, with_slopes=True)
    u, residuals = normal(2, 3, seed=2), normal(2, 3, seed=3)
    a, offsets = gradient.output_weights, gradient.biases
    assert a is not None
    assert offsets is not None

    def misfits(point: Tensor) -> Tensor:
        x, r = point[:6].reshape(2, 3) @ basis.T, point[6:].reshape(2, 3)
        z = gradient.weights @ x.T + offsets[:, None]
        sent = (r @ a).T * (1 - torch.tanh(z) ** 2)
        found, parts = {"output": r.T @ torch.tanh(z).T, "bias": sent.sum(1)}, []
        found["weight"] = sent @ x
        for name in ("output", "weight", "bias"):
            value, wanted = found[name], getattr(gradient, f"{name}_gradient")
            if name == "weight" and not known:
                value, wanted = value @ basis, wanted @ basis
            mask = getattr(gradient, f"{name}_known")
            mask = torch.ones_like(wanted, dtype=torch.bool) if mask is None else mask
            parts.append((value - wanted)[mask] / wanted[mask].square().mean().sqrt())
        return torch.cat(parts)

    point = torch.cat([u.flatten(), residuals.flatten()])
    jacobian = torch.autograd.functional.jacobian(misfits, point)
    normal_equations = equations.normal(u, residuals)
    torch.testing.assert_close(normal_equations.matrix, jacobian.T @ jacobian)
    torch.testing.assert_close(normal_equations.slope, jacobian.T @ misfits(point))
    cost = float(misfits(point).square().sum())
    assert normal_equations.cost == pytest.approx(cost)
    assert equations.cost(u, residuals) == pytest.approx(cost)
    assert equations.count == len(misfits(point))


def test_too_many_unknowns_are_left_on_the_estimated_span(monkeypatch):
    x, _, gradient = world(CUBIC)
    monkeypatch.setattr("vestige.attacks.tensor_features.recovery.MOST_UNKNOWNS", 10)
    found = recover_batch(gradient, 3, generator=stream(), starts=1)
    assert not found.solved
    assert 1e-3 < error(found.features, x) < 0.6


def test_bad_input_is_one_clear_sentence():
    _, _, gradient = world(CUBIC)
    with pytest.raises(BadInput, match="smaller batch"):
        recover_batch(gradient, 13, generator=stream())
    empty = replace(gradient, output_gradient=torch.zeros_like(gradient.output_gradient))
    with pytest.raises(BadInput, match="holds no record"):
        recover_batch(empty, 3, generator=stream())
    with pytest.raises(BadInput, match="at least one record"):
        recover_batch(gradient, 0, generator=stream())
    with pytest.raises(BadInput, match="widen the hidden layer"):
        recover_batch(world(CUBIC, units=30)[2], 3, generator=stream())
    with pytest.raises(BadInput, match="output weights: add them"):
        replace(gradient, weight_gradient=gradient.weights)
    with pytest.raises(BadInput, match=r"biases has shape \(3,\)"):
        replace(gradient, biases=torch.ones(3))
    with pytest.raises(BadInput, match="NaN"):
        replace(gradient, output_gradient=gradient.output_gradient * float("nan"))
    with pytest.raises(BadInput, match="not below 0"):
        replace(gradient, noise=-1.0)
