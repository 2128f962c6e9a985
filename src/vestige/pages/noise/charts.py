"""The charts of a noise study, in SVG: error, similarity and naming against μ, more noise right.

All share one axis, so that one cursor position serves the slider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from markupsafe import Markup

from vestige.pages import charts
from vestige.pages.charts import BOTTOM, RIGHT, TOP, LogScale, line, share_height
from vestige.reports import numbers
from vestige.reports.noise import Mean, NoiseFindings, NoisePoint
from vestige.reports.parts import Rate

START = 54
"""Left edge of all three charts: errors are long words."""

METHOD_CLASSES = {
    "prior": ("l-leak", "l-ink"),
    "classical": ("l-classical",),
    "nothing": ("l-raw",),
}
"""How curves of methods are drawn; further methods of a kind share its last style."""

CURSOR = "mu-cursor"
TICK_ROOM = 30

Course = Sequence[tuple[float, float]]


def mu_scale(study: NoiseFindings) -> LogScale:
    """Where a μ lies: the least noise left."""
    strengths = [point.mu for point in study.points]
    low, high = min(strengths), max(strengths)
    apart = 1.08 if high > low else 2.0
    return LogScale(low / apart, high * apart, RIGHT, START)


def method_styles(study: NoiseFindings) -> tuple[str, ...]:
    """The class of every method's curve."""
    used: dict[str, int] = {}
    styles = []
    for method in study.methods:
        own = METHOD_CLASSES[method.kind]
        place = used.get(method.kind, 0)
        styles.append(own[min(place, len(own) - 1)])
        used[method.kind] = place + 1
    return tuple(styles)


def error_chart(study: NoiseFindings, place: int, *, label: str) -> Markup:
    """Mean squared error on two logarithmic axes, between candidates known and no prior at all."""
    points = study.points
    drawn = [i for i, method in enumerate(study.methods) if method.kind != "nothing"]
    every = [p.measures[i].error.value for p in points for i in drawn]
    high = 2 * max(*every, study.floor_error.value)
    low = max(min(value for value in every if value > 0) / 3, 1e-6)
    x, y = mu_scale(study), LogScale(low, high, BOTTOM, TOP)

    def curve(kind: str, values: Iterable[float]) -> str:
        course = [(p.mu, max(value, 1e-30)) for p, value in zip(points, values)]
        return f'<path class="{kind}" d="{within(course, x, y)}"/>'

    rows = charts.grid_rows(((y(v), f"{v:g}") for v in y.ticks()), START)
    styles = method_styles(study)
    methods = "".join(
        curve(styles[i], (p.measures[i].error.value for p in points)) for i in reversed(drawn)
    )
    return charts.framed(
        rows
        + mu_axis(study, x)
        + f'<path class="l-chance" d="M{START} {y(study.floor_error.value):.1f}H{RIGHT}"/>'
        + curve("l-bound", (p.no_prior_error for p in points))
        + curve("l-theory", (p.weighted_error.value for p in points))
        + curve("l-decoy", (p.matched_error.value for p in points))
        + methods
        + dots([(x(p.mu), y(p.measures[0].error.value)) for p in points])
        + cursor(x(points[place].mu)),
        label,
    )


def similarity_chart(study: NoiseFindings, place: int, *, label: str) -> Markup:
    """SSIM to the secret, to another image, and among random reconstructions."""
    x, points, styles = mu_scale(study), study.points, method_styles(study)

    def curve(kind: str, values: Iterable[float]) -> str:
        course = [(x(p.mu), share_height(max(v, 0.0))) for p, v in zip(points, values)]
        return f'<path class="{kind}" d="{line(course)}"/>'

    methods = "".join(
        curve(styles[i], (p.measures[i].similarity.value for p in points))
        for i in reversed(range(len(study.methods)))
    )
    lead = [p.measures[0].similarity for p in points]
    floor = share_height(study.floor_similarity.value)
    return charts.framed(
        charts.share_rows(START, ("0", "0.25", "0.5", "0.75", "1"))
        + mu_axis(study, x)
        + f'<path class="l-chance" d="M{START} {floor:.1f}H{RIGHT}"/>'
        + curve("l-decoy", (p.measures[0].other_similarity.value for p in points))
        + curve("l-agreement", (p.samples.agreement.value for p in points))
        + _whiskers(x, points, lead)
        + methods
        + dots([(x(p.mu), share_height(max(m.value, 0.0))) for p, m in zip(points, lead)])
        + cursor(x(points[place].mu)),
        label,
    )


