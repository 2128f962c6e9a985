"""From a Statement about a mechanism to one self-contained page: pure, without data or torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from vestige import numbers
from vestige.bounds.mechanisms import mechanism_to_json
from vestige.bounds.statement import Statement, Strengths, strengths_of, whole_curve
from vestige.report import templates
from vestige.report.bound_charts import MOST_STYLES, prior_chart, strength_chart
from vestige.report.marks import DotArray, dots


@dataclass(frozen=True)
class BoundRow:
    """One bound as a line of the table."""

    name: str
    cites: str
    cells: tuple[str, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class BoundKey:
    """One line of the legend."""

    svg: Markup
    label: str


def render_bounds(statement: Statement, *, target: float | None = None) -> str:
    """Render what theory says about a mechanism as one HTML page.

    ``target`` is the success that the noise was chosen for. Equal statements give equal pages.
    """
    style, script = templates.text("page.css"), templates.text("page.js")
    allowance, strengths = statement.allowance, strengths_of(statement)
    known = bool(allowance.curves)
    return (
        templates.environment()
        .get_template("bounds.html")
        .render(
            statement=statement,
            numbers=numbers,
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            known=known,
            arrays=arrays(statement) if known else (),
            kappas=[numbers.chance(kappa) for kappa in allowance.prior_success],
            rows=bound_rows(statement),
            tightest=[numbers.allowed(gamma) for gamma in allowance.success],
            keys=keys(statement),
            prior=prior_figure(statement) if known else None,
            strengths=strengths if known else None,
            strength=strength_figure(strengths, target) if known and strengths else None,
            assumptions=assumptions(statement),
            mechanism=mechanism_to_json(statement.mechanism),
        )
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


def bound_rows(statement: Statement) -> tuple[BoundRow, ...]:
    """Every bound that applies, in the order of the room."""
    return tuple(
        BoundRow(
            curve.bound.name,
            curve.bound.cites,
            tuple(map(numbers.allowed, curve.success)),
            curve.bound.assumptions,
        )
        for curve in statement.allowance.curves
    )


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


def keys(statement: Statement) -> tuple[BoundKey, ...]:
    """The legend of the first chart: the tightest, then each bound by its dashes, then guessing."""
    curves = statement.allowance.curves

    def key(inside: str, label: str) -> BoundKey:
        return BoundKey(
            Markup(f'<svg width="34" height="14" aria-hidden="true">{inside}</svg>'), label
        )

    several = curves[:MOST_STYLES] if len(curves) > 1 else ()
    return (
        key(
            '<path class="l-bound" d="M0 7H34"/>',
            "tightest" if several else "".join(curve.bound.name for curve in curves),
        ),
        *(
            key(
                f'<g class="line line-{style}"><path class="course" d="M0 7H34"/></g>',
                curve.bound.name,
            )
            for style, curve in enumerate(several, 1)
        ),
        key('<path class="l-chance" d="M1 7H34"/>', "guessing"),
    )


def prior_figure(statement: Statement) -> Markup:
    """The curve γ(κ) with the κ that were asked for."""
    return prior_chart(
        whole_curve(statement),
        statement.allowance,
        label="Largest success of any attack against the success of the best guess, both on "
        f"logarithmic axes. {statement.finding}",
    )


def strength_figure(strengths: Strengths, target: float | None) -> Markup:
    """Success at one κ against the strength of the mechanism."""
    first, last = strengths.points[0], strengths.points[-1]
    return strength_chart(
        strengths,
        target=target,
        label=f"Largest success against {strengths.name}, where a guess succeeds with "
        f"{numbers.chance(strengths.prior_success)}: at {first.value:.3g} "
        f"{numbers.allowed(first.success)}, at {strengths.own.value:.3g} "
        f"{numbers.allowed(strengths.own.success)}, at {last.value:.3g} "
        f"{numbers.allowed(last.success)}.",
    )
