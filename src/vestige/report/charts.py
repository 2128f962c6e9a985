"""The two charts of the evidence, drawn by hand in SVG: histogram of distances, and ROC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from vestige import numbers
from vestige.record import AttackRecord, CurvePoint

WIDTH, HEIGHT = 460, 330
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


def histogram(
    attack: AttackRecord, *, unit: str, nearest: float | None, label: str
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
    drawn = []
    for name, heights in (("decoy", shares[1]), ("leak", shares[0])):
        outline = steps([x(e) for e in edges], [BOTTOM - 244 * float(h) / peak for h in heights])
        drawn.append(f'<path class="f-{name}-wash" d="{outline}"/>')
        drawn.append(f'<path class="l-{name}" d="{outline}"/>')
    ticks = "".join(
        f'<path class="axis" d="M{x(v):.1f} {BOTTOM}v5"/>'
        f'<text class="t-muted" x="{x(v):.1f}" y="306" text-anchor="middle">{tick(v)}</text>'
        for v in (step * i for i in range(round(end / step) + 1))
    )
    line = ""
    if nearest is not None:
        side, anchor = (6, "start") if x(nearest) < (left + right) / 2 else (-6, "end")
        line = (
            f'<path class="reference" d="M{x(nearest):.1f} {TOP}V{BOTTOM}"/>'
            f'<text class="halo" x="{x(nearest) + side:.1f}" y="24" text-anchor="{anchor}">'
            f"as close as the nearest other record</text>"
        )
    beyond = int((every > end).sum())
    lost = len(attack.outcomes) - len(secrets)
    tail = f"{numbers.plural(beyond, 'distance')} beyond {end:g}: counted in the last bar."
    gone = f"{numbers.plural(lost, 'trial')} without a finite distance: not drawn, and a miss."
    notes = [tail if beyond else "", gone if lost else ""]
    svg = Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">'
        f"{''.join(drawn)}"
        f'<path class="axis" d="M{left} {BOTTOM}H{right}"/>{ticks}{line}'
        f'<text class="t-muted" x="{right}" y="327" text-anchor="end">'
        f"distance, {escape(unit)} (closer ←)</text></svg>"
    )
    return Histogram(svg=svg, note=" ".join(n for n in notes if n))


def roc(
    attack: AttackRecord,
    second: AttackRecord | None,
    *,
    decoys: int,
    false_positive_rate: float,
    label: str,
) -> Roc:
    """Draw hits among secrets against the share of decoys that may pass, on a log axis."""
    smallest = 1 / (decoys + 1)
    origin = math.log10(smallest) - SHADED_DECADES
    points = thinned(
        [p for p in attack.curve if math.log10(p.false_positive_rate or 1e-99) >= origin],
        false_positive_rate,
    )

    def x(rate: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log10(rate) - origin) / -origin

    def y(rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * rate

    def line(curve: Sequence[CurvePoint]) -> str:
        real = [p for p in curve if p.false_positive_rate >= smallest - 1e-12]
        return staircase([(x(p.false_positive_rate), y(p.true_positive_rate)) for p in real])

    limited = [p for p in points if p.lower is not None and p.upper is not None]
    upper = corners([(x(p.false_positive_rate), y(p.upper or 0.0)) for p in limited])
    lower = corners([(x(p.false_positive_rate), y(p.lower or 0.0)) for p in limited])
    band = "L".join(f"{a:.1f} {b:.1f}" for a, b in upper + lower[::-1])
    chance = "L".join(
        f"{x(rate):.1f} {y(rate):.1f}" for rate in np.geomspace(10**origin, 1.0, 60).tolist()
    )
    grid = "".join(
        f'<path class="grid" d="M{LEFT} {y(v):.1f}H{RIGHT}"/>'
        f'<text class="t-muted" x="39" y="{y(v) + 4:.1f}" text-anchor="end">{100 * v:.0f}%</text>'
        for v in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    ticks = "".join(
        f'<path class="axis" d="M{x(10.0**d):.1f} {BOTTOM}v5"/>'
        f'<text class="t-muted" x="{x(10.0**d):.1f}" y="306" text-anchor="middle">'
        f"{100 * 10.0**d:g}%</text>"
        for d in range(math.ceil(origin), 1)
    )
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
    other = f'<path class="l-ink" d="{line(thinned(second.curve, 1.0))}"/>' if second else ""
    svg = Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">'
        f'<rect class="f-faint" x="{LEFT}" y="{TOP}" width="{x(smallest) - LEFT:.1f}" '
        f'height="{BOTTOM - TOP}"/>{grid}{ticks}<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>'
        f'<text class="t-muted" x="{RIGHT}" y="327" text-anchor="end">'
        f"decoys allowed to pass (FPR), log scale</text>"
        f'<path class="f-band" d="M{band}Z"/><path class="l-chance" d="M{chance}"/>{other}'
        f'<path class="l-leak" d="{line(points)}"/>'
        f'<path id="roc-cursor" class="cursor" d="M0 {TOP}V{BOTTOM}" '
        f'transform="translate({px:.1f})"/>'
        f'<path id="roc-whisker" class="whisker" d="{whisker}"/>'
        f'<circle id="roc-dot" class="dot" r="6" transform="translate({px:.1f},{py:.1f})"/>'
        f'<text class="t-muted" transform="translate({(LEFT + x(smallest)) / 2 + 4:.1f} '
        f'{BOTTOM - 8}) rotate(-90)">too few decoys</text></svg>'
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
