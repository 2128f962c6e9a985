"""Shadow networks trained as one batch are the networks that plain training makes one by one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import networks
from vestige.errors import BadInput
from vestige.records import ImageSpace, Records
from vestige.shadows import ShadowTraining
from vestige.shadows.standardization import Standardization
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import cross_entropy, logistic, one_hot
from vestige.simulation.network import NetworkSimulator
from vestige.victims import LocalTraining, Normalization
from worlds import SPACE, draws, sequential

TRAINING = LocalTraining(steps=12, learning_rate=0.1, momentum=0.9)
# Few companions take the dual form of the first layer, many its weights (16 inputs).
FEW, MANY = 9, 60


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(hidden=(7,), activation=nn.ELU, bias=True, space=SPACE) -> nn.Module:
    return networks.mlp(space, hidden, activation=activation, bias=bias, generator=stream(3))


def simulator(model: nn.Module, known: int = FEW, **changes) -> NetworkSimulator:
    settings = {"local": TRAINING, "companions": draws(known, 1), **changes}
    return NetworkSimulator(model.double(), **settings)


def alone(simulator: NetworkSimulator, stand_in: Records, private: ClippedNoise | None = None):
    """Weights after plain training with torch's SGD; private steps go record by record."""
    model, local, known = copy.deepcopy(simulator.model), simulator.local, simulator.companions
    dtype = next(model.parameters()).dtype
    x, y = torch.cat([known.x, stand_in.x]).to(dtype), torch.cat([known.y, stand_in.y])
    x = x if simulator.normalization is None else simulator.normalization(x)
    targets = one_hot(y, known.classes, dtype)
    optimizer = torch.optim.SGD(model.parameters(), local.learning_rate, local.momentum)
    for batch in local.batches(len(x)):
        optimizer.zero_grad()
        parameters, size = list(model.parameters()), batch.stop - batch.start
        share = 1 / size if simulator.reduction == "mean" else 1.0
        if private is None:
            (simulator.loss(model(x[batch]), targets[batch]).sum() * share).backward()
        else:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for place in range(batch.start, batch.stop):
                one = slice(place, place + 1)
                loss = simulator.loss(model(x[one]), targets[one]).sum()
                slopes = torch.autograd.grad(loss, parameters)
                norm = torch.cat([slope.flatten() for slope in slopes]).norm()
                for parameter, slope in zip(parameters, slopes):
                    cut = slope * min(1.0, private.clipping_norm / float(norm))
                    parameter.grad += cut * share
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def plain_weights(simulator, stand_ins, private=None):
    return torch.stack([alone(simulator, stand_ins[[i]], private) for i in range(len(stand_ins))])


def mean_square(outputs, targets):
    return (outputs - targets).square().sum(-1) + outputs[:, 0].square()


TWO_CLASSES = ImageSpace(1, 4, 4, ("a", "b"))
CASES = {
    "ELU": (network(), {}),
    "ELU with another alpha": (
        sequential(
            nn.Flatten, lambda: nn.Linear(16, 5), lambda: nn.ELU(0.7), lambda: nn.Linear(5, 3)
        ),
        {},
    ),
    "ReLU, two hidden layers": (network((7, 5), nn.ReLU), {}),
    "tanh": (network((7,), nn.Tanh), {}),
    "sigmoid": (network((7,), nn.Sigmoid), {}),
    "no hidden layer": (network(()), {}),
    "no bias": (network(bias=False), {}),
    "sum of losses": (network(), {"reduction": "sum", "local": LocalTraining(12, 0.01)}),
    "normalisation": (network(), {"normalization": Normalization((0.4,), (0.3,))}),
    "another loss": (network(), {"loss": mean_square, "local": LocalTraining(12, 0.01)}),
}


@pytest.mark.parametrize("known", [FEW, MANY])
@pytest.mark.parametrize("words", CASES)
def test_perceptrons_equal_plain_training(words, known):
    model, changes = CASES[words]
    made = simulator(copy.deepcopy(model), known, **changes)
    stand_ins = draws(5, 2)
    training = ShadowTraining(made, chunk=3)
    assert training._perceptron is not None
    assert (training._known_inputs.gram is None) == (known == MANY)
    found, wanted = training.weights(stand_ins, generator=stream(0)), plain_weights(made, stand_ins)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert found.std(0).max() > 1e-4, "stand-ins must leave a trace, or equality shows nothing"


@pytest.mark.parametrize("known", [FEW, MANY])
def test_float32_is_equal_up_to_rounding(known):
    made = simulator(network(), known)
    made = replace(made, model=copy.deepcopy(made.model).float())
    found = ShadowTraining(made).weights(draws(4, 2), generator=stream(0))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, plain_weights(made, draws(4, 2)), rtol=1e-4, atol=1e-5)


def test_a_single_logit_equals_plain_training():
    space = TWO_CLASSES
    x = draws(12, 4).x
    records = Records(x, torch.arange(12) % 2, space)
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 4), nn.Tanh, lambda: nn.Linear(4, 1))
    made = simulator(model, loss=logistic, companions=records[:9])
    found = ShadowTraining(made).weights(records[9:], generator=stream(0))
    torch.testing.assert_close(found, plain_weights(made, records[9:]), rtol=1e-10, atol=1e-12)


