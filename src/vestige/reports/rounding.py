"""Rounding of redacted documents: too little of a trial to test records, all that a page shows."""

from __future__ import annotations

import math
from typing import TypeVar

from pydantic import BaseModel

from vestige.reports import numbers
from vestige.reports.audit import AttackFindings
from vestige.reports.comparison_words import error_with_limits
from vestige.reports.heads import ClassExhibit
from vestige.reports.noise import Mean

Part = TypeVar("Part", bound=BaseModel)


def coarse(value: float | None) -> float | None:
    """A value rounded to two significant digits: enough for a chart, too little to test records."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.1e}")


def rounded_part(part: Part, **update: object) -> Part:
    """A part of a document with every number that is not whole rounded."""
    rounded = {name: _rounded(getattr(part, name)) for name in type(part).model_fields}
    return part.model_copy(update={**rounded, **update})


def with_rounded_means(part: Part) -> Part:
    """A part whose means and limits are rounded: two trials follow from an exact mean."""

    def coarsened(value: object) -> object:
        if isinstance(value, BaseModel):
            return with_rounded_means(value)
        return tuple(map(coarsened, value)) if isinstance(value, tuple) else value

    names = type(part).model_fields
    if isinstance(part, Mean):
        return _rounded_mean(part)
    return part.model_copy(update={name: coarsened(getattr(part, name)) for name in names})


def _rounded_mean(mean: Mean) -> Mean:
    """A mean and its limits with three digits, or as many more as every text of a page needs."""
    for digits in range(2, 9):
        update = {n: float(f"{getattr(mean, n):.{digits}e}") for n in Mean.model_fields}
        rounded = mean.model_copy(update=update)
        if _written(rounded) == _written(mean):
            return rounded
    return mean


def _written(mean: Mean) -> tuple[str, ...]:
    """A mean in each of the forms in which pages write one."""
    reach = mean.upper - mean.value
    values = (mean.value, mean.lower, mean.upper, reach)
    return (
        error_with_limits(mean),
        *(numbers.distance(value) for value in values),
        *(f"{value:.2f}" for value in values),
    )


def _rounded(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_rounded(one) for one in value)
    return coarse(value) if isinstance(value, float) else value


def kept_quartiles(attack: AttackFindings) -> dict[str, tuple[float, ...]]:
    """Quartiles of the exact outcomes and the mean of right labels, as a page writes them."""
    found = {
        name: tuple(round(quartile, digits) for quartile in numbers.quartiles(values))
        for name, digits in numbers.QUARTILE_DIGITS.items()
        if (values := numbers.measured(attack.outcomes, name))
    }
    known = [o.label_accuracy for o in attack.outcomes if o.label_accuracy is not None]
    return {**found, "labels": (_rounded_share(sum(known) / len(known)),)} if known else found


def _rounded_share(share: float) -> float:
    """A share with the fewest digits that are written as the same percentage."""
    for digits in range(2, 9):
        if numbers.percent(round(share, digits)) == numbers.percent(share):
            return round(share, digits)
    return share


def class_without_images(one: ClassExhibit, label: str) -> ClassExhibit:
    """A class without its images; what was a hit stays one, and what was none does not become one.

    Rounding keeps an order but for ties, and a tie is a hit.
    """
    threshold = coarse(one.threshold) or 0.0

    def error_of(value: float | None, *, hit: bool) -> float | None:
        rounded = coarse(value)
        if rounded is None or hit or rounded > threshold:
            return rounded
        return coarse(threshold * 1.1)

    return one.model_copy(
        update={
            "label": label,
            "threshold": threshold,
            "error": error_of(one.error, hit=one.hit),
            "decoy_error": error_of(one.decoy_error, hit=one.false_hit),
            "secret": None,
            "reconstruction": None,
            "decoy": None,
        }
    )
