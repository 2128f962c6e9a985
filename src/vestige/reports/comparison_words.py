"""Figures of a comparison in words: the same figure reads the same wherever it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vestige.reports import numbers
from vestige.reports.comparison import UNDEFENDED, ComparisonReport, DefendedPoint, SearchCost
from vestige.reports.noise import Mean
from vestige.reports.parts import VerdictKind

MOST_DECIMALS = 5

TINY = 1e-4
"""An error whose upper limit is smaller is only said to be smaller than this."""


def error_with_limits(mean: Mean) -> str:
    """Write an error: ``0.27 (0.25–0.29)``, limits rounded outwards; alone if it has none."""
    if mean.value and max(abs(mean.lower), abs(mean.upper)) < TINY:
        return f"<{TINY:.4f}"
    size = abs(mean.value)
    digits = 2 if size >= 0.1 or size == 0 else 1 - math.floor(math.log10(size))
    return _with_limits(mean, min(digits, MOST_DECIMALS))


def lost_with_limits(lost: Mean, runs: int | None = None) -> str:
    """Write accuracy lost in points: ``1.7 (1.4–2.0)``, ``−0.1 (−0.4 to 0.2)``.

    Where ``runs`` were all alike there is no spread to take limits from, and this is said.
    """
    return _with_limits(_in_points(lost), 1) + _no_spread(lost, runs)


def cost_words(lost: Mean | None, runs: int | None = None) -> str:
    """Write a loss of accuracy with limits: ``1.2 points (−0.3 to 2.7)``."""
    if lost is None:
        return numbers.EN_DASH
    return _with_limits(_in_points(lost), 1, " points") + _no_spread(lost, runs)


def runs_behind(point: DefendedPoint) -> int | None:
    """Runs behind the cost of a point; None for no defence, which costs nothing by definition."""
    held = point.utility
    return None if point.defense == UNDEFENDED else held.repeats - held.diverged


def _no_spread(mean: Mean, runs: int | None) -> str:
    if runs is None or mean.lower < mean.upper:
        return ""
    return " (one run)" if runs == 1 else f" (no spread over {runs} runs)"


def lost_words(share: float) -> str:
    """Write a cost in words: ``2 points``, ``1 point``, ``0.5 points``."""
    return f"{100 * share:.3g} {'point' if math.isclose(share, 0.01) else 'points'}"


def joined(names: Sequence[str]) -> str:
    """Write names in a row: ``A``, ``A and B``, ``A, B and C``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _in_points(mean: Mean) -> Mean:
    return Mean(value=100 * mean.value, lower=100 * mean.lower, upper=100 * mean.upper)


def _with_limits(mean: Mean, digits: int, unit: str = "") -> str:
    def written(value: float) -> str:
        text = f"{value:.{digits}f}"
        return (f"{0:.{digits}f}" if float(text) == 0 else text).replace("-", numbers.MINUS)

    if mean.lower >= mean.upper:
        return f"{written(mean.value)}{unit}"
    scale, slack = 10.0**digits, numbers.ROUNDING_SLACK
    low = written(math.floor(mean.lower * scale + slack) / scale)
    high = written(math.ceil(mean.upper * scale - slack) / scale)
    between = " to " if numbers.MINUS in low + high else numbers.EN_DASH
    return f"{written(mean.value)}{unit} ({low}{between}{high})"


def caution_words(report: ComparisonReport) -> str:
    """What stands above costs where nothing was shown to be defended; empty elsewhere."""
    if report.verdict.kind is not VerdictKind.NOT_DEMONSTRATED:
        return ""
    return (
        "Nothing was shown to be recovered without a defence, so the errors below do not show "
        "that a defence protects anything; costs are as measured."
    )


def search_sentences(cost: SearchCost | None) -> tuple[str, ...]:
    """What choosing among private trainings spends; nothing where there was nothing to choose."""
    if cost is None:
        return ()
    said = [
        f"Choosing among {numbers.plural(cost.trainings, 'private training')} "
        f"({numbers.plural(cost.settings, 'setting')}) by their results spends more than the ε of "
        "the one that is chosen."
    ]
    delta = numbers.quantity(cost.delta).removeprefix("1.0 × ").removeprefix("1.00 × ")
    if cost.single is None or cost.composed is None or cost.random is None:
        said.append(
            "These trainings are a fixed list, so all of them count (composition); how much that "
            "is cannot be computed for these mechanisms here."
        )
    else:
        said += [
            "These trainings are a fixed list, so all of them count: with the mechanisms as "
            f"stated, ε = {numbers.epsilon(cost.composed)} for the list where the weakest setting "
            f"alone has {numbers.epsilon(cost.single)} (Rényi composition, δ = {delta}).",
            "Had settings and the number of trainings been drawn at random (geometric, mean "
            f"{numbers.count(cost.trainings)}), and only the best been looked at, it would be "
            f"{numbers.epsilon(cost.random)} (Papernot and Steinke 2022, Theorem 2; under pure "
            "differential privacy 3ε, Liu and Talwar 2019).",
        ]
    said.append(
        "This counts for the records that were trained on. If the comparison used public records, "
        "or none that are to be protected, choosing spends nothing of those that are."
    )
    return tuple(said)
