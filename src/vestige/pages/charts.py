"""Pieces of charts, drawn by hand in SVG, and two charts: histogram of distances, and ROC."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from vestige.pages.marks import MARKERS
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings
from vestige.reports.parts import CurvePoint

WIDTH, HEIGHT = 460, 330
TALL = 352
"""Height of charts with room below for two rows of ticks and the name of the axis."""

TOP, BOTTOM = 14, 286
LEFT, RIGHT = 46, 446
BINS = 44
# Two vertices a point as steps: at most 400 in all.
MOST_POINTS = 200
# Half a decade left of the first point that the decoys can resolve, drawn shaded.
SHADED_DECADES = 0.5
SLIDER_STEPS = 2000


@dataclass(frozen=True)
class Histogram:
    """Distances to secrets and to decoys."""

    svg: Markup
    note: str


@dataclass(frozen=True)
class Roc:
    """The curve, and what its slider needs: positions, and the words of every readout."""

    svg: Markup
    readout: dict[str, object]
    start: int
    value: int
    text: tuple[str, str, str]
    spoken: str


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


def share_height(share: float) -> float:
    """Height of a share between 0% and 100%."""
    return BOTTOM - (BOTTOM - TOP) * share


def grid_rows(rows: Iterable[tuple[float, str]], left: float = LEFT, right: float = RIGHT) -> str:
    """Lines across a chart at some heights, with their words at the left."""
    return "".join(
        f'<path class="grid" d="M{left} {y:.1f}H{right}"/><text class="t-muted" x="{left - 7}" '
        f'y="{y + 4:.1f}" text-anchor="end">{name}</text>'
        for y, name in rows
    )


def share_rows(
    left: float = LEFT, names: Sequence[str] = ("0%", "25%", "50%", "75%", "100%")
) -> str:
    """Lines across a chart of shares, evenly spaced from 0 to 1."""
    return grid_rows(
        ((share_height(i / (len(names) - 1)), name) for i, name in enumerate(names)), left
    )


def axis_ticks(ticks: Iterable[tuple[float, str]], bottom: float = BOTTOM) -> str:
    """Ticks of the axis below a chart, with their words."""
    return "".join(
        f'<path class="axis" d="M{x:.1f} {bottom}v5"/><text class="t-muted" x="{x:.1f}" '
        f'y="{bottom + 20}" text-anchor="middle">{name}</text>'
        for x, name in ticks
    )


def share_columns(x: LogScale) -> str:
    """The axis below a chart, with its ticks as shares."""
    ticks = axis_ticks((x(v), share_tick(v)) for v in x.ticks())
    return f'<path class="axis" d="M{x.start} {BOTTOM}H{x.end}"/>{ticks}'


def share_tick(value: float) -> str:
    """Write a tick: a percentage, or a bare power of ten where that is shorter."""
    if value >= 0.9e-4:
        return numbers.share(value)
    return numbers.quantity(value).removeprefix("1.0 × ")


def axis_name(name: str, right: float = RIGHT, height: float = 327) -> str:
    """The name of the axis below a chart."""
    return f'<text class="t-muted" x="{right}" y="{height}" text-anchor="end">{name}</text>'


def named_line(x: float, middle: float, words: str) -> str:
    """A line from top to bottom with words on the side that has more room."""
    side, anchor = (6, "start") if x < middle else (-6, "end")
    return (
        f'<path class="reference" d="M{x:.1f} {TOP}V{BOTTOM}"/>'
        f'<text class="halo" x="{x + side:.1f}" y="24" text-anchor="{anchor}">{words}</text>'
    )


def marked_line(
    style: int,
    marks: Iterable[tuple[float, float]],
    limits: Iterable[tuple[float, float, float]],
    course: str,
) -> str:
    """A curve in one of the numbered styles: limits (x, lower, upper), course, marks."""
    bars = "".join(f"M{x:.1f} {lower:.1f}V{upper:.1f}" for x, lower, upper in limits)
    drawn = "".join(
        f'<path class="mark" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[style]}"/>'
        for x, y in marks
    )
    return (
        f'<g class="line line-{style}"><path class="limits-bar" d="{bars}"/>'
        f'<path class="course" d="{course}"/>{drawn}</g>'
    )


def two_outlines(edges: Sequence[float], own: Sequence[float], other: Sequence[float]) -> str:
    """Two histograms over each other, the own one on top; heights are places on the chart."""
    drawn = []
    for kind, heights in (("decoy", other), ("leak", own)):
        outline = steps(edges, heights)
        drawn.append(f'<path class="f-{kind}-wash" d="{outline}"/>')
        drawn.append(f'<path class="l-{kind}" d="{outline}"/>')
    return "".join(drawn)


def framed(drawn: str, label: str, height: int = TALL) -> Markup:
    """A drawing as a chart, with its finding as label."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">{drawn}</svg>'
    )


