"""The network of a replay: no chance, no memory, and nothing of the user's is changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vestige.attacks import InvertingGradients
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation, Public
from vestige.records import Prior
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.refusals import refusal
from vestige.simulation.replayed_network import is_random, replay_network
from vestige.victims import SharedGradient
from worlds import draws, sequential


class DropPath(nn.Module):
    """Stochastic depth as in timm and transformers."""

    def __init__(self, drop_prob: float = 0.5) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if not self.training:
            return x
        return x * (torch.rand(len(x), *[1] * (x.dim() - 1)) >= self.drop_prob)


class Recomputed(nn.Module):
    """A layer that is computed a second time in the backward pass, as transformers does it."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.layer, self.gradient_checkpointing = nn.Linear(16, 8), True
        self.reentrant = reentrant

    def forward(self, x):
        if not self.gradient_checkpointing:
            return torch.sigmoid(self.layer(x))
        return torch.utils.checkpoint.checkpoint(
            lambda x: torch.sigmoid(self.layer(x)), x, use_reentrant=self.reentrant
        )


class Overwriting(nn.Module):
    """A network that changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x):
        x -= 0.5
        return self.layer(nn.functional.relu_(x.flatten(1)))


def attacked(model, *, mode="train", restarts=2, batch=2):
    """The victim's release and what two steps of an attack make of it."""
    victim, records = SharedGradient(model, mode=mode), draws(12, 3)
    release = victim.release(records[:batch], generator=torch.Generator().manual_seed(0))
    public = Public(victim.simulator, Prior(records[batch:]))
    attack = InvertingGradients(iterations=3, restarts=restarts)
    reconstruct = attack.prepare(public, generator=torch.Generator())
    hints = Hints(batch, records.y[:batch])
    return reconstruct(Observation(release, hints), torch.Generator().manual_seed(1))


def test_stochastic_depth_is_off_in_a_replay():
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 8), DropPath, lambda: nn.Linear(8, 3))
    before = torch.get_rng_state()
    found = attacked(model)
    assert "restarts run" not in found.info
    assert torch.equal(torch.get_rng_state(), before)
    network = replay_network(model, "train")
    x = draws(4, 5).x
    assert torch.equal(network(x), model.eval()(x))


def test_instance_norms_keep_no_statistics():
    model = sequential(
        lambda: nn.InstanceNorm2d(1, affine=True, track_running_stats=True),
        nn.Flatten,
        lambda: nn.Linear(16, 3),
    )
    assert "restarts run" not in attacked(model).info
    assert torch.equal(model[0].running_mean, torch.zeros(1))


@pytest.mark.parametrize(
    ("layer", "random"),
    [
        (lambda: nn.Dropout(0.1), True),
        (lambda: nn.Dropout(0.0), False),
        (DropPath, True),
        (lambda: nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.1), True),
        (nn.RReLU, True),
        (lambda: nn.LPPool2d(3, 2), False),
        (lambda: nn.BatchNorm2d(3), False),
    ],
)
def test_layers_that_draw(layer, random):
    assert is_random(sequential(layer)) is random


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_off_in_a_replay(reentrant):
    model = sequential(nn.Flatten, lambda: Recomputed(reentrant=reentrant), lambda: nn.Linear(8, 3))
    found = attacked(model)
    assert "restarts run" not in found.info
    assert model[1].gradient_checkpointing
    secret, generator = draws(2, 3), torch.Generator()
    release = SharedGradient(model).release(secret, generator=generator)
    assert bool(release.tensors["1.layer.weight"].any())


def test_networks_may_change_their_input_in_place():
    records = draws(12, 3)
    before = records.x.clone()
    for mode in ("train", "eval"):
        for restarts in (1, 2):
            assert not attacked(sequential(Overwriting), mode=mode, restarts=restarts).diverged
    SharedGradient(sequential(Overwriting)).release(records[:2], generator=torch.Generator())
    assert torch.equal(records.x, before)


class Detached(nn.Module):
    """A network whose output carries no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)).detach()


class InPlace(nn.Module):
    """A network that overwrites what its derivative needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, x):
        y = torch.exp(self.layer(x.flatten(1)))
        y += 1
        return y


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Detached, "No gradient passes through the model"),
        (InPlace, "overwrites in place"),
        (lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16)), "single record"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_a_sentence(model, words):
    records, network = draws(3, 3), sequential(model)
    with pytest.raises(BadInput, match=words) as caught:
        SharedGradient(network).release(records[:1], generator=torch.Generator())
    assert str(caught.value).count(". ") == 0
    simulator = GradientSimulator(network, mode="train")
    x, targets = simulator.batch(records[:1])
    with pytest.raises(BadInput, match=words):
        simulator(x.requires_grad_(), targets, functional=False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "memory"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "fewer restarts"),
        ("torch.compile with aot_autograd does not currently support double backward", "compiled"),
        ("Checkpointing is not compatible with .grad()", "Gradient checkpointing"),
        ("One of the differentiated Tensors appears to not have been used in the graph", "depend"),
    ],
)
def test_what_torch_says_has_a_meaning(said, words):
    sentence = refusal(RuntimeError(said))
    assert sentence is not None
    assert words in sentence
    assert refusal(RuntimeError("shapes do not fit")) is None
    assert refusal(MemoryError()) is not None
