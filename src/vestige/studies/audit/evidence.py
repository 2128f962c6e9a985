"""Evidence: how close a reconstruction comes to its secret, and to decoys it never saw.

Every trial has one audited record, at a slot of its batch. Each decoy in turn takes that slot,
the other records stay, candidates are assigned to the batch again, and the distance at the slot
counts. If the release says nothing about the audited record beyond its hints and its batch, then
the secret and its decoys are exchangeable, and the secret's rank among them is uniform: a share
α of secrets ranks in the first α, whatever the attack does.

An attack may return more candidates than there are records. The truth would then choose the best
of many, and every error would fall with their number although nothing was read. ``capped`` keeps
as many as there are records, the ones the attack is surest of, before anything is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vestige.distances import Distance, mean_squared_error, ssim
from vestige.errors import BadInput
from vestige.interfaces import Reconstruction
from vestige.records import Prior, Records, TextSpace
from vestige.reports.audit import FurtherOutcome, Outcome
from vestige.statistics.rates import NOTHING
from vestige.studies.audit.texts import length_bands, text_measures
from vestige.studies.report_parts import finite, rehearsed_hits

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
    nothing but class means pass for a reconstruction. Decoys of a text have a similar length, for
    the same reason (:func:`length_band`).
    """
    same = pool.y.cpu() == pool.y[audited].cpu()
    if isinstance(pool.space, TextSpace):
        same &= length_band(pool, audited, count + 1)
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


def length_band(pool: Records, audited: int, least: int) -> Tensor:
    """Which texts of a pool (n,) have the class of an audited one and a length of its band.

    Bands are those of :func:`length_bands`, with at least ``least`` texts each.
    """
    same = pool.y.cpu() == pool.y[audited].cpu()
    places = torch.nonzero(same).flatten()
    bands = length_bands(pool[places], least)
    own = bands[int((places == audited).nonzero())]
    found = torch.zeros_like(same)
    found[places[bands == own]] = True
    return found


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


def set_costs(distance: Distance, candidates: Tensor, records: Tensor) -> np.ndarray:
    """Distances (k, n) that depend on which records there are and not on their order.

    The last digits of a distance depend on the shape of a batch and on the place in it: kernels
    differ. Where an embedding maps all records to one point, a secret that is compared alone had
    a distance of exactly zero, its decoys did not, and every trial was a hit. So all records are
    compared in one batch, in the order of their values and equal ones once: a secret and its
    decoys stay exchangeable to the last digit, and duplicates tie.
    """
    flat = records.detach().cpu().flatten(1)
    distinct, places = torch.unique(flat, dim=0, return_inverse=True)
    costs = costs_between(distance, candidates, distinct.reshape(-1, *records.shape[1:]))
    return costs[:, places.numpy()]


