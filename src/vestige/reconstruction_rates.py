"""True and false positive rates of reconstructions of many heads, counted honestly.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 2 and Algorithms 2 and 3. A reconstruction is positive
if the nearest image of a training set lies within τ. True positives are counted against the set of
the head itself; false ones, by Definition 1, against the set of another head.

Where we deviate: the paper counts false positives with Gaussian weights in place of another head's;
that is one more kind of null here (``NullRates``), not the one that counts. Images of one head are
not independent, so limits use as many trials as the spread between heads allows (Korn and Graubard
1998, "Confidence intervals for proportions with small expected number of positive counts estimated
from survey data").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.stats import beta, t
from torch import Tensor

from vestige.errors import BadInput
from vestige.head_study import CountedRates, OperatingPoint
from vestige.rates import nulls_needed, threshold_rank
from vestige.reconstruction_roc import counted_rate
from vestige.record import Rate
from vestige.records import Records
from vestige.training_sets import TrainingSets

CHUNK = 512
"""Records compared with all others at a time when nearest neighbours are sought."""


def members_of_classes(sets: TrainingSets, labels: Tensor, classes: Tensor) -> Tensor:
    """Which members (s, c, n) a reconstruction of each class is held against (Algorithm 3)."""
    return labels[sets.members][:, None, :] == classes[None, :, None]


def positive_members(sets: TrainingSets) -> Tensor:
    """The positives (s, 1, n) of one class against the rest: Algorithm 2 for the one class."""
    return (sets.targets == 1)[:, None, :]


def all_members(sets: TrainingSets) -> Tensor:
    """Every member (s, 1, n), for a reconstructor that is asked for no class (Algorithm 2)."""
    return torch.ones_like(sets.members, dtype=torch.bool)[:, None, :]


def minimum_errors(drawn: Tensor, members: Tensor, counted: Tensor, images: Tensor) -> Tensor:
    """ℓ_min-MSE (s, c) of what was drawn (s, c, *shape) to the counted members of each set (eq. 4).

    ``members`` (s, n) are places in ``images``; ``counted`` (s, c, n) says which of them a
    reconstruction is held against. Infinite where the reconstruction is not finite.
    """
    heads, slots = drawn.shape[:2]
    flat, pool = drawn.detach().cpu().double().flatten(2), images.detach().cpu().flatten(1)
    errors = torch.empty((heads, slots), dtype=torch.float64)
    if not bool(counted.any(2).all()):
        raise BadInput(
            "A training set holds no image of a class that was drawn: reconstruct classes that "
            "every set holds."
        )
    for head in range(heads):  # one set at a time: differences of all would not fit
        own = pool[members[head]].double()
        gaps = (flat[head][:, None, :] - own[None]).square().mean(2)
        errors[head] = gaps.masked_fill(~counted[head], math.inf).amin(1)
    return errors.masked_fill(~torch.isfinite(errors), math.inf)


def other_heads(members: Tensor) -> Tensor:
    """For each training set (s, n) another one that shares no image with it: a derangement.

    The next set, if sets are disjoint; else the nearest shift that works for all, else any perfect
    matching. Depends on the sets alone.
    """
    heads = len(members)
    held = [set(row) for row in members.tolist()]
    places = torch.arange(heads)
    for shift in range(1, heads):
        if all(held[i].isdisjoint(held[(i + shift) % heads]) for i in range(heads)):
            return (places + shift) % heads
    allowed = np.array([[a.isdisjoint(b) for b in held] for a in held], dtype=bool).reshape(
        heads, heads
    )
    found = maximum_bipartite_matching(csr_matrix(allowed), perm_type="column")
    if heads < 2 or (found < 0).any():
        raise BadInput(
            "Some training set shares an image with every other one, so nothing says what the "
            "attack draws by chance: draw sets with disjoint=True, or more of them."
        )
    return torch.as_tensor(found, dtype=torch.int64)


@dataclass(frozen=True)
class Thresholds:
    """Nearest-neighbour thresholds: over all images, and of each class."""

    pooled: float
    by_class: tuple[float, ...]


def nearest_neighbor_errors(images: Tensor, others: Tensor) -> Tensor:
    """Mean squared error (n,) of each image to the nearest of some others."""
    left, right = images.flatten(1).float(), others.flatten(1).float()
    norms = right.square().sum(1)
    found = []
    for part in left.split(CHUNK):
        # Inner products find the neighbour; the error itself is then formed without rounding.
        nearest = (norms - 2 * part @ right.T).argmin(1)
        found.append((part.double() - right[nearest].double()).square().mean(1))
    return torch.cat(found) if found else left.new_zeros(0, dtype=torch.float64)


def nearest_neighbor_thresholds(validation: Records, train: Records) -> Thresholds:
    """τ: the mean error of validation images to their nearest training image (Section 2).

    A class without validation images has the threshold of all.
    """
    if len(train) == 0 or len(validation) == 0:
        raise BadInput("Nearest-neighbour thresholds need validation and training images.")
    errors = nearest_neighbor_errors(validation.x, train.x)
    labels, pooled = validation.y.cpu(), float(errors.mean())
    by_class = [
        float(errors[labels == c].mean()) if bool((labels == c).any()) else pooled
        for c in range(validation.classes)
    ]
    return Thresholds(pooled, tuple(by_class))


def clustered_rate(hits: np.ndarray, doubt: float) -> Rate:
    """Share of hits (heads, classes) with Clopper–Pearson limits, each at ``doubt``.

    Images of one head are a cluster: the number of trials is divided by the design effect that
    their spread shows (Korn and Graubard 1998). Hits and trials are as counted.
    """
    total, count = int(hits.sum()), hits.size
    trials = effective_trials(hits)
    scaled = total * trials / count
    lower = 0.0 if total == 0 else float(beta.ppf(doubt, scaled, trials - scaled + 1))
    upper = 1.0 if total == count else float(beta.ppf(1 - doubt, scaled + 1, trials - scaled))
    return Rate(hits=total, trials=count, lower=lower, upper=upper)


def effective_trials(hits: np.ndarray) -> float:
    """How many independent trials clustered hits (heads, classes) are worth; never more than all.

    Hits that are all alike show no spread: then every head is one trial.
    """
    heads, count = hits.shape[0], hits.size
    share = hits.mean()
    if count == heads or share in (0, 1) or heads < 2:
        return float(heads)
    variance = hits.mean(1).var(ddof=1) / heads
    if variance == 0:
        return float(count)
    worth = share * (1 - share) / variance
    # Few heads estimate the variance badly: Student's quantiles say how badly.
    few = t.ppf(0.975, count - 1) / t.ppf(0.975, heads - 1)
    return float(min(count, worth * few**2))


def honest_rank(nulls: np.ndarray, false_positive_rate: float, doubt: float) -> int:
    """Largest k whose k-th smallest null (heads, classes) passes at most a share α, surely.

    As :func:`vestige.rates.threshold_rank`, with the nulls counted for what they are worth around
    the threshold; 0 where they are too few.
    """
    ordered = np.sort(nulls, axis=None)
    about = math.floor(false_positive_rate * nulls.size + 1e-9)
    worth = effective_trials(nulls < ordered[min(about, nulls.size - 1)])
    place = threshold_rank(math.floor(worth + 1e-9), false_positive_rate, doubt)
    return 0 if place == 0 else 1 + math.floor((place - 1) * nulls.size / worth + 1e-9)


def operating_point(
    own: np.ndarray, nulls: np.ndarray, false_positive_rate: float, confidence: float
) -> OperatingPoint:
    """TPR at FPR = α for errors (heads, classes), one threshold for all.

    The value is the counted one; of the doubt, half goes to where the threshold lies and half to
    how many own errors pass it, as in :func:`vestige.rates.pooled_rate`.
    """
    half = (1 - confidence) / 2
    place = honest_rank(nulls, false_positive_rate, half)
    lower = upper = None
    if place:
        ordered = np.sort(nulls, axis=None)
        lower = clustered_rate(_passing(own, ordered[place - 1]), half).lower
        upper = _upper_limit(own, ordered, nulls, false_positive_rate, half)
    return OperatingPoint(
        false_positive_rate=false_positive_rate,
        true_positive_rate=float(counted_rate(own.ravel(), nulls.ravel(), false_positive_rate)),
        lower=lower,
        upper=upper,
        needed=nulls_needed(false_positive_rate, half),
    )


def _passing(own: np.ndarray, threshold: float) -> np.ndarray:
    """Which own errors a threshold lets pass; nothing finite never passes."""
    return (own <= threshold) & np.isfinite(own)


def _upper_limit(
    own: np.ndarray, ordered: np.ndarray, nulls: np.ndarray, alpha: float, half: float
) -> float:
    """Upper limit: own errors below a null that surely passes more than a share α."""
    about = math.floor(alpha * nulls.size + 1e-9)
    worth = math.floor(effective_trials(nulls < ordered[min(about, nulls.size - 1)]) + 1e-9)
    places = np.arange(1, worth + 1)
    beyond = places[beta.cdf(alpha, places, worth - places + 1) <= half]
    if len(beyond) == 0:
        return 1.0
    place = min(nulls.size, math.ceil(int(beyond[0]) * nulls.size / worth))
    return clustered_rate(_passing(own, ordered[place - 1]), half).upper


def point_by_class(
    own: np.ndarray, nulls: np.ndarray, false_positive_rate: float, confidence: float
) -> OperatingPoint:
    """TPR at FPR = α where every class (columns) has a threshold of its own.

    The doubt about thresholds is shared by the classes, so that all hold together.
    """
    half, classes = (1 - confidence) / 2, own.shape[1]
    values = [counted_rate(own[:, c], nulls[:, c], false_positive_rate) for c in range(classes)]
    low, high = np.zeros_like(own, dtype=bool), np.zeros_like(own, dtype=bool)
    limited = True
    for c in range(classes):
        ordered = np.sort(nulls[:, c])
        place = threshold_rank(len(ordered), false_positive_rate, half / classes)
        limited &= place > 0
        low[:, c] = _passing(own[:, c], ordered[max(place, 1) - 1])
        places = np.arange(1, len(ordered) + 1)
        sure = beta.cdf(false_positive_rate, places, len(ordered) - places + 1) <= half / classes
        high[:, c] = own[:, c] <= ordered[int(places[sure][0]) - 1] if sure.any() else True
    return OperatingPoint(
        false_positive_rate=false_positive_rate,
        true_positive_rate=float(np.mean(values)),
        lower=clustered_rate(low, half).lower if limited else None,
        upper=clustered_rate(high, half).upper if limited else None,
        needed=nulls_needed(false_positive_rate, half / classes),
    )


def counted_rates(
    own: np.ndarray,
    nulls: np.ndarray,
    pooled: float,
    by_class: np.ndarray,
    false_positive_rate: float,
    confidence: float,
) -> tuple[CountedRates, ...]:
    """Pooled, with a threshold for each class, and with errors divided by the class's threshold.

    A pooled threshold is set by the classes that are easy to guess (a blank "1" is near every
    "1"), so it says little about the others. ``by_class`` (heads, classes) or (classes,) are the
    nearest-neighbour thresholds that belong to the errors.
    """
    doubt = (1 - confidence) / 2
    relative, relative_nulls = own / by_class, nulls / by_class

    def counts(
        name: str, scores: np.ndarray, others: np.ndarray, limit: float, point: OperatingPoint
    ) -> CountedRates:
        return CountedRates(
            name=name,
            true_positives=clustered_rate(scores <= limit, doubt),
            false_positives=clustered_rate(others <= limit, doubt),
            operating_point=point,
        )

    alpha = false_positive_rate
    return (
        counts("pooled", own, nulls, pooled, operating_point(own, nulls, alpha, confidence)),
        counts(
            "per class",
            relative,
            relative_nulls,
            1.0,
            point_by_class(own, nulls, alpha, confidence),
        ),
        counts(
            "class-normalised",
            relative,
            relative_nulls,
            1.0,
            operating_point(relative, relative_nulls, alpha, confidence),
        ),
    )
