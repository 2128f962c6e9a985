"""Errors of attacks beside the bounds on them, defence by defence, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/error_bounds.py``. The world is that of
the theorems on two-layer networks (``two_layer_world``), 12 inputs and 64 hidden units, one record
or two. Records are drawn from the Gaussian prior that van Trees is stated for, so here it is a
bound and not a figure to compare with.

Over a grid of noise, dropout and clipping (each record's gradient, or the whole):

- Soundness: van Trees may exceed the upper confidence limit of no attack's error. 99% limits are
  counted one by one and jointly (Bonferroni over all attacks and cells); the goal is on the joint
  ones, since a bound that is attained lies above 0.5% of single limits by chance. That the check
  can fail is shown by the bounds of four times the noise.
- Cramér–Rao holds for unbiased attacks: how often and where the most probable record is below it.
- Upper order: the moment method (the first order of the tensor method, whose error has the order
  B√(d/m) without any defence) must stay below constant · (B + σ0)√(d/((1−p)m)), the constant fitted
  at one record, the least noise and no dropout. σ0 counts in units of a gradient's own values, the
  root mean square of the last layer's.
- Slopes of the error in m, d and B at fixed noise, with the orders of ``TwoLayerNetwork`` beside.

Attacks: the most probable record (MAP), the posterior mean by importance sampling around it,
maximum likelihood, all by Levenberg–Marquardt on the defended gradient from the prior's mean, draws
from the prior and the moment method's result; the moment method; Inverting Gradients in some cells.
Errors are shares of the prior's variance. Exits with 1 if a figure falls short of its goal;
``--effort 0.1`` makes a quick round.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from sheet import Sheet, stream
from two_layer_world import (
    CLASSES,
    Problem,
    World,
    inverted,
    moments,
    observe,
    posterior_mean,
    searched,
)
from vestige.bounds import (
    ErrorBounds,
    ReleaseDefense,
    ReleaseSlopes,
    SquaredError,
    bound_errors,
)
from vestige.experimental.two_layer import TwoLayerNetwork

NOISES = (0.1, 1.0, 4.0, 16.0)
# Dropout rates at one record and at two.
DROPOUTS = {1: (0.0, 0.5, 0.9), 2: (0.0, 0.5)}
DRAWS, BATCHES, NETWORKS = 120, 200, 6
CONFIDENCE = 0.99
# σ0, p, clipped: where Inverting Gradients runs, on single records.
INVERTED = (
    (0.1, 0.0, False),
    (1.0, 0.0, False),
    (4.0, 0.0, False),
    (1.0, 0.5, False),
    (1.0, 0.0, True),
)


@dataclass(frozen=True)
class Cell:
    """Bounds and errors of one defence; errors are shares of the prior's variance, (n,) each."""

    words: str
    batch: int
    noise: float
    dropout: float
    bounds: ErrorBounds
    weaker: ErrorBounds
    """Bounds of four times the noise, which attacks must break."""
    errors: dict[str, np.ndarray]

    def share(self, bound: SquaredError | None) -> float:
        """A bound as a share of the prior's variance."""
        assert bound is not None
        return bound.total / self.bounds.prior_variance.total

    def upper(self, attack: str, doubt: float) -> float:
        """Upper limit of an attack's mean error, by Student's t; both sides share the doubt."""
        errors = self.errors[attack]
        spread = errors.std(ddof=1) / math.sqrt(len(errors))
        return float(errors.mean() + stats.t.isf(doubt / 2, len(errors) - 1) * spread)


def attacked(problem: Problem, seed: int) -> dict[str, Tensor]:
    """What each attack makes of the releases of a cell."""
    generator = stream(seed)
    world, count = problem.world, len(problem.observed)
    clipped = problem.defense.clipping_norm or problem.defense.record_clipping_norm
    starts, found = [torch.zeros_like(world.draw(count, generator))], {}
    starts.append(world.draw(count, generator))
    if clipped is None:
        found["moments"] = moments(problem)
        starts.append(found["moments"])
    else:
        starts.append(world.draw(count, generator))
    found["MAP"] = searched(problem, starts, 1.0)
    found["posterior mean"] = posterior_mean(problem, found["MAP"], generator)
    found["likelihood"] = searched(problem, [found["MAP"], starts[-1]], 0.0)
    return found


def norms(slopes: list[ReleaseSlopes]) -> tuple[float, float]:
    """Median norm of a whole gradient and of one record's."""
    whole = np.median([np.linalg.norm(one.values.sum(0)) for one in slopes])
    return float(whole), float(np.median([np.linalg.norm(one.values, axis=1) for one in slopes]))


