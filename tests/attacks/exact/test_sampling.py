"""Sampling silent neurons: exact on small batches, partial and honest beyond."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_worlds import batch, head_of, network, worst

from vestige.attacks.exact import noise
from vestige.attacks.exact.chain import Chain, loss_vectors
from vestige.attacks.exact.sampling import sampling_inversion
from vestige.attacks.exact.silent_directions import Directions
from vestige.progress import Step, listening


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(30, 80, 6), (30, 80, 40, 5)])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_recovers_records_and_labels(sizes, bias, size, dtype, generator):
    x, y = batch(size, 30, sizes[-1], seed=size, dtype=dtype)
    x = x - 0.5
    found = sampling_inversion(head_of(network(sizes, bias=bias), x, y), generator=generator)
    assert found.certified.all(), found.reason
    assert worst(found, x) < (1e-3 if dtype == torch.float32 else 1e-9)
    assert sorted(found.labels.tolist()) == sorted(y.tolist())


def test_needs_no_exclusive_neuron(generator):
    x, y = batch(8, 40, 10, seed=0)
    head = head_of(network((40, 150, 10), bias=True), x - 0.5, y)
    found = sampling_inversion(head, generator=generator)
    assert found.certified.all(), found.reason
    assert worst(found, x - 0.5) < 1e-9


def test_same_draws_same_answer():
    x, y = batch(4, 30, 6, seed=0, dtype=torch.float32)
    head = head_of(network((30, 80, 6), bias=True), x, y)
    first, second = (
        sampling_inversion(head, generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first.inputs, second.inputs)


def test_a_budget_that_is_too_small_is_said(generator):
    x, y = batch(9, 30, 6, seed=0)
    head = head_of(network((30, 60, 6), bias=True), x, y)
    found = sampling_inversion(head, generator=generator, draws=1)
    assert not found.certified.any()
    assert "of 9 directions" in found.reason
    assert torch.isnan(found.inputs).all()
    refused = sampling_inversion(head, generator=generator, most_samples=4)
    assert "9 records" in refused.reason


def test_progress_is_told_and_can_stop_it(generator):
    x, y = batch(9, 30, 6, seed=0)
    head = head_of(network((30, 60, 6), bias=True), x, y)
    steps: list[Step] = []

    def once(step: Step) -> bool:
        steps.append(step)
        return True

    with listening(once):
        sampling_inversion(head, generator=generator)
    assert len(steps) == 1
    assert steps[0].total == 9


def test_only_columns_of_single_records_are_kept(generator):
    x, y = batch(4, 30, 10, seed=1)
    x = x - 0.5
    head = head_of(network((30, 90, 10), bias=True), x, y)
    chain = Chain.of(head)
    activations = chain.forward(x.numpy())
    signals = chain.backward(activations, loss_vectors(activations[-1], y.numpy()))[0]
    matrix = np.hstack([chain.weight_gradients[0], chain.bias_gradients[0][:, None]])
    factors = noise.factored(matrix, "float64")
    true = np.linalg.lstsq(
        factors.left, (signals[:, factors.rows] / factors.row_scale).T, rcond=None
    )[0]
    sent = chain.weights[1].T[factors.rows] / factors.row_scale[:, None]
    kept = Directions(factors.left, sent)
    kept.add(true.T)
    assert len(kept.independent()) == 4
    # A mixture that vanishes where both are silent and in one neuron more.
    shared = np.flatnonzero((signals[0] != 0) & (signals[1] != 0))[0]
    ratio = signals[0, shared] / signals[1, shared]
    mixed = Directions(factors.left, sent)
    mixed.add((true[:, 0] - ratio * true[:, 1])[None])
    assert not mixed.kept
