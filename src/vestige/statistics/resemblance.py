"""Whether pictures drawn through noise resemble their own secret, strength by strength."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.reports.noise import Method, NoiseFindings, NoisePoint
from vestige.statistics.rates import lower_limit

SOME = 0.1
"""Least lower limit of the share of pictures that resemble their secret for "some" to be said."""


def resembling(point: NoisePoint, methods: Sequence[Method], doubt: float) -> tuple[int, float]:
    """The method with a prior whose pictures most surely resemble their secrets, and how many do.

    The share is a lower limit that is wrong with probability ``doubt`` at most, and 0 where the
    method's pictures are not surely more similar to their own secret than to another image.
    """
    shares = [
        (place, lower_limit(one.named.hits, one.named.trials, doubt) if one.closer.lower > 0 else 0)
        for place, (one, method) in enumerate(zip(point.measures, methods))
        if method.kind == "prior"
    ]
    return max(shares, key=lambda share: share[1])


def joint_doubt(strengths: int, methods: int, confidence: float) -> float:
    """Doubt of one limit such that those of all strengths and methods hold together."""
    return (1 - confidence) / 2 / (strengths * methods)


def hidden_strengths(findings: NoiseFindings) -> tuple[NoisePoint, ...]:
    """The strengths at which not even some pictures were shown to resemble their secret."""
    points, methods = findings.points, findings.methods
    doubt = joint_doubt(len(points), len(methods), findings.confidence)
    least = max(SOME, 1 / findings.candidates)
    return tuple(point for point in points if resembling(point, methods, doubt)[1] <= least)
