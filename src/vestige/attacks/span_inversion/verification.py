"""Whether texts are the whole batch: how often each was in it, and what they leave unexplained."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls

from vestige.attacks.span_inversion.problem import Problem
from vestige.attacks.span_inversion.projections import Projection
from vestige.attacks.span_inversion.rivals import rival

MOST_LABELLINGS, MOST_ORDERS = 512, 20_000
"""Assignments of labels to texts that are tried one by one, and orders that are looked through."""

MOST_REPETITIONS = 64
"""Ways in which texts may have been repeated that are tried one by one."""

PRESENT = 0.2
"""A text whose share of the gradient is below this part of the usual one was not in the batch."""

INDEPENDENT = 1e-4
"""Gradients of texts are independent if each has this share of its norm for itself."""

LOUDEST = 0.02
"""Told noise of more than this share of the release leaves room for another last token."""

SCALED = 1e-3
"""How far the size of a batch's gradient may be from that of the release."""


@dataclass(frozen=True)
class Explanation:
    """Texts that make a release: labels, how often each was in the batch, and what is left over.

    ``unexplained`` is a share of the release's norm. ``unique`` says that no text could stand for
    another, ``scale`` by what the release is larger than the gradient of these texts.
    """

    texts: tuple[tuple[int, ...], ...]
    labels: tuple[int, ...]
    counts: tuple[int, ...]
    unexplained: float
    scale: float
    unique: bool

    @property
    def size(self) -> int:
        """Texts in the batch."""
        return sum(self.counts)


def explained(problem: Problem, texts: Sequence[tuple[int, ...]]) -> Explanation:
    """Labels and repetitions by non-negative least squares over the texts' own gradients.

    The release is Σ mwg / Σ mw for texts that occur m times and count by w each. Candidates are
    told apart by some tensors of their gradients; what the batch leaves over is that of all.
    """
    classes = 1 if problem.modelling else len(problem.space.class_names)
    ways = labellings(classes, len(texts), problem.labels)
    needed = {(place, way[place]) for way in ways for place in range(len(texts))}
    gradients = {one: problem.gradient(texts[one[0]], one[1]) for one in sorted(needed)}
    weights = [problem.weight(text) for text in texts]
    best = None
    if len(ways) > 1:
        ways = [_likely_labels(gradients, problem.released, len(texts)), *ways]
    for way in ways:
        if best is not None and best[1][1] <= problem.tolerance:
            break
        each = [weights[n] * gradients[n, label].cpu().numpy() for n, label in enumerate(way)]
        found = _least_squares(np.stack(each, 1), problem.released.cpu().numpy(), weights)
        if best is None or found[1] < best[1][1]:
            best = (way, found)
    assert best is not None
    way, (counts, left, scale, unique) = best
    kept = [place for place, count in enumerate(counts) if count]
    batch = [place for place in kept for _ in range(counts[place])]
    if batch and len(batch) <= max(len(texts), problem.told or 0):
        left, scale = problem.left_over([texts[n] for n in batch], [way[n] for n in batch])
    elif batch:  # so many copies are a sign of a wrong text, not a batch
        left = 1.0
    return Explanation(
        tuple(texts[place] for place in kept),
        tuple(way[place] for place in kept),
        tuple(counts[place] for place in kept),
        left,
        scale,
        unique,
    )


def _likely_labels(
    gradients: Mapping[tuple[int, int], torch.Tensor], released: torch.Tensor, texts: int
) -> tuple[int, ...]:
    """The label with the largest share for each text, where all texts and labels compete."""
    pairs = sorted(gradients)
    q, r = np.linalg.qr(np.stack([gradients[one].cpu().numpy() for one in pairs], 1))
    try:
        shares, _ = nnls(r, q.T @ released.cpu().numpy(), maxiter=100 * len(pairs))
    except RuntimeError:  # gradients that depend on each other
        shares = np.zeros(len(pairs))
    chosen = [
        max(zip(shares, pairs), key=lambda one: (one[1][0] == n, one[0])) for n in range(texts)
    ]
    return tuple(pair[1] for _, pair in chosen)


