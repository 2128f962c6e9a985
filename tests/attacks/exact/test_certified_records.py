"""What exact inversion certifies is a record of the batch as it is returned, whatever was told."""

from __future__ import annotations

import math

import pytest
import torch
from dense_worlds import network
from torch import Tensor, nn

from vestige import Prior, Records
from vestige.attacks import ExactInversion
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Hints, Observation, Public, Reconstruction, Run
from vestige.records import Column, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.local_training import Normalization
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator
from vestige.threats import HonestServer
from vestige.victims import SharedGradient

CLASSES = 5


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def space(features: int) -> TableSpace:
    return TableSpace(tuple(Column(f"f{i}") for i in range(features)), tuple("abcde"))


def gradient(simulator: Simulator, x: Tensor, y: Tensor, dtype: torch.dtype) -> GradientRelease:
    """The mean gradient of a batch, rounded to a precision."""
    tensors = simulator(x, one_hot(y, CLASSES, x.dtype), functional=False)
    return GradientRelease({name: t.detach().to(dtype).to(t.dtype) for name, t in tensors.items()})


def public_of(simulator: Simulator, features: int) -> Public:
    like = next(iter(simulator.parameters.values()))
    x = torch.rand(40, features, generator=stream(99)).to(like)
    return Public(simulator, Prior(Records(x, torch.arange(40) % CLASSES, space(features))))


def inverted(public: Public, release: GradientRelease, hints: Hints) -> Reconstruction:
    reconstruct = ExactInversion(sampling_draws=100).prepare(public, generator=stream(1))
    return reconstruct(Observation(release, hints), stream(2))


def certified_errors(found: Reconstruction, x: Tensor) -> list[float]:
    """Distance of each certified candidate to the nearest record, relative to that record."""
    assert found.confidence is not None
    sure = found.candidates[found.confidence > 0.5].double()
    assert len(sure) == found.info["certified"]
    return [float(((x.double() - c).norm(dim=1) / x.double().norm(dim=1)).min()) for c in sure]


def small_pair(seed: int, scale: float) -> tuple[Simulator, Tensor, Tensor]:
    """Two records of one label so small that the network sends the same loss vector back."""
    model = network((16, 60, CLASSES), bias=True, seed=seed)
    x = torch.randn(2, 16, generator=stream(seed)) * scale
    return GradientSimulator(model), x, torch.tensor([seed % 5, seed % 5])


@pytest.mark.parametrize("seed", [7, 15])
@pytest.mark.parametrize("who", ["hints", "server"])
def test_two_told_labels_are_two_records(seed, who):
    """Their gradient has rank one to its precision, and one record explains it: their mean."""
    simulator, x, y = small_pair(seed, 1e-4)
    release = gradient(simulator, x, y, torch.float16)
    hints = Hints(labels=y)
    if who == "server":
        server = HonestServer(batch_size=False, labels=True)
        victim = SharedGradient(simulator.network)
        hints = server.observe(Run(Records(x, y, space(16)), release)).hints
        public = server.public(victim, public_of(simulator, 16).prior)
        assert hints.batch_size is None
    else:
        public = public_of(simulator, 16)
    found = inverted(public, release, hints)
    assert "has rank 1 above" in str(found.info["rank"])
    assert certified_errors(found, x) == []


def test_told_labels_certify_as_a_told_batch_size_does():
    simulator = GradientSimulator(network((16, 80, CLASSES), bias=True))
    x, y = torch.rand(2, 16, generator=stream(3)), torch.tensor([1, 4])
    public, release = public_of(simulator, 16), gradient(simulator, x, y, torch.float32)
    for hints in (Hints(batch_size=2), Hints(labels=y), Hints(batch_size=2, labels=y.flip(0))):
        errors = certified_errors(inverted(public, release, hints), x)
        assert len(errors) == 2
        assert max(errors) < 0.01


@pytest.mark.parametrize(
    "hints",
    [
        Hints(batch_size=2, labels=torch.tensor([1])),
        Hints(batch_size=2, labels=torch.tensor([1, 4, 4])),
        Hints(batch_size=3, labels=torch.tensor([1, 4])),
        Hints(labels=torch.tensor([1, 1])),
    ],
)
def test_hints_that_contradict_each_other_or_the_gradient_leave_no_certificate(hints):
    simulator = GradientSimulator(network((16, 80, CLASSES), bias=True))
    x, y = torch.rand(2, 16, generator=stream(3)), torch.tensor([1, 4])
    release = gradient(simulator, x, y, torch.float32)
    found = inverted(public_of(simulator, 16), release, hints)
    assert len(found.candidates) == 2
    assert certified_errors(found, x) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("normalization", ["one", "each"])
