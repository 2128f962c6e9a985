"""Inversion by exclusive neurons: exact where it claims to be, and the literal form's failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_worlds import batch, head_of, network, worst

from vestige.attacks.exact_inversion import gradient_equation
from vestige.attacks.exact_inversion.exclusive import exclusive_inversion
from vestige.attacks.exact_inversion.exclusive_neurons import exclusive_counts, exclusivity
from vestige.attacks.exact_inversion.gradient_equation import solve_scaled
from vestige.attacks.exact_inversion.labels_and_scale import (
    find_scales,
    log_linear_scale,
    read_labels,
)
from vestige.attacks.exact_inversion.layers import DenseHead, DenseLayer
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors, possible_losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(30, 80, 6), (30, 80, 60, 5)])
@pytest.mark.parametrize("size", [1, 3])
def test_recovers_records_labels_and_batch_size(sizes, bias, size, dtype, generator):
    x, y = batch(size, 30, sizes[-1], seed=size, dtype=dtype)
    found = exclusive_inversion(head_of(network(sizes, bias=bias), x, y), generator=generator)
    assert len(found.labels) == size
    assert found.certified.all()
    assert worst(found, x) < (1e-3 if dtype == torch.float32 else 1e-9)
    assert sorted(found.labels.tolist()) == sorted(y.tolist())
    assert found.reason == ""


def test_needs_no_condition_on_the_batch(generator):
    model = network((40, 120, 8), bias=False)
    x, y = batch(7, 40, 8, seed=3)
    head = head_of(model, x, y)
    assert not exclusivity(head, x)
    found = exclusive_inversion(head, generator=generator)
    assert found.certified.all()
    assert worst(found, x) < 1e-9
    assert found.condition_held is False
    assert found.rounds > 0


def test_proposition_2_is_not_necessary(generator):
    # No exclusive neurons in the first hidden layer of four units, exact all the same.
    model = network((6, 4, 80, 5), bias=True, seed=5)
    for seed in range(200):
        x, y = batch(3, 6, 5, seed)
        head = head_of(model, x, y)
        masks = [a > 0 for a in Propagation(head).forward(x.numpy())[1:-1]]
        distinct = len(np.unique(masks[0], axis=0)) == 3 and np.linalg.matrix_rank(masks[0]) == 3
        if distinct and (exclusive_counts(masks[0]) == 0).any():
            found = exclusive_inversion(head, generator=generator)
            # Four neurons are too few for a certificate; the records are right all the same.
            assert not found.certified.any()
            if found.residual < 1e-9:
                assert worst(found, x) < 1e-6
                assert found.condition_held is False
                return
    pytest.fail("no batch without exclusive neurons below was recovered")


def test_equal_records_are_counted(generator):
    x, y = batch(3, 30, 6, seed=1)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    found = exclusive_inversion(head_of(network((30, 80, 6), bias=True), x, y), generator=generator)
    assert len(found.labels) == 4
    assert worst(found, x) < 1e-9
    assert sorted(found.labels.tolist()) == sorted(y.tolist())
    # Four records and a rank of three: other batches may have this gradient.
    assert not found.certified.any()


def test_a_crowded_batch_gives_a_partial_answer(generator):
    x, y = batch(12, 30, 6, seed=1)
    found = exclusive_inversion(head_of(network((30, 24, 6), bias=True), x, y), generator=generator)
    assert found.reason
    known = found.inputs.isfinite().all(1)
    assert known.any()
    assert not known.all()
    assert all((x - row).norm(dim=1).min() < 1e-6 for row in found.inputs[known])
    assert not found.certified.any()
    assert (found.certificate <= 0.5).all()


def test_noise_is_not_certified(generator):
    x, y = batch(4, 30, 6, seed=1)
    head = head_of(network((30, 80, 6), bias=True), x, y)
    noisy = DenseHead(
        tuple(
            DenseLayer(
                layer.weight,
                layer.bias,
                layer.weight_gradient
                + 0.1
                * layer.weight_gradient.std()
                * torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64),
                layer.bias_gradient,
            )
            for layer in head.layers
        )
    )
    assert not exclusive_inversion(noisy, generator=generator).certified.any()


def test_two_classes_without_biases_leave_the_length_open(generator):
    x, y = batch(2, 10, 2, seed=0)
    found = exclusive_inversion(
        head_of(network((10, 40, 2), bias=False), x, y), generator=generator
    )
    assert not found.certified.any()
    assert "length" in found.reason


def test_without_hidden_layer_there_is_nothing_to_compare(generator):
    x, y = batch(2, 10, 4, seed=0)
    found = exclusive_inversion(head_of(network((10, 4), bias=True), x, y), generator=generator)
    assert not found.certified.any()
    assert found.reason


def test_the_printed_scale_makes_records_too_large(generator):
    # Algorithm 1, line 14: |ḡ_Y| = 2/3 where an untrained network of K classes has 1 − 1/K.
    classes = 10
    x, y = batch(1, 30, classes, seed=0)
    head = head_of(network((30, 80, classes), bias=False), x, y)
    found = exclusive_inversion(head, literal=True, generator=generator)
    assert found.labels.tolist() == y.tolist()
    ratio = float(found.inputs[0] @ x[0] / (x[0] @ x[0]))
    p = torch.softmax(torch.from_numpy(Propagation(head).forward(x.numpy())[-1][0]), 0)
    assert ratio == pytest.approx(1.5 * float(1 - p[y[0]]), rel=1e-6)
    assert ratio > 1.2
    assert not found.certified.any()


def test_the_printed_form_finds_labels_and_no_records(generator):
    # Algorithm 3, line 13: ten equations for two hundred unknowns do not give the masks.
    x, y = batch(3, 30, 10, seed=2)
    head = head_of(network((30, 200, 10), bias=False), x, y)
    assert exclusivity(head, x)
    found = exclusive_inversion(head, literal=True, generator=generator)
    assert sorted(found.labels.tolist()) == sorted(y.tolist())
    assert worst(found, x) > 0.05
    assert not found.certified.any()
    robust = exclusive_inversion(head, generator=generator)
    assert worst(robust, x) < 1e-9
    assert robust.condition_held is True


def test_the_printed_grouping_loses_records_with_one_exclusive_neuron(generator):
    model = network((30, 60, 6), bias=True)
    for seed in range(100):
        x, y = batch(5, 30, 6, seed)
        head = head_of(model, x, y)
        (masks,) = [a > 0 for a in Propagation(head).forward(x.numpy())[1:-1]]
        if exclusive_counts(masks).min() == 1:
            break
    literal = exclusive_inversion(head, literal=True, generator=generator)
    robust = exclusive_inversion(head, generator=generator)
    assert len(literal.labels) < 5
    assert robust.certified.all()
    assert worst(robust, x) < 1e-9


@pytest.mark.parametrize("classes", [6, 1], ids=["softmax", "logistic"])
def test_replayed_gradient_is_autograd(classes):
    x, y = batch(4, 30, 2 if classes == 1 else classes, seed=1)
    model = network((30, 20, 15, classes), bias=True)
    head = head_of(model, x, y)
    replay = Propagation(head)
    assert replay.residual(x.numpy(), y.numpy()) < 1e-12
    activations = replay.forward(x.numpy())
    every = possible_losses(activations[-1])
    assert every.shape == (4, max(classes, 2), classes)
    own = loss_vectors(activations[-1], y.numpy())
    assert np.array_equal(every[np.arange(4), y.numpy()], own)
    # Carried back all at once or one label at a time.
    signals = replay.backward(activations, own)
    for layer, several in enumerate(replay.backward(activations, every)):
        assert np.allclose(several[np.arange(4), y.numpy()], signals[layer], rtol=1e-12)
    assert all(
        np.array_equal(*pair) for pair in zip(replay.sent_back(x.numpy(), y.numpy()), signals)
    )


def test_length_follows_from_softmax():
    rng = np.random.default_rng(0)
    u, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    lengths, labels = rng.uniform(0.1, 3, 5), rng.integers(0, 7, 5)
    losses = loss_vectors(lengths[:, None] * u + b, labels)
    assert np.allclose(log_linear_scale(u, b, 4.2 * losses, labels), lengths)


@pytest.mark.parametrize("sizes", [(12, 40, 7), (12, 40, 9, 7)], ids=["two layers", "three layers"])
def test_length_and_label_follow_from_the_layers_above(sizes):
    x, y = batch(3, 12, 7, seed=4)
    replay = Propagation(head_of(network(sizes, bias=False), x, y))
    _, second = replay.sent_back(x.numpy(), y.numpy())
    lengths = np.array([0.2, 1.0, 30.0])
    # Directions of another length explain the same gradient with loss vectors divided by it.
    factors, divisors = find_scales(
        replay, x.numpy() / lengths[:, None], second / 3 * lengths[:, None], (3.0, 1.0)
    )
    assert np.allclose(factors, lengths, rtol=1e-6)
    assert (divisors == 3).all()
    found = read_labels(replay, x.numpy(), second / 3)
    assert found.labels.tolist() == y.tolist()
    assert found.agreement.min() > 1 - 1e-9
    assert np.allclose(found.divisor, 3)


@pytest.mark.parametrize("entries", [1, 10**9], ids=["LSMR", "dense"])
def test_gradient_equation_is_solved_either_way(entries):
    # Columns of very different size, as records with small losses have them.
    rng = np.random.default_rng(0)
    signals = rng.standard_normal((60, 8)) * (rng.random((60, 8)) < 0.5) * np.geomspace(1e-6, 1, 8)
    x = rng.random((8, 5))
    found = solve_scaled(signals, signals @ x, sparse_from=entries)
    assert np.allclose(found, x, atol=1e-9)


def test_threshold_decides_which_solver_is_used(monkeypatch):
    rng = np.random.default_rng(1)
    signals, x = rng.standard_normal((20, 3)), rng.random((3, 4))
    gradient = signals @ x + 0.1 * rng.standard_normal((20, 4))
    called = []
    plain = gradient_equation.least_squares_by_lsmr
    monkeypatch.setattr(
        gradient_equation, "least_squares_by_lsmr", lambda *a: called.append(a) or plain(*a)
    )
    below = solve_scaled(signals, gradient, sparse_from=signals.size + 1)
    assert not called
    over = solve_scaled(signals, gradient, sparse_from=signals.size)
    assert len(called) == 1
    # Neither solution is exact here: both must find the least squares one.
    assert np.allclose(over, below, rtol=1e-9)


def test_a_batch_that_does_not_give_the_gradient_is_not_certified_whole(generator):
    # One of the records that show after subtraction is wrong in float32.
    x, y = batch(10, 60, 10, seed=102, dtype=torch.float32)
    x = x - 0.5
    head = head_of(network((60, 300, 10), bias=False, seed=2), x, y)
    found = exclusive_inversion(head, generator=generator)
    exact = found.inputs[found.certified]
    assert all((x.double() - row).norm(dim=1).min() < 1e-2 for row in exact)


@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_share_is_no_record(seed, generator):
    # Two classes leave few equations; one over a tiny share is always near a whole number.
    x, y = batch(10, 40, 2, seed=100 + seed, dtype=torch.float32)
    x = x - 0.5
    head = head_of(network((40, 120, 2), bias=True, seed=seed), x, y)
    found = exclusive_inversion(head, generator=generator)
    assert len(found.labels) == 10
    assert worst(found, x) < 1e-3
