"""Tensor features read models: records, features of a body, labels, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_worlds import client
from torch import nn

from vestige import Prior
from vestige.attacks import TensorFeatures
from vestige.attacks.feature_inversion.body import Body
from vestige.attacks.tensor_features.attack import tensor_features
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.networks import convnet, mlp
from vestige.networks.gaussian_head import Polynomial, gaussian_head
from vestige.simulation.losses import one_hot
from vestige.victims import LocalTraining, Normalization
from worlds import CLASSES, SPACE, draws, sequential

ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.GELU, lambda: nn.GELU("tanh"), Polynomial]
NAMES = ["relu", "tanh", "gelu", "gelu in tanh form", "polynomial"]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observed(model: nn.Module, batch: int = 3, seed: int = 8, **settings):
    """Secret records, and what an attacker knows and sees of their gradient or update."""
    simulator = client(model, **settings)
    secret = draws(batch, seed)
    like = next(model.parameters())
    x, targets = secret.x.to(like), one_hot(secret.y, CLASSES).to(like)
    kind = simulator.releases
    release = kind({name: t.detach() for name, t in simulator(x, targets).items()})
    public = Public(simulator, Prior(draws(40, 7)), kind)
    return secret, public, Observation(release, Hints(batch_size=batch))


def far(found: torch.Tensor, true: torch.Tensor) -> float:
    """Largest relative distance of a true row to its nearest found one."""
    distances = torch.cdist(true.double(), found.double())
    return float((distances.min(1).values / true.double().norm(dim=1)).max())


def invert(public: Public, observation: Observation, **settings):
    attack = TensorFeatures(**settings)
    return attack.prepare(public, generator=stream(1))(observation, stream(2))


def body() -> tuple[nn.Module, int]:
    """Convolutions of a small network, and how many features they give."""
    network = convnet(SPACE, width=4, generator=stream(1))
    return network[:-1], network[-1].in_features


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=NAMES)
def test_features_of_a_convolutional_body_are_the_true_ones(activation):
    convolutions, features = body()
    model = gaussian_head(
        convolutions, features, 600, CLASSES, activation=activation, generator=stream(2)
    ).double()
    secret, public, observation = observed(model)
    found, info = tensor_features(public, observation)
    true = Body(public.simulator, "1")(secret.x.double()).detach()
    assert found.shape == true.shape
    assert far(found, true) < 1e-5
    assert info["solved"] is True
    estimate, _ = tensor_features(public, observation, polish=False)
    assert far(estimate, true) > 1e-3


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU], ids=["relu", "tanh", "gelu"])
def test_records_and_labels_of_an_ordinary_network(activation, bias):
    """Uniform weights of torch's own size, not N(0, I): the polish does not mind."""
    model = mlp(SPACE, (300,), bias=bias, activation=activation, generator=stream(3))
    secret, public, observation = observed(model.double())
    found = invert(public, observation)
    assert far(found.candidates.flatten(1), secret.x.flatten(1)) < 1e-6
    order = torch.cdist(secret.x.flatten(1).double(), found.candidates.flatten(1)).argmin(1)
    assert found.labels is not None
    assert found.labels[order].tolist() == secret.y.tolist()
    assert float(found.confidence.min()) > 0.99


def test_reads_one_local_step_a_sum_and_a_normalisation():
    model = gaussian_head(nn.Flatten(), 16, 200, CLASSES, generator=stream(5))
    for settings in (
        {"local": LocalTraining(1, 0.1)},
        {"reduction": "sum"},
        {"normalization": Normalization((0.4,), (0.3,))},
    ):
        secret, public, observation = observed(model, **settings)
        found = invert(public, observation)
        assert far(found.candidates.flatten(1), secret.x.flatten(1)) < 1e-3, settings


def test_trained_units_are_left_out_of_the_moments():
    model = gaussian_head(
        nn.Flatten(), 16, 300, CLASSES, trained_units=100, generator=stream(5)
    ).double()
    secret, public, observation = observed(model)
    found = invert(public, observation, trained_units=100)
    assert far(found.candidates.flatten(1), secret.x.flatten(1)) < 1e-6
    with pytest.raises(BadInput, match="fewer trained_units"):
        invert(public, observation, trained_units=300)


