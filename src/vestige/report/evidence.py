"""The doubt: charts and tables with which a researcher can try to break the claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vestige import numbers
from vestige.record import AttackRecord, Outcome, Record, VerdictKind
from vestige.report.charts import Histogram, Roc, histogram, roc
from vestige.report.front import strongest
from vestige.report.marks import interval, rate_strip

CURVE_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Column:
    """One column of a table; numbers are set to the right."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Row:
    """One attack in a table."""

    name: str
    detail: str
    lead: bool
    cells: tuple[str | Markup, ...]


@dataclass(frozen=True)
class Table:
    """A table of attacks without the columns that would be empty."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        attacks: Sequence[AttackRecord],
        cells: Sequence[Sequence[str | Markup]],
        lead: AttackRecord | None,
        *,
        details: bool = True,
    ) -> Table:
        """Build a table of attacks, and drop the columns in which nothing is known."""
        known = [
            i
            for i in range(len(columns))
            if any(row[i] not in ("", numbers.EN_DASH) for row in cells)
        ]
        rows = tuple(
            Row(a.name, a.summary if details else "", a is lead, tuple(row[i] for i in known))
            for a, row in zip(attacks, cells)
        )
        return cls(tuple(columns[i] for i in known), rows)


@dataclass(frozen=True)
class CurveRow:
    """One line of the curve as a table."""

    allowed: str
    hits: str
    limits: str


@dataclass(frozen=True)
class Evidence:
    """Everything in the section on doubt."""

    intro: str
    histogram: Histogram | None
    histogram_title: str
    no_histogram: str
    roc: Roc | None
    no_roc: str
    strongest: str
    second: str
    threshold: str
    rates: Table
    otherwise: Table
    curve: tuple[CurveRow, ...]


def evidence(record: Record) -> Evidence:
    """Gather charts and tables."""
    lead = strongest(record)
    real = [a for a in record.attacks if not a.guess and a is not lead and a.curve]
    second = max(real, key=lambda a: a.rate.value if a.rate else -1.0, default=None)
    chance = numbers.share(record.false_positive_rate)
    rate = lead.rate if lead else None
    finding = (
        f"{numbers.rate_with_limits(rate)} of secrets hit; guessing hits {chance}."
        if rate
        else "The numbers are in the table below."
    )
    found = record.verdict.kind in (VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)
    bars = (
        histogram(
            lead,
            unit=record.distance,
            nearest=record.nearest_neighbor_distance,
            label=f"Histogram of distances to secrets and to decoys, {lead.name}. {finding}",
        )
        if lead
        else None
    )
    missing = why_no_roc(record, lead)
    drawn = None
    if lead and not missing:
        drawn = roc(
            lead,
            second,
            decoys=record.decoys,
            false_positive_rate=record.false_positive_rate,
            label=f"ROC with logarithmic axis, {lead.name}. At a false positive rate of {chance}: "
            f"{finding}",
        )
    return Evidence(
        intro=intro(record),
        histogram=bars,
        histogram_title="Reconstructions lie closer to secrets than to decoys"
        if found
        else "Distances to secrets and to decoys",
        no_histogram="No histogram: it needs at least two trials with a finite distance.",
        roc=drawn,
        no_roc=missing,
        strongest=lead.name if lead else "",
        second=second.name if second else "",
        threshold=threshold_note(record, lead),
        rates=rates(record, lead),
        otherwise=otherwise(record, lead),
        curve=curve_rows(record, lead) if drawn and lead else (),
    )


def intro(record: Record) -> str:
    """Say how a reconstruction is judged, and what chance would give."""
    decoys = numbers.plural(record.decoys, "decoy")
    few = numbers.one_in(record.false_positive_rate).replace(" ", numbers.NO_BREAK)
    return (
        f"Each reconstruction is compared with its secret and with {decoys}: other records, "
        "of the same class that no attacker sees. A hit is closer to its secret than to all "
        f"but {few} of them. If the release gave nothing "
        f"away, {numbers.share(record.false_positive_rate)} would be hits."
    )


def why_no_roc(record: Record, lead: AttackRecord | None) -> str:
    """Return the sentence that stands in place of the ROC, or nothing if there is a curve."""
    if record.trials_finished < 2:
        return "No ROC: one trial is a picture, not a rate."
    needed = math.ceil(1 / record.false_positive_rate - 1e-9) - 1
    if record.decoys < needed:
        allowed = numbers.share(record.false_positive_rate)
        return f"No ROC: {numbers.plural(record.decoys, 'decoy')}; FPR = {allowed} needs {needed}."
    if lead is None or not any(p.lower is not None for p in lead.curve):
        return "No ROC: the record holds no curve."
    return ""


def threshold_note(record: Record, lead: AttackRecord | None) -> str:
    """Say what one distance threshold for all trials would give."""
    pooled = lead.pooled if lead else None
    if pooled is None or pooled.true_positive_rate is None or record.trials_finished < 2:
        return ""
    reached = numbers.pooled_rate(pooled)
    passing = numbers.one_in(pooled.false_positive_rate)
    return (
        f"One threshold for all trials, {numbers.distance(pooled.threshold)}, which {passing} "
        f"decoys pass: {reached} of the secrets."
    )


def rates(record: Record, lead: AttackRecord | None) -> Table:
    """Rates by attack with limits; ranks instead of rates where there is one trial."""
    table = record.space.kind == "table"
    single = record.trials_finished == 1
    columns = [
        Column("Rank of the secret" if single else "Rate (limits)", number=False),
        Column("0% to 100%; dotted: guessing", number=False),
        Column("Hits"),
        Column("Above guessing"),
        Column(error_title(table, single)),
        Column("Diverged"),
        Column("Time per trial"),
    ]
    cells: list[list[str | Markup]] = []
    for attack in record.attacks:
        rate = attack.rate if not single else None
        chance = record.false_positive_rate
        cells.append(
            [
                rank_of(attack.outcomes, record.decoys)
                if single
                else numbers.rate_with_limits(rate)
                if rate
                else numbers.EN_DASH,
                interval(rate, chance, guess=attack.guess) if rate else "",
                numbers.hits_of(rate) if rate else numbers.EN_DASH,
                numbers.points(rate.value - chance)
                if rate and not attack.guess
                else numbers.EN_DASH,
                root_errors(attack.outcomes) if table else noise_ratios(attack.outcomes),
                numbers.count(sum(o.diverged for o in attack.outcomes)),
                numbers.seconds(record.times.seconds_per_trial.get(attack.name)),
            ]
        )
    return Table.of(columns, record.attacks, cells, lead)


def otherwise(record: Record, lead: AttackRecord | None) -> Table:
    """The same attacks by other measures, and against secrets of other trials."""
    single = record.trials_finished == 1
    columns = [
        Column("SSIM" if single else "SSIM, median"),
        Column("Labels right, told or inferred"),
        Column("One threshold for all trials", number=False),
    ]
    cells = [
        [
            median([o.ssim for o in a.outcomes]),
            label_accuracy(a.outcomes),
            numbers.EN_DASH if single else numbers.pooled_rate(a.pooled),
        ]
        for a in record.attacks
    ]
    return Table.of(columns, record.attacks, cells, lead, details=False)


def partial(record: Record) -> Table:
    """What finished before a check failed: counts, no rate."""
    table = record.space.kind == "table"
    columns = [
        Column("Trials finished"),
        Column("Hits so far"),
        Column(error_title(table, False)),
        Column("Diverged"),
    ]
    cells = [
        [
            f"{numbers.count(len(a.outcomes))} of {numbers.count(record.trials_planned)}",
            numbers.count(a.rate.hits) if a.rate else numbers.EN_DASH,
            root_errors(a.outcomes) if table else noise_ratios(a.outcomes),
            numbers.count(sum(o.diverged for o in a.outcomes)),
        ]
        for a in record.attacks
    ]
    return Table.of(columns, record.attacks, cells, None)


def curve_rows(record: Record, lead: AttackRecord) -> tuple[CurveRow, ...]:
    """The curve of the strongest attack at round false positive rates."""
    smallest = 1 / (record.decoys + 1)
    rows = []
    for allowed in CURVE_SHARES:
        below = [p for p in lead.curve if p.false_positive_rate <= allowed + 1e-9]
        if allowed < smallest - 1e-9 or not below or below[-1].lower is None:
            if allowed >= smallest / 5:
                rows.append(CurveRow(numbers.share(allowed), numbers.EN_DASH, "too few decoys"))
            continue
        at = below[-1]
        value = at.true_positive_rate
        hits = "none" if value <= 0 else "all" if value >= 1 else numbers.percent(value)
        rows.append(
            CurveRow(numbers.share(allowed), hits, numbers.limits(at.lower or 0.0, at.upper or 1.0))
        )
    return tuple(rows)


def strip(record: Record) -> Markup | None:
    """Claim and bound against the strongest attack, if there is one of them and a rate."""
    lead = strongest(record)
    bounded = record.bounds is not None and record.bounds.bounds
    if lead is None or lead.rate is None or not (record.claim or bounded):
        return None
    return rate_strip(
        lead.rate,
        claimed=None if record.claim is None else record.claim.rate,
        bound=record.bounds.success if record.bounds else None,
    )


def error_title(table: bool, single: bool) -> str:
    """Name the column of errors."""
    return f"{'RMSE' if table else 'PSNR'}{'' if single else ', median (quartiles)'}"


def rank_of(outcomes: Sequence[Outcome], decoys: int) -> str:
    """Write the rank of the only trial: ``1 of 100``."""
    if not outcomes:
        return numbers.EN_DASH
    return f"{numbers.count(outcomes[0].rank)} of {numbers.count(decoys + 1)}"


def noise_ratios(outcomes: Sequence[Outcome]) -> str:
    """Median and quartiles of PSNR."""
    return numbers.median_quartiles([o.psnr for o in outcomes if o.psnr is not None], "dB")


def root_errors(outcomes: Sequence[Outcome]) -> str:
    """Median and quartiles of the root mean squared error, in standard deviations."""
    return numbers.median_quartiles(
        [o.mse**0.5 for o in outcomes if o.mse is not None], "sd", digits=2
    )


def median(values: Sequence[float | None]) -> str:
    """Median of what is known, two decimals."""
    known = [v for v in values if v is not None]
    if not known:
        return numbers.EN_DASH
    return f"{statistics.median(known):.2f}".replace("-", numbers.MINUS)


def label_accuracy(outcomes: Sequence[Outcome]) -> str:
    """Mean share of labels that were right."""
    known = [o.label_accuracy for o in outcomes if o.label_accuracy is not None]
    if not known:
        return numbers.EN_DASH
    mean = sum(known) / len(known)
    return "all" if mean >= 1 else "none" if mean <= 0 else numbers.percent(mean)
