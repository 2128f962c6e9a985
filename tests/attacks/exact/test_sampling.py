"""Sampling silent neurons: exact on small batches, partial and honest beyond."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_worlds import batch, head_of, network, worst

from vestige.attacks.exact_inversion import noise
from vestige.attacks.exact_inversion.propagation import Propagation, loss_vectors
from vestige.attacks.exact_inversion.reading import read
from vestige.attacks.exact_inversion.sampling import (
    BLOCK,
    FUTILE,
    expected_draws,
    sampling_inversion,
    silent_share,
)
from vestige.attacks.exact_inversion.silent_directions import Directions
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


def test_single_logit(generator):
    x, y = batch(5, 30, 2, seed=0)
    x = x - 0.5
    found = sampling_inversion(head_of(network((30, 120, 1), bias=True), x, y), generator=generator)
    assert found.certified.all(), found.reason
    assert worst(found, x) < 1e-9
    assert sorted(found.labels.tolist()) == sorted(y.tolist())


def no_draws(*_args, **_settings):
    raise AssertionError("rows were drawn")


@pytest.mark.parametrize(
    ("units", "settings", "said"),
    [
        (60, {"draws": 100}, "about 161 draws"),
        (60, {"most_samples": 4}, "9 records"),
        (60, {"silent": 0.05}, "leaves 5% of the neurons silent"),
        (17, {"reading": "float64"}, "needs 18 live neurons in the first layer, and 17 are live"),
    ],
)
def test_without_a_chance_it_hands_over_before_any_draw(
    units, settings, said, generator, monkeypatch
):
    x, y = batch(9, 30, 6, seed=0)
    head = head_of(network((30, units, 6), bias=True), x - 0.5, y)
    monkeypatch.setattr("vestige.attacks.exact_inversion.sampling._searched", no_draws)
    if "reading" in settings:
        # Told that the entries are exact: a rank above half the neurons would count as noise.
        settings = {"reading": read(head, settings["reading"], None)}
    found = sampling_inversion(head, generator=generator, **settings)
    assert said in found.reason
    assert not found.certified.any()
    assert torch.isnan(found.inputs).all()
    assert len(found.inputs) == 9


def test_a_search_in_vain_ends_early(generator, monkeypatch):
    x, y = batch(9, 30, 6, seed=0)
    head = head_of(network((30, 60, 6), bias=True), x, y)
    blocks = []
    monkeypatch.setattr(Directions, "promising", lambda self, d, rows: blocks.append(d) or d[:0])
    found = sampling_inversion(head, generator=generator, draws=40 * BLOCK)
    assert found.reason == "Sampling found 0 of 9 directions."
    assert len(blocks) == 40 / FUTILE


def test_expected_draws_are_those_of_a_simulation():
    # Sets of b rows; a record shows in those where it is active in exactly one row. 400 repeats:
    # the mean of the slowest of four is known to about 4%.
    rng = np.random.default_rng(0)
    batch_size, silent, repeats = 4, 0.6, 400
    shown = (rng.random((repeats, 2000, batch_size, batch_size)) >= silent).sum(2) == 1
    first = shown.argmax(1) + 1
    assert shown.any(1).all()
    assert first.max(1).mean() == pytest.approx(expected_draws(batch_size, silent), rel=0.15)


def test_silent_share_counts_live_neurons_alone():
    # Two batches of two; the third neuron is dead in the first batch and live in the second.
    active = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0]], bool)
    assert silent_share(active, 2) == pytest.approx(2 / 10)
    assert silent_share(active, 5) == 0.5


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
    chain = Propagation(head)
    activations = chain.forward(x.numpy())
    signals = chain.backward(activations, loss_vectors(activations[-1], y.numpy()))[0]
    matrix = np.hstack([chain.weight_gradients[0], chain.bias_gradients[0][:, None]])
    factors = noise.factorize(matrix, "float64")
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