def test_errors_of_dark_records_are_relative_to_the_record(dtype, normalization):
    """Normalised with mean 0.5 and deviation 0.1 a black picture has the size of a bright one."""
    wide = 1 if normalization == "one" else 36
    told = Normalization((0.5,) * wide, (0.1,) * wide)
    certified = []
    for seed in range(6):
        model = network((36, 80, CLASSES), bias=True, seed=seed)
        simulator = GradientSimulator(model, normalization=told)
        x = torch.rand(1, 36, generator=stream(seed)) * 0.003
        release = gradient(simulator, x, torch.tensor([seed % 5]), dtype)
        found = inverted(public_of(simulator, 36), release, Hints(batch_size=1))
        certified += certified_errors(found, x)
    assert all(error < 0.01 for error in certified)
    assert bool(certified) == (dtype == torch.float32)


def test_features_that_half_precision_rounds_to_zero_count_in_the_error():
    """Feature 0 has a deviation of 1e6: 10 in the record is 1e-5 for the network."""
    told = Normalization((0.0,) * 16, (1e6,) + (1.0,) * 15)
    model = network((16, 80, CLASSES), bias=True, seed=2)
    with torch.no_grad():
        model[2].weight.mul_(1e-2)
    simulator = GradientSimulator(model, normalization=told)
    x = torch.rand(1, 16, generator=stream(5))
    x[0, 0] = 10.0
    release = gradient(simulator, x, torch.tensor([2]), torch.float16)
    assert not release.tensors["0.weight"][:, 0].any()
    found = inverted(public_of(simulator, 16), release, Hints(batch_size=1))
    assert certified_errors(found, x) == []


def test_loss_vectors_down_to_the_smallest_numbers_do_not_raise():
    """Logits of −640 leave entries of 1e-278 beside those of size one, all finite."""
    model = network((8, 16, CLASSES), bias=True, seed=4).double()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([0.0, -640.0, -200.0, 0.5, 0.1]))
    simulator = GradientSimulator(model)
    x = 5 * torch.rand(2, 8, generator=stream(6), dtype=torch.float64)
    y = torch.tensor([0, 3])
    release = gradient(simulator, x, y, torch.float64)
    assert 0 < float(release.tensors["2.weight"][1].max()) < 1e-260
    for hints in (Hints(), Hints(batch_size=2)):
        found = inverted(public_of(simulator, 8), release, hints)
        assert all(error < 0.01 for error in certified_errors(found, x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("power", [-290, -200, -150, -120, -40, 40, 120, 150, 200, 290])
def test_finite_gradients_of_any_size_are_answered(power, bias):
    simulator = GradientSimulator(network((8, 40, CLASSES), bias=bias, seed=4).double())
    x = 10.0**power * torch.randn(2, 8, generator=stream(6), dtype=torch.float64)
    release = gradient(simulator, x, torch.tensor([0, 3]), torch.float64)
    assert all(bool(t.isfinite().all()) for t in release.tensors.values())
    for hints in (Hints(), Hints(batch_size=2)):
        found = inverted(public_of(simulator, 8), release, hints)
        # In units in which squares of records stay in range.
        unit = 10.0**power
        assert found.confidence is not None
        for one, sure in zip(found.candidates, found.confidence):
            gaps = ((x - one) / unit).norm(dim=1) / (x / unit).norm(dim=1)
            assert sure <= 0.5 or float(gaps.min()) < 0.01
        assert not math.isnan(float(found.confidence.sum()))


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("mean_and_std", [(0.0, 2.0), (0.4, 0.6), (0.5, 0.5)])
def test_an_unknown_normalization_leaves_no_certificate(batch, mean_and_std):
    """Inputs of the network are recovered exactly, and the records behind them may be any."""
    mean, std = mean_and_std
    model = network((16, 200, CLASSES), bias=True, seed=3)
    victim = SharedGradient(model, normalization=Normalization((mean,), (std,)))
    x = 0.6 + 0.4 * torch.rand(batch, 16, generator=stream(5))
    records = Records(x, torch.arange(batch) % CLASSES, space(16))
    run = Run(records, victim.release(records, generator=stream(6)))
    prior = public_of(GradientSimulator(model), 16).prior
    for known in (True, False):
        server = HonestServer(normalization=known)
        attack = ExactInversion(sampling_draws=100)
        reconstruct = attack.prepare(server.public(victim, prior), generator=stream(1))
        found = reconstruct(server.observe(run), stream(2))
        if known:
            assert found.info["certified"] == batch
            assert max(certified_errors(found, x)) < 0.01
        else:
            assert found.info["certified"] == 0
            assert found.confidence is not None
            assert float(found.confidence.max()) <= 0.5
            assert "normalisation of inputs is unknown" in found.remark


class Flips(nn.Module):
    """Reverses its inputs in half of all forward passes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1) if float(torch.rand(())) < 0.5 else x


def test_a_network_that_changes_inputs_at_random_is_refused():
    model = nn.Sequential(Flips(), network((16, 60, CLASSES), bias=True, seed=3))
    public = public_of(GradientSimulator(model, mode="train"), 16)
    for seed in range(8):  # whatever the next draw of torch's own generator would be
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with pytest.raises(BadInput, match="reads features, not records"):
                ExactInversion().prepare(public, generator=stream(1))
