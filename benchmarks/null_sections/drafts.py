"""Findings of audits whose ranks were simulated, for the code that judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vestige.reports.audit import (
    AttackFindings,
    AuditFindings,
    FurtherDistance,
    FurtherOutcome,
    Outcome,
    PermutationTest,
)
from vestige.reports.parts import SpaceDescription, ThreatDescription

DECOYS, FALSE_POSITIVE_RATE = 9, 0.1
NOMINAL = 0.025
"""What a lower limit, and a verdict that rests on it, may be wrong: half of 5%."""

GUESSES = ("Guess: prior draw", "Guess: prior mean")
DIMENSIONS = 4


def class_world(random: np.random.Generator, count: int) -> np.ndarray:
    """Records (count, dimensions) of one class around zero."""
    return random.normal(size=(count, DIMENSIONS))


def painted(kind: str, prior: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Pictures (count, dimensions) of so many releases, by somebody who saw none of them."""
    if kind == "grey":
        # Grey is not the class's mean.
        return np.full((count, DIMENSIONS), 0.5)
    if kind == "mean":
        return np.tile(prior.mean(0), (count, 1))
    if kind == "constant":
        return np.tile(prior[0], (count, 1))
    return prior[random.integers(len(prior), size=count)]


def squared(pictures: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Mean squared errors (pictures, records)."""
    return ((pictures[:, None] - records[None]) ** 2).mean(2)


def further_outcomes(
    ranks: Sequence[Sequence[int]], distances: Sequence[Sequence[float]] | None = None
) -> list[tuple[FurtherOutcome, ...]]:
    """Outcomes of every trial by further distances, from a row of ranks for each of them."""
    rows = distances or [[1.0] * len(row) for row in ranks]
    return [
        tuple(
            FurtherOutcome(
                rank=int(rank), distance=float(own), decoy_distance=None, nearest_decoy=None
            )
            for rank, own in zip(found, far)
        )
        for found, far in zip(zip(*ranks), zip(*rows))
    ]


def draft(
    ranks: Mapping[str, Sequence[int]],
    distances: Mapping[str, Sequence[float]],
    *,
    tests: Mapping[str, PermutationTest] | None = None,
    smallest_pool: int | None = None,
    further: Sequence[FurtherDistance] = (),
    outcomes: Mapping[str, Sequence[tuple[FurtherOutcome, ...]]] | None = None,
    further_tests: Mapping[str, Sequence[PermutationTest]] | None = None,
) -> AuditFindings:
    """Findings, from ranks and distances by attack, also those by further distances."""
    tests = tests or {}
    trials = len(next(iter(ranks.values())))
    return AuditFindings(
        title="A null world",
        release="a shared gradient",
        space=SpaceDescription(kind="table", shape=(DIMENSIONS,), noun="row", class_names=("a",)),
        threat=ThreatDescription(
            attacker="server", who="", sees="", told="", not_told="", prior=""
        ),
        seed=0,
        trials_planned=trials,
        trials_finished=trials,
        batch_size=1,
        decoys=DECOYS,
        false_positive_rate=FALSE_POSITIVE_RATE,
        confidence=0.95,
        distance="mean squared error",
        further_distances=tuple(further),
        smallest_pool=smallest_pool,
        attacks=tuple(
            AttackFindings(
                name=name,
                summary="",
                cites="",
                guess=name in GUESSES,
                settings={},
                outcomes=tuple(
                    Outcome(
                        trial=trial,
                        rank=int(rank),
                        distance=float(own),
                        decoy_distance=None,
                        nearest_decoy=None,
                        mse=float(own),
                        further=outcomes[name][trial] if further and outcomes else (),
                    )
                    for trial, (rank, own) in enumerate(zip(found, distances[name]))
                ),
                permutation=tests.get(name),
                further_permutations=tuple((further_tests or {}).get(name, ())),
            )
            for name, found in ranks.items()
        ),
    )
