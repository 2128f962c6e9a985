"""The warning about batches: how often they meet the published condition, drawn and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vestige.pages import charts
from vestige.pages.audit.front import strongest
from vestige.pages.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, line, share_height
from vestige.pages.marks import key_mark
from vestige.pages.tables import Column, Key, Row, Table
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from vestige.reports.exclusivity import Exclusivity, ExclusivityCurve, ExclusivityRate
from vestige.reports.parts import Rate

MOST_LINES = 6
"""Lines that a reader can tell apart; the table holds every curve."""

SIDESTEP = 10.5
"""Most that points of different lines stand apart, so that each can be seen with its limits."""


@dataclass(frozen=True)
class ExclusivityView:
    """Everything in the part on the condition."""

    title: str
    keys: tuple[Key, ...]
    svg: Markup
    left_out: str
    features: bool
    counted: str
    attack: str
    shares: Table


def exclusivity_view(report: AuditReport) -> ExclusivityView | None:
    """Gather chart, table and sentences; None where nothing was measured."""
    found = report.findings.exclusivity
    if found is None or not found.curves:
        return None
    sizes = tuple(rate.batch_size for rate in found.curves[0].rates)
    ordered = sorted(found.curves, key=lambda curve: not curve.audited)
    # The first style is the audited network's, whether or not it was measured.
    first = 0 if ordered[0].audited else 1
    shown = list(enumerate(ordered, first))[: MOST_LINES - first]
    left = len(ordered) - len(shown)
    audited = audited_rate(found, report.findings.batch_size)
    said = written(audited) if audited else "the numbers are in the table below"
    title = (
        f"Batches of {numbers.count(report.findings.batch_size)} that meet the condition: {said}"
    )
    return ExclusivityView(
        title=title if audited else "Batches that meet the condition, by their size",
        keys=tuple(Key(key_mark(style), label_of(curve)) for style, curve in shown),
        svg=chart(
            shown,
            sizes,
            report.findings.batch_size,
            label=f"Share of batches that meet the exclusivity condition against records in a "
            f"batch. Batches of {numbers.count(report.findings.batch_size)}: {said}.",
        ),
        left_out=f"{numbers.plural(left, 'more network')} in the table." if left else "",
        features=any(curve.reads_features for curve in ordered),
        counted=counted(found),
        attack=attack_sentence(report, audited),
        shares=Table(
            "Network",
            tuple(Column(f"Batches of {numbers.count(size)}") for size in sizes),
            tuple(Row(label_of(c), "", tuple(map(written, c.rates)), c.audited) for c in ordered),
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


def attack_sentence(report: AuditReport, audited: ExclusivityRate | None) -> str:
    """Say so where an attack hit more often than the condition holds."""
    lead = strongest(report)
    rate = report.judgement.rates_of(lead).rate if lead else None
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
        marks = [(x, share_height(rate.value)) for x, rate in points]
        limits = ((x, share_height(rate.lower), share_height(rate.upper)) for x, rate in points)
        drawn.append(charts.marked_line(style, marks, limits, line(marks)))
    # The audited network comes first in the list, so it is drawn last, on top.
    return charts.framed(
        f'{ground}{charts.share_rows()}{ticks}<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>'
        f"{''.join(reversed(drawn))}{charts.axis_name('records in a batch; shaded: as audited')}",
        label,
        HEIGHT,
    )
