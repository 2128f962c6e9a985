"""Labels read off gradients, against the truth."""

import pytest
import torch
from sklearn.datasets import load_digits
from small_worlds import client, layered, pictures, records, rows, stream, world
from torch import nn

from vestige.attacks.gradient_matching.labels import infer_labels
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Public
from vestige.networks import convnet, mlp
from vestige.records import ImageSpace, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.losses import logistic, one_hot


def digits():
    loaded = load_digits()
    space = ImageSpace(1, 8, 8, tuple("0123456789"))
    x = torch.tensor(loaded.images, dtype=torch.float32)[:, None] / 16
    return Records(x, torch.tensor(loaded.target), space).split(seed=0)


def accuracy(batch_size, *, bias=True, trials=10, **settings):
    """Share of labels found, as overlap of two multisets."""
    train, _, prior = digits()
    hits = 0
    for trial in range(trials):
        generator = stream(trial)
        network = (
            convnet(train.space, width=8, generator=generator)
            if bias
            else mlp(train.space, (64,), bias=False, generator=generator)
        )
        simulator = client(network, **settings)
        batch = train[torch.randint(len(train), (batch_size,), generator=generator)]
        tensors = {n: t.detach() for n, t in simulator(batch.x, one_hot(batch.y, 10)).items()}
        release = simulator.releases(tensors)
        found = infer_labels(Public(simulator, prior), release, batch_size)
        assert len(found) == batch_size
        hits += int(
            torch.minimum(
                torch.bincount(found, minlength=10), torch.bincount(batch.y, minlength=10)
            ).sum()
        )
    return hits / (trials * batch_size)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_label_is_exact(bias, reduction):
    assert accuracy(1, bias=bias, reduction=reduction) == 1.0


@pytest.mark.parametrize("batch_size", [4, 8, 16])
def test_counts_with_a_bias_are_exact_for_an_untrained_network(batch_size):
    assert accuracy(batch_size) >= 0.99


@pytest.mark.parametrize(("batch_size", "least"), [(4, 0.9), (8, 0.9), (16, 0.85)])
def test_counts_without_a_bias(batch_size, least):
    assert accuracy(batch_size, bias=False) >= least


def test_updates_have_their_sign_flipped_and_their_length_undone():
    assert accuracy(1, local=LocalTraining(4, 0.05, momentum=0.9)) == 1.0
    assert accuracy(8, local=LocalTraining(4, 0.05, batch_size=4, momentum=0.5)) >= 0.95


@pytest.mark.parametrize("bias", [True, False])
def test_one_logit(bias):
    space = rows(classes=2)
    for seed in range(6):
        network = layered(lambda: nn.Linear(7, 9), nn.ReLU, lambda: nn.Linear(9, 1, bias=bias))
        for parameter in network.parameters():
            parameter.data = torch.randn(parameter.shape, generator=stream(seed)) / 3
        simulator = GradientSimulator(network, loss=logistic)
        secret = records(space, 2, seed)
        for label in (0, 1):
            one = secret[[label]]
            tensors = simulator(one.x, one_hot(one.y, 2))
            release = GradientRelease({n: t.detach() for n, t in tensors.items()})
            public = Public(simulator, world(simulator, space).public.prior)
            assert infer_labels(public, release, 1).tolist() == [label]


def test_no_last_layer_says_what_to_do():
    space = pictures()
    simulator = GradientSimulator(layered(lambda: nn.Conv2d(1, 4, 6), nn.Flatten))
    there = world(simulator, space)
    with pytest.raises(BadInput, match="tell the attacker the labels"):
        infer_labels(there.public, there.release, 1)


def test_last_layer_not_released_says_what_to_do():
    space = rows()
    there = world(GradientSimulator(mlp(space, (5,))), space)
    tensors = {n: t for n, t in there.release.tensors.items() if n.startswith("1.")}
    with pytest.raises(BadInput, match="tell the attacker the labels"):
        infer_labels(there.public, GradientRelease(tensors), 1)
