"""The attack that is recommended first beside the default attack, on the same releases.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/recommended.py``, with ``VESTIGE_DATA``
naming the folder that holds MNIST and ``cifar10_subset.npz``. Every row is one situation: data, a
randomly initialised network, a batch and what clients do to it. Five releases each; the server is
told the batch size and not the labels. Errors are root mean squares, the median over records, each
beside the candidate that an optimal assignment gives it; the prior's mean is a guess that looks at
no release. Costs are CPU seconds per release, preparation included, and apart from them what the
recommendation itself took. Exits with 1 if an attack that is recommended first has a larger median
error than Inverting Gradients. ``--only WORD`` measures the rows whose name contains WORD.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from sheet import stream
from vestige import attacks, datasets, networks
from vestige.defenses import GradientNoise, GradientPruning
from vestige.distances import mean_squared_error
from vestige.interfaces import Attack, Observation, Public, Run, Victim
from vestige.networks import Bins, ImprintedModel
from vestige.records import Records, Space, Splits
from vestige.threats import HonestServer, MaliciousServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient

FIRST_SEED, RELEASES = 3_600, 5
ROUNDING = 1e-4  # errors below this are all exact for a picture of 8 bits

Network = Callable[[Space, torch.Generator], nn.Module]


def gradient(model: nn.Module) -> Victim:
    return SharedGradient(model, mode="eval")


def mlp(*hidden: int) -> Network:
    return lambda space, generator: networks.mlp(space, hidden, generator=generator)


def convnet(space: Space, generator: torch.Generator) -> nn.Module:
    return networks.convnet(space, generator=generator)


def lenet5(space: Space, generator: torch.Generator) -> nn.Module:
    return networks.lenet5(space, generator=generator)


def resnet18(space: Space, generator: torch.Generator) -> nn.Module:
    return networks.resnet18(space, width=16, generator=generator)


def gelu(space: Space, generator: torch.Generator) -> nn.Module:
    return networks.mlp(space, (500,), activation=nn.GELU, generator=generator)


def imprinted(space: Space, generator: torch.Generator) -> nn.Module:
    bins = Bins.from_prior(data("digits").prior.records, 24)
    return ImprintedModel(mlp(32)(space, generator), space, bins)


@dataclass(frozen=True)
class Row:
    """One situation."""

    name: str
    source: str
    network: Network
    batch: int = 1
    victim: Callable[[nn.Module], Victim] = gradient


ROWS = (
    Row("digits, mlp 32", "digits", mlp(32)),
    Row("digits, mlp 64-32", "digits", mlp(64, 32), 8),
    Row("digits, mlp 500 with GELU", "digits", gelu, 4),
    Row("rows of breast_cancer, mlp 200", "breast_cancer", mlp(200), 4),
    Row("digits, imprint layer of 24 bins", "digits", imprinted, 8),
    Row("digits, convnet", "digits", convnet, 4),
    Row("MNIST, lenet5", "mnist", lenet5, 1),
    Row("MNIST, lenet5", "mnist", lenet5, 4),
    Row("faces, convnet", "faces", convnet, 1),
    Row("CIFAR-10, lenet5", "cifar10", lenet5, 4),
    Row("CIFAR-10, resnet18 of width 16", "cifar10", resnet18, 1),
    Row(
        "digits, convnet, update of 2 steps",
        "digits",
        convnet,
        2,
        lambda model: FederatedUpdate(model, LocalTraining(steps=2, learning_rate=0.1)),
    ),
    Row(
        "digits, convnet, noise 0.01",
        "digits",
        convnet,
        2,
        lambda model: GradientNoise(0.01)(gradient(model)),
    ),
    Row(
        "MNIST, convnet, pruned to 1%",
        "mnist",
        convnet,
        1,
        lambda model: GradientPruning(0.99)(gradient(model)),
    ),
)


@cache
def data(name: str) -> Splits:
    """Secrets and prior of a dataset."""
    if name == "mnist":
        whole = datasets.load("mnist", part="test")
        return whole.split(seed=FIRST_SEED, train=0.1, held_out=0.7, prior=0.2)
    whole = datasets.load(name)
    if name == "faces":
        faces = whole[whole.y == whole.space.class_names.index("face")]
        return faces.split(seed=FIRST_SEED, train=0.6, held_out=0.0, prior=0.4)
    return whole.split(seed=FIRST_SEED)


def world(row: Row, seed: int) -> tuple[Public, Observation, Records]:
    """What the attacker knows and sees, and the secret."""
    parts = data(row.source)
    victim = row.victim(row.network(parts.space, stream(seed)))
    imprint = isinstance(victim.simulator.model, ImprintedModel)
    threat = MaliciousServer() if imprint else HonestServer()
    order = torch.randperm(len(parts.train), generator=stream(seed + 1))
    secret = parts.train[order[: row.batch]]
    run = Run(secret, victim.release(secret, generator=stream(seed + 2)))
    return threat.public(victim, parts.prior), threat.observe(run), secret


def errors(candidates: torch.Tensor, secret: Records) -> list[float]:
    """Root mean squared error of each record; those without a candidate count as infinite."""
    costs = mean_squared_error(candidates.detach().cpu().float(), secret.x)
    found = [float("inf")] * len(secret)
    usable = costs.nan_to_num(nan=1e6, posinf=1e6).numpy()
    for candidate, record in zip(*linear_sum_assignment(usable)):
        found[record] = float(costs[candidate, record]) ** 0.5
    return found


@dataclass(frozen=True)
class Score:
    """Median error over records, and mean CPU seconds per release."""

    error: float
    seconds: float


def measured(row: Row, attack: Attack) -> Score:
    """An attack on all releases of a row."""
    found, seconds = [], []
    for number in range(RELEASES):
        seed = FIRST_SEED + 10 * number
        public, observation, secret = world(row, seed)
        begun = time.process_time()
        reconstruct = attack.prepare(public, generator=stream(seed + 3))
        candidates = reconstruct(observation, stream(seed + 4)).candidates
        seconds.append(time.process_time() - begun)
        found += errors(candidates, secret)
    return Score(statistics.median(found), statistics.mean(seconds))


def guessed(row: Row) -> float:
    """Median error of the prior's mean."""
    found = []
    for number in range(RELEASES):
        public, _, secret = world(row, FIRST_SEED + 10 * number)
        mean = public.prior.mean()[None].expand(len(secret), *secret.x.shape[1:])
        found += errors(mean, secret)
    return statistics.median(found)


def main() -> int:
    """Print the table of the documentation."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="")
    only = options.parse_args().only
    torch.set_num_threads(1)
    print("| release | recommended | its error | CPU | Inverting Gradients | CPU | mean | choice |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    worse = 0
    for row in ROWS:
        if only not in row.name:
            continue
        public, _, _ = world(row, FIRST_SEED)
        begun = time.process_time()
        # As an audit chooses: from a simulated release of prior records, for all of its trials.
        chosen = attacks.recommended(public, batch_size=row.batch)
        choice = time.process_time() - begun
        default = attacks.InvertingGradients()
        usual = measured(row, default)
        same = chosen[0] == default
        best = usual if same else measured(row, chosen[0])
        worse += best.error > max(usual.error, ROUNDING)
        print(
            f"| {row.name}, batch {row.batch} | {chosen[0].name} | {_error(best.error)} "
            f"| {best.seconds:.1f} s | {'the same' if same else _error(usual.error)} "
            f"| {'' if same else f'{usual.seconds:.1f} s'} | {_error(guessed(row))} "
            f"| {choice:.1f} s |",
            flush=True,
        )
    return int(worse > 0)


def _error(value: float) -> str:
    return "< 0.0001" if value < ROUNDING else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
