"""Evidence: how close a reconstruction comes to its secret, and to decoys it never saw.

Every trial has one audited record, at a slot of its batch. Each decoy in turn takes that slot,
the other records stay, candidates are assigned to the batch anew, and the distance at the slot
counts. If the release says nothing about the audited record beyond its hints and its batch, then
the secret and its decoys are exchangeable, and the secret's rank among them is uniform: a share
α of secrets ranks in the first α, whatever the attack does.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vestige.distances import Distance, mean_squared_error, ssim
from vestige.errors import BadInput
from vestige.observations import Reconstruction
from vestige.rates import NOTHING
from vestige.record import Outcome
from vestige.records import Prior, Records

PSNR_FLOOR = 1e-20
"""Smallest mean squared error in a PSNR: an exact reconstruction reads 200 dB, not infinity."""

FEW = 8
"""Nearest records whose distance is formed exactly, of many that inner products put in order."""


def draw_decoys(pool: Records, audited: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Draw distinct decoys (count,), as indices of the pool, with the audited record's label.

    They come from the pool that the audited record was drawn from, which no attacker sees: given
    the pool, the record and its decoys are exchangeable, whatever the prior is. Their label is
    that of the record, told or not: a gradient gives it away (Zhao et al. 2020, iDLG), and knowing
    a class is not knowing a record. A decoy of another class would let an attack that draws
    nothing but class means pass for a reconstruction.
    """
    same = pool.y.cpu() == pool.y[audited].cpu()
    same[audited] = False
    others = torch.nonzero(same).flatten()
    if count > len(others):
        name = pool.space.class_names[int(pool.y[audited])]
        raise BadInput(
            f"The secrets hold {len(others) + 1} records of class {name!r}, but every trial needs "
            f"{count} decoys beside its secret: give more secrets, or allow a higher "
            "false_positive_rate."
        )
    return others[torch.randperm(len(others), generator=generator)[:count]]


def assign(costs: np.ndarray) -> np.ndarray:
    """Which candidate belongs to each record: costs (k, n) → (n,), −1 where none is left.

    Hungarian assignment: the sum of costs is smallest.
    """
    rows, columns = linear_sum_assignment(costs)
    chosen = np.full(costs.shape[1], -1)
    chosen[columns] = rows
    return chosen


def slot_distances(to_batch: np.ndarray, to_others: np.ndarray, slot: int) -> np.ndarray:
    """Distance at a slot when each of the others takes it: (k, b) and (k, m) → (m,)."""
    candidates, size = to_batch.shape
    if candidates == 0:
        return np.full(to_others.shape[1], NOTHING)
    if size == 1:
        return to_others.min(0)
    costs, found = to_batch.copy(), np.empty(to_others.shape[1])
    for index in range(to_others.shape[1]):
        costs[:, slot] = to_others[:, index]
        row = assign(costs)[slot]
        found[index] = NOTHING if row < 0 else costs[row, slot]
    return found


def costs_between(distance: Distance, candidates: Tensor, records: Tensor) -> np.ndarray:
    """Distances (k, n) in float64; NaN and infinity become the distance of nothing."""
    finite = torch.nan_to_num(candidates.detach().cpu().double(), nan=1e9, posinf=1e9, neginf=-1e9)
    found = distance(finite, records.detach().cpu().double()).numpy()
    broken = ~torch.isfinite(candidates.detach().cpu()).flatten(1).all(1).numpy()
    costs = np.nan_to_num(found, nan=NOTHING, posinf=NOTHING, neginf=NOTHING)
    costs[broken] = NOTHING
    return np.minimum(costs, NOTHING)


def rank_among(own: float, others: np.ndarray) -> int:
    """Place of a distance among others, 1 is closest; a tie counts against it."""
    return 1 + int((others <= own).sum())


def gather(
    reconstruction: Reconstruction,
    secret: Records,
    slot: int,
    decoys: Records,
    distance: Distance = mean_squared_error,
    *,
    trial: int = 0,
) -> Outcome:
    """Measure one reconstruction against its secret and its decoys."""
    candidates = reconstruction.candidates
    to_batch = costs_between(distance, candidates, secret.x)
    own = float(slot_distances(to_batch, to_batch[:, [slot]], slot)[0])
    null = slot_distances(to_batch, costs_between(distance, candidates, decoys.x), slot)
    match = assigned_candidate(to_batch, slot)
    mse = similarity = None
    if match is not None:
        mse = float(mean_squared_error(candidates[[match]].cpu(), secret.x[[slot]].cpu()))
        if secret.x.dim() == 4 and min(secret.x.shape[-2:]) >= 3:
            similarity = float(ssim(candidates[[match]].cpu(), secret.x[[slot]].cpu()))
    is_image = secret.x.dim() == 4
    return Outcome(
        trial=trial,
        rank=rank_among(own, null),
        distance=_known(own),
        decoy_distance=_known(float(null[0])) if len(null) else None,
        nearest_decoy=_known(float(null.min())) if len(null) else None,
        mse=mse,
        psnr=psnr(mse) if is_image and mse is not None else None,
        ssim=similarity,
        label_accuracy=label_accuracy(reconstruction.labels, secret.y),
        objective=_finite(reconstruction.objective),
        confidence=_confidence(reconstruction, match),
        diverged=reconstruction.diverged,
    )


def assigned_candidate(to_batch: np.ndarray, slot: int) -> int | None:
    """Which candidate is assigned to a slot, or None."""
    if to_batch.shape[0] == 0:
        return None
    row = int(assign(to_batch)[slot])
    return None if row < 0 or to_batch[row, slot] >= NOTHING else row


def psnr(mse: float) -> float:
    """Peak signal-to-noise ratio in dB for values in [0, 1]."""
    return -10 * math.log10(max(mse, PSNR_FLOOR))


def label_accuracy(labels: Tensor | None, truth: Tensor) -> float | None:
    """Overlap of two multisets of labels, as a share of the true one (Pan et al. 2020)."""
    if labels is None:
        return None
    classes = int(max(labels.max(), truth.max())) + 1 if len(labels) else int(truth.max()) + 1
    guessed = torch.bincount(labels.cpu(), minlength=classes)
    held = torch.bincount(truth.cpu(), minlength=classes)
    return float(torch.minimum(guessed, held).sum() / len(truth))


def nearest_neighbor_distance(
    secrets: Records, prior: Prior, distance: Distance, *, most: int = 200
) -> float:
    """Mean distance from a secret to its nearest prior record: as close as strangers come.

    The threshold τ of Maciazek and Allison (2025). Uses the first ``most`` secrets.
    """
    some, others = secrets.x[:most], prior.records.x
    if distance is mean_squared_error and len(others) > FEW:
        near = _near(some, others)
        nearest = [
            costs_between(distance, others[places], one[None]).min()
            for one, places in zip(some, near)
        ]
    else:
        nearest = [costs_between(distance, others, one[None]).min() for one in some]
    return float(np.mean(nearest))


def _near(secrets: Tensor, others: Tensor) -> Tensor:
    """Places (n, FEW) of the nearest of others to each secret, by inner products.

    Rounding can swap near ties, so a few are kept for whoever forms the differences.
    """
    left, right = (x.detach().flatten(1).cpu().double() for x in (secrets, others))
    closeness = 2 * left @ right.T - right.square().sum(1)
    return closeness.topk(FEW, dim=1).indices.to(others.device)


def _known(value: float) -> float | None:
    return None if value >= NOTHING else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _confidence(reconstruction: Reconstruction, match: int | None) -> float | None:
    if match is None or reconstruction.confidence is None:
        return None
    return _finite(float(reconstruction.confidence[match]))
