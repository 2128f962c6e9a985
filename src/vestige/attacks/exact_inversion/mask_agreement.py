"""Agreement of a record's activations with the gradient: what the searches are led by.

A record says which neurons it activates: the sign of W₀x + b₀. The gradient's factors say it too:
a neuron's derivative L_r·q is nearer to what the next layer sends back than to zero. The two agree
where the record is right, and often enough where it is nearly so: agreement ranks attempts and is
no certificate (``certificate``). Rows whose sent value is within a few noise units are not asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vestige.attacks.exact_inversion.noise import Factors
    from vestige.attacks.exact_inversion.propagation import Propagation

# Measured on untrained and trained networks: right records agree on .994 of rows and more, wrong
# ones on .81 and less.
THRESHOLD = 0.95
NOISE_UNITS = 6.0
# Fewer rows than this cannot tell a right record from a lucky one.
FEWEST_ROWS = 20
# One minus the cosine of records that are copies of one another.
SAME = 1e-9


@dataclass(frozen=True)
class Explained:
    """How the gradient's factors explain records: sent (b, d₂) and agreement of masks (b,)."""

    sent: np.ndarray
    agreement: np.ndarray


def fit_records(
    network: Propagation,
    factors: Factors,
    outgoing: np.ndarray,
    basis: np.ndarray,
    x: np.ndarray,
    ones: np.ndarray | None,
) -> Explained:
    """Fit mixing columns and loss vectors to records x (b, D), with a bias column if there is one.

    outgoing (rows, k) = Wᵀ·basis in noise units; basis (d₂, k) spans the loss vectors.
    """
    count = len(x)
    full = x if ones is None else np.hstack([x, ones[:, None]])
    inside = full[:, factors.columns] / factors.column_scale
    # [X 1]' = C·Vᵀ, hence mixing columns Q = C⁻¹; least squares where records are missing.
    coordinates = inside @ factors.right.T
    mixing = np.linalg.pinv(coordinates, rcond=1e-12)
    active = network.hidden(x)[:, factors.rows] > 0
    sent, agreement = np.zeros((count, basis.shape[0])), np.zeros(count)
    for m in range(count):
        size = np.linalg.norm(mixing[:, m])
        if not np.isfinite(size) or size == 0:
            continue
        q = mixing[:, m] / size
        derivative = factors.left @ q
        gamma = _sent(outgoing, derivative, active[m])
        back = outgoing @ gamma
        clear = np.abs(back) > NOISE_UNITS
        read = np.abs(derivative) > np.abs(derivative - back)
        if clear.sum() >= min(FEWEST_ROWS, len(clear)):
            agreement[m] = (read == active[m])[clear].mean()
        sent[m] = basis @ gamma * size
    # A gradient of rank b holds b different records: of copies nothing is known.
    unit = coordinates / np.maximum(np.linalg.norm(coordinates, axis=1, keepdims=True), 1e-300)
    alike = np.abs(unit @ unit.T) - np.eye(count)
    agreement[alike.max(1, initial=0) > 1 - SAME] = 0
    return Explained(sent, agreement)


def _sent(outgoing: np.ndarray, derivative: np.ndarray, active: np.ndarray) -> np.ndarray:
    if active.sum() < outgoing.shape[1]:
        return np.zeros(outgoing.shape[1])
    return np.linalg.lstsq(outgoing[active], derivative[active], rcond=1e-13)[0]
