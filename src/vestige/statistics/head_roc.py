"""ROC curves of a reconstruction: counted, and from normal fits of the transformed error.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Appendix A.1. "Own" errors are those of a reconstruction to
the training set of its own head (the paper's H₀, here index 0), "null" errors those to a set that
the head never saw (H₁, index 1); lower is closer, so positives lie below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from vestige.reports.heads import Histogram, NormalFit, RocCurve
from vestige.reports.parts import CurvePoint
from vestige.statistics.rates import CURVE_POINTS

SMALLEST_ERROR = 1e-12
"""Errors are kept this far from 0 and 1, so that an exact reconstruction has a finite φ."""

BINS = 40
"""Bars of a histogram of φ."""


def transform_errors(errors: ArrayLike) -> np.ndarray:
    """φ = log(ℓ/4 / (1 − ℓ/4)) with ℓ for images in [−1, 1], sorted, without what is not finite.

    An error of images in [0, 1] is ℓ/4 already, so this is its logit.
    """
    finite = np.asarray(errors, dtype=float).reshape(-1)
    # Sorted, so that sums of them do not depend on the order of heads.
    finite = np.sort(finite[np.isfinite(finite)])
    inside = np.clip(finite, SMALLEST_ERROR, 1 - SMALLEST_ERROR)
    return np.log(inside) - np.log1p(-inside)


def normal_fit(values: ArrayLike) -> NormalFit | None:
    """Mean and deviation by maximum likelihood; None where all values are one."""
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2 or not sample.std() > 0:
        return None
    return NormalFit(mean=float(sample.mean()), deviation=float(sample.std()))


def histogram(own: ArrayLike, *nulls: ArrayLike) -> Histogram | None:
    """How φ spreads for own errors and for each kind of null errors, in common bars."""
    samples = [transform_errors(own), *(transform_errors(null) for null in nulls)]
    if any(len(sample) == 0 for sample in samples):
        return None
    # Outliers go into the first and last bar, so that they do not flatten the rest.
    everything = np.concatenate(samples)
    low, high = np.quantile(everything, [0.002, 0.998])
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    edges = np.linspace(low, high, BINS + 1)
    counts = tuple(
        tuple(int(count) for count in np.histogram(np.clip(sample, low, high), edges)[0])
        for sample in samples
    )
    return Histogram(edges=tuple(float(edge) for edge in edges), counts=counts)


def cumulative_rate(own: NormalFit, null: NormalFit, false_positive_rate: ArrayLike) -> np.ndarray:
    """TPR of the test "φ below a threshold" for normal φ: the paper's equation 6."""
    alpha = np.asarray(false_positive_rate, dtype=float)
    shift = (null.mean - own.mean) / own.deviation
    return ndtr(shift + null.deviation / own.deviation * ndtri(alpha))


def neyman_pearson_rate(
    own: NormalFit, null: NormalFit, false_positive_rate: ArrayLike
) -> np.ndarray:
    """TPR of the most powerful test for normal φ, in closed form but for one root.

    The paper's Theorem 1 says that equation 6 is this curve. That holds for equal deviations only:
    otherwise the likelihood ratio is a parabola around ``center``, so the best test accepts an
    interval (own errors spread less than null ones) or its complement, and equation 6 can fall
    below chance where this never does.
    """
    alpha = np.asarray(false_positive_rate, dtype=float)
    first, second = own.deviation, null.deviation
    if math.isclose(first, second, rel_tol=1e-6):
        shares = ndtr(abs(null.mean - own.mean) / second + ndtri(alpha))
        return np.maximum(shares, alpha)
    center = (null.mean * first**2 - own.mean * second**2) / (first**2 - second**2)
    inside = first < second

    def accepted(fit: NormalFit, radius: np.ndarray) -> np.ndarray:
        """Probability that the test accepts, with an acceptance region of this radius."""
        upper = (center + radius - fit.mean) / fit.deviation
        lower = (center - radius - fit.mean) / fit.deviation
        if not inside:
            return ndtr(-upper) + ndtr(lower)
        # The same interval mirrored to the side where differences of ndtr keep their digits.
        mirrored = lower > 0
        high, low = np.where(mirrored, -lower, upper), np.where(mirrored, -upper, lower)
        return ndtr(high) - ndtr(low)

    widest = abs(center - null.mean) + 40 * second
    low, high = np.zeros_like(alpha), np.full_like(alpha, widest)
    for _ in range(200):
        middle = (low + high) / 2
        wide = (accepted(null, middle) > alpha) == inside
        low, high = np.where(wide, low, middle), np.where(wide, middle, high)
    shares = accepted(own, (low + high) / 2)
    # Where rounding of a distant center would fall a hair below chance.
    return np.clip(np.where(alpha >= 1, 1.0, np.where(alpha <= 0, 0.0, shares)), alpha, 1.0)


