"""Objectives, stacks and bad releases, against naive re-implementations."""

import pytest
import torch
from small_worlds import client, layered, pictures, records, rows, smooth_network, stream, world
from torch import nn

from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.attacks.gradient_matching.matching import Matching, cosine_distance, squared_distance
from vestige.attacks.gradient_matching.restarts import Stack
from vestige.attacks.gradient_matching.smoothness import total_variation
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Observation
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining, Normalization
from vestige.simulation.losses import one_hot
from vestige.simulation.update import UpdateSimulator


def naive_cosine(found, wanted):
    return 1 - torch.nn.functional.cosine_similarity(found, wanted, dim=-1)


def naive_squared(found, wanted):
    return (found - wanted).square().sum(-1) / wanted.square().sum()


@pytest.mark.parametrize(
    ("distance", "naive"), [(cosine_distance, naive_cosine), (squared_distance, naive_squared)]
)
def test_distances_and_their_slopes_agree_with_autograd(distance, naive):
    found = torch.randn(3, 20, generator=stream(0), dtype=torch.float64).requires_grad_()
    wanted = torch.randn(20, generator=stream(1), dtype=torch.float64)
    expected = naive(found, wanted)
    (slopes,) = torch.autograd.grad(expected.sum(), found)
    values, by_hand = distance(found.detach(), wanted)
    torch.testing.assert_close(values, expected.detach())
    torch.testing.assert_close(by_hand, slopes)


def test_distances_survive_a_release_of_zeros():
    for distance in (cosine_distance, squared_distance):
        values, slopes = distance(torch.ones(2, 5), torch.zeros(5))
        assert values.isfinite().all()
        assert slopes.isfinite().all()


def test_total_variation_agrees_with_a_loop():
    x = torch.rand(2, 3, 4, 5, generator=stream(2))
    across = [
        abs(float(image[row, column + 1] - image[row, column]))
        for image in x.flatten(0, 1)
        for row in range(4)
        for column in range(4)
    ]
    down = [
        abs(float(image[row + 1, column] - image[row, column]))
        for image in x.flatten(0, 1)
        for row in range(3)
        for column in range(5)
    ]
    expected = sum(across) / len(across) + sum(down) / len(down)
    assert float(total_variation(x)) == pytest.approx(expected, rel=1e-5)


SIMULATORS = {
    "gradient": {},
    "normalised sum": {
        "normalization": Normalization((0.3,), (0.2,)),
        "reduction": "sum",
    },
    "update": {"local": LocalTraining(3, 0.1, batch_size=2, momentum=0.9)},
}


