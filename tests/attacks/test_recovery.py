"""Attacks recover what they should in worlds that can be solved, and keep their promises."""

import pytest
import torch
from small_worlds import pictures, records, rows, smooth_network, stream, world
from torch import nn

from vestige import progress
from vestige.attacks import DeepLeakage, Guess, InvertingGradients
from vestige.errors import BadInput
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import LocalTraining
from vestige.simulation.update import UpdateSimulator

SPACES = {"grey": pictures(), "colour": pictures(channels=3), "table": rows()}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize(
    "attack", [DeepLeakage(iterations=150), InvertingGradients(iterations=400)]
)
def test_recovers_one_record_from_a_gradient(attack, space):
    there = world(GradientSimulator(smooth_network(space)), space)
    found = there.attacked(attack, labels=False)
    assert there.error(found) < 1e-2
    assert found.labels.tolist() == there.secret.y.tolist()
    assert found.confidence.min() > 0.99
    assert not found.diverged


@pytest.mark.parametrize(
    "attack",
    [
        DeepLeakage(iterations=150),
        pytest.param(InvertingGradients(iterations=400), marks=pytest.mark.slow),
    ],
)
def test_recovers_one_record_from_an_update_with_momentum(attack):
    space = pictures()
    local = LocalTraining(3, 0.1, momentum=0.9)
    there = world(UpdateSimulator(smooth_network(space), local=local), space)
    assert there.error(there.attacked(attack, labels=False)) < 1e-2


@pytest.mark.slow
def test_recovers_a_batch_with_joint_labels():
    space = pictures()
    there = world(GradientSimulator(smooth_network(space)), space, batch_size=2)
    found = there.attacked(DeepLeakage(iterations=300, restarts=4), labels=False)
    order = found.labels.argsort()
    assert found.info["labels"] == "optimised"
    assert found.labels[order].tolist() == there.secret.y.tolist()
    assert float((found.candidates[order] - there.secret.x).square().mean().sqrt()) < 0.02


def test_double_precision_goes_deeper():
    space = pictures()
    there = world(GradientSimulator(smooth_network(space).double()), space)
    found = there.attacked(DeepLeakage(iterations=200))
    assert found.candidates.dtype == torch.float64
    assert there.error(found) < 1e-6


@pytest.mark.parametrize(
    "attack",
    [
        DeepLeakage(iterations=12, restarts=3),
        InvertingGradients(iterations=12, restarts=3),
        Guess(),
        Guess("mean"),
    ],
    ids=str,
)
def test_is_deterministic_and_leaves_torch_alone(attack):
    space = pictures()
    there = world(GradientSimulator(smooth_network(space)), space, batch_size=2)
    before = torch.random.get_rng_state()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    first, second = there.attacked(attack), there.attacked(attack)
    assert torch.equal(first.candidates, second.candidates)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)


def test_more_restarts_never_end_higher():
    space = pictures()
    there = world(GradientSimulator(smooth_network(space)), space)
    one = there.attacked(DeepLeakage(iterations=40))
    many = there.attacked(DeepLeakage(iterations=40, restarts=8))
    assert many.objective <= one.objective


class Flaky(nn.Module):
    """A network that returns NaN for records with a large mean: most draws diverge at once."""

    def __init__(self, inner: nn.Module, limit: float) -> None:
        super().__init__()
        self.inner, self.limit = inner, limit

    def forward(self, x):
        mean = x.flatten(1).mean(1, keepdim=True)
        return self.inner(x) + torch.where(mean > self.limit, torch.nan, 0.0)


def test_divergence_is_noticed_and_restarted():
    space = pictures(size=4)
    secret_mean = float(records(space, 1, 1003).x.mean())
    inner = smooth_network(space)
    network = Flaky(inner, secret_mean + 0.02)
    there = world(GradientSimulator(network), space)
    found = there.attacked(DeepLeakage(iterations=60, restarts=6, fresh_draws=5))
    assert found.info["fresh draws after divergence"] > 0
    assert found.candidates.isfinite().all()
    assert found.objective is not None


def test_all_restarts_divergent_is_said():
    space = pictures(size=4)
    there = world(GradientSimulator(smooth_network(space)), space)
    simulator = GradientSimulator(Flaky(there.public.simulator.model, -1e9))
    tensors = {f"inner.{name}": tensor for name, tensor in there.release.tensors.items()}
    hopeless = type(there)(
        type(there.public)(simulator, there.public.prior),
        type(there.release)(tensors),
        there.secret,
    )
    for attack in (
        DeepLeakage(iterations=12, restarts=2, fresh_draws=1),
        InvertingGradients(iterations=12, restarts=2),
    ):
        found = hopeless.attacked(attack)
        assert found.diverged
        assert found.candidates.isfinite().all()
        assert float(found.confidence.max()) == 0.0


@pytest.mark.parametrize("attack", [DeepLeakage(), InvertingGradients()])
def test_listeners_see_steps_and_can_stop(attack):
    space = pictures(size=4)
    there = world(GradientSimulator(smooth_network(space)), space)
    steps = []

    def listen(step):
        steps.append(step)
        return len(steps) >= 3

    with progress.listening(listen):
        found = there.attacked(attack)
    assert found.info["interrupted"] is True
    assert len(steps) == 3
    assert all(0 <= step.done <= step.total == attack.iterations for step in steps)
    assert steps[-1].distance <= steps[0].distance


def test_unknown_batch_size_is_taken_as_one_and_said():
    space = pictures(size=4)
    there = world(GradientSimulator(smooth_network(space)), space)
    found = there.attacked(InvertingGradients(iterations=3), labels=False, batch_size=False)
    assert len(found.candidates) == 1
    assert "assumed 1" in str(found.info["labels"])


@pytest.mark.parametrize("kind", ["draw", "mean"])
def test_guess_sees_only_hints(kind):
    space = pictures()
    there = world(GradientSimulator(smooth_network(space)), space, batch_size=5)
    found = there.attacked(Guess(kind))
    prior = there.public.prior
    assert found.labels.tolist() == there.secret.y.tolist()
    for candidate, label in zip(found.candidates, found.labels.tolist()):
        if kind == "mean":
            torch.testing.assert_close(candidate, prior.mean(label))
        else:
            of_class = prior.records.x[prior.members(label)]
            assert (of_class == candidate).flatten(1).all(1).any()
    blind = type(there)(
        there.public,
        type(there.release)({n: t * 0 for n, t in there.release.tensors.items()}),
        there.secret,
    )
    assert torch.equal(blind.attacked(Guess(kind)).candidates, found.candidates)


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        (DeepLeakage, {"iterations": 0}),
        (DeepLeakage, {"fresh_draws": -1}),
        (DeepLeakage, {"initialization": "zero"}),
        (InvertingGradients, {"restarts": 0}),
        (InvertingGradients, {"learning_rate": 0.0}),
        (InvertingGradients, {"total_variation": -1.0}),
        (InvertingGradients, {"polish": 2.0}),
        (InvertingGradients, {"initialization": "zero"}),
        (Guess, {"kind": "median"}),
    ],
)
def test_settings_are_checked(attack, settings):
    with pytest.raises(BadInput):
        attack(**settings)


def test_streams_differ_between_seeds():
    space = pictures(size=4)
    there = world(GradientSimulator(smooth_network(space)), space)
    attack = InvertingGradients(iterations=2)
    first = attack.prepare(there.public, generator=stream(0))(there.observation(), stream(1))
    second = attack.prepare(there.public, generator=stream(0))(there.observation(), stream(2))
    assert not torch.equal(first.candidates, second.candidates)