def likelihood_ratios(own: NormalFit, null: NormalFit, values: ArrayLike) -> np.ndarray:
    """Log of null over own likelihood (equation 5, turned so that lower means own)."""
    phi = np.asarray(values, dtype=float)

    def log_density(fit: NormalFit) -> np.ndarray:
        return -0.5 * ((phi - fit.mean) / fit.deviation) ** 2 - math.log(fit.deviation)

    return log_density(null) - log_density(own)


def counted_rate(own: ArrayLike, null: ArrayLike, false_positive_rate: ArrayLike) -> np.ndarray:
    """Largest share of own scores below a threshold that at most a share α of nulls is below."""
    scores, nulls = np.sort(np.asarray(own, float)), np.sort(np.asarray(null, float))
    alpha = np.asarray(false_positive_rate, dtype=float)
    passing = np.floor(alpha * len(nulls) + 1e-9).astype(int)
    # The threshold lies just below the first null that may not pass; beyond the last null
    # everything passes.
    limit = np.append(nulls, np.inf)[np.minimum(passing, len(nulls))]
    below = np.searchsorted(scores, limit, side="left")
    return np.where(passing >= len(nulls), len(scores), below) / len(scores)


def false_positive_grid(smallest: float) -> np.ndarray:
    """False positive rates to draw: from the smallest that nulls resolve to one, on a log scale."""
    marked = [rate for rate in (0.01, 0.1) if rate >= smallest]
    return np.unique(np.append(np.geomspace(smallest, 1, CURVE_POINTS), marked))


def roc_curves(
    own: ArrayLike, null: ArrayLike, *, smallest: float | None = None
) -> tuple[RocCurve, ...]:
    """Four curves: counted and equation 6 for the threshold, the same two for Neyman–Pearson.

    They begin at the false positive rate ``smallest``, by default what independent nulls resolve.
    The curves from normal fits are left out where φ does not vary.
    """
    mine, theirs = np.asarray(own, float).reshape(-1), np.asarray(null, float).reshape(-1)
    grid = false_positive_grid(1 / len(theirs) if smallest is None else smallest)
    curves = [_curve("cumulative", grid, counted_rate(mine, theirs, grid))]
    phi_own, phi_null = transform_errors(mine), transform_errors(theirs)
    first, second = normal_fit(phi_own), normal_fit(phi_null)
    if first is None or second is None:
        return tuple(curves)
    # Reconstructions without a finite error stay in the count: they never pass.
    ratios = [
        np.append(likelihood_ratios(first, second, phi), np.full(len(every) - len(phi), np.inf))
        for phi, every in ((phi_own, mine), (phi_null, theirs))
    ]
    return (
        *curves,
        _curve("analytic", grid, cumulative_rate(first, second, grid)),
        _curve("Neyman–Pearson", grid, counted_rate(ratios[0], ratios[1], grid)),
        _curve("Neyman–Pearson, analytic", grid, neyman_pearson_rate(first, second, grid)),
    )


def _curve(name: str, grid: np.ndarray, rates: np.ndarray) -> RocCurve:
    return RocCurve(
        name=name,
        points=tuple(
            CurvePoint(false_positive_rate=float(a), true_positive_rate=float(b))
            for a, b in zip(grid, rates)
        ),
    )
