"""The charts of a head study, in SVG: φ, the ROC with its four curves, and what noise costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from vestige.pages import charts
from vestige.pages.charts import BOTTOM, LEFT, RIGHT, TOP, line, share_height, staircase
from vestige.reports import numbers
from vestige.reports.heads import HeadRates, NormalFit, PrivacyPoint

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

    own, other = ([y(height) for height in share] for share in shares)
    drawn = [charts.two_outlines([x(edge) for edge in shown.edges], own, other)]
    for law in laws:
        if law is not None:
            course = [(x(v), y(width * _density(law, v))) for v in _between(low, high, 90)]
            drawn.append(f'<path class="l-theory" d="{line(course)}"/>')
    step = charts.tick_step(high - low)
    marks = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = charts.axis_ticks((x(v), f"{v:g}".replace("-", numbers.MINUS)) for v in marks)
    limit = math.log(rates.threshold / (1 - rates.threshold))
    reference = ""
    if low < limit < high:
        words = "τ: as close as the nearest other image"
        reference = charts.named_line(x(limit), (left + right) / 2, words)
    return charts.framed(
        f"{''.join(drawn)}"
        f'<path class="axis" d="M{left} {BOTTOM}H{right}"/>{ticks}{reference}'
        f"{charts.axis_name('φ, the logit of the error (closer ←)', right)}",
        label,
    )


def roc_chart(rates: HeadRates, *, label: str) -> Markup:
    """Own reconstructions that pass against reconstructions of other heads, on a log axis."""
    smallest = rates.curves[0].points[0].false_positive_rate
    x = charts.LogScale(smallest, 1, LEFT, RIGHT)
    curves = "".join(
        f'<path class="{kind}" d="'
        + (staircase if kind in ("l-leak", "l-decoy") else line)(
            [(x(p.false_positive_rate), share_height(p.true_positive_rate)) for p in curve.points]
        )
        + '"/>'
        for kind, curve in reversed(list(zip(CURVE_CLASSES, rates.curves)))
    )
    chance = line([(x(rate), share_height(rate)) for rate in _spread(smallest, 1, 60)])
    point = rates.pooled.operating_point
    across = x(point.false_positive_rate)
    marked = ""
    if point.false_positive_rate >= smallest:
        limits = ""
        if point.lower is not None and point.upper is not None:
            limits = (
                f'<path class="whisker" d="M{across:.1f} {share_height(point.lower):.1f}'
                f'V{share_height(point.upper):.1f}"/>'
            )
        marked = (
            f'<path class="cursor" d="M{across:.1f} {TOP}V{BOTTOM}"/>{limits}'
            f'<circle class="dot" r="6" cx="{across:.1f}" '
            f'cy="{share_height(point.true_positive_rate):.1f}"/>'
        )
    return charts.framed(
        f'{charts.share_rows()}{charts.share_columns(x)}<path class="l-chance" d="{chance}"/>'
        + curves
        + marked
        + charts.axis_name("other heads' reconstructions that pass (FPR), log scale"),
        label,
    )


def privacy_chart(points: Sequence[PrivacyPoint], *, label: str) -> Markup:
    """Accuracy and TPR at FPR = α against ε on a log axis; heads without noise at the right."""
    finite = [p.epsilon for p in points if p.epsilon is not None]
    noiseless = any(p.epsilon is None for p in points)
    end = RIGHT - NOISELESS if noiseless else RIGHT
    low, high = min(finite), max(finite)
    margin = 1.25 if high > low else 3.0
    scale = charts.LogScale(low / margin, high * margin, LEFT, end)
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
        places = [(x(p), share_height(v[0])) for p, v in zip(points, values)]
        noisy = [place for place, p in zip(places, points) if p.epsilon is not None]
        limits = (
            (place[0], share_height(lower), share_height(upper))
            for place, (_, lower, upper) in zip(places, values)
            if lower is not None and upper is not None
        )
        drawn.append(charts.marked_line(style, places, limits, line(noisy)))
    ticks = charts.axis_ticks((scale(e), f"{e:g}") for e in scale.ticks())
    apart = ""
    if noiseless:
        apart = (
            f'<rect class="f-faint" x="{end + 4}" y="{TOP}" width="{NOISELESS - 4}" '
            f'height="{BOTTOM - TOP}"/><text class="t-muted" x="{RIGHT - NOISELESS / 2 + 2}" '
            f'y="306" text-anchor="middle">no noise</text>'
        )
    return charts.framed(
        f'{apart}{charts.share_rows()}{ticks}<path class="axis" d="M{LEFT} {BOTTOM}H{end}"/>'
        f'<path class="l-chance" d="M{LEFT} {share_height(alpha):.1f}H{RIGHT}"/>{"".join(drawn)}'
        f"{charts.axis_name('ε of DP-SGD, log scale (more noise ←)')}",
        label,
    )


def _density(law: NormalFit, value: float) -> float:
    scaled = (value - law.mean) / law.deviation
    return math.exp(-0.5 * scaled**2) / (law.deviation * math.sqrt(2 * math.pi))


def _between(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def _spread(low: float, high: float, count: int) -> list[float]:
    return [low * (high / low) ** (i / (count - 1)) for i in range(count)]
