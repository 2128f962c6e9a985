import math

import pytest
import torch
from torch import nn

from vestige.errors import BadInput
from vestige.networks import convnet, lenet, lenet5, mlp, resnet
from vestige.networks.deep import alexnet, resnet9, resnet18, vgg11
from vestige.records import Column, ImageSpace, Space, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot

NETWORKS = {
    "mlp": mlp,
    "convnet": convnet,
    "lenet": lenet,
    "resnet": resnet,
    "resnet without batch norm": lambda space, **more: resnet(space, batch_norm=False, **more),
}
CLASSES = ("a", "b", "c")
TABLE = TableSpace(tuple(Column(f"c{i}") for i in range(5)), CLASSES)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(channels: int = 1, height: int = 8, width: int = 8) -> ImageSpace:
    return ImageSpace(channels, height, width, CLASSES)


def some(space: Space, count: int = 4) -> torch.Tensor:
    return torch.rand(count, *space.shape, generator=seeded(1))


def same(first: nn.Module, second: nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("size", [(1, 8, 8), (1, 25, 25), (3, 32, 32), (1, 28, 28), (3, 7, 12)])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_logits_have_one_column_for_each_class(network, size):
    space = pictures(*size)
    logits = network(space)(some(space))
    assert logits.shape == (4, 3)
    assert torch.isfinite(logits).all()
    assert float(logits.detach().std(0).mean()) > 1e-4


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_parameters_come_from_the_generator_alone(network):
    space = pictures(3, 9, 9)
    before = torch.get_rng_state()
    first = network(space, generator=seeded(5))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert same(first, network(space, generator=seeded(5)))
    assert not same(first, network(space, generator=seeded(6)))
    assert same(network(space), network(space, generator=seeded(0)))
    torch.set_rng_state(before)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_simulator_differentiates_twice_and_vectorises(network):
    space = pictures(1, 9, 9)
    simulator = GradientSimulator(network(space), mode="train")
    targets = one_hot(torch.tensor([0, 1, 2]), 3)
    x = torch.rand(2, 3, *space.shape, generator=seeded(2))
    stacked = torch.vmap(lambda one: simulator(one, targets))(x)
    for name, gradient in simulator(x[1], targets).items():
        assert torch.allclose(stacked[name][1], gradient, atol=1e-5)

    def energy(candidates: torch.Tensor) -> torch.Tensor:
        return sum(value.square().sum() for value in simulator(candidates, targets).values())

    second = torch.func.grad(energy)(x[0])
    assert torch.isfinite(second).all()
    assert float(second.abs().max()) > 0


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_learns(network):
    space = pictures()
    model = network(space)
    x, y = some(space, 12), torch.arange(12) % 3
    x = x * 0.2 + y[:, None, None, None] * 0.4
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_mlp_has_the_published_sizes():
    def shapes(model: nn.Module) -> list[tuple[int, ...]]:
        return [tuple(parameter.shape) for parameter in model.parameters()]

    mnist = ImageSpace(1, 28, 28, tuple("0123456789"))
    assert shapes(mlp(mnist, bias=False)) == [(200, 784), (10, 200)]
    assert shapes(mlp(mnist, (10,), activation=nn.ELU)) == [(10, 784), (10,), (10, 10), (10,)]
    assert shapes(mlp(mnist, ())) == [(10, 784), (10,)]


def test_mlp_reads_tables():
    assert mlp(TABLE, (7, 6))(torch.zeros(2, 5)).shape == (2, 3)


def test_one_record_lies_open_in_the_first_layer():
    space = pictures()
    x = some(space, 1)
    gradient = GradientSimulator(mlp(space))(x, one_hot(torch.tensor([1]), 3))
    weight, bias = gradient["1.weight"], gradient["1.bias"]
    unit = bias.abs().argmax()
    assert torch.allclose(weight[unit] / bias[unit], x.flatten(), atol=1e-5)


def test_lenet_is_that_of_deep_leakage():
    model = lenet(ImageSpace(3, 32, 32, tuple(str(i) for i in range(100))))
    head = model[-1]
    assert isinstance(head, nn.Linear)
    assert head.in_features == 768
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert float(parameters.abs().max()) <= 0.5
    assert abs(float(parameters.var()) - 1 / 12) < 2e-3


def test_initialisation_has_torchs_spread():
    layer = mlp(ImageSpace(1, 28, 28, CLASSES))[1]
    limit = 1 / math.sqrt(784)
    weight = layer.get_parameter("weight").detach()
    assert limit * 0.99 < float(weight.abs().max()) <= limit
    with torch.random.fork_rng():
        theirs = nn.Linear(784, 200).weight.detach()
    assert abs(float(weight.std()) - float(theirs.std())) < 1e-3


def test_fresh_batch_norm_keeps_no_leftovers():
    model = resnet(pictures(), generator=seeded(3))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 9
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))
        assert torch.equal(norm.running_var, torch.ones_like(norm.running_var))
        assert norm.num_batches_tracked == 0
    plain = resnet(pictures(), batch_norm=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())


