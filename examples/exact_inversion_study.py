"""How exact is exact inversion? The measurements of Pan et al. 2020, Table 2, with their condition.

Fully connected networks of the paper's sizes; one gradient of a batch; label accuracy (multiset
overlap), MSE and PSNR after matching candidates to records by MSE. Batches that meet the paper's
exclusivity condition (resampled up to 1,000 times, as the paper does) and random ones apart;
untrained and trained networks apart; float32 and float64 apart; the paper's algorithms as printed
("literal"), their robust form ("exclusive") and sampled silent neurons ("sampling").

    python examples/exact_inversion_study.py --batches 5

MNIST and Location are used where their files are found (VESTIGE_DATA); Purchase-100 is not to be
had without a login, so random binary rows of its size stand in for it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from vestige import load, networks, trained
from vestige.attacks.exact.exclusive import exclusive_inversion
from vestige.attacks.exact.exclusive_neurons import condition_holds
from vestige.attacks.exact.layers import DenseHead, DenseLayer, Recovered
from vestige.attacks.exact.sampling import sampling_inversion
from vestige.distances import mean_squared_error
from vestige.errors import NotFound
from vestige.exclusivity import exclusivity_rate, hidden_activity
from vestige.records import Column, Records, TableSpace
from vestige.simulation import Simulator

RESAMPLED = 1000
PERFECT = 1e-30
TRAINING_STEPS = 350

Method = Callable[[DenseHead, torch.Generator], Recovered]
METHODS: dict[str, Method] = {
    "literal": lambda head, generator: exclusive_inversion(head, literal=True, generator=generator),
    "exclusive": lambda head, generator: exclusive_inversion(head, generator=generator),
    "sampling": lambda head, generator: sampling_inversion(
        head, generator=generator, draws=20_000, seconds=5
    ),
}


@dataclass(frozen=True)
class Case:
    """A dataset and the paper's network for it."""

    name: str
    records: Records
    hidden: int


def cases() -> Iterator[Case]:
    """Datasets that can be had here."""
    for name, hidden in (("fashion_mnist", 200), ("mnist", 200), ("location30", 200)):
        try:
            yield Case(name, load(name), hidden)
        except NotFound:
            print(f"{name}: not found, left out")
    generator = torch.Generator().manual_seed(0)
    space = TableSpace(
        tuple(Column(f"item {n}") for n in range(1, 601)),
        tuple(f"class {n}" for n in range(1, 101)),
    )
    rows = (torch.rand(4000, 600, generator=generator) < 0.3).float()
    labels = torch.randint(100, (4000,), generator=generator)
    yield Case("random 600 binary", Records(rows, labels, space), 128)


