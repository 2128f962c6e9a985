"""Certificates claim no more than the gradient supports: checked against the records themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from dense_worlds import batch, head_of, network
from torch import Tensor

from vestige.attacks.exact_inversion.certificate import HIGHEST, UNCERTIFIED, certify
from vestige.attacks.exact_inversion.error_bound import gauss_newton_step
from vestige.attacks.exact_inversion.exclusive import exclusive_inversion
from vestige.attacks.exact_inversion.layers import DenseHead, DenseLayer, RecordScale, Recovered
from vestige.attacks.exact_inversion.lifted import lifted_inversion
from vestige.attacks.exact_inversion.linear_head import certify_features
from vestige.attacks.exact_inversion.propagation import Propagation
from vestige.attacks.exact_inversion.reading import read
from vestige.attacks.exact_inversion.sampling import sampling_inversion


def certified(
    head: DenseHead, x: Tensor, y: Tensor, told: int | None = None, noise=None
) -> np.ndarray:
    """Which of some candidates are certified."""
    made = certify(
        Propagation(head),
        read(head, noise, told),
        x.double().numpy(),
        y.numpy(),
        batch_size=told,
        evidence=np.ones(len(x)),
    )
    assert (made.confidence[~made.certified] <= UNCERTIFIED).all()
    assert (made.confidence <= HIGHEST).all()
    return made.certified


def distances(found: Recovered, x: Tensor) -> Tensor:
    """Relative distance of certified candidates to their nearest record."""
    sure = found.inputs[found.certified]
    return (torch.cdist(sure, x.double()) / x.double().norm(dim=1)).min(1).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_the_records_themselves_are_certified(bias, dtype):
    x, y = batch(3, 20, 4, seed=1, dtype=dtype)
    head = head_of(network((20, 60, 4), bias=bias), x, y)
    assert certified(head, x, y).all()
    assert certified(head, x, y, told=3).all()


def test_records_slightly_off_are_certified_and_wrong_ones_are_not():
    x, y = batch(3, 20, 4, seed=1)
    head = head_of(network((20, 60, 4), bias=True), x, y)
    off = x + 1e-4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).double()
    assert certified(head, off, y).all()
    far = x.clone()
    far[0] *= 1.02
    assert not certified(head, far, y)[0]


@pytest.mark.parametrize(
    "wrong",
    ["too few", "copies", "told more", "told fewer", "mean", "label"],
)
def test_what_is_no_batch_of_this_gradient_is_not_certified(wrong):
    x, y = batch(3, 20, 4, seed=1)
    y[:] = 1
    head = head_of(network((20, 60, 4), bias=True), x, y)
    told = {"told more": 4, "told fewer": 2}.get(wrong)
    tried, labels = x.clone(), y.clone()
    if wrong == "too few":
        tried, labels = x[:2], y[:2]
    elif wrong == "copies":
        tried[1] = x[0]
    elif wrong == "mean":
        tried, labels = x.mean(0, keepdim=True), y[:1]
    elif wrong == "label":
        labels[0] = 2
    assert not certified(head, tried, labels, told).any()


@pytest.mark.parametrize(
    ("odd", "bias"),
    [
        ("duplicate", True),
        ("between", True),
        ("duplicate", False),
        ("zero", False),
        ("scaled", False),
    ],
)
def test_batches_of_lower_rank_are_not_certified_with_the_batch_told(odd, bias):
    x, y = batch(3, 20, 4, seed=1)
    extra = {"duplicate": x[0], "zero": 0 * x[0], "between": (x[0] + x[1]) / 2, "scaled": 2 * x[0]}
    x, y = torch.cat([x, extra[odd][None]]), torch.cat([y, y[:1]])
    head = head_of(network((20, 60, 4), bias=bias), x, y)
    for method in (lifted_inversion, exclusive_inversion):
        generator = torch.Generator().manual_seed(0)
        assert not method(head, batch_size=4, generator=generator).certified.any()
    sampled = sampling_inversion(
        head, batch_size=4, draws=256, generator=torch.Generator().manual_seed(0)
    )
    assert not sampled.certified.any()


@pytest.mark.parametrize("told", [2, None])
def test_pairs_of_one_label_do_not_come_back_as_their_mean(told):
    """16-8-3, two records of one label, which came back as one certified mean."""
    for seed in range(12):
        x, y = batch(2, 16, 3, seed, dtype=torch.float32)
        y[:] = seed % 3
        head = head_of(network((16, 8, 3), bias=True, seed=seed), x, y)
        for method in (lifted_inversion, exclusive_inversion):
            found = method(head, batch_size=told, generator=torch.Generator().manual_seed(0))
            assert (distances(found, x) < 0.01).all()
            assert not found.certified.any() or len(found.inputs) == 2
            assert (found.certificate[~found.certified] <= UNCERTIFIED).all()


def noisy(head: DenseHead, level: float) -> DenseHead:
    generator = torch.Generator().manual_seed(3)

    def changed(t: Tensor) -> Tensor:
        return t + level * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)

    return DenseHead(
        tuple(
            DenseLayer(w.weight, w.bias, changed(w.weight_gradient), changed(w.bias_gradient))
            for w in head.layers
        )
    )


@pytest.mark.parametrize("relative", [1e-5, 1e-3, 1e-1])
def test_untold_noise_leaves_no_certificate_and_told_noise_a_true_one(relative):
    x, y = batch(2, 20, 4, seed=1, dtype=torch.float32)
    clean = head_of(network((20, 200, 4), bias=True), x, y)
    level = relative * float(clean.layers[0].weight_gradient.square().mean().sqrt())
    head = noisy(clean, level)
    assert not certified(head, x, y).any()
    assert not certified(head, x, y, told=2).any()
    told = lifted_inversion(
        head, noise=level, batch_size=2, generator=torch.Generator().manual_seed(0)
    )
    assert (distances(told, x) < 0.01).all()
    assert bool(told.certified.all()) == (relative <= 1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_the_error_bound_is_the_covariance_of_the_full_jacobian(bias):
    """Against a dense pseudo-inverse of the Jacobian by records and loss vectors, by autograd."""
    x, y = batch(2, 5, 3, seed=4)
    head = head_of(network((5, 14, 3), bias=bias), x, y)
    system, reading = Propagation(head), read(head, "float64", None)
    step = gauss_newton_step(system, reading, x.numpy())
    assert step is not None
    factors, basis = reading.factors, torch.from_numpy(reading.bases[0])
    outgoing = head.layers[1].weight.double().T @ basis
    hidden = x @ head.layers[0].weight.T + (head.layers[0].bias if bias else 0)
    masks = (hidden > 0).double()
    _, second = system.sent_back(x.numpy(), y.numpy())
    gamma = torch.linalg.lstsq(basis, torch.from_numpy(second.T) / 2).solution.T
    rows, columns = torch.from_numpy(factors.rows), torch.from_numpy(factors.columns)
    scale = np.outer(factors.row_scale, factors.column_scale)

    def gradient(unknown: Tensor) -> Tensor:
        points, losses = unknown[: x.numel()].reshape(x.shape), unknown[x.numel() :]
        delta = (losses.reshape(gamma.shape) @ outgoing.T) * masks
        full = torch.cat([points, torch.ones(2, 1).double()], 1) if bias else points
        return ((delta.T @ full)[rows][:, columns] / torch.from_numpy(scale)).flatten()

    at = torch.cat([x.flatten(), gamma.flatten()])
    jacobian = torch.autograd.functional.jacobian(gradient, at).numpy()
    if not bias:
        # The length of a record is open where loss vectors are free: keep these as they are.
        across = np.eye(gamma.numel())
        for m, vector in enumerate(gamma.numpy()):
            k = len(vector)
            unit = np.zeros(gamma.numel())
            unit[m * k : (m + 1) * k] = vector / np.linalg.norm(vector)
            across -= np.outer(unit, unit)
        values, vectors = np.linalg.eigh(across)
        kept = vectors[:, values > 0.5]
        jacobian = np.hstack([jacobian[:, : x.numel()], jacobian[:, x.numel() :] @ kept])
    inverse = np.linalg.pinv(jacobian, rcond=1e-12)[: x.numel()]
    expected = np.sqrt(np.square(inverse).sum(1).reshape(x.shape).sum(1))
    np.testing.assert_allclose(step.deviation, expected, rtol=1e-5)
    # A normalisation by feature turns input · scale + shift into the record.
    scale = torch.tensor([1e-3, 0.1, 1.0, 20.0, 1e4]).double()
    records = replace(head, records=RecordScale(scale, torch.ones(5).double()))
    step = gauss_newton_step(Propagation(records), reading, x.numpy())
    assert step is not None
    weighted = inverse.reshape(2, 5, -1) * scale.numpy()[:, None]
    np.testing.assert_allclose(
        step.record_deviation, np.sqrt(np.square(weighted).sum((1, 2))), rtol=1e-5
    )


def test_too_few_neurons_certify_nothing():
    """Six neurons: three rows more than a pair's parameters agree by chance once in eight."""
    x, y = batch(2, 10, 3, seed=2)
    head = head_of(network((10, 6, 3), bias=True, seed=3), x, y)
    assert not certified(head, x, y, told=2).any()
    head = head_of(network((10, 40, 3), bias=True, seed=3), x, y)
    assert certified(head, x, y, told=2).all()


def test_silent_records_without_a_gradient_of_their_own_take_certificates_away():
    x, y = batch(3, 20, 4, seed=1)
    model = network((20, 60, 4), bias=True)
    with torch.no_grad():
        model[0].weight[:, 0] = -100.0
    x[:, 0] = 0
    x[0, 0] = 1.0
    head = head_of(model, x, y)
    assert not certified(head, x[1:], y[1:]).any()
    assert not certified(head, x[1:], y[1:], told=3).any()


@pytest.mark.parametrize("told", [True, False])
def test_features_of_one_linear_layer(told):
    """Four classes and three records leave three equations over; without a bias none."""
    torch_stream = torch.Generator().manual_seed(0)
    for bias in (True, False):
        model = network((20, 4), bias=bias)
        features, labels = torch.rand(3, 20, generator=torch_stream), torch.tensor([0, 1, 2])
        layer = head_of(model, features, labels).layers[0]
        sure = certify_features(layer, features.double(), labels, None, labels_told=told)[1]
        assert bool(sure.all()) == bias
        far = features.double() * 1.02
        assert not certify_features(layer, far, labels, None, labels_told=told)[1].any()
