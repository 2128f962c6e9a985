"""Comparisons of defences that are all alike: how often one is called better or worse.

Errors are drawn, put into cells and go through ``assemble_comparison`` and the judge, which makes
every sentence of a comparison; whole runs have an attack that reads nothing and pruning too slight
to matter. A defence is called better where it is said to leave more than no defence, or the
best one more than every other, and worse where it is said to leave less than no defence or than
another one, also at equal cost. Both together have the nominal share of 5%.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import vestige
from null_sections.rates import report_rate
from sheet import Sheet, stream
from vestige.defenses import Defense, GradientNoise, GradientPruning, Undefended
from vestige.interfaces import GradientRelease, Reconstruction
from vestige.reports.comparison import (
    AttackMeasure,
    Cell,
    ComparisonFindings,
    DefendedPoint,
    Utility,
)
from vestige.reports.parts import Rate, Times, VerdictKind
from vestige.reports.report import Report
from vestige.statistics.rates import clopper_pearson
from vestige.statistics.tradeoff import mean_with_limits, weakest_protection
from vestige.studies.comparison.assembly import MeasuredDefense, assemble_comparison
from vestige.studies.comparison.cells import BASELINE, MeasuredCell
from vestige.studies.judge import report_on
from vestige.studies.study import Header

LEVEL = 0.05
ABOUT = Header(0, (), None, Times())
REPLICATES = 1000
WHOLE_RUNS = 100
POWER_REPLICATES = 100
SHIFT = 0.1
"""A real difference: all defences leave that much more than none, of a spread of about 0.05."""

SEEDS = 4
"""Trainings behind a simulated cost."""

SPACE = vestige.ImageSpace(1, 4, 4, ("a", "b"), noun="patch")

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""Errors (trials, settings, attacks) of settings whose true protection is the same."""


def correlated(generator: np.random.Generator, trials: int, settings: int) -> np.ndarray:
    """The secret of a trial decides most of the error of every defence."""
    secret = generator.normal(size=(trials, 1, 1))
    return 0.3 + 0.05 * secret + 0.02 * generator.normal(size=(trials, settings, 1))


def heavy_tailed(generator: np.random.Generator, trials: int, settings: int) -> np.ndarray:
    """Lognormal errors, independent: a few trials decide a mean."""
    return 0.1 * generator.lognormal(size=(trials, settings, 1))


def unequal_spread(generator: np.random.Generator, trials: int, settings: int) -> np.ndarray:
    """Every second setting has five times the spread."""
    spread = np.where(np.arange(settings) % 2, 0.02, 0.1)[None, :, None]
    return 0.4 + spread * generator.normal(size=(trials, settings, 1))


def least_of_three(generator: np.random.Generator, trials: int, settings: int) -> np.ndarray:
    """Two attacks as good as the guess, which is the same under every defence."""
    secret = generator.normal(size=(trials, 1, 1))
    guess = np.broadcast_to(0.3 + 0.04 * secret, (trials, settings, 1))
    return np.concatenate(
        [0.3 + 0.04 * secret + 0.03 * generator.normal(size=(trials, settings, 2)), guess], axis=2
    )


def one_strong_attack(generator: np.random.Generator, trials: int, settings: int) -> np.ndarray:
    """One attack far ahead of another and of the guess: the least mean is never in doubt."""
    secret = generator.normal(size=(trials, 1, 1))
    strong = 0.1 + 0.02 * secret + 0.02 * generator.lognormal(size=(trials, settings, 1))
    return np.concatenate([strong, 0.2 + strong, np.full_like(strong, 0.5)], axis=2)


WORLDS: tuple[tuple[Draw, int, int], ...] = (
    *((correlated, trials, k) for trials, k in ((6, 1), (12, 6), (12, 18))),
    *((heavy_tailed, trials, k) for trials, k in ((6, 18), (12, 1), (40, 6))),
    (unequal_spread, 6, 6),
    (least_of_three, 12, 6),
    *((one_strong_attack, trials, k) for trials, k in ((6, 6), (12, 1))),
)
"""Errors, trials, and the number of equal defences."""


@dataclass(frozen=True)
class ReadsNothing:
    """Draws the prior's mean and a little noise that a checksum of the release decides."""

    name: str = "Reads nothing"

    summary = "draws the prior's mean and some noise"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        """Keep the mean of the prior."""
        mean = public.prior.records.x.mean(0, keepdim=True)

        def reconstruct(observation, attacker):
            tensors = observation.release.tensors.values()
            seed = zlib.crc32(b"".join(t.detach().numpy().tobytes() for t in tensors))
            noise = torch.randn(mean.shape, generator=stream(seed))
            return Reconstruction((mean + 0.02 * noise).clamp(0, 1))

        return reconstruct


def records(count: int, seed: int) -> vestige.Records:
    """Grey pictures of two classes."""
    generator = stream(seed)
    x = torch.rand(count, *SPACE.shape, generator=generator)
    return vestige.Records(x, torch.arange(count) % 2, SPACE)


