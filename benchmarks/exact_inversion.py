"""What exact inversion of dense layers recovers and costs, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 VESTIGE_DATA=… python benchmarks/exact_inversion.py``;
needs MNIST and Location-30 (see ``vestige.datasets.load``), and Fashion-MNIST for one row. Costs
are CPU time of this process. Exits with 1 if a figure falls short of its goal. ``--batches 8``
makes a quick round.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from vestige.attacks.exact.layers import dense_head
from vestige.attacks.exact.lifted import lifted_inversion
from vestige.datasets import load
from vestige.networks import mlp
from vestige.observations import GradientRelease
from vestige.records import Records
from vestige.simulation import Simulator, one_hot

Change = Callable[[dict[str, Tensor], torch.Generator], dict[str, Tensor]]

# PSNR of an exact float32 reconstruction is limited by rounding; more than this means nothing.
HIGHEST_PSNR = 150.0


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def records(name: str) -> Records:
    return load(name) if name == "location30" else load(name, part="train")


@cache
def network(name: str, hidden: tuple[int, ...], steps: int, bias: bool) -> nn.Module:
    """Train with Adam, learning rate 1e-3, batches of 64."""
    world, generator = records(name), stream(steps)
    model = mlp(world.space, hidden, bias=bias, generator=stream(0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(steps):
        chosen = torch.randint(len(world), (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(world.x[chosen]), world.y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def rounded(dtype: torch.dtype) -> Change:
    return lambda tensors, _: {name: t.to(dtype).float() for name, t in tensors.items()}


def noisy(relative: float) -> Change:
    """Gaussian noise, its deviation relative to the root mean square of all entries."""

    def change(tensors: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        size = torch.cat([t.flatten() for t in tensors.values()]).square().mean().sqrt()
        return {
            name: t + relative * size * torch.randn(t.shape, generator=generator)
            for name, t in tensors.items()
        }

    return change


def pruned(share: float) -> Change:
    """Set the smallest entries of each tensor to zero."""

    def change(tensors: dict[str, Tensor], _: torch.Generator) -> dict[str, Tensor]:
        edges = {
            name: t.abs().flatten().kthvalue(max(int(share * t.numel()), 1)).values
            for name, t in tensors.items()
        }
        return {
            name: torch.where(t.abs() <= edges[name], torch.zeros_like(t), t)
            for name, t in tensors.items()
        }

    return change


@dataclass(frozen=True)
class World:
    """Which network and records, and what happens to the gradient."""

    title: str
    batch: int
    hidden: tuple[int, ...] = (1000,)
    steps: int = 0
    name: str = "mnist"
    bias: bool = True
    dtype: torch.dtype = torch.float32
    change: Change | None = None
    binary: bool = False
    told: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None


@dataclass
class Tally:
    """What came of a number of batches."""

    exact: list[bool] = field(default_factory=list)
    psnr: list[float] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong_certified: int = 0
    far_certified: int = 0
    right: int = 0
    right_certified: int = 0

    def above(self, decibels: float) -> float:
        """Share of records with a higher PSNR."""
        return sum(value > decibels for value in self.psnr) / len(self.psnr)


def measured(world: World, batches: int) -> Tally:
    """Attack random batches of distinct records."""
    tally, source = Tally(), records(world.name)
    if world.classes is None:
        model = copy.deepcopy(network(world.name, world.hidden, world.steps, world.bias))
    else:
        # More classes than the records have: labels are drawn, the network is untrained.
        names = tuple(str(label) for label in range(world.classes))
        space = type(source.space)(source.space.columns, names)  # type: ignore[attr-defined]
        model = mlp(space, world.hidden, generator=stream(0))
    classes = world.classes or source.classes
    simulator = Simulator(model.to(world.dtype))
    for seed in range(batches):
        generator = stream(1000 + seed)
        chosen = torch.randperm(len(source), generator=generator)[: world.batch]
        x, y = source.x[chosen], source.y[chosen]
        if world.classes is not None:
            y = torch.randint(classes, (world.batch,), generator=generator)
        targets = one_hot(y, classes, world.dtype)
        gradient = simulator.gradient(x.to(world.dtype), targets, functional=False)
        tensors = {name: t.detach() for name, t in gradient.items()}
        if world.change is not None:
            tensors = world.change(tensors, generator)
        release = GradientRelease(tensors)
        before = time.process_time()
        found = lifted_inversion(
            dense_head(simulator, release, shape=tuple(x.shape[1:])),
            binary=world.binary,
            bounds=world.bounds,
            batch_size=world.batch if world.told else None,
            generator=stream(seed),
        )
        tally.seconds.append(time.process_time() - before)
        _count(tally, found, x.flatten(1).double(), y)
    return tally


def _count(tally: Tally, found, x: Tensor, y: Tensor) -> None:
    candidates = torch.nan_to_num(found.inputs, nan=1e3)
    if not len(candidates):
        candidates = torch.full((1, x.shape[1]), 1e3, dtype=torch.float64)
        errors = (candidates[:, None] - x).square().mean(2)
        labels = torch.zeros(len(x), dtype=torch.bool)
    else:
        errors = (candidates[:, None] - x).square().mean(2)
        labels = found.labels[errors.argmin(0)] == y
        nearest = errors.min(1).values
        right = nearest < 1e-3
        tally.right += int(right.sum())
        tally.right_certified += int((right & found.certified).sum())
        tally.wrong_certified += int((~right & found.certified).sum())
        tally.far_certified += int(((nearest > 1e-2) & found.certified).sum())
    smallest = errors.min(0).values
    same_size = len(found.inputs) == len(x)
    tally.exact.append(bool(same_size and smallest.max() < 1e-6 and labels.all()))
    tally.labels += labels.tolist()
    tally.psnr += [
        min(HIGHEST_PSNR, -10 * math.log10(max(value, 1e-30))) for value in smallest.tolist()
    ]


@dataclass(frozen=True)
class Goal:
    """A figure of a tally and its goal; one-sided."""

    figure: str
    least: float | None = None
    most: float | None = None

    def of(self, tally: Tally) -> float:
        """Read the figure."""
        if self.figure == "exact batches":
            return sum(tally.exact) / len(tally.exact)
        if self.figure == "median seconds":
            return statistics.median(tally.seconds)
        if self.figure == "mean PSNR":
            return statistics.mean(tally.psnr)
        return tally.above(float(self.figure.split()[1]))

    def met(self, value: float) -> bool:
        """Whether a value reaches the goal."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        if self.least is not None:
            return f"≥ {self.least:g}"
        return f"≤ {self.most:g}" if self.most is not None else "shown"