def grid(unit: float, draws: int) -> list[Cell]:
    cells = []
    for batch, dropouts in DROPOUTS.items():
        world = World(batch=batch)
        slopes = world.slopes(BATCHES, stream(batch))
        whole, record = norms(slopes)
        clippings = {"": {}, "whole clipped": {"clipping_norm": whole / 2}}
        if batch > 1:
            clippings["records clipped"] = {"record_clipping_norm": record / 2}
        for place, (noise, dropout, clipping) in enumerate(
            itertools.product(NOISES, dropouts, clippings)
        ):
            seed = 10_000 * batch + 10 * place
            defense = ReleaseDefense(noise * unit, dropout, **clippings[clipping])
            bounds = bound_errors(slopes, defense, world.prior)
            fourfold = replace(defense, noise=4 * defense.noise)
            secrets = world.draw(draws, stream(seed))
            problem = observe(world, defense, secrets, seed + 1)
            found = attacked(problem, seed + 2)
            if batch == 1 and (noise, dropout, clipping != "") in INVERTED:
                found["inverting"] = inverted(problem, seed + 3)
            scale = bounds.prior_variance.total
            errors = {n: ((x - secrets).square().sum(1) / scale).numpy() for n, x in found.items()}
            words = f"B {batch}, σ0 {noise:g}, p {dropout:g}"
            words += f", {clipping}" if clipping else ""
            weaker = bound_errors(slopes, fourfold, world.prior)
            cells.append(Cell(words, batch, noise, dropout, bounds, weaker, errors))
            tell(cells[-1])
    return cells


def tell(cell: Cell) -> None:
    said = []
    for name, errors in cell.errors.items():
        half = cell.upper(name, 1 - CONFIDENCE) - errors.mean()
        said.append(f"{name} {errors.mean():.3g} ± {half:.2g}")
    lower, unbiased = cell.share(cell.bounds.van_trees), cell.share(cell.bounds.cramer_rao)
    print(
        f"{cell.words:<34} van Trees {lower:.3g}, Cramér–Rao {unbiased:.3g}; {', '.join(said)}",
        flush=True,
    )


def soundness(sheet: Sheet, cells: list[Cell]) -> None:
    looks = [(cell, name) for cell in cells for name in cell.errors]
    joint = (1 - CONFIDENCE) / len(looks)

    def broken(doubt: float) -> list[str]:
        return [
            f"{cell.words}: {name}"
            for cell, name in looks
            if cell.share(cell.bounds.van_trees) > cell.upper(name, doubt)
        ]

    sheet.figure(
        "van Trees above an attack's joint 99% limit",
        len(broken(joint)),
        0,
        "",
        most=True,
        note=f"{len(cells)} cells, {len(looks)} attacks in them",
    )
    single = broken(1 - CONFIDENCE)
    sheet.figure(
        "van Trees above an attack's single 99% limit",
        len(single),
        None,
        "",
        note="; ".join(single),
    )
    refuted = [c.share(c.weaker.van_trees) > c.upper(name, joint) for c, name in looks]
    sheet.figure("the bound of four times the noise above a joint limit", sum(refuted), 1, "")
    nearest = min(
        (cell.errors[name].mean() / cell.share(cell.bounds.van_trees), cell.words, name)
        for cell, name in looks
    )
    note = f"{nearest[1]}: {nearest[2]}"
    sheet.figure("least error over van Trees", nearest[0], None, "×", note=note)
    under = [
        cell for cell in cells if cell.share(cell.bounds.cramer_rao) > cell.upper("MAP", joint)
    ]
    for cell in under:
        unbiased, error = cell.share(cell.bounds.cramer_rao), cell.errors["MAP"].mean()
        print(f"    {cell.words}: MAP {error:.3g}, below Cramér–Rao {unbiased:.3g}")
    sheet.figure("cells in which MAP is below Cramér–Rao, joint 99% limits", len(under), 1, "")


