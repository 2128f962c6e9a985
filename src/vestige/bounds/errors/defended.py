"""Lower bounds on the error of a reconstruction from a defended gradient or update.

What was released is taken as it is near each batch: its values, and their slopes in all values of
all records (``vestige.simulation.jacobians`` finds them). A defense changes the slopes, and noise
of standard deviation s on every released value turns them into information:

- Cramér–Rao, for unbiased attacks: s²·tr((JᵀJ)⁻¹), in the mean over the batches given.
- van Trees, for every attack: tr((E[JᵀJ]/s² + I_π)⁻¹), E over batches of the prior
  (van Trees 1968; Gill and Levit 1995).

Liu, Wang, Chen and Lei 2025 use the first as a bound for every attack; an attack with a prior goes
below it, so the two are kept apart here. Without noise both are 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vestige.bounds.errors.fisher_information import (
    batch_jacobian,
    clipped_jacobian,
    cramer_rao,
    pruned_jacobian,
    with_known_dropout,
)
from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.bounds.bound import Array
    from vestige.bounds.errors.prior_densities import PriorDensity
    from vestige.bounds.errors.release_defense import ReleaseDefense


@dataclass(frozen=True, eq=False)
class ReleaseSlopes:
    """An undefended release at one batch: its parts, and the slope of each.

    ``values`` (parts, P) add up to the release, or average to it if ``averaged``; ``jacobians``
    (parts, P, w) hold their derivatives. Each record's gradient is a part of its own with w = d;
    where records mix, as in an update after several steps, one part depends on all ``records`` and
    w = records · d. ``jumps`` says that the release is not continuous in its records, as gradients
    through a ReLU are not.
    """

    values: Array
    jacobians: Array
    records: int
    averaged: bool = False
    jumps: bool = False

    def __post_init__(self) -> None:
        values, jacobians = np.asarray(self.values), np.asarray(self.jacobians)
        if values.ndim != 2 or jacobians.ndim != 3 or jacobians.shape[:2] != values.shape:
            raise BadInput(
                "Slopes are values (parts, P) with jacobians (parts, P, w): reshape them so."
            )
        if not (np.isfinite(values).all() and np.isfinite(jacobians).all()):
            raise BadInput("Slopes hold NaN or infinite values: take them where the release is.")
        if self.records < 1 or len(values) not in (1, self.records):
            raise BadInput("A release has one part for each record, or one for all of them.")
        if jacobians.shape[2] < 1 or self.unknowns % self.records:
            raise BadInput("Slopes are taken in all values of every record: give them all.")

    @property
    def unknowns(self) -> int:
        """Values of all records together."""
        return len(self.jacobians) * self.jacobians.shape[2]


@dataclass(frozen=True)
class SquaredError:
    """A squared error of a whole batch, and the same for each record and each value."""

    total: float
    records: int
    unknowns: int

    @property
    def per_record(self) -> float:
        """In the mean over the records of the batch."""
        return self.total / self.records

    @property
    def per_value(self) -> float:
        """In the mean over all values: the mean squared error of pixels."""
        return self.total / self.unknowns


@dataclass(frozen=True)
class ErrorBounds:
    """What no attack's squared error falls below, with the conditions.

    ``cramer_rao`` speaks of unbiased attacks only, ``van_trees`` of all; None where the theorem
    says nothing, and ``reasons`` then say why. ``van_trees_standard_error`` (of the total) is what
    the number of batches leaves uncertain. ``prior_variance`` is the error of an attacker without
    the release.
    """

    cramer_rao: SquaredError | None
    van_trees: SquaredError | None
    van_trees_standard_error: float
    prior_variance: SquaredError
    batches: int
    assumptions: tuple[str, ...]
    reasons: tuple[str, ...]


PRUNING = (
    "van Trees does not apply to pruning: which values are kept depends on the records and jumps, "
    "so the release is not differentiable in them."
)
JUMPS = (
    "van Trees does not apply to this network: gradients through ReLUs or maxima jump in the "
    "records, and a jump tells more than slopes show; use a smooth activation."
)
QUANTIZATION = (
    "No bound applies to values rounded before the noise: they are constant except for jumps, so "
    "slopes are 0 and Fisher information does not measure what they tell."
)


def defended_jacobian(slopes: ReleaseSlopes, defense: ReleaseDefense) -> Array:
    """Slopes (kept values, unknowns) of what is released after clipping and pruning.

    Dropout and noise are no part of it: one is random, the other does not move the slopes.
    """
    values, jacobians = np.asarray(slopes.values), list(np.asarray(slopes.jacobians))
    if defense.record_clipping_norm is not None:
        if len(values) != slopes.records:
            raise BadInput(
                "Clipping record by record needs each record's own gradient, but these records mix:"
                " take the slopes of a simulator that clips, and leave record_clipping_norm out."
            )
        norm = defense.record_clipping_norm
        jacobians = [clipped_jacobian(j, v, norm) for j, v in zip(jacobians, values)]
        values = np.stack([_clip(v, norm) for v in values])
    matrix = batch_jacobian(jacobians, averaged=slopes.averaged)
    total = values.mean(0) if slopes.averaged else values.sum(0)
    if defense.clipping_norm is not None:
        matrix = clipped_jacobian(matrix, total, defense.clipping_norm)
    if defense.pruned_share > 0:
        matrix = pruned_jacobian(matrix, _largest_mask(total, defense.pruned_share))
    return matrix


def bound_errors(
    batches: Iterable[ReleaseSlopes], defense: ReleaseDefense, prior: PriorDensity
) -> ErrorBounds:
    """Bounds on the squared error of reconstructing a batch from a defended release.

    ``batches`` are slopes at batches drawn from ``prior``, with the labels that the attacker knows;
    they are walked through once. A known random mask keeps a share 1 − p of the information, in
    expectation E[JᵀMJ] = (1 − p)E[JᵀJ] for van Trees and at best for Cramér–Rao.
    """
    informations, unbiased, jumps, shapes = [], [], False, set()
    for slopes in batches:
        matrix = defended_jacobian(slopes, defense)
        informations.append(matrix.T @ matrix)
        unbiased.append(with_known_dropout(cramer_rao(matrix, defense.noise), defense.dropout))
        jumps |= slopes.jumps
        shapes.add((slopes.records, slopes.unknowns))
    if len(shapes) != 1:
        raise BadInput(
            "Bounds need at least one batch, and batches of the same size: give such slopes."
        )
    ((records, unknowns),) = shapes
    size = unknowns // records

    reasons = []
    if defense.quantized:
        reasons.append(QUANTIZATION)
    if defense.pruned_share > 0:
        reasons.append(PRUNING)
    if jumps:
        reasons.append(JUMPS)
    total, uncertain = None, 0.0
    if not reasons:
        information = np.asarray(np.kron(np.eye(records), prior.information(size)), np.float64)
        total, uncertain = _van_trees(np.stack(informations), information, defense)
    return ErrorBounds(
        None if defense.quantized else SquaredError(float(np.mean(unbiased)), records, unknowns),
        None if total is None else SquaredError(total, records, unknowns),
        uncertain,
        SquaredError(records * prior.variance(size), records, unknowns),
        len(informations),
        _assumptions(defense, prior, records),
        tuple(reasons),
    )


def _van_trees(informations: Array, prior: Array, defense: ReleaseDefense) -> tuple[float, float]:
    """tr((E[JᵀJ]·(1 − p)/s² + I_π)⁻¹), and its standard error by the slope in E[JᵀJ]."""
    if defense.noise == 0:
        return 0.0, 0.0
    scale = (1 - defense.dropout) / defense.noise**2
    inverse = np.linalg.inv(scale * informations.mean(0) + prior)
    if len(informations) == 1:
        return float(np.trace(inverse)), math.inf
    slopes = scale * np.einsum("nij,ji->n", informations, inverse @ inverse)
    return float(np.trace(inverse)), float(slopes.std(ddof=1) / math.sqrt(len(slopes)))


def _assumptions(defense: ReleaseDefense, prior: PriorDensity, records: int) -> tuple[str, ...]:
    """What has to hold, in sentences."""
    sentences = [
        "Cramér–Rao holds for unbiased attacks; an attack with a prior can go below it.",
        f"van Trees holds in the mean over a prior that is {prior.in_words()}; real images are not "
        "such draws, and for them it is a figure to compare defences with, not a guarantee.",
        "The expectation over the prior is a mean over batches, so the bound is an estimate; it "
        "errs upwards by an amount that falls as one over their number.",
        "The network's gradient is differentiable in its inputs, without jumps.",
        "The attacker knows the labels, the weights and the defense.",
    ]
    if defense.noise == 0:
        sentences.append("Without noise no theorem here excludes an exact reconstruction.")
    if defense.dropout > 0:
        sentences.append(
            "The attacker sees the mask, which was drawn without looking at the batch."
        )
    if defense.pruned_share > 0:
        sentences.append(
            "Under pruning Cramér–Rao is local: unbiased where the same values would be kept."
        )
    if records > 1:
        sentences.append(
            "Errors count record by record in the order of the batch; where records share a label, "
            "an error after the best assignment can be smaller."
        )
    return tuple(sentences)


def _clip(values: Array, norm: float) -> Array:
    return values * min(1.0, norm / max(float(np.linalg.norm(values)), 1e-300))


def _largest_mask(total: Array, pruned_share: float) -> Array:
    """Mask (P,) of the values that are largest; at equal size the later ones."""
    mask = np.zeros(len(total), dtype=bool)
    mask[np.argsort(np.abs(total), kind="stable")[round(pruned_share * len(total)) :]] = True
    return mask
