"""Networks, secret batches and changed gradients for exact_inversion.py, and what comes of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor, nn

from sheet import decibels, stream
from vestige.attacks.exact_inversion.exclusive_neurons import condition_holds
from vestige.attacks.exact_inversion.layers import DenseHead, Recovered, dense_head
from vestige.attacks.exact_inversion.lifted import lifted_inversion
from vestige.datasets import load
from vestige.interfaces import GradientRelease
from vestige.networks import mlp
from vestige.records import Column, Records, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator
from vestige.studies.diagnostics.exclusivity import hidden_activity

Change = Callable[[dict[str, Tensor], torch.Generator], dict[str, Tensor]]
Method = Callable[[DenseHead, torch.Generator], Recovered]

# Purchase-100 is not to be had without a login: random binary rows of its size stand in for it.
PURCHASE_SIZED = "600 random binary columns"
FIRST_SEED = 1000
# Draws after which Pan et al. 2020, §8.4, give up the search for a batch that meets the condition.
RESAMPLED = 1000
# Mean squared errors: 30 dB parts right from wrong, 60 dB is exact.
RIGHT, EXACT = 1e-3, 1e-6


@cache
def records(name: str, classes: int | None = None) -> Records:
    """Load records; with ``classes`` their labels are drawn instead."""
    if name == PURCHASE_SIZED:
        space = TableSpace(tuple(Column(f"item {n}") for n in range(600)), ("no", "yes"))
        rows = (torch.rand(4000, 600, generator=stream(0)) < 0.3).float()
        source = Records(rows, torch.zeros(4000, dtype=torch.int64), space)
    else:
        source = load(name) if name == "location30" else load(name, part="train")
    if classes is None:
        return source
    names = tuple(str(label) for label in range(classes))
    labels = torch.randint(classes, (len(source),), generator=stream(1))
    return Records(source.x, labels, replace(source.space, class_names=names))


@cache
def network(
    name: str, hidden: tuple[int, ...], steps: int, bias: bool, classes: int | None = None
) -> nn.Module:
    """Train with Adam, learning rate 1e-3, batches of 64."""
    world, generator = records(name, classes), stream(steps)
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
    """Which network and records, what happens to the gradient, and what the lift is told.

    ``most`` limits the number of batches where one is dear.
    """

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
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.title}, batch {self.batch}"

    @property
    def records(self) -> Records:
        """Where secret batches are drawn from."""
        return records(self.name, self.classes)

    def simulator(self) -> Simulator:
        """Return the client's computation."""
        model = network(self.name, self.hidden, self.steps, self.bias, self.classes)
        return GradientSimulator(copy.deepcopy(model).to(self.dtype))

    def lift(self, head: DenseHead, generator: torch.Generator) -> Recovered:
        """Run the lift with what it is told here."""
        return lifted_inversion(
            head,
            binary=self.binary,
            bounds=self.bounds,
            batch_size=self.batch if self.told else None,
            generator=generator,
        )


@dataclass(frozen=True)
class Case:
    """One secret batch and its released gradient; ``seed`` is the attacks' stream."""

    seed: int
    simulator: Simulator
    release: GradientRelease
    secret: Records

    @property
    def inputs(self) -> Tensor:
        """What the first layer read (b, in), in float64."""
        return self.secret.x.flatten(1).double()


def cases(world: World, seeds: Iterable[int], *, exclusive: bool = False) -> Iterator[Case]:
    """Draw batches of distinct records, or batches that meet the exclusivity condition.

    A batch that does not meet it is drawn again, up to 1,000 times, and then left out.
    """
    simulator, source = world.simulator(), world.records
    masks = hidden_activity(network_in_float32(world), source.x) if exclusive else []
    for seed in seeds:
        generator = stream(FIRST_SEED + seed)
        for _ in range(RESAMPLED if exclusive else 1):
            chosen = torch.randperm(len(source), generator=generator)[: world.batch]
            if not exclusive or condition_holds([layer[chosen.numpy()] for layer in masks]):
                yield _case(world, simulator, source[chosen], seed, generator)
                break


def network_in_float32(world: World) -> Simulator:
    """The records' own precision, whatever that of the gradient."""
    return replace(world, dtype=torch.float32).simulator()


def _case(
    world: World, simulator: Simulator, secret: Records, seed: int, generator: torch.Generator
) -> Case:
    targets = one_hot(secret.y, secret.classes, world.dtype)
    gradient = simulator(secret.x.to(world.dtype), targets, functional=False)
    tensors = {name: t.detach() for name, t in gradient.items()}
    if world.change is not None:
        tensors = world.change(tensors, generator)
    return Case(seed, simulator, GradientRelease(tensors), secret)


def nearest_psnr(candidates: Tensor, inputs: Tensor) -> list[float]:
    """PSNR of each record (b, in) and the candidate nearest to it."""
    errors = (candidates.flatten(1).double()[:, None] - inputs).square().mean(2)
    return [decibels(value) for value in errors.min(0).values.tolist()]


@dataclass
class Tally:
    """What came of a number of batches, and of the certificates of their records.

    A recovered record is right above 30 dB; ``wrong_certified`` holds the PSNR of certified ones
    that are not.
    """

    title: str
    exact: list[bool] = field(default_factory=list)
    psnr: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    right: int = 0
    right_certified: int = 0
    wrong_certified: list[float] = field(default_factory=list)

    @property
    def exact_share(self) -> float:
        """Share of batches recovered whole, above 60 dB, with all labels."""
        return sum(self.exact) / len(self.exact) if self.exact else float("nan")

    def above(self, limit: float) -> float:
        """Share of records with a higher PSNR."""
        return sum(value > limit for value in self.psnr) / len(self.psnr)

    def count(self, found: Recovered, case: Case, seconds: float) -> None:
        """Add one batch."""
        self.seconds.append(seconds)
        x, known = case.inputs, found.inputs.isfinite().all(1)
        if not bool(known.any()):
            self.exact.append(False)
            self.psnr += [0.0] * len(x)
            return
        inputs, labels, certified = (
            t[known] for t in (found.inputs, found.labels, found.certified)
        )
        errors = (inputs.double()[:, None] - x).square().mean(2)
        own = errors.min(1).values
        right = own < RIGHT
        self.right += int(right.sum())
        self.right_certified += int((right & certified).sum())
        self.wrong_certified += [decibels(v) for v in own[~right & certified].tolist()]
        whole = len(inputs) == len(x) and bool(errors.min(0).values.max() < EXACT)
        self.exact.append(whole and bool((labels[errors.argmin(0)] == case.secret.y).all()))
        self.psnr += nearest_psnr(inputs, x)


def tallied(title: str, method: Method, drawn: Iterable[Case]) -> Tally:
    """Attack batches one after another; costs include finding the network's layers."""
    tally = Tally(title)
    for case in drawn:
        before = time.process_time()
        head = dense_head(case.simulator, case.release, shape=tuple(case.secret.x.shape[1:]))
        found = method(head, stream(case.seed))
        tally.count(found, case, time.process_time() - before)
    return tally
