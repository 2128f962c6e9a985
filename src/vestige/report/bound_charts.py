"""The two charts of a bound, in SVG: success against prior success, and against strength."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from vestige import numbers
from vestige.bounds.allowance import Allowance
from vestige.bounds.statement import Strengths
from vestige.report.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH

HEIGHT = 352
"""Room below for two rows of ticks and the name of the axis."""

MARGIN = 62
"""Left edge: small probabilities are long words."""

MOST_STYLES = 5
"""Dashes that a reader can tell apart; further bounds are in the table."""


class LogScale:
    """Positions of positive numbers between two ends, by their logarithm."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        """Where a number lies; what is outside lies at the end it is beyond."""
        inside = min(max(value, self.low), self.high)
        along = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * along

    def ticks(self) -> list[float]:
        """Powers of ten, few enough to be read; 2 and 5 between them where there are few."""
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        stride = max(1, math.ceil((last - first) / 6))
        found = [10.0**power for power in range(last, first - 1, -stride)]
        if last - first <= 1:
            between = [m * 10.0**p for p in range(first - 1, last + 1) for m in (2, 5)]
            found += [value for value in between if self.low <= value <= self.high]
        return sorted(found)


def line(points: Sequence[tuple[float, float]]) -> str:
    """A path through points."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def prior_chart(curve: Allowance, asked: Allowance, *, label: str) -> Markup:
    """Draw every bound as γ(κ) on two logarithmic axes, the tightest on top, with the κ asked."""
    low = curve.prior_success[0]
    x, y = LogScale(low, 1, MARGIN, RIGHT), LogScale(low, 1, BOTTOM, TOP)
    tight = [(x(k), y(g)) for k, g in zip(curve.prior_success, curve.success)]
    others = "".join(
        f'<g class="line line-{style}"><path class="course" d="{line(points)}"/></g>'
        for style, points in enumerate(
            (
                [(x(k), y(g)) for k, g in zip(curve.prior_success, one.success)]
                for one in curve.curves[:MOST_STYLES]
            ),
            1,
        )
        if len(curve.curves) > 1
    )
    points = "".join(
        f'<circle class="bound-dot" r="5" cx="{x(k):.1f}" cy="{y(g):.1f}"/>'
        for k, g in zip(asked.prior_success, asked.success)
    )
    ruled_out = line([*tight, (RIGHT, TOP), (MARGIN, TOP)])
    return framed(
        f'<path class="f-bound-wash" d="{ruled_out}Z"/>{_rows(y)}{columns(x)}'
        f'<path class="l-chance" d="{line([(MARGIN, BOTTOM), (RIGHT, TOP)])}"/>{others}'
        f'<path class="l-bound" d="{line(tight)}"/>{points}'
        f'<text class="halo-wash" x="{MARGIN + 10}" y="{TOP + 20}">ruled out</text>'
        f'<text class="t-muted" x="{RIGHT}" y="327" text-anchor="end">'
        f"success of the best guess (κ), log scale</text>",
        label,
    )


def strength_chart(strengths: Strengths, *, target: float | None, label: str) -> Markup:
    """Draw γ at one κ against a mechanism's own number, with ε below where that is another one."""
    values = [point.value for point in strengths.points]
    kappa, own = strengths.prior_success, strengths.own
    x = LogScale(values[0], values[-1], MARGIN, RIGHT - 8)
    y = LogScale(10.0 ** math.floor(math.log10(kappa) + 1e-9), 1, BOTTOM, TOP)
    course = [(x(p.value), y(p.success)) for p in strengths.points]
    place = strengths.points.index(own)
    ticks = "".join(
        f'<path class="axis" d="M{x(p.value):.1f} {BOTTOM}v5"/>'
        f'<text class="{"t-strong" if p is own else "t-muted"}" x="{x(p.value):.1f}" y="306" '
        f'text-anchor="middle">{p.value:.3g}</text>'
        + (
            ""
            if p.epsilon is None or strengths.name == "ε"
            else f'<text class="{"t-strong" if p is own else "t-muted"}" x="{x(p.value):.1f}" '
            f'y="323" text-anchor="middle">{numbers.epsilon(p.epsilon)}</text>'
        )
        for i, p in enumerate(strengths.points)
        # Points are a third of an octave apart: every sixth is a factor of four.
        if (i - place) % 6 == 0
    )
    below = "" if strengths.name == "ε" else "; below it ε"
    second = "" if strengths.name == "ε" else _row_name(323, "ε")
    goal = ""
    if target is not None:
        goal = (
            f'<path class="reference" d="M{MARGIN} {y(target):.1f}H{RIGHT}"/>'
            f'<text class="halo" x="{RIGHT}" y="{y(target) - 6:.1f}" text-anchor="end">'
            f"asked for: {numbers.share(target)}</text>"
        )
    ruled_out = line([*course, (RIGHT - 8, TOP), (MARGIN, TOP)])
    return framed(
        f'<path class="f-bound-wash" d="{ruled_out}Z"/>{_rows(y)}{ticks}{second}'
        f'<path class="axis" d="M{MARGIN} {BOTTOM}H{RIGHT}"/>'
        f'<path class="l-chance" d="M{MARGIN} {y(kappa):.1f}H{RIGHT}"/>'
        f'<path class="l-bound" d="{line(course)}"/>{goal}'
        f'<path class="cursor" d="M{x(own.value):.1f} {y(own.success):.1f}V{BOTTOM}"/>'
        f'<circle class="bound-dot" r="6" cx="{x(own.value):.1f}" cy="{y(own.success):.1f}"/>'
        f'<text class="t-muted" x="{RIGHT}" y="344" text-anchor="end">'
        f"{escape(strengths.name)}, log scale{below}</text>",
        label,
    )


def _row_name(height: float, name: str) -> str:
    return f'<text class="t-muted" x="{LEFT - 4}" y="{height}" text-anchor="end">{name}</text>'


def _rows(y: LogScale) -> str:
    return "".join(
        f'<path class="grid" d="M{MARGIN} {y(v):.1f}H{RIGHT}"/><text class="t-muted" '
        f'x="{MARGIN - 7}" y="{y(v) + 4:.1f}" text-anchor="end">{_power(v)}</text>'
        for v in y.ticks()
    )


def columns(x: LogScale) -> str:
    """The axis below a chart, with its ticks as shares."""
    return f'<path class="axis" d="M{x.start} {BOTTOM}H{x.end}"/>' + "".join(
        f'<path class="axis" d="M{x(v):.1f} {BOTTOM}v5"/><text class="t-muted" '
        f'x="{x(v):.1f}" y="306" text-anchor="middle">{_power(v)}</text>'
        for v in x.ticks()
    )


def _power(value: float) -> str:
    """Write a tick: a percentage, or a bare power of ten where that is shorter."""
    if value >= 0.9e-4:
        return numbers.share(value)
    return numbers.quantity(value).removeprefix("1.0 × ")


def framed(drawn: str, label: str) -> Markup:
    """A drawing as a chart, with its finding as label."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{drawn}</svg>'
    )
