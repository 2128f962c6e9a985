"""Limits of counts in a study of noise: everywhere the same, joint over strengths and methods."""

from __future__ import annotations

from vestige.reports.noise import NoiseFindings
from vestige.reports.parts import Rate
from vestige.statistics.rates import lower_limit, upper_limit
from vestige.statistics.resemblance import joint_doubt


def joint_rate(study: NoiseFindings, rate: Rate) -> Rate:
    """A count with the limits that the verdict uses: they hold for all strengths and methods."""
    doubt = joint_doubt(len(study.points), len(study.methods), study.confidence)
    lower = lower_limit(rate.hits, rate.trials, doubt)
    return rate.model_copy(
        update={"lower": lower, "upper": upper_limit(rate.hits, rate.trials, doubt)}
    )
