"""The charts of a head study, in SVG: φ, the ROC with its four curves, and what noise costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from vestige import numbers
from vestige.head_study import HeadRates, NormalFit, PrivacyPoint
from vestige.report.bound_charts import LogScale, columns, framed, line
from vestige.report.charts import BOTTOM, LEFT, RIGHT, TOP, staircase, steps, tick_step
from vestige.report.exclusivity import MARKERS

CURVE_CLASSES = ("l-leak", "l-theory", "l-decoy", "l-ink")
"""How the four curves are drawn: counted ones as steps, those of normal fits dashed."""

NOISELESS = 54
"""Room at the right of the privacy chart for heads without noise, whose ε is infinite."""


def phi_chart(rates: HeadRates, *, label: str) -> Markup | None:
    """Histograms of φ against own and other sets, with the normal laws that were fitted."""
    shown = rates.histogram
    if shown is None:
        return None
    left, right = 16, 450
    low, high = shown.edges[0], shown.edges[-1]

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    # Own reconstructions and, by Definition 1, those of other heads.
    shares = [[count / sum(counts) for count in counts] for counts in shown.counts[:2]]
    width = (high - low) / len(shares[0])
    laws = [rates.fit, rates.nulls[0].fit]
    peak = max(
        [max(share) for share in shares]
        + [width / (law.deviation * math.sqrt(2 * math.pi)) for law in laws if law]
    )

    def y(share: float) -> float:
        return BOTTOM - 244 * share / peak

    drawn = []
    for kind, heights in (("decoy", shares[1]), ("leak", shares[0])):
        outline = steps([x(edge) for edge in shown.edges], [y(height) for height in heights])
        drawn.append(f'<path class="f-{kind}-wash" d="{outline}"/>')
        drawn.append(f'<path class="l-{kind}" d="{outline}"/>')
    for law in laws:
        if law is not None:
            course = [(x(v), y(width * _density(law, v))) for v in _between(low, high, 90)]
            drawn.append(f'<path class="l-theory" d="{line(course)}"/>')
    step = tick_step(high - low)
    marks = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = "".join(
        f'<path class="axis" d="M{x(v):.1f} {BOTTOM}v5"/><text class="t-muted" x="{x(v):.1f}" '
        f'y="306" text-anchor="middle">{f"{v:g}".replace("-", numbers.MINUS)}</text>'
        for v in marks
    )
    limit = math.log(rates.threshold / (1 - rates.threshold))
    reference = ""
    if low < limit < high:
        side, anchor = (6, "start") if limit < (low + high) / 2 else (-6, "end")
        reference = (
            f'<path class="reference" d="M{x(limit):.1f} {TOP}V{BOTTOM}"/>'
            f'<text class="halo" x="{x(limit) + side:.1f}" y="24" text-anchor="{anchor}">'
            f"τ: as close as the nearest other image</text>"
        )
    return framed(
        f"{''.join(drawn)}"
        f'<path class="axis" d="M{left} {BOTTOM}H{right}"/>{ticks}{reference}'
        f'<text class="t-muted" x="{right}" y="327" text-anchor="end">'
        f"φ, the logit of the error (closer ←)</text>",
        label,
    )


def roc_chart(rates: HeadRates, *, label: str) -> Markup:
    """Own reconstructions that pass against reconstructions of other heads, on a log axis."""
    smallest = rates.curves[0].points[0].false_positive_rate
    x = LogScale(smallest, 1, LEFT, RIGHT)
    curves = "".join(
        f'<path class="{kind}" d="'
        + (staircase if kind in ("l-leak", "l-decoy") else line)(
            [(x(p.false_positive_rate), _share(p.true_positive_rate)) for p in curve.points]
        )
        + '"/>'
        for kind, curve in reversed(list(zip(CURVE_CLASSES, rates.curves)))
    )
    chance = line([(x(rate), _share(rate)) for rate in _spread(smallest, 1, 60)])
    point = rates.pooled.operating_point
    across = x(point.false_positive_rate)
    marked = ""
    if point.false_positive_rate >= smallest:
        limits = ""
        if point.lower is not None and point.upper is not None:
            limits = (
                f'<path class="whisker" d="M{across:.1f} {_share(point.lower):.1f}'
                f'V{_share(point.upper):.1f}"/>'
            )
        marked = (
            f'<path class="cursor" d="M{across:.1f} {TOP}V{BOTTOM}"/>{limits}'
            f'<circle class="dot" r="6" cx="{across:.1f}" '
            f'cy="{_share(point.true_positive_rate):.1f}"/>'
        )
    return framed(
        f'{_grid()}{columns(x)}<path class="l-chance" d="{chance}"/>{curves}{marked}'
        f'<text class="t-muted" x="{RIGHT}" y="327" text-anchor="end">'
        f"other heads' reconstructions that pass (FPR), log scale</text>",
        label,
    )


def privacy_chart(points: Sequence[PrivacyPoint], *, label: str) -> Markup:
    """Accuracy and TPR at FPR = α against ε on a log axis; heads without noise at the right."""
    finite = [p.epsilon for p in points if p.epsilon is not None]
    noiseless = any(p.epsilon is None for p in points)
    end = RIGHT - NOISELESS if noiseless else RIGHT
    low, high = min(finite), max(finite)
    margin = 1.25 if high > low else 3.0
    scale = LogScale(low / margin, high * margin, LEFT, end)
    alpha = points[0].operating_point.false_positive_rate

    def x(point: PrivacyPoint) -> float:
        return RIGHT - NOISELESS / 2 if point.epsilon is None else scale(point.epsilon)

    drawn = []
    for style, values in (
        (1, [(p.accuracy, p.accuracy_lower, p.accuracy_upper) for p in points]),
        (
            0,
            [(q.true_positive_rate, q.lower, q.upper) for q in (p.operating_point for p in points)],
        ),
    ):
        places = [(x(p), _share(v[0])) for p, v in zip(points, values)]
        noisy = [place for place, p in zip(places, points) if p.epsilon is not None]
        bars = "".join(
            f"M{place[0]:.1f} {_share(lower):.1f}V{_share(upper):.1f}"
            for place, (_, lower, upper) in zip(places, values)
            if lower is not None and upper is not None
        )
        marks = "".join(
            f'<path class="mark" transform="translate({a:.1f} {b:.1f})" d="{MARKERS[style]}"/>'
            for a, b in places
        )
        drawn.append(
            f'<g class="line line-{style}"><path class="limits-bar" d="{bars}"/>'
            f'<path class="course" d="{line(noisy)}"/>{marks}</g>'
        )
    ticks = "".join(
        f'<path class="axis" d="M{scale(e):.1f} {BOTTOM}v5"/><text class="t-muted" '
        f'x="{scale(e):.1f}" y="306" text-anchor="middle">{e:g}</text>'
        for e in scale.ticks()
    )
    apart = ""
    if noiseless:
        apart = (
            f'<rect class="f-faint" x="{end + 4}" y="{TOP}" width="{NOISELESS - 4}" '
            f'height="{BOTTOM - TOP}"/><text class="t-muted" x="{RIGHT - NOISELESS / 2 + 2}" '
            f'y="306" text-anchor="middle">no noise</text>'
        )
    return framed(
        f'{apart}{_grid()}{ticks}<path class="axis" d="M{LEFT} {BOTTOM}H{end}"/>'
        f'<path class="l-chance" d="M{LEFT} {_share(alpha):.1f}H{RIGHT}"/>{"".join(drawn)}'
        f'<text class="t-muted" x="{RIGHT}" y="327" text-anchor="end">'
        f"{escape('ε of DP-SGD, log scale (more noise ←)')}</text>",
        label,
    )


def _share(value: float) -> float:
    """Height of a share between 0% and 100%."""
    return BOTTOM - (BOTTOM - TOP) * value


def _grid() -> str:
    return "".join(
        f'<path class="grid" d="M{LEFT} {_share(v):.1f}H{RIGHT}"/><text class="t-muted" x="39" '
        f'y="{_share(v) + 4:.1f}" text-anchor="end">{100 * v:.0f}%</text>'
        for v in (0.0, 0.25, 0.5, 0.75, 1.0)
    )


def _density(law: NormalFit, value: float) -> float:
    scaled = (value - law.mean) / law.deviation
    return math.exp(-0.5 * scaled**2) / (law.deviation * math.sqrt(2 * math.pi))


def _between(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def _spread(low: float, high: float, count: int) -> list[float]:
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
