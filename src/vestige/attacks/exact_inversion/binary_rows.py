"""Records of zeros and ones in the row space of a first-layer gradient.

The gradient [∂W | ∂b] = Σ_m δ_m·[x_m 1]/M has every [x_m 1] in its row space of dimension b. A
vector of that space is fixed by b of its entries, so all binary vectors in it are found by trying
the 2^(b−1) (without a bias 2^b) values of b well-conditioned entries. Masks play no part: samples
that activate nearly the same neurons are separated as well as others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import qr

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.noise import Factors

# 2^20 trials are a second of CPU time.
LARGEST_RANK = 20
# A wrong vector has entries anywhere; a right one is off by the noise only.
FARTHEST_ENTRY, FARTHEST_MEAN = 0.45, 0.12
CHUNK = 2**14
# Trials meet these many entries first; few wrong ones pass.
FIRST_LOOK = 48


def binary_rows(factors: Factors, bias_column: int | None) -> np.ndarray:
    """All binary vectors (k, D) of the row space, nearest first; the bias entry is left out."""
    b = factors.rank
    width = factors.shape[1] - (bias_column is not None)
    if b == 0:
        return np.zeros((0, width))
    basis = factors.right * factors.column_scale
    entries = np.arange(len(factors.columns))
    fixed = None
    if bias_column is not None:
        fixed = int(np.flatnonzero(factors.columns == bias_column)[0])
        entries = np.delete(entries, fixed)
    pivots = _pivots(factors.right, fixed)
    transform = np.linalg.pinv(basis[:, pivots]) @ basis[:, entries]
    free = b - (fixed is not None)
    look = np.linspace(0, len(entries) - 1, min(FIRST_LOOK, len(entries))).astype(int)
    retained, distances = [], []
    for start in range(0, 2**free, CHUNK):
        codes = np.arange(start, min(start + CHUNK, 2**free))
        bits = (codes[:, None] >> np.arange(free)) & 1
        given = bits.astype(np.float64)
        if fixed is not None:
            given = np.hstack([np.ones((len(codes), 1)), given])
        quick = given @ transform[:, look]
        passing = np.abs(quick - (quick > 0.5)).max(1, initial=0) < FARTHEST_ENTRY
        predicted = given[passing] @ transform
        away = np.abs(predicted - (predicted > 0.5))
        mean = away.sum(1) / max(len(entries), 1)
        near = (away.max(1, initial=0) < FARTHEST_ENTRY) & (mean < FARTHEST_MEAN)
        retained.append(predicted[near] > 0.5)
        distances.append(mean[near])
    order = np.argsort(np.concatenate(distances), kind="stable")
    rows = np.zeros((len(order), width))
    rows[:, factors.columns[entries]] = np.concatenate(retained)[order]
    return rows[rows.any(1)]


def independent(rows: np.ndarray, count: int, ones: bool) -> np.ndarray:
    """Indices of the first ``count`` linearly independent rows, in their order."""
    chosen: list[int] = []
    full = np.hstack([rows, np.ones((len(rows), 1))]) if ones else rows
    remainder = full.copy()
    for index in range(len(rows)):
        vector = remainder[index]
        size = np.linalg.norm(vector)
        if size < 1e-6 * max(np.linalg.norm(full[index]), 1e-300):
            continue
        chosen.append(index)
        unit = vector / size
        remainder -= np.outer(remainder @ unit, unit)
        if len(chosen) == count:
            break
    return np.array(chosen, dtype=np.int64)


def _pivots(right: np.ndarray, fixed: int | None) -> np.ndarray:
    """B columns that determine the rest well; the bias first, whose value is known."""
    rest = right
    if fixed is not None:
        unit = right[:, fixed] / np.linalg.norm(right[:, fixed])
        rest = right - np.outer(unit, unit @ right)
    order = np.asarray(qr(rest, mode="r", pivoting=True)[-1])
    if fixed is None:
        return order[: len(right)]
    order = order[order != fixed]
    return np.concatenate([[fixed], order[: len(right) - 1]])
