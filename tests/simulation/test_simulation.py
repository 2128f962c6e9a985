"""The differentiable replay against ordinary training code."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vestige import networks
from vestige.errors import BadInput
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import cross_entropy, logistic, logits_of, one_hot
from vestige.simulation.update import UpdateSimulator
from vestige.streams import stream
from vestige.victims import FederatedUpdate, LocalTraining, Normalization, SharedGradient, trained
from worlds import SPACE, draws, sequential

BATCH = draws(5, 0)


def batch_norm_network() -> nn.Module:
    return networks.resnet(SPACE, width=4, generator=torch.Generator().manual_seed(1))


def plain_network() -> nn.Module:
    return networks.convnet(SPACE, width=4, generator=torch.Generator().manual_seed(1))


def assert_same(found, expected, tolerance=1e-5):
    assert set(found) == set(expected)
    for name in expected:
        assert torch.allclose(found[name], expected[name], atol=tolerance), name


@pytest.mark.parametrize("make", [plain_network, batch_norm_network])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_equals_backward(make, mode, reduction):
    normalization = Normalization((0.4,), (0.3,))
    victim = SharedGradient(make(), reduction=reduction, mode=mode, normalization=normalization)
    released = victim.release(BATCH, generator=stream(0)).tensors
    replayed = victim.simulator(BATCH.x, one_hot(BATCH.y, 3))
    assert_same(released, replayed)
    # and both equal torch's own loss, by hand
    model = copy.deepcopy(victim.model).train(mode == "train")
    loss = nn.functional.cross_entropy(model((BATCH.x - 0.4) / 0.3), BATCH.y, reduction=reduction)
    loss.backward()
    assert_same(released, {n: p.grad for n, p in model.named_parameters()})


@pytest.mark.parametrize("make", [plain_network, batch_norm_network])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("steps", "size"), [(1, None), (4, 3), (3, 5)])
def test_update_equals_sgd(make, momentum, steps, size):
    local = LocalTraining(steps, learning_rate=0.1, batch_size=size, momentum=momentum)
    victim = FederatedUpdate(make().double(), local)
    released = victim.release(BATCH, generator=stream(0)).tensors
    replayed = victim.simulator(BATCH.x.double(), one_hot(BATCH.y, 3, torch.float64))
    assert_same(released, replayed, 1e-10)


def test_update_of_one_step_is_the_negative_gradient():
    model = plain_network()
    update = FederatedUpdate(model, LocalTraining(1, 0.25)).release(BATCH, generator=stream(0))
    gradient = SharedGradient(model).release(BATCH, generator=stream(0))
    assert_same(update.tensors, {n: -0.25 * g for n, g in gradient.tensors.items()}, 1e-6)


def test_reshuffled_order_differs():
    local = LocalTraining(6, 0.5, batch_size=2)
    fixed = FederatedUpdate(plain_network(), local).release(BATCH, generator=stream(0)).tensors
    again = FederatedUpdate(plain_network(), local, reshuffle=True)
    shuffled = again.release(BATCH, generator=stream(0)).tensors
    assert any(not torch.allclose(fixed[n], shuffled[n], atol=1e-6) for n in fixed)


def test_local_batches_go_round():
    assert LocalTraining(4, 0.1, batch_size=2).batches(5) == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
        slice(0, 2),
    ]


def test_replay_is_differentiable_and_vmaps(generator):
    simulator = UpdateSimulator(batch_norm_network(), mode="train", local=LocalTraining(2, 0.1))
    x = torch.rand((3, 4, *SPACE.shape), generator=generator)
    targets = torch.rand((3, 4, 3), generator=generator).softmax(-1)
    stacked = torch.func.vmap(simulator)(x, targets)
    for index in range(3):
        single = simulator(x[index], targets[index])
        assert_same({n: t[index] for n, t in stacked.items()}, single)

    def energy(inputs):
        return sum(t.square().sum() for t in simulator(inputs, targets[0]).values())

    double = x[0].double()
    simulator = GradientSimulator(batch_norm_network().double(), mode="train")
    targets = targets.double()
    slope = torch.func.grad(energy)(double)
    step = torch.zeros_like(double)
    step[1, 0, 2, 2] = 1e-6
    numeric = (energy(double + step) - energy(double - step)) / 2e-6
    assert float(slope[1, 0, 2, 2]) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)


def test_client_leaves_the_model_as_it_was():
    model = batch_norm_network()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    SharedGradient(model).release(BATCH, generator=stream(0))
    FederatedUpdate(model, LocalTraining(3, 0.1)).release(BATCH, generator=stream(0))
    trained(model, draws(40, 1), steps=3)
    after = model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_frozen_parameters_send_nothing():
    model = plain_network()
    first = next(iter(dict(model.named_parameters())))
    dict(model.named_parameters())[first].requires_grad_(False)
    assert first not in SharedGradient(model).release(BATCH, generator=stream(0)).tensors


def test_buffers_are_those_after_the_step():
    model = batch_norm_network()
    release = SharedGradient(model).release(BATCH, generator=stream(0))
    assert any(
        not torch.equal(b, dict(model.named_buffers())[n]) for n, b in release.buffers.items()
    )
    eval_release = SharedGradient(model, mode="eval").release(BATCH, generator=stream(0))
    assert eval_release.buffers == {}


def test_dropout_follows_the_generator():
    model = sequential(nn.Flatten, lambda: nn.Dropout(0.5), lambda: nn.Linear(16, 3))
    victim = SharedGradient(model)
    first, again, other = (
        victim.release(BATCH, generator=stream(s)).tensors["2.weight"] for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_training_learns():
    records = draws(90, 1)
    model = trained(plain_network(), records, steps=300, learning_rate=0.1)
    accuracy = (logits_of(model(records.x)).argmax(1) == records.y).float().mean()
    assert accuracy > 0.8


def test_losses_agree_with_torch(generator):
    logits = torch.randn((7, 3), generator=generator)
    labels = torch.randint(3, (7,), generator=generator)
    expected = nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(cross_entropy(logits, one_hot(labels, 3)), expected)
    single = torch.randn((7, 1), generator=generator)
    binary = torch.randint(2, (7,), generator=generator)
    expected = nn.functional.binary_cross_entropy_with_logits(
        single[:, 0], binary.float(), reduction="none"
    )
    assert torch.allclose(logistic(single, one_hot(binary, 2)), expected)


def test_bad_input_is_one_sentence():
    with pytest.raises(BadInput, match="empty"):
        SharedGradient(plain_network()).release(BATCH[:0], generator=stream(0))
    with pytest.raises(BadInput, match="single record"):
        SharedGradient(batch_norm_network()).release(BATCH[:1], generator=stream(0))
    with pytest.raises(BadInput, match="does not accept records of shape"):
        SharedGradient(sequential(lambda: nn.Linear(7, 3))).release(BATCH, generator=stream(0))
    narrow = sequential(nn.Flatten, lambda: nn.Linear(16, 2))
    with pytest.raises(BadInput, match="2 logits, but the records have 3 classes"):
        SharedGradient(narrow).release(BATCH, generator=stream(0))
    with pytest.raises(BadInput, match="at least one step"):
        LocalTraining(0, 0.1)
    with pytest.raises(BadInput, match="positive std"):
        Normalization((0.5,), (0.0,))
    with pytest.raises(BadInput, match="must return logits"):
        logits_of({"scores": 1})