def histogram(
    attack: AttackFindings, *, unit: str, nearest: float | None, label: str
) -> Histogram | None:
    """Draw the distances of an attack to its secrets and to one decoy of each trial."""
    secrets = [o.distance for o in attack.outcomes if o.distance is not None]
    decoys = [o.decoy_distance for o in attack.outcomes if o.decoy_distance is not None]
    if len(secrets) < 2 or len(decoys) < 2:
        return None
    every = np.asarray(secrets + decoys, dtype=float)
    usual = float(np.quantile(every, 0.99))
    largest = float(every.max())
    end = largest if largest <= 1.6 * usual else 1.2 * usual
    end = max(end, nearest or 0.0) or 1.0
    step = tick_step(end)
    end = step * math.ceil(end / step - 1e-9)
    left, right = 16, 450

    def x(value: float) -> float:
        return left + (right - left) * min(value, end) / end

    edges = np.linspace(0, end, BINS + 1)
    shares = [
        np.histogram(np.minimum(values, end), edges)[0] / len(values)
        for values in (np.asarray(secrets), np.asarray(decoys))
    ]
    peak = max(float(s.max()) for s in shares)
    heights = [[BOTTOM - 244 * float(h) / peak for h in share] for share in shares]
    drawn = two_outlines([x(e) for e in edges], *heights)
    ticks = axis_ticks((x(v), tick(v)) for v in (step * i for i in range(round(end / step) + 1)))
    reference = ""
    if nearest is not None:
        words = "as close as the nearest other record"
        reference = named_line(x(nearest), (left + right) / 2, words)
    beyond = int((every > end).sum())
    lost = len(attack.outcomes) - len(secrets)
    tail = f"{numbers.plural(beyond, 'distance')} beyond {end:g}: counted in the last bar."
    gone = f"{numbers.plural(lost, 'trial')} without a finite distance: not drawn, and a miss."
    notes = [tail if beyond else "", gone if lost else ""]
    name = axis_name(f"distance, {escape(unit)} (closer ←)", right)
    axis = f'<path class="axis" d="M{left} {BOTTOM}H{right}"/>'
    svg = framed(f"{drawn}{axis}{ticks}{reference}{name}", label, HEIGHT)
    return Histogram(svg=svg, note=" ".join(n for n in notes if n))


def roc(
    curve: Sequence[CurvePoint],
    second: Sequence[CurvePoint],
    *,
    decoys: int,
    false_positive_rate: float,
    label: str,
) -> Roc:
    """Draw hits among secrets against the share of decoys that may pass, on a log axis."""
    smallest = 1 / (decoys + 1)
    origin = math.log10(smallest) - SHADED_DECADES
    points = thinned(
        [p for p in curve if math.log10(p.false_positive_rate or 1e-99) >= origin],
        false_positive_rate,
    )

    def x(rate: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log10(rate) - origin) / -origin

    y = share_height

    def counted(curve: Sequence[CurvePoint]) -> str:
        real = [p for p in curve if p.false_positive_rate >= smallest - 1e-12]
        return staircase([(x(p.false_positive_rate), y(p.true_positive_rate)) for p in real])

    limited = [p for p in points if p.lower is not None and p.upper is not None]
    upper = corners([(x(p.false_positive_rate), y(p.upper or 0.0)) for p in limited])
    lower = corners([(x(p.false_positive_rate), y(p.lower or 0.0)) for p in limited])
    band = "L".join(f"{a:.1f} {b:.1f}" for a, b in upper + lower[::-1])
    chance = line([(x(rate), y(rate)) for rate in np.geomspace(10**origin, 1.0, 60).tolist()])
    ticks = axis_ticks((x(10.0**d), f"{100 * 10.0**d:g}%") for d in range(math.ceil(origin), 1))
    start = max(
        range(len(points)),
        key=lambda i: (
            points[i].false_positive_rate <= false_positive_rate + 1e-12,
            points[i].false_positive_rate
            if points[i].false_positive_rate <= false_positive_rate + 1e-12
            else -points[i].false_positive_rate,
        ),
    )
    at = points[start]
    px, py = x(at.false_positive_rate), y(at.true_positive_rate)
    whisker = f"M{px:.1f} {y(at.lower or 0.0):.1f}V{y(at.upper or 0.0):.1f}"
    other = f'<path class="l-ink" d="{counted(thinned(second, 1.0))}"/>' if second else ""
    svg = framed(
        f'<rect class="f-faint" x="{LEFT}" y="{TOP}" width="{x(smallest) - LEFT:.1f}" '
        f'height="{BOTTOM - TOP}"/>{share_rows()}{ticks}'
        f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>'
        f"{axis_name('decoys allowed to pass (FPR), log scale')}"
        f'<path class="f-band" d="M{band}Z"/><path class="l-chance" d="{chance}"/>{other}'
        f'<path class="l-leak" d="{counted(points)}"/>'
        f'<path id="roc-cursor" class="cursor" d="M0 {TOP}V{BOTTOM}" '
        f'transform="translate({px:.1f})"/>'
        f'<path id="roc-whisker" class="whisker" d="{whisker}"/>'
        f'<circle id="roc-dot" class="dot" r="6" transform="translate({px:.1f},{py:.1f})"/>'
        f'<text class="t-muted" transform="translate({(LEFT + x(smallest)) / 2 + 4:.1f} '
        f'{BOTTOM - 8}) rotate(-90)">too few decoys</text>',
        label,
        HEIGHT,
    )
    texts = [spoken(p, decoys) for p in points]
    positions = [
        round(SLIDER_STEPS * (x(p.false_positive_rate) - LEFT) / (RIGHT - LEFT)) for p in points
    ]
    readout: dict[str, object] = {
        "position": positions,
        "x": [round(x(p.false_positive_rate), 1) for p in points],
        "y": [round(y(p.true_positive_rate), 1) for p in points],
        "low": [None if p.lower is None else round(y(p.lower), 1) for p in points],
        "high": [None if p.upper is None else round(y(p.upper), 1) for p in points],
        "text": texts,
        "start": start,
    }
    return Roc(
        svg=svg,
        readout=readout,
        start=start,
        value=positions[start],
        text=texts[start],
        spoken="".join(texts[start]),
    )


