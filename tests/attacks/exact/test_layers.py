"""The dense head is found by what flows through a network, or the user is told what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.layers import dense_head
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease
from vestige.networks import convnet, mlp
from vestige.records import ImageSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.kinds import as_update
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator

SPACE = ImageSpace(1, 8, 8, tuple("0123"))


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def built(make) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def released(simulator: Simulator, shape=(1, 8, 8), batch: int = 3, classes: int = 4):
    x = torch.rand((batch, *shape), generator=stream(1))
    targets = one_hot(torch.arange(batch) % classes, classes)
    kind = simulator.releases
    return kind({name: t.detach() for name, t in simulator(x, targets).items()})


class Own(nn.Module):
    """Layers with a ReLU in forward code, declared in another order than they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 4)
        self.body = nn.Conv2d(1, 2, 3, padding=1)
        self.middle = nn.Linear(16, 12)
        self.first = nn.Linear(128, 16)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.body(x)).flatten(1)
        hidden = torch.relu(self.first(features))
        return self.last(self.middle(hidden).clamp(min=0))


def test_sequential_head_is_found_whole():
    simulator = GradientSimulator(mlp(SPACE, (20, 10), generator=stream()))
    release = released(simulator)
    head = dense_head(simulator, release, shape=SPACE.shape)
    assert [tuple(layer.weight.shape) for layer in head.layers] == [(20, 64), (10, 20), (4, 10)]
    assert torch.equal(head.layers[0].weight_gradient, release.tensors["1.weight"])


def test_own_class_and_convolutional_body():
    simulator = GradientSimulator(built(Own))
    head = dense_head(simulator, released(simulator), shape=SPACE.shape)
    assert [tuple(layer.weight.shape) for layer in head.layers] == [(16, 128), (12, 16), (4, 12)]


def test_a_layer_that_reads_several_vectors_of_a_record_is_not_fully_connected():
    """Its gradient is a sum over vectors and records: the exact methods would take it for one."""

    def tokens() -> nn.Module:
        return nn.Sequential(
            *(nn.Flatten(), nn.Unflatten(1, (4, 16)), nn.Linear(16, 6), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(24, 9), nn.ReLU(), nn.Linear(9, 4)),
        )

    simulator = GradientSimulator(built(tokens))
    head = dense_head(simulator, released(simulator), shape=SPACE.shape)
    assert [tuple(layer.weight.shape) for layer in head.layers] == [(9, 24), (4, 9)]


def test_named_head_is_taken_as_named():
    simulator = GradientSimulator(built(Own))
    head = dense_head(simulator, released(simulator), ["middle", "last"], shape=SPACE.shape)
    assert len(head.layers) == 2
    with pytest.raises(BadInput, match="not joined by ReLU"):
        dense_head(simulator, released(simulator), ["first", "last"], shape=SPACE.shape)
    with pytest.raises(BadInput, match="no layer 'lost'"):
        dense_head(simulator, released(simulator), ["lost"], shape=SPACE.shape)


def test_head_without_bias_has_none():
    simulator = GradientSimulator(mlp(SPACE, bias=False, generator=stream()))
    head = dense_head(simulator, released(simulator), shape=SPACE.shape)
    assert head.layers[0].bias is None
    assert head.layers[0].bias_gradient is None


@pytest.mark.parametrize(
    "network",
    [
        lambda: mlp(SPACE, (), generator=stream()),
        lambda: mlp(SPACE, (20,), activation=nn.Sigmoid, generator=stream()),
        lambda: convnet(SPACE, width=4, generator=stream()),
    ],
    ids=["single linear", "sigmoid", "convolutions and one linear"],
)
def test_without_hidden_relu_layer_says_what_is_missing(network):
    simulator = GradientSimulator(network())
    with pytest.raises(BadInput, match="hidden fully connected layer, then ReLU"):
        dense_head(simulator, released(simulator), shape=SPACE.shape)


def test_without_linear_layer_says_so():
    network = built(lambda: nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()))
    simulator = GradientSimulator(network)
    with pytest.raises(BadInput, match="no fully connected layer"):
        dense_head(simulator, released(simulator), shape=SPACE.shape)


def test_softmax_after_logits_is_refused():
    network = built(lambda: nn.Sequential(mlp(SPACE, generator=stream()), nn.Softmax(-1)))
    simulator = GradientSimulator(network)
    with pytest.raises(BadInput, match="logits are not the output"):
        dense_head(simulator, released(simulator), shape=SPACE.shape)


def test_missing_gradient_is_named():
    simulator = GradientSimulator(mlp(SPACE, generator=stream()))
    release = released(simulator)
    fewer = {name: t for name, t in release.tensors.items() if name != "1.bias"}
    with pytest.raises(BadInput, match=r"'1\.bias'"):
        dense_head(simulator, GradientRelease(fewer), shape=SPACE.shape)


def test_another_loss_is_refused():
    simulator = GradientSimulator(
        mlp(SPACE, generator=stream()), loss=lambda o, t: (o - t).square().sum(-1)
    )
    with pytest.raises(BadInput, match="cross-entropy"):
        dense_head(simulator, released(simulator), shape=SPACE.shape)


def test_sum_and_single_step_come_to_the_mean_gradient():
    simulator = GradientSimulator(mlp(SPACE, generator=stream()))
    mean = dense_head(simulator, released(simulator), shape=SPACE.shape).layers[0].weight_gradient
    summed = replace(simulator, reduction="sum")
    head = dense_head(summed, released(summed), batch_size=3, shape=SPACE.shape)
    torch.testing.assert_close(head.layers[0].weight_gradient.float(), mean)
    local = as_update(simulator, LocalTraining(1, 0.5))
    head = dense_head(local, released(local), shape=SPACE.shape)
    torch.testing.assert_close(head.layers[0].weight_gradient.float(), mean, atol=1e-6, rtol=1e-4)
    several = as_update(simulator, LocalTraining(2, 0.5))
    with pytest.raises(BadInput, match="several local steps"):
        dense_head(several, released(several), shape=SPACE.shape)
