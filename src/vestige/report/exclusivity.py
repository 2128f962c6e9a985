"""The warning about batches: how often they meet the published condition, drawn and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from vestige import numbers
from vestige.record import Exclusivity, ExclusivityCurve, ExclusivityRate, Rate, Record
from vestige.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from vestige.report.front import strongest

MOST_LINES = 6
"""Lines that a reader can tell apart; the table holds every curve."""

SIDESTEP = 10.5
"""Most that points of different lines stand apart, so that each can be seen with its limits."""

MARKERS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0",
    "M-4-4H4V4H-4Z",
    "M0-5L5 4H-5Z",
    "M0-5.500L5.500 0L0 5.500L-5.500 0Z",
    "M0 5L5-4H-5Z",
    "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z",
)
"""One shape for each line, around its point; the first is the audited network's."""


@dataclass(frozen=True)
class Key:
    """One line of the legend."""

    svg: Markup
    label: str


@dataclass(frozen=True)
class CurveRow:
    """One network as a line of the table."""

    label: str
    audited: bool
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ExclusivityView:
    """Everything in the part on the condition."""

    title: str
    keys: tuple[Key, ...]
    svg: Markup
    features: bool
    counted: str
    attack: str
    left_out: str
    sizes: tuple[int, ...]
    rows: tuple[CurveRow, ...]


def exclusivity_view(record: Record) -> ExclusivityView | None:
    """Gather chart, table and sentences; None where nothing was measured."""
    found = record.exclusivity
    if found is None or not found.curves:
        return None
    sizes = tuple(rate.batch_size for rate in found.curves[0].rates)
    ordered = sorted(found.curves, key=lambda curve: not curve.audited)
    # The first style is the audited network's, whether or not it was measured.
    first = 0 if ordered[0].audited else 1
    shown = list(enumerate(ordered, first))[: MOST_LINES - first]
    left = len(ordered) - len(shown)
    audited = audited_rate(found, record.batch_size)
    said = written(audited) if audited else "the numbers are in the table below"
    title = f"Batches of {numbers.count(record.batch_size)} that meet the condition: {said}"
    return ExclusivityView(
        title=title if audited else "Batches that meet the condition, by their size",
        keys=tuple(Key(key_mark(style), label_of(curve)) for style, curve in shown),
        svg=chart(
            shown,
            sizes,
            record.batch_size,
            label=f"Share of batches that meet the exclusivity condition against records in a "
            f"batch. Batches of {numbers.count(record.batch_size)}: {said}.",
        ),
        features=any(curve.reads_features for curve in ordered),
        counted=counted(found),
        attack=attack_sentence(record, audited),
        left_out=f"{numbers.plural(left, 'more network')} in the table." if left else "",
        sizes=sizes,
        rows=tuple(
            CurveRow(label_of(c), c.audited, tuple(written(rate) for rate in c.rates))
            for c in ordered
        ),
    )


def audited_rate(found: Exclusivity, batch_size: int) -> ExclusivityRate | None:
    """The rate of the audited network at the audited batch size, if it was measured."""
    rates = [rate for curve in found.curves if curve.audited for rate in curve.rates]
    return next((rate for rate in rates if rate.batch_size == batch_size), None)


def counted(found: Exclusivity) -> str:
    """Say what was counted, on how many batches, and what the limits are."""
    batches = numbers.count(found.curves[0].rates[0].batches)
    pool = (
        f"the {numbers.count(found.of)} secrets"
        if found.records == found.of
        else f"{numbers.count(found.records)} of the {numbers.count(found.of)} secrets"
    )
    same = ", the same for every network" if len(found.curves) > 1 else ""
    return (
        f"{batches} random batches of each size{same}, drawn from {pool}. Bars are "
        f"{numbers.share(found.confidence)} limits, each for itself."
    )


def attack_sentence(record: Record, audited: ExclusivityRate | None) -> str:
    """Say so where an attack hit more often than the condition holds."""
    lead = strongest(record)
    rate = lead.rate if lead else None
    if lead is None or rate is None or audited is None or rate.lower <= audited.upper:
        return ""
    return (
        f"In this audit {lead.name} hit secrets more often than the condition holds: "
        f"{numbers.rate_with_limits(rate)}."
    )


def label_of(curve: ExclusivityCurve) -> str:
    """Name a curve: ``784-200-10, step 350``."""
    step = "" if curve.step is None else f", step {numbers.count(curve.step)}"
    read = " on features" if curve.reads_features else ""
    return f"{curve.network}{read}{step}{', audited' if curve.audited else ''}"


def written(rate: ExclusivityRate) -> str:
    """Write a share with its limits."""
    return numbers.rate_with_limits(
        Rate(hits=rate.held, trials=rate.batches, lower=rate.lower, upper=rate.upper)
    )


def chart(
    curves: Sequence[tuple[int, ExclusivityCurve]],
    sizes: Sequence[int],
    batch_size: int,
    *,
    label: str,
) -> Markup:
    """Draw shares against batch sizes, evenly spaced, one line for each curve with its style."""
    width = (RIGHT - LEFT) / len(sizes)
    centers = {size: LEFT + width * (place + 0.5) for place, size in enumerate(sizes)}
    aside = min(SIDESTEP, 0.75 * width / len(curves))

    def y(share: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * share

    grid = "".join(
        f'<path class="grid" d="M{LEFT} {y(v):.1f}H{RIGHT}"/>'
        f'<text class="t-muted" x="39" y="{y(v) + 4:.1f}" text-anchor="end">{100 * v:.0f}%</text>'
        for v in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    ticks = "".join(
        f'<path class="axis" d="M{x:.1f} {BOTTOM}v5"/>'
        f'<text class="{"t-strong" if size == batch_size else "t-muted"}" x="{x:.1f}" y="306" '
        f'text-anchor="middle">{numbers.count(size)}</text>'
        for size, x in centers.items()
    )
    ground = ""
    if batch_size in centers:
        left = centers[batch_size] - width / 2
        ground = (
            f'<rect class="f-faint" x="{left:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{BOTTOM - TOP}"/>'
        )
    drawn = []
    for place, (style, curve) in enumerate(curves):
        offset = aside * (place - (len(curves) - 1) / 2)
        points = [(centers[rate.batch_size] + offset, rate) for rate in curve.rates]
        line = "L".join(f"{x:.1f} {y(rate.value):.1f}" for x, rate in points)
        bars = "".join(f"M{x:.1f} {y(rate.lower):.1f}V{y(rate.upper):.1f}" for x, rate in points)
        marks = "".join(
            f'<path class="mark" transform="translate({x:.1f} {y(rate.value):.1f})" '
            f'd="{MARKERS[style]}"/>'
            for x, rate in points
        )
        drawn.append(
            f'<g class="line line-{style}"><path class="limits-bar" d="{bars}"/>'
            f'<path class="course" d="M{line}"/>{marks}</g>'
        )
    # The audited network comes first in the list, so it is drawn last, on top.
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{ground}{grid}{ticks}'
        f'<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>{"".join(reversed(drawn))}'
        f'<text class="t-muted" x="{RIGHT}" y="327" text-anchor="end">'
        f"records in a batch; shaded: as audited</text></svg>"
    )


def key_mark(style: int) -> Markup:
    """Draw the line of a curve for the legend."""
    return Markup(
        f'<svg width="34" height="14" aria-hidden="true"><g class="line line-{style}">'
        f'<path class="course" d="M0 7H34"/><path class="mark" transform="translate(17 7)" '
        f'd="{MARKERS[style]}"/></g></svg>'
    )
