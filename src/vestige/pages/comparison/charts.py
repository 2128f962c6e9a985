"""The charts of a report, in SVG: the plane of cost and protection, and bars for its tables.

Costs are drawn by asinh in units of half the budget: even near zero, where the choice is made, and
narrower far out, where a defence has cost a model most of its worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from vestige.pages import charts
from vestige.pages.comparison.marks import dashed, families, shape, styles
from vestige.reports.comparison import (
    UNDEFENDED,
    ComparisonFindings,
    ComparisonReport,
    DefendedPoint,
)
from vestige.reports.comparison_words import lost_words
from vestige.reports.noise import Mean

WIDTH, HEIGHT = 460, 436
LEFT, RIGHT, TOP, BOTTOM = 48, 448, 34, 378
ROUND_COSTS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
TICK_ROOM = 34
"""Least distance of two words below the axis."""

Scale = Callable[[float], float]
Spot = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

GUESSING = "guessing reaches this"

MARK = 6
"""Half the width of a mark."""

FAR = 12
"""Words that stand further from their point have a line to it."""

SPOTS_APART = 5
MOST_COVERED = 4
"""Spots of lines that a setting may cover; more and it is left out."""

LOW, TALL = 12.0, 15.0
"""Height of a line: of a setting, and of a name on the front."""

SMALL, LARGE = 5.9, 7.4
"""Width of a letter: of a setting, and of a name on the front, which phones draw larger."""


@dataclass(frozen=True)
class Place:
    """One point of the plane; cost in points of accuracy."""

    point: DefendedPoint
    cost: Mean
    protection: Mean
    floor: float | None
    front: bool


@dataclass(frozen=True)
class Words:
    """A word of the plane with the box that it fills, and the point that it names, if one."""

    text: str
    left: float
    top: float
    width: float
    strong: bool
    point: Spot | None = None

    def meets(self, box: Box) -> bool:
        """Whether it covers a part of a box (left, top, right, bottom)."""
        left, top, right, bottom = box
        return (
            self.left < right
            and left < self.left + self.width
            and self.top < bottom
            and top < self.top + self.height
        )

    @property
    def height(self) -> float:
        """Height of its line."""
        return TALL if self.strong else LOW

    @property
    def box(self) -> Box:
        """Left, top, right, bottom."""
        return self.left, self.top, self.left + self.width, self.top + self.height

    @property
    def nearest(self) -> Spot:
        """The spot of its box that is nearest to its point."""
        a, b = self.point or (self.left, self.top)
        left, top, right, bottom = self.box
        return min(max(a, left), right), min(max(b, top), bottom)

    @property
    def away(self) -> float:
        """How far it stands from its point."""
        return math.dist(self.point, self.nearest) if self.point else 0.0


class Costs:
    """Where a cost lies, in points of accuracy; what is outside lies at the end it is beyond."""

    def __init__(self, low: float, high: float, unit: float) -> None:
        self.low, self.high, self.unit = low, high, unit

    def __call__(self, points: float) -> float:
        """The place from left to right."""
        first, last = (math.asinh(end / self.unit) for end in (self.low, self.high))
        inside = min(max(points, self.low), self.high)
        along = (math.asinh(inside / self.unit) - first) / (last - first)
        return LEFT + (RIGHT - LEFT) * along

    def ticks(self) -> list[float]:
        """Round costs with room for their words; zero, the budget and the ends of a decade win."""
        both = [0.0, *(sign * value for value in reversed(ROUND_COSTS) for sign in (1, -1))]
        found: list[float] = []
        for value in sorted(both, key=lambda v: (v != 0, abs(math.log10(abs(v) or 1)) % 1 > 0)):
            apart = [abs(self(value) - self(other)) for other in found]
            if self.low <= value <= self.high and min(apart, default=math.inf) >= TICK_ROOM:
                found.append(value)
        return sorted(found)


def places(report: ComparisonReport, server: str) -> list[Place]:
    """The points that can be drawn: with a cost, and with an error that an attack left."""
    front = report.judgement.front(server)
    found = []
    for points in families(report.findings).values():
        for point in points:
            lost, cell = point.utility.accuracy_lost, report.findings.cell(point, server)
            if lost is not None and cell.protection is not None:
                cost = Mean(value=100 * lost.value, lower=100 * lost.lower, upper=100 * lost.upper)
                bound = cell.floor.all_attacks
                found.append(Place(point, cost, cell.protection, bound, point.label in front))
    return found


def plane(report: ComparisonReport, server: str, *, label: str) -> Markup:
    """Error that the strongest attack leaves against accuracy lost, for one server."""
    shown = places(report, server)
    budget = 100 * report.findings.budget
    guess = report.findings.guess_error
    x = cost_scale(shown, budget)
    highest = max([guess.upper, *(p.protection.upper for p in shown)])
    # Limits that reach far beyond every value would leave no room for the values.
    usual = max([guess.value, *(p.protection.value for p in shown)])
    end = max(1.06 * min(highest, 1.35 * usual), 1e-6)

    def y(error: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * min(max(error, 0.0), end) / end

    line = budget_line(x(budget), report.findings.budget)
    return Markup(
        f'<svg class="chart plane" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">'
        f"{_rows(end, y)}{_columns(x)}{line}"
        f'<rect class="f-guess" x="{LEFT}" y="{y(guess.upper):.1f}" width="{RIGHT - LEFT}" '
        f'height="{y(guess.lower) - y(guess.upper):.1f}"/>'
        f'<path class="l-chance" d="M{LEFT} {y(guess.value):.1f}H{RIGHT}"/>'
        f"{_crosses(shown, x, y)}{_courses(report.findings, shown, x, y)}{_front(shown, x, y)}"
        f"{_floors(shown, x, y)}{_marks(report.findings, shown, x, y)}"
        f"{''.join(map(_written, labels(shown, x, y, guess, budget)))}</svg>"
    )


def cost_scale(shown: Sequence[Place], budget: float) -> Costs:
    """The axis of costs: zero, the budget and every value on it, and limits that are not far."""
    values = [0.0, 1.25 * budget, *(p.cost.value for p in shown)]
    low, high = min(values), max(values)
    unit = max(budget / 2, 0.1)
    room = max(0.3 * (high - low), 0.2 * unit)
    lower = max(low - room, min([low, *(p.cost.lower for p in shown)]))
    upper = min(high + room, max([high, *(p.cost.upper for p in shown)]))
    return Costs(lower - 0.12 * unit, upper + 0.08 * max(upper, unit), unit)


def budget_line(at: float, budget: float) -> str:
    """The most that a defence may cost, as a line with its words above the frame."""
    anchor = "end" if at > (LEFT + RIGHT) / 2 else "start"
    return (
        f'<path class="reference" d="M{at:.1f} {TOP - 8}V{BOTTOM}"/>'
        f'<text x="{at:.1f}" y="{TOP - 14}" text-anchor="{anchor}">'
        f"budget: {lost_words(budget)}</text>"
    )


def boxes(shown: Sequence[Place], x: Costs, y: Scale) -> list[Box]:
    """What no word may cover: marks of points, and of what theory allows."""
    middles = ((x(p.cost.value), y(p.protection.value)) for p in shown)
    floors = ((x(p.cost.value), y(p.floor)) for p in shown if p.floor is not None)
    return [
        *((a - MARK, b - MARK, a + MARK, b + MARK) for a, b in middles),
        *((a - MARK, b - 2, a + MARK, b + 2) for a, b in floors),
    ]


def traces(shown: Sequence[Place], x: Costs, y: Scale, budget: float) -> list[Spot]:
    """Spots on the lines of the plane, close to each other: what words had better not cover."""
    front = sorted((x(p.cost.value), y(p.protection.value)) for p in shown if p.front)
    lines = [[*charts.corners([*front, (RIGHT, front[-1][1])])]] if front else []
    lines.append([(x(budget), TOP), (x(budget), BOTTOM)])
    for name in dict.fromkeys(p.point.defense for p in shown):
        own = [p for p in shown if p.point.defense == name]
        lines.append([(x(p.cost.value), y(p.protection.value)) for p in own])
    found = []
    for line in lines:
        for (a, b), (c, d) in pairwise(line):
            steps = max(1, round(math.hypot(c - a, d - b) / SPOTS_APART))
            found += [(a + (c - a) * k / steps, b + (d - b) * k / steps) for k in range(steps + 1)]
    return found


def labels(shown: Sequence[Place], x: Costs, y: Scale, guess: Mean, budget: float) -> list[Words]:
    """Words in the frame: of guessing, of the front, and of settings where there is room."""
    spots = traces(shown, x, y, budget)
    found = [guess_words(shown, x, y, guess)]
    band = (LEFT, y(guess.upper) - 1, RIGHT, y(guess.lower) + 1)
    taken = [*boxes(shown, x, y), found[0].box]

    def covered(words: Words) -> int:
        return sum(words.meets((a, b, a, b)) for a, b in spots) + 5 * words.meets(band)

    def unclear(words: Words) -> float:
        return covered(words) + words.away / 4

    for place in sorted(shown, key=lambda p: (p.point.defense != UNDEFENDED, not p.front)):
        open_places = [
            words for words in around(place, x, y) if not any(words.meets(box) for box in taken)
        ]
        # Of equals the first: right of the point reads best.
        best = min(open_places, key=unclear, default=None)
        if best is not None and (best.strong or covered(best) <= MOST_COVERED):
            found.append(best)
            taken.append(best.box)
    return found


def around(place: Place, x: Costs, y: Scale) -> list[Words]:
    """The places inside the frame where the words of a point could stand."""
    strong = place.front or place.point.defense == UNDEFENDED
    text = place.point.label if strong else place.point.setting
    if not text:
        return []
    a, b = x(place.cost.value), y(place.protection.value)
    width = len(text) * (LARGE if strong else SMALL) + 4
    height = TALL if strong else LOW
    tries = [(a + 8, b - height / 2), (a - 8 - width, b - height / 2)]
    for away in (7, 16, 28):
        above, below = b - away - height, b + away
        tries += [
            (left, top) for top in (above, below) for left in (a + 5, a - width / 2, a - 5 - width)
        ]
    return [
        Words(text, left, top, width, strong, point=(a, b))
        for left, top in tries
        if left >= LEFT and left + width <= RIGHT + 4 and TOP <= top <= BOTTOM - height
    ]


def guess_words(shown: Sequence[Place], x: Costs, y: Scale, guess: Mean) -> Words:
    """Where the line of guessing is named: at its end where fewest points are."""
    width = len(GUESSING) * LARGE
    above, below = y(guess.upper) - 17, y(guess.lower) + 2
    tries = [
        Words(GUESSING, left, top, width, strong=True)
        for top in (above, below)
        for left in (LEFT + 4, RIGHT - width - 2)
        if top >= TOP - 8
    ]
    marks = boxes(shown, x, y)
    return min(tries, key=lambda words: sum(words.meets(mark) for mark in marks))


def _rows(end: float, y: Scale) -> str:
    step = charts.tick_step(end)
    heights = [step * i for i in range(int(end / step + 1e-9) + 1)]
    return charts.grid_rows(((y(v), charts.tick(round(v, 10))) for v in heights), LEFT, RIGHT)


def _columns(x: Costs) -> str:
    written = charts.axis_ticks(((x(v), f"{v:g}".replace("-", "−")) for v in x.ticks()), BOTTOM)
    return (
        f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>{written}'
        f"{charts.axis_name('accuracy lost, points (narrower further out)', RIGHT, BOTTOM + 42)}"
        f'<text class="t-muted" x="0" y="{TOP - 14}">error left ↑</text>'
    )


def _crosses(shown: Sequence[Place], x: Costs, y: Scale) -> str:
    path = "".join(
        f"M{x(p.cost.lower):.1f} {y(p.protection.value):.1f}H{x(p.cost.upper):.1f}"
        f"M{x(p.cost.value):.1f} {y(p.protection.lower):.1f}V{y(p.protection.upper):.1f}"
        for p in shown
    )
    return f'<path class="cross" d="{path}"/>'


def _courses(comparison: ComparisonFindings, shown: Sequence[Place], x: Costs, y: Scale) -> str:
    numbered = styles(comparison)
    drawn = []
    for name, style in numbered.items():
        own = [(x(p.cost.value), y(p.protection.value)) for p in shown if p.point.defense == name]
        path = "".join(f"M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}" for (a, b), (c, d) in pairwise(own))
        if path:
            drawn.append(f'<path class="course"{dashed(style)} d="{path}"/>')
    return "".join(drawn)


def _front(shown: Sequence[Place], x: Costs, y: Scale) -> str:
    on = sorted((x(p.cost.value), y(p.protection.value)) for p in shown if p.front)
    if not on:
        return ""
    return f'<path class="l-front" d="{charts.staircase([*on, (RIGHT, on[-1][1])])}"/>'


def _floors(shown: Sequence[Place], x: Costs, y: Scale) -> str:
    path = "".join(
        f"M{x(p.cost.value) - 6:.1f} {y(p.floor):.1f}h12"
        for p in shown
        if p.floor is not None and p.floor > 0
    )
    return f'<path class="floor" d="{path}"/>' if path else ""


def _marks(comparison: ComparisonFindings, shown: Sequence[Place], x: Costs, y: Scale) -> str:
    numbered = styles(comparison)
    drawn = []
    # What is on the front lies on top.
    for place in sorted(shown, key=lambda p: p.front):
        kind, outline = shape(numbered.get(place.point.defense))
        kind += " on-front" if place.front else ""
        drawn.append(
            f'<path class="{kind}" transform="translate({x(place.cost.value):.1f} '
            f'{y(place.protection.value):.1f})" d="{outline}"/>'
        )
    return "".join(drawn)


def _written(words: Words) -> str:
    kind = "named" if words.strong else "setting"
    leader = ""
    if words.point and words.away > FAR:
        (a, b), (c, d) = words.point, words.nearest
        start = MARK / words.away
        leader = (
            f'<path class="leader {kind}" d="M{a + start * (c - a):.1f} {b + start * (d - b):.1f}'
            f'L{c:.1f} {d:.1f}"/>'
        )
    return (
        f'{leader}<text class="halo {kind}" x="{words.left + 2:.1f}" '
        f'y="{words.top + 0.8 * words.height:.1f}">{escape(words.text)}</text>'
    )
