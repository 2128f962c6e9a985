"""Whether texts are the whole batch: how often each was in it, and what they leave unexplained."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from vestige.attacks.span_inversion.last_tokens import padded
from vestige.records import TextSpace
from vestige.simulation.losses import one_hot
from vestige.simulation.simulator import Simulator

MOST_LABELLINGS = 512
"""Assignments of labels to texts that are tried one by one."""

MOST_REPETITIONS = 64
"""Ways in which texts may have been repeated that are tried one by one."""

PRESENT = 0.2
"""A text whose share of the gradient is below this part of the usual one was not in the batch."""


def rows_of(texts: Sequence[Sequence[int]], space: TextSpace, like: Tensor) -> Tensor:
    """Texts as records (n, length) of a space."""
    full = [
        [*text[: space.length], *[space.padding] * (space.length - len(text))] for text in texts
    ]
    rows = torch.tensor(full, dtype=torch.float32, device=like.device)
    return rows.reshape(len(texts), space.length)


def gradients_of(
    simulator: Simulator, space: TextSpace, texts: Sequence[Sequence[int]], labels: Sequence[int]
) -> list[dict[str, Tensor]]:
    """The gradient of each text alone, of its summed loss over predicted tokens."""
    found = []
    for text, label in zip(texts, labels):
        row = padded([text], space.padding, simulator.like.device)[0]
        target = one_hot(torch.tensor([label], device=row.device), len(space.class_names))
        made = simulator(row, target.to(simulator.like.dtype))
        found.append(made)
    return found


def multiplicities(
    released: Tensor, each: Tensor, weights: Sequence[float]
) -> tuple[list[int], float]:
    """How often each text was in the batch, and the share of the release left unexplained.

    ``each`` (n, size) are gradients of the texts alone, which count by ``weights`` (their predicted
    tokens, or one): the release is Σ mwg / Σ mw for multiplicities m.
    """
    scaled = each.double() * torch.tensor(weights, dtype=torch.float64)[:, None].to(each.device)
    norm = float(released.double().norm())
    solution, _rest = nnls(
        *_square(scaled.cpu().numpy(), released.double().cpu().numpy()), maxiter=100 * len(each)
    )
    largest = solution.max(initial=0.0)
    if largest <= 0 or norm == 0:
        return [0] * len(each), 1.0
    present = solution[solution > PRESENT * largest]
    unit = float(present.min())
    counts = [round(value / unit) for value in solution]
    total = sum(count * weight for count, weight in zip(counts, weights))
    made = sum(count * row for count, row in zip(counts, scaled)) / max(total, 1e-30)
    left = float((released.double() - torch.as_tensor(made).to(released.device)).norm())
    return counts, left / norm


def _square(each: np.ndarray, released: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same least squares with as many rows as texts."""
    if each.shape[1] <= len(each):
        return each.T, released
    q, r = np.linalg.qr(each.T)
    return r, q.T @ released


def repetitions(texts: int, told: int | None) -> list[tuple[int, ...]]:
    """How often each of some texts may have been in a batch of a told size, likeliest first."""
    more = 0 if told is None else told - texts
    if more <= 0 or texts == 0:
        return [(1,) * texts]
    ways = []
    for extra in itertools.combinations_with_replacement(range(texts), more):
        ways.append(tuple(1 + extra.count(text) for text in range(texts)))
        if len(ways) == MOST_REPETITIONS:
            break
    return [*ways, (1,) * texts]


def labellings(classes: int, texts: int, told: Sequence[int] | None) -> list[tuple[int, ...]]:
    """Assignments of labels to texts worth trying."""
    if classes == 1:
        return [(0,) * texts]
    if told is not None and len(told) == texts:
        ways = itertools.islice(itertools.permutations(told), 20_000)
        return list(dict.fromkeys(ways))[:MOST_LABELLINGS]
    ways = itertools.product(range(classes), repeat=texts)
    return list(itertools.islice(ways, MOST_LABELLINGS))
