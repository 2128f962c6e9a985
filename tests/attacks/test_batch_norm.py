"""Batch-norm statistics against ordinary training code and computation by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_worlds import stream
from torch import nn

from vestige import Prior
from vestige.attacks.gradient_matching.batch_norm import (
    batch_statistics,
    distance_to_statistics,
    inferred_statistics,
    proxy_statistics,
    released_averages,
    statistics_penalty,
)
from vestige.defenses import ClientAggregation
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.simulation.losses import one_hot
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient, trained
from worlds import draws, sequential

SECRET = draws(6, 0)
X, TARGETS = SECRET.x.double(), one_hot(SECRET.y, 3, torch.float64)


class FrozenBatchNorm(nn.BatchNorm2d):
    """Batch norm that always uses its running averages, as fine-tuning often has it."""

    def train(self, mode: bool = True) -> nn.BatchNorm2d:
        return super().train(False)


def network(momentum: float | None = 0.1, kind: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> nn.Module:
    """Two layers of batch norm, at "1" and "5", after some training."""
    made = sequential(
        lambda: nn.Conv2d(1, 4, 3, padding=1),
        lambda: nn.BatchNorm2d(4, momentum=momentum),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(64, 5),
        lambda: nn.BatchNorm1d(5, momentum=momentum),
        lambda: nn.Linear(5, 3),
    )
    if kind is not nn.BatchNorm2d:
        made[1] = kind(4, momentum=momentum)
    return trained(made, draws(30, 1), steps=3, batch_size=8).double()


def by_hand(model: nn.Module, x: torch.Tensor) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Statistics of both layers in train mode, by numpy."""
    filtered = model[0](x).detach().numpy()
    mean, biased = filtered.mean((0, 2, 3)), filtered.var((0, 2, 3))
    count = len(x) * 16
    scale = model[1].weight.detach().numpy() / np.sqrt(biased + model[1].eps)
    channels = (slice(None), None, None)
    hidden = (filtered - mean[channels]) * scale[channels]
    hidden = np.maximum(hidden + model[1].bias.detach().numpy()[channels], 0)
    features = model[4](torch.tensor(hidden).flatten(1)).detach().numpy()
    return {
        "1": (mean, biased * count / (count - 1)),
        "5": (features.mean(0), features.var(0, ddof=1)),
    }


def assert_same(found, expected, tolerance=1e-9):
    assert set(found) == set(expected)
    for name, pair in expected.items():
        for mine, theirs in zip(found[name], pair):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), atol=tolerance)


@pytest.mark.parametrize("momentum", [0.1, 0.7, 1.0, None])
@pytest.mark.parametrize("counted", [True, False])
def test_buffers_tell_the_statistics_of_one_step(momentum, counted):
    victim = SharedGradient(network(momentum))
    buffers = dict(victim.release(SECRET, generator=stream(0)).buffers)
    if not counted:
        buffers = {n: b for n, b in buffers.items() if "tracked" not in n}
    expected = by_hand(victim.model, X)
    assert_same(inferred_statistics(victim.simulator, buffers), expected)
    assert_same(batch_statistics(victim.simulator, X), expected)
    penalty = statistics_penalty(victim.simulator, buffers)
    assert penalty is not None
    assert float(penalty(X)) < 1e-16
    assert float(penalty(0.9 * X)) > 1e-5


