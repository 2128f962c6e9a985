"""One point of a study of heads under DP-SGD: ε, accuracy and rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.mechanisms import DPSGD
from vestige.reports.heads import HeadRates, PrivacyPoint
from vestige.reports.parts import Picture
from vestige.studies.heads.measure import DrawnHeads

NORMAL_QUANTILE = 1.959964
"""Two-sided 95%: limits of a mean accuracy over heads."""


@dataclass(frozen=True)
class StudiedHeads:
    """One victim's heads, what was drawn of them, and the rates."""

    drawn: DrawnHeads
    rates: HeadRates
    accuracies: np.ndarray | None


def privacy_point(
    mechanism: DPSGD | None, studied: StudiedHeads, head: int, place: int
) -> PrivacyPoint:
    """What one mechanism leaves of the heads, and the picture that every point shows."""
    drawn, rates, accuracies = studied.drawn, studied.rates, studied.accuracies
    assert accuracies is not None
    delta = None if mechanism is None else drawn.sets.members.shape[1] ** -1.1
    epsilon = None
    if mechanism is not None and delta is not None:
        epsilon = epsilon_by_privacy_loss(mechanism, delta)
    spread = NORMAL_QUANTILE * float(accuracies.std(ddof=1)) / len(accuracies) ** 0.5
    mean, image = float(accuracies.mean()), drawn.images[head, place]
    error = float(drawn.errors(drawn.images)[head, place])
    finite = np.isfinite(error)
    return PrivacyPoint(
        epsilon=epsilon,
        delta=delta,
        accuracy=mean,
        accuracy_lower=max(0.0, mean - spread),
        accuracy_upper=min(1.0, mean + spread),
        operating_point=rates.pooled.operating_point,
        true_positives=rates.pooled.true_positives,
        counted=rates.counted,
        reconstruction=Picture.of(image.numpy()) if finite else None,
        error=error if finite else None,
    )