def spoken(point: CurvePoint, decoys: int) -> tuple[str, str, str]:
    """Write a readout in three pieces, the middle one bold on the page."""
    allowed = numbers.share(point.false_positive_rate)
    if point.lower is None or point.upper is None:
        few = f"{numbers.plural(decoys, 'decoy')} a trial are too few to look here."
        return (f"At FPR = {allowed}: ", "", few)
    value = point.true_positive_rate
    if value <= 0:
        hits, rest = "none", f" of the secrets hit (at most {numbers.at_most(point.upper)})."
    elif value >= 1:
        hits, rest = "all", f" secrets hit (at least {numbers.at_least(point.lower)})."
    else:
        hits = numbers.percent(value)
        rest = f" of secrets hit ({numbers.limits(point.lower, point.upper)})."
    return (f"At FPR = {allowed}: ", hits, f"{rest} Guessing: {allowed}.")


def thinned(curve: Sequence[CurvePoint], keep: float) -> list[CurvePoint]:
    """Return at most ``MOST_POINTS`` points, evenly spaced, with the one at ``keep`` among them."""
    if len(curve) <= MOST_POINTS:
        return list(curve)
    chosen = set(np.linspace(0, len(curve) - 1, MOST_POINTS - 1).astype(int).tolist())
    chosen.add(min(range(len(curve)), key=lambda i: abs(curve[i].false_positive_rate - keep)))
    return [curve[i] for i in sorted(chosen)]


def corners(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a staircase: each height lasts until the next point."""
    turned: list[tuple[float, float]] = []
    for place, (a, b) in enumerate(points):
        if place:
            turned.append((a, points[place - 1][1]))
        turned.append((a, b))
    return turned


def staircase(points: Sequence[tuple[float, float]]) -> str:
    """Return a path in which each height lasts until the next point."""
    if not points:
        return ""
    (a, b), *rest = points
    return f"M{a:.1f} {b:.1f}" + "".join(f"H{p:.1f}V{q:.1f}" for p, q in rest)


def steps(edges: Sequence[float], heights: Sequence[float]) -> str:
    """Return the closed outline of a histogram."""
    body = "".join(f"V{h:.1f}H{e:.1f}" for e, h in zip(edges[1:], heights))
    return f"M{edges[0]:.1f} {BOTTOM}{body}V{BOTTOM}"


def tick(value: float) -> str:
    """Write a round number below its tick."""
    return f"{value:.10g}" if value == 0 or value >= 1e-4 else numbers.quantity(value)


def tick_step(end: float) -> float:
    """Return a round distance between ticks that gives four to eight of them."""
    power = 10.0 ** math.floor(math.log10(end))
    for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0):
        if end / (step * power) <= 6:
            return step * power
    return 2 * power