CONVOLUTIONS = sequential(lambda: nn.Conv2d(1, 3, 3), nn.Tanh, nn.Flatten, lambda: nn.Linear(12, 3))
OTHERS = {
    "convolutions": (CONVOLUTIONS, TRAINING),
    "small batches": (network(), LocalTraining(steps=7, learning_rate=0.1, batch_size=4)),
}


@pytest.mark.parametrize("private", [None, ClippedNoise(0.5, 0.0)])
@pytest.mark.parametrize("words", OTHERS)
def test_other_networks_equal_plain_training(words, private):
    model, local = OTHERS[words]
    made = simulator(copy.deepcopy(model), local=local)
    training = ShadowTraining(replace(made, clipped_noise=private), chunk=2)
    assert training._perceptron is None
    found = training.weights(draws(3, 2), generator=stream(0))
    wanted = plain_weights(made, draws(3, 2), private)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("known", [FEW, MANY])
@pytest.mark.parametrize("bias", [True, False])
def test_clipping_equals_clipping_record_by_record(known, bias):
    made, private = simulator(network((7, 5), bias=bias), known), ClippedNoise(0.5, 0.0)
    found = ShadowTraining(replace(made, clipped_noise=private)).weights(
        draws(3, 2), generator=stream(0)
    )
    torch.testing.assert_close(
        found, plain_weights(made, draws(3, 2), private), rtol=1e-10, atol=1e-12
    )
    unclipped = ShadowTraining(made).weights(draws(3, 2), generator=stream(0))
    assert (found - unclipped).abs().max() > 1e-3


@pytest.mark.parametrize("model", [network((40,)), CONVOLUTIONS], ids=["products", "vmap"])
def test_noise_has_the_stated_deviation(model):
    """After one step the weights are off by rate · noise · clipping / records.

    The sample deviation of at least 20,000 normal numbers is within 3% but for a chance below 1e-8.
    """
    local = LocalTraining(steps=1, learning_rate=0.1, momentum=0.9)
    made = simulator(copy.deepcopy(model), local=local)
    stand_in = draws(1, 2)[[0] * 400]
    quiet, loud = ClippedNoise(0.5, 0.0), ClippedNoise(0.5, 2.0)
    silent, noisy = (
        ShadowTraining(replace(made, clipped_noise=private)).weights(stand_in, generator=stream(0))
        for private in (quiet, loud)
    )
    noise = (noisy - silent) / (0.1 * 2.0 * 0.5 / (FEW + 1))
    assert noise.numel() > 20_000
    assert abs(float(noise.std()) - 1) < 0.03
    assert abs(float(noise.mean())) < 0.05
    # Every parameter has its own: a bias or a layer left out would stand still.
    assert (noise.std(0) > 0.5).all()


def test_noisy_training_follows_its_generator():
    training = ShadowTraining(simulator(network(), clipped_noise=ClippedNoise(0.5, 1.0)))
    first, again = (training.weights(draws(4, 2), generator=stream(5)) for _ in range(2))
    other = training.weights(draws(4, 2), generator=stream(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fresh_initial_weights_differ_and_are_trained_from():
    made = simulator(network(), fresh_initialization=True)
    stand_ins, generator = draws(3, 2), stream(8)
    found = ShadowTraining(made, chunk=3).weights(stand_ins, generator=stream(8))
    wanted = [alone(made.started(generator), stand_ins[[i]]) for i in range(3)]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-10, atol=1e-12)
    known = ShadowTraining(simulator(network())).weights(stand_ins, generator=stream(8))
    assert found.std(0).median() > 3 * known.std(0).median()


def test_a_release_becomes_the_row_of_its_shadow():
    training = ShadowTraining(simulator(network()))
    row = training.row(training.simulator.parameters)
    assert row.shape == (training.size,)
    torch.testing.assert_close(
        row, torch.cat([p.detach().flatten() for p in training.simulator.model.parameters()])
    )
    with pytest.raises(BadInput, match="use the model the release came from"):
        training.row({name: value[:1] for name, value in training.simulator.parameters.items()})


def test_a_simulator_without_known_records_is_refused():
    with pytest.raises(BadInput, match="known records"):
        ShadowTraining.of(GradientSimulator(network(), loss=cross_entropy))


def test_statistics_leave_constant_coordinates_out():
    weights = torch.randn((50, 6), generator=stream(0)) * torch.tensor([1, 2, 3, 4, 0, 1e-9])
    weights = weights + torch.tensor([0, 1, 2, 3, 0.7, 0.7])
    standardization = Standardization.fitted(weights)
    assert standardization.varying.tolist() == [0, 1, 2, 3]
    found = standardization(weights)
    torch.testing.assert_close(found.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(0), torch.ones(4))


def test_shadows_that_diverged_are_named():
    fast = LocalTraining(steps=60, learning_rate=1e12, momentum=0.9)
    made = simulator(network(activation=nn.ReLU), loss=mean_square, local=fast)
    weights = ShadowTraining(made).weights(draws(6, 2), generator=stream(0))
    assert not weights.isfinite().all()
    with pytest.raises(BadInput, match="6 of 6 shadow networks ended with NaN"):
        Standardization.fitted(weights)