def head_of(model: nn.Module, x: Tensor, y: Tensor) -> DenseHead:
    """The layers of a fully connected network and their gradient for one batch."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    return DenseHead(
        tuple(
            DenseLayer(layer.weight.detach(), bias, _slope(layer.weight), slope)
            for layer in model.modules()
            if isinstance(layer, nn.Linear)
            for bias, slope in [
                (None, None) if layer.bias is None else (layer.bias.detach(), _slope(layer.bias))
            ]
        )
    )


def _slope(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def batches(
    masks: list[np.ndarray], size: int, count: int, *, met: bool, generator: torch.Generator
) -> Iterator[Tensor]:
    """Indices of random batches, or of random batches that meet the condition."""
    total = len(masks[0])
    for _ in range(count):
        for _ in range(RESAMPLED if met else 1):
            chosen = torch.randperm(total, generator=generator)[:size]
            if not met or condition_holds([layer[chosen.numpy()] for layer in masks]):
                yield chosen
                break


@dataclass(frozen=True)
class Score:
    """Label accuracy, MSE of each record (1 where it was not recovered), certified records."""

    labels: float
    errors: np.ndarray
    certified: int
    false: int


def score(found: Recovered, x: Tensor, y: Tensor, classes: int) -> Score:
    """Match candidates to records by MSE (Hungarian method) and count labels as multisets."""
    known = torch.isfinite(found.inputs).all(1)
    distance = mean_squared_error(found.inputs[known], x.flatten(1)).numpy()
    distance = np.minimum(distance, 1e6)
    rows, columns = linear_sum_assignment(distance)
    errors = np.ones(len(x))
    errors[columns] = distance[rows, columns]
    named = found.labels[found.labels >= 0]
    overlap = torch.minimum(
        torch.bincount(named, minlength=classes), torch.bincount(y, minlength=classes)
    ).sum()
    certain = found.certified[known].numpy()
    false = int((distance[certain].min(1, initial=1e6) > 1e-3).sum())
    return Score(float(overlap) / len(y), errors, int(certain.sum()), false)


def summary(scores: list[Score], seconds: float) -> str:
    """One row of the table."""
    errors = np.concatenate([one.errors for one in scores])
    psnr = -10 * np.log10(np.maximum(errors, PERFECT))
    certified = sum(one.certified for one in scores) / len(errors)
    return (
        f"{np.mean([one.labels for one in scores]):6.2f} {errors.mean():9.2g} {psnr.mean():7.1f} "
        f"{(psnr > 60).mean():7.2f} {certified:7.2f} {sum(one.false for one in scores):6d} "
        f"{seconds / len(scores):7.2f}"
    )


def study(case: Case, *, count: int, sizes: list[int], bias: bool, chosen: list[str]) -> None:
    """Print the table of one dataset."""
    half = len(case.records) // 2
    order = torch.randperm(len(case.records), generator=torch.Generator().manual_seed(1))
    pool, others = case.records[order[:half]], case.records[order[half:]]
    classes = pool.classes
    shape = f"{math.prod(pool.space.shape)}-{case.hidden}-{classes}"
    print(f"\n{case.name}, {shape}, {'biases' if bias else 'no biases'}")
    print(
        f"{'steps':>5} {'type':>7} {'M':>3} {'batches':>9} {'method':>10} "
        f"{'labels':>6} {'MSE':>9} {'PSNR':>7} {'>60 dB':>7} {'certif.':>7} {'false':>6} {'s':>7}"
    )
    for steps in (0, TRAINING_STEPS):
        model = networks.mlp(
            pool.space, (case.hidden,), bias=bias, generator=torch.Generator().manual_seed(0)
        )
        if steps:
            model = trained(model, others, steps=steps)
        masks = hidden_activity(Simulator(model), pool.x)
        rates = exclusivity_rate(
            model,
            pool,
            batch_sizes=sizes,
            batches=200,
            generator=torch.Generator().manual_seed(2),
        )
        print(
            f"{steps:5d} condition holds: "
            + ", ".join(
                f"M={r.batch_size} {r.value:.2f} [{r.lower:.2f}, {r.upper:.2f}]" for r in rates
            )
        )
        for dtype in (torch.float32, torch.float64):
            exact = model.to(dtype)
            for size in sizes:
                for met in (True, False):
                    stream = torch.Generator().manual_seed(size)
                    drawn = list(batches(masks, size, count, met=met, generator=stream))
                    kind = "condition" if met else "random"
                    prefix = f"{steps:5d} {str(dtype)[6:]:>7} {size:3d} {kind:>9}"
                    if not drawn:
                        print(f"{prefix}  none in {count} × {RESAMPLED} draws")
                        continue
                    heads = [head_of(exact, pool.x[i].to(dtype), pool.y[i]) for i in drawn]
                    for name in chosen:
                        started = time.monotonic()
                        found = [METHODS[name](head, stream) for head in heads]
                        spent = time.monotonic() - started
                        scores = [
                            score(one, pool.x[i], pool.y[i], classes)
                            for one, i in zip(found, drawn)
                        ]
                        print(f"{prefix} {name:>10} {summary(scores, spent)}", flush=True)


def main() -> None:
    """Read the command line and print a table for each dataset."""
    parser = argparse.ArgumentParser(description="How exact is exact inversion?")
    parser.add_argument("--batches", type=int, default=5, help="batches for each cell")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 8], help="batch sizes M")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--datasets", nargs="+", help="only these")
    parser.add_argument("--bias", action="store_true", help="networks with biases")
    options = parser.parse_args()
    print(
        "PSNR against a range of one; a record that was not recovered counts with MSE 1; "
        "false = certified records more than 30 dB off"
    )
    for case in cases():
        if not options.datasets or case.name in options.datasets:
            study(
                case,
                count=options.batches,
                sizes=options.sizes,
                bias=options.bias,
                chosen=options.methods,
            )


if __name__ == "__main__":
    main()