def test_entries_that_are_not_known_are_told_by_name():
    model = gaussian_head(nn.Flatten(), 16, 250, CLASSES, generator=stream(5)).double()
    secret, public, observation = observed(model)
    known = {
        name: torch.rand(tensor.shape, generator=stream(6)) < 0.6
        for name, tensor in observation.release.tensors.items()
    }
    dropped = {
        name: torch.where(known[name], tensor, 0.0)
        for name, tensor in observation.release.tensors.items()
    }
    defended = replace(observation, release=GradientRelease(dropped))
    found, _ = tensor_features(public, defended, known=known)
    assert far(found, secret.x.flatten(1)) < 1e-6
    untold, _ = tensor_features(public, defended)
    assert far(untold, secret.x.flatten(1)) > 1e-2


def test_output_layer_alone_is_enough():
    model = gaussian_head(nn.Flatten(), 16, 800, CLASSES, generator=stream(5)).double()
    secret, public, observation = observed(model)
    tensors = {"3.weight": observation.release.tensors["3.weight"]}
    found, info = tensor_features(public, Observation(GradientRelease(tensors), observation.hints))
    assert info["span"] == "moments"
    assert far(found, secret.x.flatten(1)) < 1e-6
    without = {"1.weight": observation.release.tensors["1.weight"]}
    with pytest.raises(BadInput, match=r"no gradient of '3\.weight'"):
        tensor_features(public, Observation(GradientRelease(without), observation.hints))


def test_a_body_asks_for_the_combined_attack():
    convolutions, features = body()
    model = gaussian_head(convolutions, features, 200, CLASSES, generator=stream(2))
    _, public, _ = observed(model)
    with pytest.raises(BadInput, match="combined attack"):
        TensorFeatures().prepare(public, generator=stream())


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: mlp(SPACE, (), generator=stream()), "hidden fully connected layer"),
        (
            lambda: mlp(SPACE, (60,), activation=nn.Sigmoid, generator=stream()),
            "ReLU, tanh, GELU or a Polynomial",
        ),
        (lambda: sequential(lambda: nn.Conv2d(1, 3, 4), nn.Flatten), "no fully connected layer"),
    ],
    ids=["one layer", "sigmoid", "no linear layer"],
)
def test_other_networks_are_refused(network, said):
    _, public, observation = observed(network())
    with pytest.raises(BadInput, match=said):
        TensorFeatures().prepare(public, generator=stream())
    with pytest.raises(BadInput, match=said):
        tensor_features(public, observation)


def test_bad_settings_and_sizes_are_refused():
    with pytest.raises(BadInput, match="starts of TensorFeatures must be at least 1"):
        TensorFeatures(starts=0)
    model = gaussian_head(nn.Flatten(), 16, 200, CLASSES, generator=stream(5))
    _, public, observation = observed(model, batch=17)
    with pytest.raises(BadInput, match="smaller batch"):
        invert(public, observation)
    narrow = mlp(SPACE, (12,), generator=stream())
    _, public, observation = observed(narrow)
    with pytest.raises(BadInput, match="widen the hidden layer"):
        invert(public, observation)
    _, public, observation = observed(model, local=LocalTraining(2, 0.1))
    with pytest.raises(BadInput, match="2 local steps"):
        invert(public, observation)


def test_gaussian_head_has_the_published_form():
    model = gaussian_head(nn.Flatten(), 16, 5000, CLASSES, trained_units=1000, generator=stream(4))
    model.requires_grad_(False)
    first, last = model[1], model[3]
    random = first.weight[1000:]
    # 64,000 normal draws: mean and variance within five standard errors.
    assert abs(float(random.mean())) < 5 / 64_000**0.5
    assert abs(float(random.var()) - 1) < 5 * (2 / 64_000) ** 0.5
    assert float(first.weight[:1000].abs().max()) <= 0.25
    wanted = torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 4000) / 4000
    torch.testing.assert_close(last.weight[:, 1000:], wanted)
    assert not bool(first.bias.any())
    assert not bool(last.bias.any())
    again = gaussian_head(nn.Flatten(), 16, 5000, CLASSES, trained_units=1000, generator=stream(4))
    assert torch.equal(again[1].weight, first.weight)
    with pytest.raises(BadInput, match="trained units do not fit"):
        gaussian_head(nn.Flatten(), 16, 10, CLASSES, trained_units=10)


def test_polynomial_is_evaluated_and_needs_a_power():
    z = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(Polynomial((1.0, 0.0, 2.0, -1.0))(z), 1 + 2 * z**2 - z**3)
    with pytest.raises(BadInput, match="higher power"):
        Polynomial((3.0,))
