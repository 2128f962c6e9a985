"""What theory allows of a cell: the least error, where a bound applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vestige.bounds.errors.defended import (
    QUANTIZATION,
    ReleaseSlopes,
    SquaredError,
    bound_errors,
)
from vestige.bounds.errors.prior_densities import GaussianDensity, prior_deviation
from vestige.bounds.errors.release_defense import ReleaseDefense
from vestige.errors import BadInput
from vestige.interfaces import StatesErrorBound
from vestige.records import TextSpace
from vestige.reports.comparison import ErrorFloor
from vestige.simulation.jacobians import release_slopes
from vestige.simulation.kinds import client_simulator
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator
from vestige.streams import stream

if TYPE_CHECKING:
    from vestige.interfaces import Defense
    from vestige.simulation.alterations import Alteration
    from vestige.studies.comparison.plan import ComparedServer, Comparison

BATCHES = 4
"""Batches of the prior over which slopes are averaged: each costs a Jacobian."""

UNKNOWN = "no theorem is known for one of the alterations"
TOKENS = "the theorems bound squared errors, which tokens do not have"
NOISELESS = "without noise no theorem here excludes an exact reconstruction"
GAUSSIAN = (
    "for records that are Gaussian with the prior's mean variance; real ones are not, so this "
    "compares defences and guarantees nothing"
)


def error_floor(plan: Comparison, server: ComparedServer, defense: Defense) -> ErrorFloor:
    """The least root mean squared error that theory allows against a defended release.

    From the real Jacobian of the defended simulator at batches of the prior: van Trees for every
    attack, Cramér–Rao for unbiased ones (``bounds.defended_errors``).
    """
    if isinstance(plan.secrets.space, TextSpace):
        return ErrorFloor(reason=TOKENS)
    victim = defense(server.victim)
    simulator, size = client_simulator(victim.simulator), defense.records(plan.batch_size)
    released = {name: torch.zeros_like(value) for name, value in simulator.parameters.items()}
    noise = torch.as_tensor(simulator.reading(released, records=size).deviation)
    done = _done(simulator.alterations, float(noise.max()))
    if done is None:
        return ErrorFloor(reason=UNKNOWN)
    if done.quantized:
        return ErrorFloor(reason=_clause(QUANTIZATION))
    if done.noise == 0:
        return ErrorFloor(reason=NOISELESS)
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
    plan: Comparison, simulator: Simulator, size: int, generator: torch.Generator
) -> ReleaseSlopes:
    records = plan.prior.records
    chosen = records[torch.randperm(len(records), generator=generator)[:size]]
    return release_slopes(simulator, chosen.x, one_hot(chosen.y, chosen.classes, chosen.x.dtype))


def _done(alterations: Sequence[Alteration], noise: float) -> ReleaseDefense | None:
    """What is done to the release beside what the simulator differentiates through.

    None where an alteration does not say which bound holds behind it.
    """
    parts = [a.error_bound if isinstance(a, StatesErrorBound) else None for a in alterations]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return ReleaseDefense(
        noise=noise,
        dropout=1 - math.prod(1 - part.dropout for part in known),
        pruned_share=max((part.pruned_share for part in known), default=0.0),
        quantized=any(part.quantized for part in known),
    )


def _root(error: SquaredError | None) -> float | None:
    """Root of the error per value; None where it is infinite or no theorem speaks."""
    if error is None or not math.isfinite(error.per_value):
        return None
    return math.sqrt(error.per_value)


def _clause(sentence: str) -> str:
    """A sentence as a clause: without its full stop."""
    return sentence.removesuffix(".")