def trained_by_hand(model, local, weights):
    """Weighted statistics of layer inputs during ordinary training."""
    model, seen = copy.deepcopy(model).train(), {"1": [], "5": []}
    for name in seen:
        model[int(name)].register_forward_pre_hook(lambda _, v, n=name: seen[n].append(v[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=local.learning_rate, momentum=local.momentum)
    for batch in local.batches(len(X)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[batch]), SECRET.y[batch]).backward()
        optimizer.step()
    found = {}
    for name, inputs in seen.items():
        values = [v.detach().transpose(0, 1).flatten(1).numpy() for v in inputs]
        means = np.array([v.mean(1) for v in values])
        variances = np.array([v.var(1, ddof=1) for v in values])
        found[name] = (np.average(means, 0, weights), np.average(variances, 0, weights))
    return found


@pytest.mark.parametrize(("momentum", "weights"), [(0.1, (0.729, 0.81, 0.9, 1)), (None, (1,) * 4)])
@pytest.mark.parametrize("size", [None, 3])
def test_several_steps_are_weighted_as_the_average_weighs_them(momentum, weights, size):
    local = LocalTraining(4, 0.2, batch_size=size, momentum=0.5)
    victim = FederatedUpdate(network(momentum), local)
    buffers = victim.release(SECRET, generator=stream(0)).buffers
    expected = trained_by_hand(victim.model, local, weights)
    simulator = victim.simulator
    assert_same(inferred_statistics(simulator, buffers), expected)
    assert_same(batch_statistics(simulator, X, TARGETS), expected)
    # The counter tells the steps where local training was not told.
    unknowing = HonestServer(local_training=False).public(victim, Prior(draws(9, 2))).simulator
    assert_same(inferred_statistics(unknowing, buffers), expected)
    replayed = statistics_penalty(simulator, buffers, TARGETS)
    standing = statistics_penalty(simulator, buffers)
    assert replayed is not None
    assert standing is not None
    assert float(replayed(X)) < 1e-16
    # Without targets the network stands still: near, and nearer than another batch.
    assert 1e-12 < float(standing(X)) < float(standing(draws(6, 5).x.double()))
    stacked = torch.func.vmap(replayed)(torch.stack([X, 0.9 * X]))
    assert torch.allclose(stacked, torch.stack([replayed(X), replayed(0.9 * X)]), atol=1e-12)


def test_frozen_layers_are_replayed_and_tell_nothing():
    victim = SharedGradient(network(kind=FrozenBatchNorm))
    release = victim.release(SECRET, generator=stream(0))
    replayed = victim.simulator(X, TARGETS)
    assert all(torch.allclose(replayed[n], t, atol=1e-10) for n, t in release.tensors.items())
    found = inferred_statistics(victim.simulator, release.buffers)
    assert set(found) == {"5"}
    expected = batch_statistics(victim.simulator, X)
    assert_same(found, expected)


@pytest.mark.parametrize("reason", ["eval mode", "unmoved", "momentum 0", "a counter that stood"])
def test_averages_that_did_not_move_tell_nothing(reason):
    victim = SharedGradient(network(0.0 if reason == "momentum 0" else 0.1))
    buffers = dict(victim.release(SECRET, generator=stream(0)).buffers)
    if reason == "eval mode":
        victim = replace(victim, mode="eval")
        buffers = victim.release(SECRET, generator=stream(0)).buffers
    elif reason == "unmoved":
        buffers = dict(victim.model.named_buffers())
    elif reason == "a counter that stood":
        before = dict(victim.model.named_buffers())
        buffers |= {n: b for n, b in before.items() if "tracked" in n}
    assert inferred_statistics(victim.simulator, buffers) == {}
    assert statistics_penalty(victim.simulator, buffers) is None


def test_clients_have_statistics_of_their_own():
    victim = ClientAggregation(2)(SharedGradient(network()))
    buffers = victim.release(SECRET, generator=stream(0)).buffers
    first, second = (by_hand(victim.simulator.model, part) for part in X.chunk(2))
    expected = {
        name: tuple((one + other) / 2 for one, other in zip(first[name], second[name]))
        for name in first
    }
    assert_same(inferred_statistics(victim.simulator, buffers), expected)
    assert_same(batch_statistics(victim.simulator, X), expected)


def test_proxy_statistics_are_means_over_batches_of_the_prior():
    victim = SharedGradient(network())
    # One record of each class: every proxy batch holds the same three.
    prior = Prior(draws(3, 4))
    labels = torch.tensor([2, 0, 1])
    expected = by_hand(victim.model, prior.records.x.double())
    found = proxy_statistics(victim.simulator, prior, labels, generator=stream(0))
    assert_same(found, expected)
    # Of many records: the mean over the same draws.
    prior, labels = Prior(draws(60, 4)), torch.tensor([1, 1, 0])
    found = proxy_statistics(victim.simulator, prior, labels, batches=3, generator=stream(1))
    again, means = stream(1), []
    for _ in range(3):
        (zero,) = prior.draw(1, label=0, generator=again).x
        first, second = prior.draw(2, label=1, generator=again).x
        means.append(by_hand(victim.model, torch.stack([first, second, zero]).double()))
    for name, pair in found.items():
        for part in (0, 1):
            expected_part = np.mean([one[name][part] for one in means], 0)
            np.testing.assert_allclose(pair[part], expected_part, atol=1e-9)


def test_proxy_statistics_without_fitting_records():
    victim = SharedGradient(network())
    lacking = Prior(draws(30, 4)[[0, 3, 6, 9]])  # class 0 only
    found = proxy_statistics(victim.simulator, lacking, SECRET.y[:3], generator=stream(0))
    assert all(t.isfinite().all() for pair in found.values() for t in pair)
    noise = Prior(draws(30, 4), collected=False)
    assert proxy_statistics(victim.simulator, noise, SECRET.y, generator=stream(0)) == {}


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_known_statistics_can_be_handed_over_as_buffers(mode):
    simulator = SharedGradient(network(), mode=mode).simulator
    known = batch_statistics(simulator, X)
    assert set(known) == {"1", "5"}
    buffers = released_averages(simulator, known)
    assert_same(inferred_statistics(simulator, buffers), known)
    assert float(distance_to_statistics(simulator, known)(X)) < 1e-16
    if mode == "eval":  # the second layer sees what the running averages of the first leave
        features = simulator.model.eval()[:5](X).detach()
        assert_same({"5": known["5"]}, {"5": (features.mean(0), features.var(0))})


def test_one_value_per_channel_in_eval_mode():
    simulator = SharedGradient(network(), mode="eval").simulator
    known = batch_statistics(simulator, X[:1])
    assert torch.equal(known["5"][1], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.full((4,), float("nan"))])
def test_averages_that_do_not_fit_are_refused(bad):
    victim = SharedGradient(network())
    buffers = dict(victim.release(SECRET, generator=stream(0)).buffers)
    buffers["1.running_mean"] = bad
    with pytest.raises(BadInput, match="layer '1' do not fit"):
        statistics_penalty(victim.simulator, buffers)


def test_server_without_buffers_has_no_statistics():
    victim = SharedGradient(network())
    run = Run(SECRET, victim.release(SECRET, generator=stream(0)))
    for told in (False, True):
        seen = HonestServer(batch_norm=told).observe(run).release.buffers
        assert (statistics_penalty(victim.simulator, seen) is not None) is told


def test_layers_without_running_averages_are_left_out():
    made = sequential(
        nn.Flatten,
        lambda: nn.BatchNorm1d(16, track_running_stats=False),
        lambda: nn.Linear(16, 3),
    )
    victim = SharedGradient(made)
    release = victim.release(SECRET, generator=stream(0))
    assert inferred_statistics(victim.simulator, release.buffers) == {}
    assert set(batch_statistics(victim.simulator, SECRET.x)) == {"1"}
