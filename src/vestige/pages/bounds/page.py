"""From a Statement about a mechanism to one self-contained page: pure, without data or torch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup, escape

from vestige.bounds.statement import Statement, Strengths, strengths_of, whole_curve
from vestige.mechanisms import mechanism_to_json
from vestige.pages import charts
from vestige.pages.charts import BOTTOM, LEFT, RIGHT, TOP, LogScale, line
from vestige.pages.marks import DotArray, dots
from vestige.pages.shell import Front, render_page, sections
from vestige.pages.tables import Column, Key, Row, Table, draw_key, line_key
from vestige.reports import numbers

MARGIN = 62
"""Left edge: small probabilities are long words."""

MOST_STYLES = 5
"""Dashes that a reader can tell apart; further bounds are in the table."""

LIMITS = (
    "Nothing was attacked and nothing was measured: these are theorems about a mechanism. Code "
    "that does not do what the mechanism says is not covered.",
    "The guarantee is about one record. Several records of one person add up.",
    "κ is yours to choose: a guess that knows more succeeds more often, and so may an attack.",
    "Other releases about the same records are not counted.",
)


def render_bounds(
    statement: Statement, *, redact: bool = False, target: float | None = None
) -> str:
    """Render what theory says about a mechanism as one HTML page.

    ``target`` is the success that the noise was chosen for. A statement holds nothing that
    ``redact`` would withhold. Equal statements give equal pages.
    """
    known = bool(statement.allowance.curves)
    body = []
    if known:
        strengths = strengths_of(statement)
        drawn = strength_chart(strengths, target) if strengths else None
        table = strength_table(strengths, statement.delta) if strengths else None
        body = sections(
            "bounds.html",
            curves=(prior_chart(statement), keys(statement), strengths, drawn, table),
            every=(bound_table(statement),),
            buys=(protection_tables(statement),),
            assumed=(assumptions(statement),),
        )
    lede = f"The mechanism: {statement.words}."
    if statement.has_noise and statement.epsilon is not None:
        lede += f" That is ε = {numbers.epsilon(statement.epsilon)} at δ = {statement.delta:g}."
    return render_page(
        title="Bounds, from theory alone",
        tab=f"Bounds: {statement.words}",
        front=Front(
            statement.finding,
            (lede,),
            arrays=arrays(statement) if known else (),
            layout="theory",
        ),
        body=body,
        limits=LIMITS,
        settings=[("Mechanism", mechanism_to_json(statement.mechanism))],
        source="a mechanism",
    )


def arrays(statement: Statement) -> tuple[DotArray, ...]:
    """Draw what is allowed beside what a guess reaches, of a hundred; dots are rounded up."""
    kappa, gamma = statement.main
    return tuple(
        DotArray(dots(math.ceil(100 * value - 1e-9), 100), title, text)
        for value, title, text in (
            (gamma, f"At most {numbers.allowed(gamma)}", "with the release, whatever the attack"),
            (kappa, numbers.chance(kappa), "by the best guess, without it"),
        )
    )


def bound_table(statement: Statement) -> Table:
    """Every bound that applies, in the order of the room, and the tightest of them."""
    allowance = statement.allowance
    rows = [
        Row(curve.bound.name, curve.bound.cites, tuple(map(numbers.allowed, curve.success)))
        for curve in allowance.curves
    ]
    best = tuple(Markup("<b>{}</b>").format(numbers.allowed(one)) for one in allowance.success)
    columns = (Column(f"κ = {numbers.chance(kappa)}") for kappa in allowance.prior_success)
    return Table("Bound", tuple(columns), (*rows, Row("Tightest", "", best, lead=True)))


def strength_table(strengths: Strengths, delta: float) -> Table:
    """The success that the mechanism allows, weaker and stronger than it is."""
    name = strengths.name
    rows = tuple(
        Row(
            f"{point.value:.4g}",
            "",
            (
                numbers.EN_DASH if point.epsilon is None else numbers.epsilon(point.epsilon),
                numbers.allowed(point.success),
            )[name == "ε" :],
            lead=point is strengths.own,
        )
        for point in strengths.points
    )
    columns = (Column(f"ε at δ = {delta:g}"), Column("Success, at most"))[name == "ε" :]
    return Table(name.capitalize() if len(name) > 1 else name, columns, rows)


def protection_tables(statement: Statement) -> dict[str, Table]:
    """The same curve read as reconstruction, re-identification and membership."""
    found = statement.protection

    def table(first: str, second: str, pairs: Iterable[tuple[str, float]]) -> Table:
        rows = tuple(Row(name, "", (numbers.allowed(limit),)) for name, limit in pairs)
        return Table(first, (Column(second),), rows)

    return {
        "Reconstruction": table(
            "Best guess succeeds",
            "With the release, at most",
            ((numbers.chance(kappa), gamma) for kappa, gamma in found.reconstruction),
        ),
        "Re-identification": table(
            "Equally likely candidates",
            "Named rightly, at most",
            ((numbers.count(count), gamma) for count, gamma in found.re_identification),
        ),
        "Membership": table(
            "False positive rate",
            "True positive rate, at most",
            (
                *((numbers.share(level), power) for level, power in found.membership),
                ("Largest difference", found.membership_advantage),
            ),
        ),
    }


def assumptions(statement: Statement) -> tuple[str, ...]:
    """What the tightest bounds assume, each sentence once."""
    used = set(statement.allowance.names)
    said = [
        sentence
        for curve in statement.allowance.curves
        if curve.bound.name in used
        for sentence in curve.bound.assumptions
    ]
    return tuple(dict.fromkeys(said))


def keys(statement: Statement) -> tuple[Key, ...]:
    """The legend of the first chart: the tightest, then each bound by its dashes, then guessing."""
    curves = statement.allowance.curves
    several = curves[:MOST_STYLES] if len(curves) > 1 else ()
    name = "tightest" if several else "".join(curve.bound.name for curve in curves)
    return (
        line_key("l-bound", name, 34),
        *(
            draw_key(
                f'<g class="line line-{style}"><path class="course" d="M0 7H34"/></g>',
                curve.bound.name,
            )
            for style, curve in enumerate(several, 1)
        ),
        line_key("l-chance", "guessing", 34),
    )


def prior_chart(statement: Statement) -> Markup:
    """Draw every bound as γ(κ) on two logarithmic axes, the tightest on top, with the κ asked."""
    curve, asked = whole_curve(statement), statement.allowance
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
    return charts.framed(
        f'<path class="f-bound-wash" d="{ruled_out}Z"/>{_rows(y)}{charts.share_columns(x)}'
        f'<path class="l-chance" d="{line([(MARGIN, BOTTOM), (RIGHT, TOP)])}"/>{others}'
        f'<path class="l-bound" d="{line(tight)}"/>{points}'
        f'<text class="halo-wash" x="{MARGIN + 10}" y="{TOP + 20}">ruled out</text>'
        f"{charts.axis_name('success of the best guess (κ), log scale')}",
        "Largest success of any attack against the success of the best guess, both on logarithmic "
        f"axes. {statement.finding}",
    )


def strength_chart(strengths: Strengths, target: float | None) -> Markup:
    """Draw γ at one κ against a mechanism's own number, with ε below where that is another one."""
    first, last = strengths.points[0], strengths.points[-1]
    kappa, own = strengths.prior_success, strengths.own
    x = LogScale(first.value, last.value, MARGIN, RIGHT - 8)
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
    second = "" if strengths.name == "ε" else charts.axis_name("ε", LEFT - 4, 323)
    goal = ""
    if target is not None:
        goal = (
            f'<path class="reference" d="M{MARGIN} {y(target):.1f}H{RIGHT}"/>'
            f'<text class="halo" x="{RIGHT}" y="{y(target) - 6:.1f}" text-anchor="end">'
            f"asked for: {numbers.share(target)}</text>"
        )
    ruled_out = line([*course, (RIGHT - 8, TOP), (MARGIN, TOP)])
    return charts.framed(
        f'<path class="f-bound-wash" d="{ruled_out}Z"/>{_rows(y)}{ticks}{second}'
        f'<path class="axis" d="M{MARGIN} {BOTTOM}H{RIGHT}"/>'
        f'<path class="l-chance" d="M{MARGIN} {y(kappa):.1f}H{RIGHT}"/>'
        f'<path class="l-bound" d="{line(course)}"/>{goal}'
        f'<path class="cursor" d="M{x(own.value):.1f} {y(own.success):.1f}V{BOTTOM}"/>'
        f'<circle class="bound-dot" r="6" cx="{x(own.value):.1f}" cy="{y(own.success):.1f}"/>'
        f"{charts.axis_name(f'{escape(strengths.name)}, log scale{below}', height=344)}",
        f"Largest success against {strengths.name}, where a guess succeeds with "
        f"{numbers.chance(kappa)}: at {first.value:.3g} {numbers.allowed(first.success)}, at "
        f"{own.value:.3g} {numbers.allowed(own.success)}, at {last.value:.3g} "
        f"{numbers.allowed(last.success)}.",
    )


def _rows(y: LogScale) -> str:
    return charts.grid_rows(((y(v), charts.share_tick(v)) for v in y.ticks()), MARGIN)
