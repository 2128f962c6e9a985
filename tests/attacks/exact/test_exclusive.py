"""Inversion by exclusive neurons: exact where it claims to be, and the literal form's failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_worlds import batch, head_of, network, worst

from vestige.attacks.exact.chain import Chain, loss_vectors
from vestige.attacks.exact.exclusive import exclusive_inversion
from vestige.attacks.exact.exclusive_neurons import exclusive_counts, exclusivity
from vestige.attacks.exact.layers import DenseHead, DenseLayer
from vestige.attacks.exact.scales import fitted, log_linear_scale


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
        masks = [a > 0 for a in Chain.of(head).forward(x.numpy())[1:-1]]
        distinct = len(np.unique(masks[0], axis=0)) == 3 and np.linalg.matrix_rank(masks[0]) == 3
        if distinct and (exclusive_counts(masks[0]) == 0).any():
            found = exclusive_inversion(head, generator=generator)
            if found.certified.all():
                assert worst(found, x) < 1e-6
                assert found.condition_held is False
                return
    pytest.fail("no batch without exclusive neurons below was recovered")


def test_equal_records_are_counted(generator):
    x, y = batch(3, 30, 6, seed=1)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    found = exclusive_inversion(head_of(network((30, 80, 6), bias=True), x, y), generator=generator)
    assert len(found.labels) == 4
    assert found.certified.all()
    assert sorted(found.labels.tolist()) == sorted(y.tolist())


def test_a_crowded_batch_gives_a_partial_answer(generator):
    x, y = batch(12, 30, 6, seed=1)
    found = exclusive_inversion(head_of(network((30, 24, 6), bias=True), x, y), generator=generator)
    assert not found.certified.all()
    assert found.reason
    assert torch.isnan(found.inputs[~found.certified]).any()
    exact = found.inputs[found.certified]
    assert all((x - row).norm(dim=1).min() < 1e-6 for row in exact)


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
    p = torch.softmax(torch.from_numpy(Chain.of(head).forward(x.numpy())[-1][0]), 0)
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
        (masks,) = [a > 0 for a in Chain.of(head).forward(x.numpy())[1:-1]]
        if exclusive_counts(masks).min() == 1:
            break
    literal = exclusive_inversion(head, literal=True, generator=generator)
    robust = exclusive_inversion(head, generator=generator)
    assert len(literal.labels) < 5
    assert robust.certified.all()
    assert worst(robust, x) < 1e-9


def test_replayed_gradient_is_autograd():
    x, y = batch(4, 30, 6, seed=1)
    head = head_of(network((30, 20, 15, 6), bias=True), x, y)
    chain = Chain.of(head)
    assert chain.residual(x.numpy(), y.numpy()) < 1e-12
    activations = chain.forward(x.numpy())
    signals = chain.backward(activations, loss_vectors(activations[-1], y.numpy()))[0]
    losses = loss_vectors(activations[-1], y.numpy())
    for row in range(4):
        sent = chain.outgoing(activations, row) @ losses[row]
        assert np.allclose(sent, signals[row])


def test_scales_follow_from_softmax():
    rng = np.random.default_rng(0)
    u, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    lengths, labels = rng.uniform(0.1, 3, 5), rng.integers(0, 7, 5)
    losses = loss_vectors(lengths[:, None] * u + b, labels)
    assert np.allclose(log_linear_scale(u, b, 4.2 * losses, labels), lengths)
    outgoing = rng.standard_normal((40, 7))
    for index in range(5):
        length, label, misfit = fitted(
            u[index], b, outgoing, 0.3 * outgoing @ losses[index], known_length=False
        )
        assert (label, misfit < 1e-9) == (labels[index], True)
        assert length == pytest.approx(lengths[index], rel=1e-9)