@pytest.mark.parametrize("settings", SIMULATORS.values(), ids=SIMULATORS)
def test_stack_agrees_with_a_loop_of_plain_autograd(settings):
    space = pictures()
    there = world(client(smooth_network(space), **settings), space, batch_size=3)
    matching = Matching(there.public, there.release)
    targets = matching.targets(there.secret.y)
    stack = Stack(
        lambda x, functional: matching.simulated(x, targets, functional=functional),
        lambda found: cosine_distance(found, matching.observed),
        lambda x: 0.1 * total_variation(x),
    )
    points = torch.rand(4, 3, *space.shape, generator=stream(3))
    values, (slopes,) = stack(points)
    assert stack.vectorized
    for index, point in enumerate(points):
        leaf = point.clone().requires_grad_()
        tensors = there.public.simulator(leaf, targets)
        flat = torch.cat([tensors[name].flatten() for name in matching.names])
        expected = naive_cosine(flat, matching.observed) + 0.1 * total_variation(leaf)
        (slope,) = torch.autograd.grad(expected, leaf)
        torch.testing.assert_close(values[index], expected.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(slopes[index], slope, rtol=1e-3, atol=1e-5)
        alone, (single,) = stack(point[None])
        torch.testing.assert_close(alone[0], values[index], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(single[0], slopes[index], rtol=1e-3, atol=1e-5)


class Stubborn(nn.Module):
    """A network that vmap cannot handle: it branches on a value."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if float(x.detach().sum()) > -1e9:
            return self.inner(x)
        return -self.inner(x)


@pytest.mark.parametrize("local", [None, LocalTraining(2, 0.1)])
@pytest.mark.parametrize(
    "attack", [DeepLeakage(iterations=8, restarts=3), InvertingGradients(iterations=8, restarts=3)]
)
def test_models_that_vmap_cannot_handle_run_in_a_loop_and_say_so(attack, local):
    space = pictures(size=4)
    inner = smooth_network(space)
    plain = world(client(inner, local), space)
    stubborn = world(client(Stubborn(inner), local), space)
    found, expected = stubborn.attacked(attack), plain.attacked(attack)
    assert "one after another" in str(found.info["restarts run"])
    assert "restarts run" not in expected.info
    assert found.objective == pytest.approx(expected.objective, rel=0.05)


@pytest.mark.parametrize("attack", [DeepLeakage(iterations=3), InvertingGradients(iterations=3)])
class TestReleases:
    def there(self):
        space = rows()
        return world(GradientSimulator(smooth_network(space)), space)

    def reconstruct(self, attack, there, tensors):
        observation = Observation(GradientRelease(tensors), there.observation().hints)
        return attack.prepare(there.public, generator=stream(0))(observation, stream(1))

    def test_unknown_tensor(self, attack):
        there = self.there()
        tensors = {**there.release.tensors, "stranger": torch.zeros(2)}
        with pytest.raises(BadInput, match=r"'stranger'.*use the model"):
            self.reconstruct(attack, there, tensors)

    def test_nothing_released(self, attack):
        with pytest.raises(BadInput, match=r"holds no tensor"):
            self.reconstruct(attack, self.there(), {})

    def test_wrong_shape(self, attack):
        there = self.there()
        name = next(iter(there.release.tensors))
        with pytest.raises(BadInput, match=r"shape.*use the model"):
            self.reconstruct(attack, there, {**there.release.tensors, name: torch.zeros(2)})

    def test_not_finite(self, attack):
        there = self.there()
        name, tensor = next(iter(there.release.tensors.items()))
        with pytest.raises(BadInput, match="NaN or infinite"):
            self.reconstruct(attack, there, {**there.release.tensors, name: tensor * torch.nan})

    def test_frozen_parameters_are_not_matched(self, attack):
        there = self.there()
        name = next(iter(there.release.tensors))
        tensors = {n: t for n, t in there.release.tensors.items() if n != name}
        assert self.reconstruct(attack, there, tensors).candidates.isfinite().all()

    def test_update_without_local_training(self, attack):
        space = rows()
        there = world(UpdateSimulator(smooth_network(space), local=LocalTraining(1, 0.1)), space)
        without = world(GradientSimulator(smooth_network(space)), space)
        reconstruct = attack.prepare(without.public, generator=stream(0))
        with pytest.raises(BadInput, match="update needs its LocalTraining"):
            reconstruct(there.observation(), stream(1))


def test_batch_norm_statistics_lead_to_the_batch():
    from vestige.attacks.gradient_matching.batch_norm import statistics_penalty

    space = pictures()
    network = layered(
        lambda: nn.Conv2d(1, 8, 3),
        lambda: nn.BatchNorm2d(8),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(128, 4),
    )
    secret = records(space, 3)
    simulator = GradientSimulator(network, mode="train")
    after = nn.Sequential(*network)
    before = {name: value.clone() for name, value in network.named_buffers()}
    after.train()(secret.x)
    buffers = {name: value.clone() for name, value in network.named_buffers()}
    network.load_state_dict(before, strict=False)
    penalty = statistics_penalty(simulator, buffers)
    assert penalty is not None
    assert float(penalty(secret.x)) < 1e-8
    assert float(penalty(secret.x * 0.5)) > 1e-3
    assert statistics_penalty(simulator, {}) is None
    tensors = simulator(secret.x, one_hot(secret.y, 4))
    there = world(simulator, space, 3)
    release = GradientRelease({n: t.detach() for n, t in tensors.items()}, buffers)
    attack = InvertingGradients(iterations=6, restarts=2, batch_norm_weight=0.1)
    reconstruct = attack.prepare(there.public, generator=stream(0))
    found = reconstruct(Observation(release, there.observation().hints), stream(1))
    assert found.candidates.isfinite().all()
    assert "restarts run" not in found.info
