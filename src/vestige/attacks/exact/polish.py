"""Two-hyperplane polish: each neuron of a sample lies on one of two hyperplanes; say which, refit.

Neurons are divided into silent (L·q = 0) and active (L·q = w̃·γ); q is then the direction of
smallest noise-weighted residual of both groups together. Fitting the silent ones alone fails on
trained networks, where a sample's silent neurons are also silent for its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROUNDS = 30


@dataclass(frozen=True)
class Sample:
    """One sample: mixing q (b,), sent γ (k,), which neurons are active (n,), and its residual.

    The residual is the root mean square over the neurons, in units of the noise.
    """

    q: np.ndarray
    gamma: np.ndarray
    active: np.ndarray
    residual: float


def division(
    left: np.ndarray, outgoing: np.ndarray, q: np.ndarray, gamma: np.ndarray
) -> np.ndarray:
    """Active neurons (n,): those whose derivative is nearer to the sent value than to zero."""
    derivative = left @ q
    return np.abs(derivative) > np.abs(derivative - outgoing @ gamma)


def polished(left: np.ndarray, outgoing: np.ndarray, active: np.ndarray) -> Sample:
    """Alternate between the division of neurons and the fit, until the division is stable."""
    q, gamma, residual = fitted(left, outgoing, active)
    seen: set[bytes] = set()
    for _ in range(ROUNDS):
        active = division(left, outgoing, q, gamma)
        key = active.tobytes()
        if key in seen:
            break
        seen.add(key)
        q, gamma, residual = fitted(left, outgoing, active)
    return Sample(q, gamma, active, residual)


def fitted(
    left: np.ndarray, outgoing: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit q of norm one and γ: min ‖L_silent·q‖² + ‖L_active·q − w̃_active·γ‖².

    With unit noise in L every residual has the variance ‖q‖² = 1.
    """
    b, k = left.shape[1], outgoing.shape[1]
    upper = np.asarray(np.linalg.qr(np.hstack([outgoing[active], left[active]]), mode="r"))
    stacked = np.vstack([left[~active], upper[k:, k:]])
    # Column sizes differ by orders of magnitude: smallest singular vector of the triangle.
    triangle = np.asarray(np.linalg.qr(stacked, mode="r"))
    if len(triangle) < b:
        triangle = np.vstack([triangle, np.zeros((b - len(triangle), b))])
    _, values, turn = np.linalg.svd(triangle)
    q = turn[-1]
    if len(upper) >= k and k:
        gamma = np.linalg.lstsq(upper[:k, :k], upper[:k, k:] @ q, rcond=1e-13)[0]
    else:
        gamma = np.linalg.lstsq(outgoing[active], left[active] @ q, rcond=1e-13)[0]
    return q, gamma, float(values[-1] / np.sqrt(max(len(left), 1)))