def test_resnet_20_has_the_published_size():
    model = resnet(ImageSpace(3, 32, 32, tuple("0123456789")), depth=20)
    convolutions = [
        m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] == 3
    ]
    assert len(convolutions) == 19
    # He et al., Table 6, give 0.27 million; the two 1×1 shortcuts add 2,560 and their norms 192.
    assert sum(parameter.numel() for parameter in model.parameters()) == 269_722 + 2_560 + 192


DEEP = {
    "vgg11": lambda space, **more: vgg11(space, width=8, hidden=(32,), **more),
    "vgg11 with batch norm": lambda space, **more: vgg11(
        space, width=8, hidden=(32,), batch_norm=True, **more
    ),
    "alexnet": lambda space, **more: alexnet(space, width=8, hidden=(32,), **more),
    "resnet9": lambda space, **more: resnet9(space, width=8, **more),
    "resnet18": lambda space, **more: resnet18(space, width=8, **more),
}


@pytest.mark.parametrize("size", [(1, 28, 28), (3, 32, 32), (1, 25, 13)])
@pytest.mark.parametrize("network", [*DEEP.values(), lenet5], ids=[*DEEP, "lenet5"])
def test_deep_networks_give_logits_from_their_generator_alone(network, size):
    space = pictures(*size)
    before = torch.get_rng_state()
    model = network(space, generator=seeded(5))
    assert torch.equal(before, torch.get_rng_state())
    assert same(model, network(space, generator=seeded(5)))
    logits = model(some(space))
    assert logits.shape == (4, 3)
    assert torch.isfinite(logits).all()
    assert float(logits.detach().std(0).mean()) > 1e-4


@pytest.mark.parametrize("network", [*DEEP.values(), lenet5], ids=[*DEEP, "lenet5"])
def test_deep_networks_differentiate_twice(network):
    space = pictures(1, 16, 16)
    simulator = GradientSimulator(network(space))
    x = some(space, 2).requires_grad_()
    gradient = simulator(x, one_hot(torch.tensor([0, 1]), 3))
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradient.values()), x)
    assert torch.isfinite(second).all()
    assert float(second.abs().max()) > 0


def test_deep_networks_have_the_published_sizes():
    space = ImageSpace(3, 32, 32, tuple("0123456789"))

    def convolutions(model: nn.Module) -> list[tuple[int, int]]:
        found = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1]
        return [(m.in_channels, m.out_channels) for m in found]

    wide = convolutions(vgg11(space, hidden=(16,)))
    assert [after for _, after in wide] == [64, 128, 256, 256, 512, 512, 512, 512]
    model = resnet18(space)
    assert len(convolutions(model)) == 17
    # torchvision's 11,181,642 for ten classes, less 7×7 and plus 3×3 filters in the first layer.
    assert sum(p.numel() for p in model.parameters()) == 11_181_642 - 9_408 + 1_728
    assert [after for _, after in convolutions(alexnet(space, hidden=(16,)))] == [
        64,
        192,
        384,
        256,
        256,
    ]


def test_resnet9_treats_every_record_for_itself():
    space = ImageSpace(3, 32, 32, tuple("0123456789"))
    model = resnet9(space)
    found = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in found] == [64, 128, 128, 128, 256, 256, 256, 256]
    x = some(space, 3)
    together, apart = model(x), torch.cat([model(x[i : i + 1]) for i in range(3)])
    assert torch.allclose(together, apart, atol=1e-4)


def test_lenet_heads():
    def linear(model: nn.Module) -> list[int]:
        return [m.in_features for m in model.modules() if isinstance(m, nn.Linear)]

    mnist = ImageSpace(1, 28, 28, tuple("0123456789"))
    assert linear(lenet5(mnist, hidden=(256, 84))) == [400, 256, 84]
    assert linear(lenet5(ImageSpace(3, 32, 32, CLASSES))) == [400, 120, 84]
    assert linear(lenet(mnist, hidden=(256, 84), activation=nn.ReLU)) == [588, 256, 84]
    with pytest.raises(BadInput, match="12×12"):
        lenet5(pictures(1, 8, 8))


@pytest.mark.parametrize(
    "network", [convnet, lenet, lenet5, resnet, vgg11, alexnet, resnet9, resnet18]
)
def test_tables_are_refused(network):
    with pytest.raises(BadInput, match="use mlp"):
        network(TABLE)


@pytest.mark.parametrize(
    "build",
    [
        lambda: mlp(pictures(), (0,)),
        lambda: convnet(pictures(), width=0),
        lambda: resnet(pictures(), depth=9),
        lambda: resnet(pictures(), width=0),
        lambda: lenet(pictures(), hidden=(0,)),
        lambda: vgg11(pictures(), width=0),
        lambda: resnet9(pictures(), width=12),
        lambda: resnet9(pictures(1, 7, 20)),
        lambda: mlp(ImageSpace(1, 8, 8, ())),
        lambda: mlp(pictures(), activation=lambda: nn.LayerNorm(200)),
    ],
)
def test_wrong_settings_are_refused(build):
    with pytest.raises(BadInput):
        build()


def test_activation_with_a_parameter():
    model = mlp(pictures(), activation=nn.PReLU)
    assert float(model.get_parameter("2.weight").detach()) == 0.25


def test_a_number_in_place_of_a_space_is_one_sentence():
    with pytest.raises(BadInput, match="takes the space of its records"):
        mlp(3)