def naming_chart(study: NoiseFindings, place: int, *, label: str) -> Markup:
    """How often the right candidate is named, below what the noise allows any attack."""
    x, points = mu_scale(study), study.points

    def curve(kind: str, values: Iterable[float]) -> str:
        course = [(x(p.mu), share_height(v)) for p, v in zip(points, values)]
        return f'<path class="{kind}" d="{line(course)}"/>'

    allowed = [(x(p.mu), share_height(p.bound)) for p in points]
    ruled_out = line([*allowed, (allowed[-1][0], TOP), (allowed[0][0], TOP)])
    chance = share_height(1 / study.candidates)
    return charts.framed(
        f'<path class="f-bound-wash" d="{ruled_out}Z"/>'
        + charts.share_rows(START)
        + mu_axis(study, x)
        + f'<path class="l-chance" d="M{START} {chance:.1f}H{RIGHT}"/>'
        + curve("l-theory", (p.training_bound for p in points))
        + curve("l-bound", (p.bound for p in points))
        + curve("l-ink", (p.measures[0].named.value for p in points))
        + _whiskers(x, points, [p.matched for p in points])
        + curve("l-leak", (p.matched.value for p in points))
        + dots([(x(p.mu), share_height(p.matched.value)) for p in points])
        + cursor(x(points[place].mu)),
        label,
    )


def within(course: Course, x: LogScale, y: LogScale) -> str:
    """The part of a curve of positive numbers between the ends of ``y``, as a path.

    Between its points the curve is straight on the two logarithmic axes.
    """
    low, high = math.log(y.low), math.log(y.high)
    pieces = []
    for (a, first), (b, second) in pairwise(course):
        start, end = math.log(first), math.log(second)
        if max(start, end) < low or min(start, end) > high:
            continue
        # A level stretch has nothing to cut off.
        steep = (end - start) or 1.0
        inside = (min(max(start, low), high), min(max(end, low), high))
        along = ((inside[0] - start) / steep, 1 - (end - inside[1]) / steep)
        pieces.append(
            line([(x(a * (b / a) ** t), y(math.exp(value))) for t, value in zip(along, inside)])
        )
    return "".join(pieces)


def mu_axis(study: NoiseFindings, x: LogScale) -> str:
    """The axis below: every μ that was tried, written where there is room."""
    drawn, last = [], -math.inf
    for point in study.points:
        at = x(point.mu)
        written = ""
        if at - last >= TICK_ROOM:
            written = (
                f'<text class="t-muted" x="{at:.1f}" y="306" text-anchor="middle">'
                f"{point.mu:g}</text>"
            )
            last = at
        drawn.append(f'<path class="axis" d="M{at:.1f} {BOTTOM}v5"/>{written}')
    return (
        f'<path class="axis" d="M{START} {BOTTOM}H{RIGHT}"/>{"".join(drawn)}'
        f"{charts.axis_name('μ, log scale (more noise →)')}"
    )


def cursor(across: float) -> str:
    """The line that follows the slider."""
    return (
        f'<path class="cursor {CURSOR}" d="M0 {TOP}V{BOTTOM}" transform="translate({across:.1f})"/>'
    )


def dots(places: Course) -> str:
    """Mark measured values."""
    return "".join(f'<circle class="dot" r="4" cx="{a:.1f}" cy="{b:.1f}"/>' for a, b in places)


def _whiskers(x: LogScale, points: Sequence[NoisePoint], found: Sequence[Mean | Rate]) -> str:
    return "".join(
        f'<path class="whisker" d="M{x(p.mu):.1f} {share_height(max(m.lower, 0.0)):.1f}'
        f'V{share_height(min(m.upper, 1.0)):.1f}"/>'
        for p, m in zip(points, found)
    )


def written_epsilon(epsilon: float | None) -> str:
    """Write ε, or that there is none."""
    return "∞" if epsilon is None else numbers.epsilon(epsilon)