def upper_order(sheet: Sheet, cells: list[Cell]) -> None:
    plain = [cell for cell in cells if "moments" in cell.errors]
    world = World()

    def order(cell: Cell) -> float:
        upper = TwoLayerNetwork(world.inputs, world.hidden, cell.batch).noise(cell.noise).upper
        assert upper is not None
        return upper / math.sqrt(1 - cell.dropout)

    def error(cell: Cell, name: str) -> float:
        # Per record, whose variance under the prior is one.
        return math.sqrt(cell.errors[name].mean())

    first, *others = sorted(plain, key=lambda cell: (cell.batch, cell.noise, cell.dropout))
    constant = error(first, "moments") / order(first)
    largest, words = max(
        (error(cell, "moments") / (constant * order(cell)), cell.words) for cell in others
    )
    note = f"{len(others)} cells, constant {constant:.3f}, largest at {words}"
    goal = "largest error of the moment method over its order"
    sheet.figure(goal, largest, 1.0, "×", most=True, note=note)
    best, words = max(
        (min(error(cell, name) for name in cell.errors) / (constant * order(cell)), cell.words)
        for cell in plain
    )
    sheet.figure("the best attack's, with that constant", best, 1.0, "×", most=True, note=words)
    alone = {c.noise: error(c, "MAP") for c in plain if c.batch == 1 and c.dropout == 0}
    own, following = alone[NOISES[0]], alone[NOISES[1]]
    slope = math.log(following / own) / math.log(NOISES[1] / NOISES[0])
    sheet.figure("MAP's slope in σ0 from 0.1 to 1", slope, None, "", note="lower order 1")
    share = own / error(first, "moments")
    sheet.figure("MAP's error over the moment method's at σ0 = 0.1", share, None, "×")


def growth(sheet: Sheet, unit: float, draws: int) -> None:
    """Log-log slopes of root mean squared errors per record, at the least noise alone.

    Records have norm one here, as in the theorems; the draws are spread over several networks.
    """
    sweeps = {
        "m": [World(hidden=hidden) for hidden in (64, 128, 256)],
        "d": [World(inputs=inputs) for inputs in (6, 12, 24)],
        "B": [World(batch=batch) for batch in (1, 2, 4)],
    }
    defense = ReleaseDefense(NOISES[0] * unit)
    for letter, worlds in sweeps.items():
        logarithms: dict[str, list[float]] = {"moments": [], "likelihood": []}
        sizes, upper, lower = [], [], []
        for world in worlds:
            errors = [small_noise(replace(world, seed=s), defense, draws) for s in range(NETWORKS)]
            for name, found in logarithms.items():
                found.append(math.log(np.mean([error[name] for error in errors])) / 2)
            sizes.append(math.log({"m": world.hidden, "d": world.inputs, "B": world.batch}[letter]))
            setting = TwoLayerNetwork(world.inputs, world.hidden, world.batch, defense.noise)
            orders = setting.noise(NOISES[0])
            assert orders.upper is not None
            upper.append(math.log(orders.upper))
            lower.append(math.log(orders.lower))
        for name, order, words in (("moments", upper, "upper"), ("likelihood", lower, "lower")):
            measured, expected = (
                float(np.polyfit(sizes, found, 1)[0]) for found in (logarithms[name], order)
            )
            note = f"{words} order {expected:.2f}"
            sheet.figure(f"slope in {letter}, {name}", measured, None, "", note=note)


def small_noise(world: World, defense: ReleaseDefense, draws: int) -> dict[str, float]:
    """Squared errors per record of norm one, in the mean over draws from one network."""
    count, seed = max(2, draws // NETWORKS), 50_000 + 10 * world.seed
    records = world.draw(count, stream(seed)).reshape(-1, world.inputs)
    secrets = (records / torch.linalg.vector_norm(records, dim=1, keepdim=True)).reshape(count, -1)
    problem = observe(world, defense, secrets, seed + 1)
    first = moments(problem)
    likely = searched(problem, [first, torch.zeros_like(secrets)], 0.0)
    return {
        name: float((x - secrets).square().sum(1).mean()) / world.batch
        for name, x in (("moments", first), ("likelihood", likely))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=float, default=1.0, help="share of the draws")
    draws = max(10, int(DRAWS * parser.parse_args().effort))
    began, sheet, world = time.process_time(), Sheet(), World()
    undefended = world.slopes(BATCHES, stream(0))
    last = np.concatenate([one.values[:, -CLASSES * world.hidden :] for one in undefended])
    unit = float(np.sqrt((last**2).mean()))
    print(f"σ0 = 1 is noise of standard deviation {unit:.3f}; {draws} draws in a cell.", flush=True)
    cells = grid(unit, draws)
    soundness(sheet, cells)
    upper_order(sheet, cells)
    growth(sheet, unit, draws)
    print(sheet.summary((time.process_time() - began) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
