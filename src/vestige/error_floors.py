"""What theory allows of a cell: the least error, where a bound applies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from vestige.alterations import Alteration
from vestige.bounds.defended_errors import (
    QUANTIZATION,
    ReleaseDefense,
    ReleaseSlopes,
    SquaredError,
    bound_errors,
)
from vestige.bounds.prior_densities import GaussianDensity, prior_deviation
from vestige.comparison import ErrorFloor
from vestige.defenses import (
    Defense,
    GradientDropout,
    GradientPruning,
    GradientQuantization,
    GradientSign,
    HalfPrecision,
    TopKSparsification,
)
from vestige.errors import BadInput
from vestige.observations import UpdateRelease
from vestige.release_jacobians import release_slopes
from vestige.simulation import Simulator, one_hot
from vestige.streams import stream

if TYPE_CHECKING:
    from vestige.comparison_plan import ComparedServer, ComparisonPlan

BATCHES = 4
"""Batches of the prior over which slopes are averaged: each costs a Jacobian."""

NOISELESS = "without noise no theorem here excludes an exact reconstruction"
GAUSSIAN = (
    "for records that are Gaussian with the prior's mean variance; real ones are not, so this "
    "compares defences and guarantees nothing"
)


def error_floor(plan: ComparisonPlan, server: ComparedServer, defense: Defense) -> ErrorFloor:
    """The least root mean squared error that theory allows against a defended release.

    From the real Jacobian of the defended simulator at batches of the prior: van Trees for every
    attack, Cramér–Rao for unbiased ones (``bounds.defended_errors``).
    """
    victim = defense(server.victim)
    simulator, size = victim.simulator, defense.records(plan.batch_size)
    released = {name: torch.zeros_like(value) for name, value in simulator.parameters.items()}
    update = victim.releases is UpdateRelease
    noise = torch.as_tensor(simulator.reading(released, update=update, records=size).deviation)
    if float(noise.max()) == 0:
        rounded = any(_rounds(part) for part in simulator.alterations)
        return ErrorFloor(reason=_clause(QUANTIZATION) if rounded else NOISELESS)
    done = _done(simulator, float(noise.max()))
    if done.quantized:
        return ErrorFloor(reason=_clause(QUANTIZATION))
    generator = stream(0, "error floor")
    try:
        batches = [_slopes(plan, simulator, size, generator) for _ in range(BATCHES)]
        found = bound_errors(
            batches, done, GaussianDensity(prior_deviation(plan.prior.records.x.numpy()))
        )
    except (BadInput, RuntimeError) as problem:
        return ErrorFloor(reason=_clause(str(problem).splitlines()[0]))
    return ErrorFloor(
        all_attacks=_root(found.van_trees),
        unbiased=_root(found.cramer_rao),
        reason=_clause(" ".join(found.reasons)) or GAUSSIAN,
    )


def _slopes(
    plan: ComparisonPlan, simulator: Simulator, size: int, generator: torch.Generator
) -> ReleaseSlopes:
    records = plan.prior.records
    chosen = records[torch.randperm(len(records), generator=generator)[:size]]
    return release_slopes(simulator, chosen.x, one_hot(chosen.y, chosen.classes, chosen.x.dtype))


def _done(simulator: Simulator, noise: float) -> ReleaseDefense:
    """What is done to the release beside what the simulator differentiates through."""
    parts = simulator.alterations
    kept = 1.0
    for part in parts:
        kept *= 1 - part.rate if isinstance(part, GradientDropout) else 1.0
    pruned = max((_pruned(part) for part in parts), default=0.0)
    return ReleaseDefense(
        noise=noise,
        dropout=1 - kept,
        pruned_share=pruned,
        quantized=any(_rounds(part) for part in parts),
    )


def _pruned(part: Alteration) -> float:
    if isinstance(part, GradientPruning):
        return part.rate
    return 1 - part.kept if isinstance(part, TopKSparsification) else 0.0


def _rounds(part: Alteration) -> bool:
    return isinstance(part, GradientSign | GradientQuantization | HalfPrecision)


def _root(error: SquaredError | None) -> float | None:
    """Root of the error per value; None where it is infinite or no theorem speaks."""
    if error is None or not math.isfinite(error.per_value):
        return None
    return math.sqrt(error.per_value)


def _clause(sentence: str) -> str:
    """A sentence as a clause: without its full stop."""
    return sentence.removesuffix(".")