def plan_of(
    defenses: Sequence[Defense],
    trials: int,
    seed: int = 0,
    names: Sequence[str] = ("Reads nothing",),
) -> vestige.Comparison:
    """A plan about a linear model on tiny pictures."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SPACE.shape), 2))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=stream(seed)))
    victim = vestige.victims.SharedGradient(network, mode="eval")
    return vestige.Comparison(
        servers=[
            vestige.studies.ComparedServer("server", victim, [ReadsNothing(n) for n in names])
        ],
        defenses=defenses,
        secrets=records(60, 3 * seed),
        prior=vestige.Prior(records(60, 3 * seed + 1)),
        training=vestige.studies.UtilityTraining(
            records(20, 3 * seed + 2),
            records(20, 3 * seed),
            rounds=1,
            clients=1,
            batch_size=4,
            repeats=2,
        ),
        trials=trials,
        false_positive_rate=0.1,
        budget=0.02,
    )


@cache
def simulated_plan(count: int, trials: int) -> vestige.Comparison:
    """Defences in families of three strengths, which only lend their names."""
    kinds = (GradientNoise, GradientPruning)
    defenses = [kinds[j % 2](round(0.05 * (1 + j // 2), 2)) for j in range(count)]
    return plan_of(defenses, trials, names=("Attack 1", "Attack 2"))


def measured(
    plan: vestige.Comparison, errors: np.ndarray, generator: np.random.Generator
) -> list[MeasuredDefense]:
    """What a comparison measured, from errors (trials, settings, attacks) and equal costs."""
    trials, _, attacks = errors.shape
    names = [*(f"Attack {j + 1}" for j in range(attacks - 1)), BASELINE.name]
    joint = 1 - LEVEL / attacks
    rate = Rate(hits=0, trials=trials, lower=0.0, upper=clopper_pearson(0, trials, joint)[1])
    found = []
    for place, defense in enumerate(plan.all_defenses):
        own = errors[:, place]
        measures = tuple(
            AttackMeasure(attack=name, error=mean_with_limits(column, joint, low=0.0), rate=rate)
            for name, column in zip(names, own.T)
        )
        cell = Cell(
            server="server",
            measures=measures,
            strongest=names[int(own.mean(0).argmin())],
            protection=weakest_protection([m.error for m in measures]),
            most_hits=rate,
        )
        bare = isinstance(defense, Undefended)
        costs = np.zeros(SEEDS) if bare else 0.01 + 0.002 * generator.normal(size=SEEDS)
        utility = Utility(
            repeats=SEEDS,
            diverged=0,
            accuracy=None,
            loss=None,
            accuracy_lost=mean_with_limits(costs, 0.95),
            loss_added=None,
        )
        point = DefendedPoint(
            defense=defense.name,
            undefended=bare,
            strength=defense.strength,
            setting=defense.setting,
            mechanism="",
            guarantee=False,
            records=1,
            utility=utility,
            cells=(cell,),
        )
        found.append(MeasuredDefense(defense, point, costs, {"server": MeasuredCell(cell, own)}))
    return found


def called(comparison: Report[ComparisonFindings, Any]) -> tuple[bool, bool]:
    """Whether any defence is called better, and whether any is called worse, in words."""
    words = " ".join(
        " ".join((advice.sentence, advice.equal_cost, *advice.details))
        for advice in comparison.judgement.recommendations
    )
    better = any(
        said in words
        for said in ("This is more than without", "more than every other", "leaves more than")
    )
    worse = any(
        said in words
        for said in ("This is less than", "Less than without", "less than none", "smaller error")
    )
    for pair in comparison.findings.told_apart:
        better |= pair.smaller == Undefended.name
        worse |= pair.smaller != Undefended.name
    return better, worse


def simulate(draw: Draw, trials: int, count: int, shift: float = 0.0) -> list[tuple[bool, bool]]:
    """What comparisons of simulated errors say; ``shift`` is a real difference of defences."""
    plan = simulated_plan(count, trials)
    found = []
    for world in range(REPLICATES if not shift else POWER_REPLICATES):
        generator = np.random.default_rng([world, trials, count, int(1000 * shift), len(WORLDS)])
        errors = draw(generator, trials, count + 1)
        errors[:, 1:, :-1] += shift
        findings = assemble_comparison(plan, measured(plan, errors, generator), ABOUT)
        comparison = report_on(findings)
        found.append(called(comparison))
    return found


def measure_whole_runs(sheet: Sheet) -> None:
    """Comparisons of pruning too slight to matter, by an attack that reads nothing."""
    said, valid = [], 0
    for seed in range(WHOLE_RUNS):
        defenses = [GradientPruning(0.02 * (1 + j)) for j in range(2)]
        comparison = vestige.run(plan_of(defenses, 6, seed), seed=seed)
        valid += comparison.verdict.kind is not VerdictKind.INVALID
        said.append(called(comparison))
    words = "whole runs, 2 defences, 6 trials: "
    report_rate(sheet, words + "better", sum(b for b, _ in said), WHOLE_RUNS, LEVEL)
    report_rate(sheet, words + "worse", sum(w for _, w in said), WHOLE_RUNS, LEVEL)
    sheet.figure(words + "runs that are not INVALID", 100.0 * valid / WHOLE_RUNS, 100.0, "%")


def measure(sheet: Sheet) -> None:
    """Measure how often equal defences are called better or worse, and real differences found."""
    for draw, trials, count in WORLDS:
        said = simulate(draw, trials, count)
        better, worse = sum(b for b, _ in said), sum(w for _, w in said)
        either = sum(b or w for b, w in said)
        kind = draw.__name__.replace("_", " ")
        report_rate(
            sheet, f"{kind}, {count} equal, {trials} trials: any order", either, len(said), LEVEL
        )
        print(f"    better {better / len(said):.1%}, worse {worse / len(said):.1%}", flush=True)
    measure_whole_runs(sheet)
    for trials, count in ((6, 1), (6, 6), (6, 18), (12, 1), (12, 6), (12, 18)):
        said = simulate(one_strong_attack, trials, count, SHIFT)
        share = 100 * sum(b for b, _ in said) / len(said)
        words = f"power: error 0.13 → 0.23 with {count}, {trials} trials: better"
        sheet.figure(words, share, None, "%")