def _least_squares(
    columns: np.ndarray, released: np.ndarray, weights: Sequence[float]
) -> tuple[list[int], float, float, bool]:
    """Counts, the share left over, the scale, and whether the columns are independent."""
    norm = float(np.linalg.norm(released))
    q, r = np.linalg.qr(columns)
    lengths = np.linalg.norm(columns, axis=0)
    unique = bool((np.abs(np.diag(r)) > INDEPENDENT * np.maximum(lengths, 1e-300)).all())
    solution, _ = nnls(r, q.T @ released, maxiter=100 * columns.shape[1])
    largest = solution.max(initial=0.0)
    if largest <= 0 or norm == 0 or not np.isfinite(norm):
        return [0] * len(solution), 1.0, 1.0, unique
    unit = float(solution[solution > PRESENT * largest].min())
    counts = [round(float(value) / unit) for value in solution]
    total = sum(count * weight for count, weight in zip(counts, weights))
    made = columns @ np.array(counts, dtype=float) / max(total, 1e-300)
    scale = float(made @ released) / max(float(made @ made), 1e-300)
    return counts, float(np.linalg.norm(released - scale * made)) / norm, scale, unique


def repetitions(texts: int, told: int | None) -> list[tuple[int, ...]]:
    """How often each of some texts may have been in a batch of a told size."""
    more = 0 if told is None else told - texts
    if more <= 0 or texts == 0:
        return [(1,) * texts]
    extra = itertools.combinations_with_replacement(range(texts), more)
    some = itertools.islice(extra, MOST_REPETITIONS)
    return [tuple(1 + one.count(text) for text in range(texts)) for one in some]


def labellings(
    classes: int, texts: int, told: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Assignments of labels to texts worth trying: orders of the told labels, or all."""
    if classes == 1:
        return [(0,) * texts]
    ways = itertools.product(range(classes), repeat=texts)
    if told is not None and len(told) == texts:
        orders = itertools.islice(itertools.permutations(told), MOST_ORDERS)
        ways = iter(dict.fromkeys(orders))
    return list(itertools.islice(ways, MOST_LABELLINGS))


def uncertified(problem: Problem, first: Projection, found: Explanation, clear: bool) -> str:
    """Why texts are not certified, in a sentence; empty if they are.

    Certified texts, each as often as it says, are the batch: they explain the release to its own
    precision, no other text that was considered and none of their close relatives (``rivals``)
    could stand for one of them, as many were told, and the spans told members from others by a wide
    gap (whole texts that were searched: all of their inputs lie in the span). ``first`` is the
    layer whose span told the tokens.
    """
    altered = bool(problem.simulator.alterations)
    if problem.noise_share > LOUDEST:
        return f"Noise is {problem.noise_share:.0%} of the release, so nothing is certified."
    if not clear:
        return "The span does not tell tokens from others by a clear gap."
    if problem.told is None:
        return "The batch size was not told, so nothing is certified."
    if found.size != problem.told:
        return f"{found.size} texts were found where {problem.told} were told."
    if not found.unique:
        return "Some texts have gradients that cannot be told apart."
    if found.unexplained > problem.tolerance:
        return f"The texts leave {found.unexplained:.1e} of the gradient unexplained."
    # A clipped gradient is shorter than that of its texts and has the same direction.
    if not (0 < found.scale < 1 + max(SCALED, problem.tolerance)) and not altered:
        return f"The release is {found.scale:.3g} times the gradient of these texts."
    batch = [one for one, count in enumerate(found.counts) for _ in range(count)]
    texts, labels = [found.texts[one] for one in batch], [found.labels[one] for one in batch]
    if rival(problem, first, texts, labels, found.scale) is not None:
        return "A text with other tokens, another order or another length has the same gradient."
    return ""


def rows_of(texts: Sequence[Sequence[int]], problem: Problem) -> torch.Tensor:
    """Texts as records (n, length) of the problem's space."""
    space, like = problem.space, problem.simulator.like
    full = [[*text, *[space.padding] * space.length][: space.length] for text in texts]
    rows = torch.tensor(full, dtype=torch.float32, device=like.device)
    return rows.reshape(len(texts), space.length)