EXACT = Goal("exact batches", least=0.95)
F30, F60 = "above 30 dB", "above 60 dB"
TWO, FIVE = Goal("median seconds", most=2), Goal("median seconds", most=5)
UNIT = (0.0, 1.0)


def rows() -> list[tuple[World, tuple[Goal, ...]]]:
    listed: list[tuple[World, tuple[Goal, ...]]] = [
        (World("784-1000-10, float32", 32), (EXACT, TWO)),
        (World("784-1000-10, float64", 32, dtype=torch.float64), (EXACT, TWO)),
        (World("784-2000-10, float32", 50, hidden=(2000,)), (EXACT, FIVE)),
        (World("784-500-200-10, float32", 16, hidden=(500, 200)), (EXACT,)),
        (World("Fashion-MNIST, 784-1000-10", 32, name="fashion_mnist"), (EXACT,)),
        (World("784-1000-10 without bias", 16, bias=False), (EXACT,)),
        (
            World("446-200-100, random labels", 10, (200,), name="location30", classes=100),
            (EXACT,),
        ),
        (
            World("446-200-30, 300 steps", 4, (200,), 300, "location30", binary=True),
            (Goal(F60, least=0.9),),
        ),
        (
            World("446-200-30, 300 steps", 8, (200,), 300, "location30", binary=True),
            (Goal(F60),),
        ),
        (
            World("446-200-30, 300 steps, lift alone", 4, (200,), 300, "location30"),
            (Goal(F60),),
        ),
    ]
    listed += [
        (World(f"float32, {steps} steps", size, steps=steps), (Goal(F30, least=0.95), Goal(F60)))
        for steps in (350, 2000)
        for size in (8, 16)
    ]
    listed += [
        (
            World(f"{kind}, {steps} steps", 4, steps=steps, change=rounded(dtype), bounds=UNIT),
            (Goal(F30, least=0.9), Goal(F60)),
        )
        for kind, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16))
        for steps in (350, 2000)
    ]
    listed += [
        (
            World(f"relative noise {level:g}", size, change=noisy(level), bounds=UNIT),
            (Goal("mean PSNR", least=60 if (level, size) == (0.01, 4) else None),),
        )
        for level in (0.01, 0.1)
        for size in (4, 16)
    ]
    listed += [
        (
            World(f"pruned {share:.0%}", size, change=pruned(share), bounds=UNIT, told=True),
            (Goal("mean PSNR"),),
        )
        for share in (0.5, 0.9, 0.99)
        for size in (4, 16)
    ]
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--only", default="", help="cases whose title holds this")
    arguments = parser.parse_args()
    batches = arguments.batches
    torch.set_num_threads(1)
    short = 0
    right = certified = wrong = far = 0
    print(
        f"{'case':38}{'batch':>6}  {'figure':16}{'value':>9}  {'goal':8} seconds  "
        "certified right, wrong"
    )
    for world, goals in rows():
        if arguments.only not in world.title:
            continue
        # Pruned gradients are filled first, which takes seconds, and have no goal.
        tally = measured(world, min(batches, 12) if world.told else batches)
        right, certified = right + tally.right, certified + tally.right_certified
        wrong, far = wrong + tally.wrong_certified, far + tally.far_certified
        for goal in goals:
            value = goal.of(tally)
            short += not goal.met(value)
            mark = "" if goal.met(value) else "  SHORT"
            seconds = statistics.median(tally.seconds)
            print(
                f"{world.title:38}{world.batch:6}  {goal.figure:16}{value:9.3f}  {goal!s:8} "
                f"{seconds:7.2f}  {tally.right_certified} of {tally.right}, "
                f"{tally.wrong_certified}{mark}",
                flush=True,
            )
    share = certified / max(right, 1)
    print(f"right records (above 30 dB) certified: {share:.3f} of {right}, goal ≥ 0.95")
    print(f"certified below 20 dB: {far}, goal 0; between 20 and 30 dB: {wrong - far}, goal 0")
    short += (share < 0.95) + (wrong > 0)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