def record_and_decoys(
    distance: Distance, candidates: Tensor, record: Tensor, decoys: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Distances (k, 1) to a record and (k, m) to its decoys, computed alike."""
    together = torch.cat([record[None].detach().cpu(), decoys.detach().cpu().to(record.dtype)])
    costs = set_costs(distance, candidates, together)
    return costs[:, :1], costs[:, 1:]


def rank_among(own: float, others: np.ndarray) -> int:
    """Place of a distance among others, 1 is closest; a tie counts against it."""
    return 1 + int((others <= own).sum())


def capped(reconstruction: Reconstruction, records: int) -> Reconstruction:
    """What counts of a reconstruction of so many records: at most one candidate for each.

    Those with the highest confidence are kept, in the attack's order among equals; one whose
    confidence is not a number comes last. Without confidence the first ones are kept.
    """
    count = len(reconstruction.candidates)
    if count <= records:
        return reconstruction
    kept = torch.arange(records)
    confidence = reconstruction.confidence
    if confidence is not None:
        sure = confidence.detach().cpu().double()
        # First by whether it is a number, then by its value: −∞ is a number.
        order = torch.argsort(sure.nan_to_num(nan=-math.inf), descending=True, stable=True)
        order = order[torch.argsort(sure[order].isnan().int(), stable=True)]
        kept = order[:records]
    place = kept.to(reconstruction.candidates.device)
    labels, rehearsed = reconstruction.labels, reconstruction.rehearsed
    return replace(
        reconstruction,
        candidates=reconstruction.candidates[place],
        labels=None if labels is None else labels[kept.to(labels.device)],
        confidence=None if confidence is None else confidence[kept.to(confidence.device)],
        rehearsed=None if rehearsed is None else rehearsed[kept.to(rehearsed.device)],
    )


def cap_remark(reconstruction: Reconstruction, records: int) -> str:
    """What a reader is told where an attack returned more candidates than records, or nothing."""
    if len(reconstruction.candidates) <= records:
        return ""
    which = "first" if reconstruction.confidence is None else "surest"
    count = f"{which} one counts" if records == 1 else f"{which} {records:,} count"
    return f"It returned more candidates than there are records behind a release: only the {count}."


def gather(
    reconstruction: Reconstruction,
    secret: Records,
    slot: int,
    decoys: Records,
    distance: Distance = mean_squared_error,
    *,
    trial: int = 0,
    apart: Collection[int] = (),
    further: Sequence[Distance] = (),
) -> Outcome:
    """Measure one reconstruction, which is capped first, against its secret and its decoys.

    ``apart`` are other slots of the batch that take no part in the assignment. By each of the
    ``further`` distances candidates are assigned and ranked again.
    """
    reconstruction = capped(reconstruction, len(secret))
    candidates = reconstruction.candidates
    to_batch, place, own, null = _at_slot(candidates, secret, slot, decoys, distance, apart)
    match = assigned_candidate(to_batch, place)
    mse = similarity = None
    is_text = isinstance(secret.space, TextSpace)
    if match is not None and not is_text:
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
        objective=finite(reconstruction.objective),
        confidence=_confidence(reconstruction, match),
        rehearsed=rehearsed_hits(reconstruction, match),
        diverged=reconstruction.diverged,
        decoy_mean_error=None if is_text else finite(_decoy_mean_error(secret.x[slot], decoys.x)),
        further=tuple(
            _further(candidates, secret, slot, decoys, one, apart=apart) for one in further
        ),
        **(text_measures(secret, slot, None if match is None else candidates[match])),
    )


def _at_slot(
    candidates: Tensor,
    secret: Records,
    slot: int,
    decoys: Records,
    distance: Distance,
    apart: Collection[int],
) -> tuple[np.ndarray, int, float, np.ndarray]:
    """Costs to the batch, the audited place in it, and distances of secret and decoys there."""
    to_batch, place = beside(costs_between(distance, candidates, secret.x), slot, apart)
    own, others = record_and_decoys(distance, candidates, secret.x[slot], decoys.x)
    to_batch[:, place] = own[:, 0]
    at_slot = slot_distances(to_batch, np.concatenate([own, others], 1), place)
    return to_batch, place, float(at_slot[0]), at_slot[1:]


def _further(
    candidates: Tensor,
    secret: Records,
    slot: int,
    decoys: Records,
    distance: Distance,
    *,
    apart: Collection[int],
) -> FurtherOutcome:
    """Rank of a secret by one further distance."""
    _, _, own, null = _at_slot(candidates, secret, slot, decoys, distance, apart)
    mean = (
        float(costs_between(distance, decoys.x.double().mean(0)[None], secret.x[[slot]])[0, 0])
        if len(decoys) and not isinstance(secret.space, TextSpace)
        else NOTHING
    )
    return FurtherOutcome(
        rank=rank_among(own, null),
        distance=_known(own),
        decoy_distance=_known(float(null[0])) if len(null) else None,
        nearest_decoy=_known(float(null.min())) if len(null) else None,
        decoy_mean=_known(mean),
    )


def _decoy_mean_error(secret: Tensor, decoys: Tensor) -> float | None:
    """Mean squared error of the mean of the decoys: what knowing the class would draw."""
    if not len(decoys):
        return None
    mean = decoys.detach().cpu().double().mean(0)
    return float((mean - secret.detach().cpu().double()).square().mean())


def pool_distances(
    reconstruction: Reconstruction,
    secret: Records,
    slot: int,
    pool: Records,
    distance: Distance = mean_squared_error,
    *,
    apart: Collection[int] = (),
) -> np.ndarray:
    """Distance at a slot (n,) when each record of a pool takes it; see :func:`gather`."""
    candidates = capped(reconstruction, len(secret)).candidates
    to_batch, place = beside(costs_between(distance, candidates, secret.x), slot, apart)
    return slot_distances(to_batch, set_costs(distance, candidates, pool.x), place)


def matched_candidates(
    reconstruction: Reconstruction,
    secret: Records,
    slot: int,
    distance: Distance = mean_squared_error,
    *,
    apart: Collection[int] = (),
) -> Tensor:
    """The candidate assigned to each record of the batch (b, *shape); NaN where there is none.

    At the audited slot it is the one that :func:`gather` measures.
    """
    found = capped(reconstruction, len(secret)).candidates.detach().cpu().float()
    costs = costs_between(distance, found, secret.x)
    to_batch, place = beside(costs, slot, apart)
    rows = [
        assigned_candidate(to_batch, place) if one == slot else assigned_candidate(costs, one)
        for one in range(len(secret))
    ]
    nothing = torch.full(tuple(secret.x.shape[1:]), float("nan"))
    return torch.stack([nothing if row is None else found[row] for row in rows])


def beside(costs: np.ndarray, slot: int, apart: Collection[int]) -> tuple[np.ndarray, int]:
    """Costs (k, b) without the slots that stand apart, and where the audited one is then."""
    kept = [one for one in range(costs.shape[1]) if one == slot or one not in apart]
    return costs[:, kept], kept.index(slot)


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

    Rounding can swap near ties, so a few more are kept, and differences decide.
    """
    left, right = (x.detach().flatten(1).cpu().double() for x in (secrets, others))
    closeness = 2 * left @ right.T - right.square().sum(1)
    return closeness.topk(FEW, dim=1).indices.to(others.device)


def _known(value: float) -> float | None:
    return None if value >= NOTHING else value


def _confidence(reconstruction: Reconstruction, match: int | None) -> float | None:
    if match is None or reconstruction.confidence is None:
        return None
    return finite(float(reconstruction.confidence[match]))
