"""The marks of a report, in SVG: one shape and dash for each defence, bars for its tables."""

from __future__ import annotations

from markupsafe import Markup

from vestige.pages.marks import interval_bar
from vestige.reports.comparison import UNDEFENDED, ComparisonFindings, DefendedPoint
from vestige.reports.noise import Mean

SHAPES = (
    "M-4-4H4V4H-4Z",
    "M0-5.500L5.2 4H-5.200Z",
    "M0-6L6 0L0 6L-6 0Z",
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0",
    "M0 5.500L5.2-4H-5.200Z",
    "M-2-5.500H2V-2H5.500V2H2V5.500H-2V2H-5.500V-2H-2Z",
    "M-5.5-5.500L0-1.500L5.5-5.500L1.5 0L5.5 5.500L0 1.500L-5.5 5.500L-1.5 0Z",
    "M-5 4.500V-4.500L5 4.500V-4.500Z",
    "M-3-5.200H3L6 0L3 5.200H-3L-6 0Z",
    "M-4.5-5H4.500L-4.5 5H4.500Z",
    "M-6-2.500H6V2.500H-6Z",
    "M-2.5-6H2.500V6H-2.500Z",
)
"""One shape for each defence, around its point."""

DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1.5 4", "12 4")
"""As many as have no divisor in common with the shapes, so that no pair comes twice for long."""

DOT = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0"


def families(comparison: ComparisonFindings) -> dict[str, list[DefendedPoint]]:
    """Points by defence, each in the order of strength, the end that costs less first."""
    found: dict[str, list[DefendedPoint]] = {}
    for point in comparison.points:
        found.setdefault(point.defense, []).append(point)
    for name, points in found.items():
        points.sort(key=lambda point: point.strength)
        costs = [lost for p in points if (lost := p.utility.accuracy_lost) is not None]
        if costs and costs[-1].value < costs[0].value:
            found[name] = points[::-1]
    return found


def styles(comparison: ComparisonFindings) -> dict[str, int]:
    """The number of every defence's shape and dash; the undefended one has a dot of its own."""
    names = [name for name in families(comparison) if name != UNDEFENDED]
    return {name: place for place, name in enumerate(names)}


def shape(style: int | None) -> tuple[str, str]:
    """Class and outline of a mark."""
    if style is None:
        return "point bare", DOT
    return "point", SHAPES[style % len(SHAPES)]


def bar(mean: Mean, end: float, guess: Mean) -> Markup:
    """One error with its limits from 0 to ``end``, with a dotted line where guessing lies."""

    def share(value: float) -> float:
        return 100 * min(max(value / end, 0.0), 1.0)

    return interval_bar(*map(share, (guess.value, mean.lower, mean.upper, mean.value)))


def gap(adaptive: float, static: float, end: float) -> Markup:
    """Two errors of one defence from 0 to ``end``: told of it (filled) and not told (hollow)."""
    a, b = (100 * min(max(value / end, 0.0), 1.0) for value in (adaptive, static))
    return Markup(
        f'<svg class="ci gap" width="100%" height="20" aria-hidden="true">'
        f'<line class="ci-axis" x1="0" x2="100%" y1="10" y2="10"/>'
        f'<line class="gap-line" x1="{a:.2f}%" x2="{b:.2f}%" y1="10" y2="10"/>'
        f'<circle class="gap-static" cx="{b:.2f}%" cy="10" r="4.5"/>'
        f'<circle class="gap-adaptive" cx="{a:.2f}%" cy="10" r="4.5"/></svg>'
    )


def key_mark(style: int | None) -> Markup:
    """The mark and the dash of a defence for the legend."""
    kind, outline = shape(style)
    dash = dashed(style)
    line = "" if style is None else f'<path class="course"{dash} d="M0 8H34"/>'
    return Markup(
        f'<svg width="34" height="16" aria-hidden="true">{line}<path class="{kind}" '
        f'transform="translate(17 8)" d="{outline}"/></svg>'
    )


def small_mark(style: int | None) -> Markup:
    """The mark of a defence beside its name."""
    kind, outline = shape(style)
    return Markup(
        f'<svg class="family" width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true">'
        f'<path class="{kind}" d="{outline}"/></svg>'
    )


def dashed(style: int | None) -> str:
    """The attribute that draws a defence's line in its dash."""
    dash = "" if style is None else DASHES[style % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""
