"""Training in one process is what it was; in two, accelerate gives the same up to rounding."""

from __future__ import annotations

import copy
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from process_groups import run_in_group
from vestige.attacks import HeadReconstructor, ReconstructorNetwork
from vestige.attacks.head_reconstructor import attack as head_reconstructor
from vestige.attacks.head_reconstructor.head_reader import network_inputs
from vestige.attacks.head_reconstructor.reader_training import ReaderTraining
from vestige.engines.training_processes import OneProcess, own_rows, training_processes
from vestige.errors import BadInput
from vestige.threats import WeakAdversary
from worlds import draws, head_world

SETTINGS = ReconstructorNetwork(shadows=24, epochs=3, hidden=(8,), batch_size=5, validation=0.25)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fitted() -> dict[str, torch.Tensor]:
    """A reconstructor learned from weights that are linear in their records."""
    records = draws(24, 3)
    mixing = torch.randn((16, 20), generator=stream(1))
    weights = records.x.flatten(1) @ mixing
    reader = SETTINGS.fitted(weights, records, generator=stream(2))
    return {"error": torch.tensor([reader.error]), **reader.network.state_dict()}


def naively_fitted() -> dict[str, torch.Tensor]:
    """The same by torch.optim, in one process that knows of no others."""
    records, generator = draws(24, 3), stream(2)
    weights = records.x.flatten(1) @ torch.randn((16, 20), generator=stream(1))
    order = torch.randperm(24, generator=generator)
    held, kept = order[:6], order[6:]
    mean, deviation = weights[kept].mean(0), weights[kept].std(0)
    rows = ((weights - mean) / deviation).clamp(-10, 10)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        head, body = nn.Linear(8, 16), nn.Linear(20, 8)
    network = nn.Sequential(body, nn.ReLU(), head, nn.Sigmoid())
    optimizer = torch.optim.RMSprop(network.parameters(), lr=SETTINGS.learning_rate)
    best, best_state, images = torch.inf, {}, records.x.flatten(1)
    for _ in range(SETTINGS.epochs):
        for batch in torch.randperm(18, generator=generator).split(5):
            difference = network(rows[kept][batch]) - images[kept][batch]
            loss = (difference.square().mean(1) + difference.abs().mean(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            difference = network(rows[held]) - images[held]
            error = float((difference.square().mean(1) + difference.abs().mean(1)).mean())
        if error < best:
            best = error
            best_state = {
                "body.0.weight": body.weight.detach().clone(),
                "body.0.bias": body.bias.detach().clone(),
                "head.weight": head.weight.detach().clone(),
                "head.bias": head.bias.detach().clone(),
            }
    return {"error": torch.tensor([best]), **best_state}


def test_one_process_trains_as_a_plain_loop_does():
    found, wanted = fitted(), naively_fitted()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=2e-6), name


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_parts_of_a_batch_are_the_batch(count, size):
    class Several(OneProcess):
        def __init__(self, rank):
            self.count, self.rank = count, rank

    parts = [own_rows(Several(rank), torch.arange(size)) for rank in range(count)]
    assert torch.equal(torch.cat(parts), torch.arange(size))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_accelerate_is_asked_for_by_name_only_where_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert training_processes().count == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="extra 'accelerate'"):
        training_processes()


def fitted_heads() -> dict[str, torch.Tensor]:
    """A reconstructor of heads after two steps."""
    attack = HeadReconstructor(size=2, steps=2, batch_size=5, statistics=30, validation_interval=2)
    victim, parts = head_world()
    public = WeakAdversary().public(victim, parts.prior)
    state = attack.fitted(public, generator=stream(4)).network.state_dict()
    return {name: value.contiguous() for name, value in state.items()}


class TwoPartsByHand(ReaderTraining):
    """Each step from two copies of the network, which see three and two of the five heads."""

    def _learn(self, batch):
        slopes: list[Tensor] = []
        buffers: dict[str, Tensor] = {}
        for part in (slice(0, 3), slice(3, 5)):
            copied = copy.deepcopy(self.network).train()
            rows = network_inputs(
                self.standardization(batch.weights[part]), batch.drawing[part], self.classes
            )
            with torch.enable_grad():
                losses = self._loss(copied(rows), batch.goals[part], self.images)
                found = torch.autograd.grad(losses.sum() / 5, list(copied.parameters()))
            slopes = [a + b for a, b in zip(slopes, found)] if slopes else list(found)
            for name, value in copied.named_buffers():
                if "running" in name:
                    buffers[name] = buffers.get(name, 0) + len(losses) / 5 * value
                else:
                    buffers[name] = value
        for parameter, slope in zip(self.network.parameters(), slopes):
            parameter.grad = slope
        self._optimizer.step()
        for name, value in self.network.named_buffers():
            value.copy_(buffers[name])


SCRIPT = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from test_training_processes import fitted
from vestige.engines.training_processes import training_processes
processes = training_processes()
assert processes.count == 2
folder = Path(sys.argv[1])
save_file(fitted(), folder / f"reader-{processes.rank}.safetensors")
from test_training_processes import fitted_heads
save_file(fitted_heads(), folder / f"heads-{processes.rank}.safetensors")
if sys.argv[2] == "prior":
    from priors.test_prior_training import SMALL, bars
    from vestige.priors import train_prior
    prior = train_prior(bars(), folder / "prior", SMALL)
    save_file(dict(prior.network.state_dict()), folder / f"prior-{processes.rank}.safetensors")
# All is written. Threads of gloo can abort a process that ends while they run, so end without them.
torch.distributed.barrier()
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, monkeypatch):
    """Two processes of gloo on the CPU; every batch of five is shared as three and two."""
    pytest.importorskip("accelerate")
    try:
        import diffusers  # noqa: F401

        with_prior = "prior"
    except ImportError:
        with_prior = "none"
    (tmp_path / "script.py").write_text(SCRIPT)
    # What ``accelerate launch`` starts for several GPUs; for CPUs it would ask for MPI.
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launch += [str(tmp_path / "script.py"), str(tmp_path), with_prior]
    done = run_in_group(
        [sys.executable, *launch],
        timeout=300,
        env={
            **os.environ,
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone = fitted()
    first, second = (load_file(tmp_path / f"reader-{rank}.safetensors") for rank in (0, 1))
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], value, atol=1e-5), name
    monkeypatch.setattr(head_reconstructor, "ReaderTraining", TwoPartsByHand)
    by_hand = fitted_heads()
    first, second = (load_file(tmp_path / f"heads-{rank}.safetensors") for rank in (0, 1))
    for name, value in by_hand.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.allclose(first[name], value, atol=1e-4), name
    if with_prior == "none":
        return
    from priors.test_prior_training import SMALL, bars
    from vestige.priors import train_prior

    one = dict(train_prior(bars(), tmp_path / "alone", SMALL).network.state_dict())
    save_file(one, tmp_path / "one.safetensors")
    first, second = (load_file(tmp_path / f"prior-{rank}.safetensors") for rank in (0, 1))
    for name, value in load_file(tmp_path / "one.safetensors").items():
        assert torch.equal(first[name], second[name]), name
        # Half of the steps compute in bfloat16, whose sums depend on how they are parted.
        assert torch.allclose(first[name], value, atol=5e-3), name
    assert sorted(p.name for p in (tmp_path / "prior").iterdir()) == sorted(
        p.name for p in (tmp_path / "alone").iterdir()
    )
