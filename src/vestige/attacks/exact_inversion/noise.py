"""How exact the entries of a gradient are, its rank, and its factors in units of that noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import svd
from torch import Tensor

from vestige.errors import BadInput

# Unit roundoff, and the smallest step between subnormal numbers. The factors of a float64 gradient
# are themselves computed in float64: a few bits less are believed.
ROUNDING = {
    "float64": (2.0**-47, 0.0),
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133),
}
# A float32 or float64 gradient is a sum of rounded products: 1.5 roundoffs were measured on
# networks trained for 0 to 2000 steps. Half precision is rounded once, after a float32 sum, so
# its error is uniform: a standard deviation of 1/√3 roundoffs.
SUMMED, ROUNDED_ONCE = 1.5, 3**-0.5
# The largest singular value of unit noise (n, D) is about √n + √D; entries that share factors
# are rounded alike, so a margin; Gaussian noise needs little.
ROUNDING_MARGIN, GAUSSIAN_MARGIN = 3.0, 1.3
# Width of the first sketch, columns beyond the rank, and power iterations: noise is a third of the
# smallest direction that counts, and (1/3)⁵ of it stays.
SKETCH, SPARE, PASSES = 48, 16, 2
# Rows and columns below this share of the largest entry, or below this size, count as zero: the
# squares of smaller entries leave the range of float64.
SMALLEST_SHARE, SMALLEST = 1e-100, 1e-250
# Rounding is not quite independent, so a wide margin before what is left is taken for noise.
LEFT_BY_ROUNDING = 10.0

Noise = str | float
"""``"float64"``, ``"float32"``, ``"float16"``, ``"bfloat16"``, or a known standard deviation."""


def detected_precision(*tensors: Tensor) -> str:
    """Name the lowest precision in which every value of the tensors is representable."""
    for kind in ("bfloat16", "float16", "float32"):
        dtype = getattr(torch, kind)
        if all(t.dtype == dtype or torch.equal(t.to(dtype).to(t.dtype), t) for t in tensors):
            return kind
    return "float64"


def check_noise(noise: Noise) -> Noise:
    """Return the noise, or say what it may be."""
    if isinstance(noise, str) and noise not in ROUNDING:
        raise BadInput(f"The noise is one of {', '.join(ROUNDING)} or a number, not {noise!r}.")
    if not isinstance(noise, str) and noise <= 0:
        raise BadInput(f"The noise's standard deviation is positive, not {noise}.")
    return noise


def deviations(entries: np.ndarray, noise: Noise) -> np.ndarray:
    """Standard deviation of the noise in each entry."""
    if not isinstance(noise, str):
        return np.full_like(entries, float(noise))
    roundoff, step = ROUNDING[noise]
    share = ROUNDED_ONCE if noise in ("float16", "bfloat16") else SUMMED
    return np.hypot(share * roundoff * entries, ROUNDED_ONCE * step / 2)


@dataclass(frozen=True)
class Factors:
    """A gradient matrix A (n, D) as s·(L·V)·tᵀ plus noise of about unit variance within.

    ``rows`` and ``columns`` are those with an entry that is not negligible; left (rows, b) = U·S,
    right (b, columns) = Vᵀ, singular (the largest), row_scale (rows,) = s, column_scale
    (columns,) = t.
    """

    rows: np.ndarray
    columns: np.ndarray
    row_scale: np.ndarray
    column_scale: np.ndarray
    left: np.ndarray
    right: np.ndarray
    singular: np.ndarray
    shape: tuple[int, int]

    @property
    def rank(self) -> int:
        """Number of directions above the noise."""
        return self.left.shape[1]


def factorize(
    matrix: np.ndarray, noise: Noise, *, rank: int | None = None, most: int | None = None
) -> Factors:
    """Equilibrate a gradient matrix by its noise and factor it.

    Rows and columns are scaled (Sinkhorn on the noise's variances) so that the noise is about one
    everywhere; the rank counts singular values above a margin times √n + √D, the largest that
    noise has, up to ``most``; or it is given.
    """
    size = np.abs(matrix)
    smallest = SMALLEST_SHARE * float(size.max(initial=0))
    negligible = max(smallest, SMALLEST)
    rows = np.flatnonzero(size.max(1, initial=0) > negligible)
    columns = np.flatnonzero(size.max(0, initial=0) > negligible)
    block = matrix[np.ix_(rows, columns)]
    n, width = block.shape
    across = np.ones(width)
    down = np.ones(n)
    margin = ROUNDING_MARGIN if isinstance(noise, str) else GAUSSIAN_MARGIN
    edge = margin * (np.sqrt(n) + np.sqrt(width))
    if block.size:
        # In units of the largest deviation, so that squares stay in range.
        spread = np.maximum(deviations(block, noise), smallest)
        unit = float(spread.max())
        spread = np.square(spread / unit)
        variance = spread / spread.mean()
        for _ in range(10):
            down = 1 / np.maximum(variance @ across, 1e-300) * width
            across = 1 / np.maximum(down @ variance, 1e-300) * n
        # Normalised once more, with the units that division by the mean took away.
        row_scale = unit * np.sqrt(float(spread.mean()) / down)
        column_scale = np.sqrt(1 / across)
        u, s, v = _leading(block / row_scale[:, None] / column_scale, rank or most, edge)
    else:
        row_scale, column_scale = down, across
        u, s, v = np.zeros((n, 0)), np.zeros(0), np.zeros((0, width))
    count = int((s > edge).sum())
    count = min(count if rank is None else rank, len(s) if most is None else most, len(s))
    return Factors(
        rows, columns, row_scale, column_scale, u[:, :count] * s[:count], v[:count], s, matrix.shape
    )


def constant_level(matrix: np.ndarray, precision: str) -> float | None:
    """Standard deviation of constant noise in a gradient, or None if rounding explains it.

    A sketch A·Ω of k columns spans a gradient of rank below k; what it leaves of independent noise
    has (n − k)(D − k) degrees of freedom.
    """
    live = matrix[np.abs(matrix).max(1, initial=0) > 0]
    # A few hundred rows tell the level as well as all of them.
    matrix = live[:: max(len(live) // (4 * SKETCH), 1)]
    size = min(min(matrix.shape) // 2, 2 * SKETCH)
    if size < 1:
        return None
    rounding = float(np.sqrt(np.mean(deviations(matrix, precision) ** 2)))
    basis = _sketched(matrix, size, passes=0)
    rest = matrix - basis @ (basis.T @ matrix)
    n, width = matrix.shape
    level = float(np.linalg.norm(rest) / np.sqrt((n - size) * (width - size)))
    return level if level > LEFT_BY_ROUNDING * rounding else None


def _leading(
    matrix: np.ndarray, wanted: int | None, edge: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Singular triples of all values above ``edge`` and some below, the largest first.

    Subspace iteration on a random sketch (Halko, Martinsson, Tropp 2011, Algorithm 4.4), wider
    until the values above the edge fill it no more; a full decomposition where that is most of it.
    """
    size = SKETCH if wanted is None else wanted + SPARE
    while size < min(matrix.shape) // 3:
        basis = _sketched(matrix, size, PASSES)
        u, s, v = svd(basis.T @ matrix, full_matrices=False)
        if wanted is not None or s[size - SPARE] <= edge:
            return basis @ u, s, v
        size *= 2
    return svd(matrix, full_matrices=False)


def _sketched(matrix: np.ndarray, size: int, passes: int) -> np.ndarray:
    """Orthonormal basis (n, size) of A·Ω after some power iterations; Ω is always the same."""
    start = np.random.default_rng(0).standard_normal((matrix.shape[1], size))
    basis, _ = np.linalg.qr(matrix @ start)
    for _ in range(passes):
        across, _ = np.linalg.qr(matrix.T @ basis)
        basis, _ = np.linalg.qr(matrix @ across)
    return basis
