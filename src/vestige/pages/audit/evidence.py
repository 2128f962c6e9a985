"""The doubt: charts and tables with which a researcher can try to break the claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vestige.pages.audit.front import deciding_rate, rate_value, strongest
from vestige.pages.audit.texts import detail_share, exact_share
from vestige.pages.charts import Histogram, Roc, histogram, roc
from vestige.pages.marks import interval, rate_strip
from vestige.pages.shell import capital
from vestige.pages.tables import Cell, Column, Row, Table
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditFindings, AuditReport, Outcome
from vestige.reports.captured_words import method_sentence
from vestige.reports.parts import Rate, VerdictKind
from vestige.reports.record_words import record_words
from vestige.statistics.audit_rates import joint_confidence

CURVE_SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Evidence:
    """Everything in the section on doubt."""

    intro: str
    histogram: Histogram | None
    roc: Roc | None
    no_roc: str
    found: bool
    strongest: str
    second: str
    threshold: str
    rates: Table
    otherwise: Table
    distances: Table | None
    curve: Table | None


def evidence(report: AuditReport) -> Evidence:
    """Gather charts and tables."""
    lead = strongest(report)
    real = [
        a
        for a in report.findings.attacks
        if not a.guess and a is not lead and report.judgement.rates_of(a).curve
    ]
    second = max(real, key=lambda a: rate_value(report, a), default=None)
    chance = numbers.share(report.findings.false_positive_rate)
    rate = report.judgement.rates_of(lead).rate if lead else None
    finding = (
        f"{numbers.rate_with_limits(rate)} of secrets hit; guessing hits {chance}."
        if rate
        else "The numbers are in the table below."
    )
    shown = report.verdict.kind in (VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)
    found = shown and not report.judgement.distance  # charts are by the primary distance
    bars = (
        histogram(
            lead,
            unit=report.findings.distance,
            nearest=report.findings.nearest_neighbor_distance,
            label=f"Histogram of distances to secrets and to decoys, {lead.name}. {finding}",
        )
        if lead
        else None
    )
    missing = why_no_roc(report, lead)
    drawn = None
    if lead and not missing:
        drawn = roc(
            report.judgement.rates_of(lead).curve,
            report.judgement.rates_of(second).curve if second else (),
            decoys=report.findings.decoys,
            false_positive_rate=report.findings.false_positive_rate,
            label=f"ROC with logarithmic axis, {lead.name}. At a false positive rate of {chance}: "
            f"{finding}",
        )
    return Evidence(
        intro=intro(report.findings),
        histogram=bars,
        roc=drawn,
        no_roc=missing,
        found=found,
        strongest=lead.name if lead else "",
        second=second.name if second else "",
        threshold=threshold_note(report, lead),
        rates=rates(report, lead),
        otherwise=otherwise(report, lead),
        distances=by_distance(report, lead),
        curve=curve_table(report, lead) if drawn and lead else None,
    )


def intro(findings: AuditFindings) -> str:
    """Say how a reconstruction is judged, and what chance would give."""
    decoys = numbers.plural(findings.decoys, "decoy")
    few = numbers.one_in(findings.false_positive_rate).replace(" ", numbers.NO_BREAK)
    by = f" by {findings.distance}" if findings.further_distances else ""
    return (
        f"Each reconstruction is compared{by} with its secret and with {decoys}: other records "
        "of the same class that no attacker holds. A hit is closer to its secret than to all "
        f"but {few} of them. If the release gave nothing "
        f"away, {numbers.share(findings.false_positive_rate)} would be hits. "
        f"{method_sentence(findings)}"
    ).rstrip()


def why_no_roc(report: AuditReport, lead: AttackFindings | None) -> str:
    """Return the sentence that stands in place of the ROC, or nothing if there is a curve."""
    if report.findings.trials_finished < 2:
        what = record_words(report.findings.space.kind).example
        return f"No ROC: one trial is {what}, not a rate."
    needed = math.ceil(1 / report.findings.false_positive_rate - 1e-9) - 1
    if report.findings.decoys < needed:
        allowed = numbers.share(report.findings.false_positive_rate)
        held = numbers.plural(report.findings.decoys, "decoy")
        return f"No ROC: {held}; FPR = {allowed} needs {needed}."
    if lead is None or not any(p.lower is not None for p in report.judgement.rates_of(lead).curve):
        return "No ROC: the record holds no curve."
    return ""


def threshold_note(report: AuditReport, lead: AttackFindings | None) -> str:
    """Say what one distance threshold for all trials would give."""
    pooled = report.judgement.rates_of(lead).pooled if lead else None
    if pooled is None or pooled.true_positive_rate is None or report.findings.trials_finished < 2:
        return ""
    reached = numbers.pooled_rate(pooled)
    passing = numbers.one_in(pooled.false_positive_rate)
    return (
        f"One threshold for all trials, {numbers.distance(pooled.threshold)}, which {passing} "
        f"decoys pass: {reached} of the secrets."
    )


def attack_table(
    findings: AuditFindings,
    columns: Sequence[Column],
    cells: Sequence[Sequence[Cell]],
    lead: AttackFindings | None,
    *,
    details: bool = True,
) -> Table:
    """One row for each attack, without the columns in which nothing is known."""
    rows = tuple(
        Row(attack.name, attack.summary if details else "", tuple(row), attack is lead)
        for attack, row in zip(findings.attacks, cells)
    )
    return Table("Attack", tuple(columns), rows).without_empty_columns()


def rates(report: AuditReport, lead: AttackFindings | None) -> Table:
    """Rates by attack with limits; ranks instead of rates where there is one trial."""
    kind = report.findings.space.kind
    single = report.findings.trials_finished == 1
    columns = [
        Column("Rank of the secret" if single else "Rate (limits)", number=False),
        Column("0% to 100%; dotted: guessing", number=False),
        Column("Hits"),
        Column("Above guessing"),
        Column("Permutation test, p"),
        Column(error_title(kind, single)),
        Column("Diverged"),
        Column("Time per trial"),
    ]
    cells: list[list[Cell]] = []
    for attack in report.findings.attacks:
        rate = report.judgement.rates_of(attack).rate if not single else None
        chance = report.findings.false_positive_rate
        cells.append(
            [
                rank_of(attack.outcomes, report.findings.decoys)
                if single
                else numbers.rate_with_limits(rate)
                if rate
                else numbers.EN_DASH,
                interval(rate, chance, guess=attack.guess) if rate else "",
                numbers.hits_of(rate) if rate else numbers.EN_DASH,
                numbers.points(rate.value - chance)
                if rate and not attack.guess
                else numbers.EN_DASH,
                numbers.p_value(attack.permutation.p_value)
                if rate and attack.permutation
                else numbers.EN_DASH,
                errors(attack, kind),
                numbers.count(sum(o.diverged for o in attack.outcomes)),
                numbers.seconds(report.findings.times.seconds_per_trial.get(attack.name)),
            ]
        )
    return attack_table(report.findings, columns, cells, lead)


def otherwise(report: AuditReport, lead: AttackFindings | None) -> Table:
    """The same attacks by other measures, and against secrets of other trials."""
    single, level = report.findings.trials_finished == 1, joint_confidence(report.findings)
    columns = [
        Column("SSIM" if single else "SSIM, median"),
        Column("Word for word"),
        Column("ROUGE-L" if single else "ROUGE-L, median"),
        Column("Personal details recovered"),
        Column("Labels right, told or inferred"),
        Column("One threshold for all trials", number=False),
    ]
    cells = [
        [
            similarity(a),
            exact_share(a, level),
            similarity(a, "ROUGE-L"),
            detail_share(a, level),
            label_accuracy(a),
            numbers.EN_DASH if single else numbers.pooled_rate(report.judgement.rates_of(a).pooled),
        ]
        for a in report.findings.attacks
    ]
    return attack_table(report.findings, columns, cells, lead, details=False)


def by_distance(report: AuditReport, lead: AttackFindings | None) -> Table | None:
    """Rates by every declared distance, the primary one first; None where there is one."""
    findings = report.findings
    if not findings.further_distances or findings.trials_finished < 2:
        return None
    names = (findings.distance, *(one.name for one in findings.further_distances))
    columns = [Column(capital(name), number=False) for name in names]
    cells: list[list[Cell]] = []
    for attack in findings.attacks:
        rates = report.judgement.rates_of(attack)
        cells.append(
            [
                numbers.rate_with_limits(rate) if rate else numbers.EN_DASH
                for rate in (rates.rate, *rates.further)
            ]
        )
    return attack_table(findings, columns, cells, lead, details=False)


def partial(report: AuditReport) -> Table:
    """What finished before a check failed: counts, no rate."""
    kind = report.findings.space.kind
    columns = [
        Column("Trials finished"),
        Column("Hits so far"),
        Column(error_title(kind, False)),
        Column("Diverged"),
    ]
    cells = [
        [
            f"{numbers.count(len(a.outcomes))} of {numbers.count(report.findings.trials_planned)}",
            numbers.count(rate.hits)
            if (rate := report.judgement.rates_of(a).rate)
            else numbers.EN_DASH,
            errors(a, kind),
            numbers.count(sum(o.diverged for o in a.outcomes)),
        ]
        for a in report.findings.attacks
    ]
    return attack_table(report.findings, columns, cells, None)


def curve_table(report: AuditReport, lead: AttackFindings) -> Table:
    """The curve of the strongest attack at round false positive rates."""
    smallest = 1 / (report.findings.decoys + 1)
    rows, curve = [], report.judgement.rates_of(lead).curve
    for allowed in CURVE_SHARES:
        below = [p for p in curve if p.false_positive_rate <= allowed + 1e-9]
        if allowed < smallest - 1e-9 or not below or below[-1].lower is None:
            if allowed >= smallest / 5:
                cells = (numbers.EN_DASH, "too few decoys")
                rows.append(Row(numbers.share(allowed), "", cells))
            continue
        at = below[-1]
        value = at.true_positive_rate
        hits = "none" if value <= 0 else "all" if value >= 1 else numbers.percent(value)
        limits = numbers.limits(at.lower or 0.0, at.upper or 1.0)
        rows.append(Row(numbers.share(allowed), "", (hits, limits)))
    columns = (Column(f"Secrets hit (TPR), {lead.name}", False), Column("Limits", False))
    return Table("Decoys allowed to pass (FPR)", columns, tuple(rows))


@dataclass(frozen=True)
class Theory:
    """What is claimed and what is ruled out, beside the strongest attack."""

    attack: AttackFindings | None
    rate: Rate | None
    strip: Markup | None
    theorems: Table
    told: bool
    beyond: bool


def theory(report: AuditReport) -> Theory:
    """Draw claim and bound against the strongest attack, if there is one of them and a rate."""
    lead, bounds = strongest(report), report.findings.bounds
    rate = deciding_rate(report, lead)
    told = bounds is not None and bool(bounds.bounds) and bounds.success < 1
    drawn = None
    if rate is not None and (report.findings.claim or (bounds and bounds.bounds)):
        claimed = None if report.findings.claim is None else report.findings.claim.rate
        drawn = rate_strip(rate, claimed=claimed, bound=bounds.success if bounds else None)
    rows = tuple(
        Row(
            capital(one.name),
            one.cites,
            (numbers.allowed(one.success), " ".join(one.assumptions)),
            one.name == bounds.tightest,
        )
        for one in (bounds.bounds if bounds else ())
        if bounds
    )
    columns = (Column("Hits, at most"), Column("Assumes", False, "small"))
    beyond = bool(told and bounds and rate and rate.lower > bounds.success)
    return Theory(lead, rate, drawn, Table("Bound", columns, rows), told, beyond)


ERRORS = {"image": "PSNR", "table": "RMSE", "text": "Tokens right"}
"""What the column of errors measures, by the kind of records."""


def error_title(kind: str, single: bool) -> str:
    """Name the column of errors."""
    return f"{ERRORS[kind]}{'' if single else ', median (quartiles)'}"


def errors(attack: AttackFindings, kind: str) -> str:
    """Median and quartiles of the errors of one kind of records."""
    if kind == "text":
        digits = numbers.QUARTILE_DIGITS["tokens"]
        return numbers.written_quartiles(quartiles(attack, "tokens"), "", digits)
    return root_errors(attack) if kind == "table" else noise_ratios(attack)


def rank_of(outcomes: Sequence[Outcome], decoys: int) -> str:
    """Write the rank of the only trial: ``1 of 100``."""
    if not outcomes:
        return numbers.EN_DASH
    return f"{numbers.count(outcomes[0].rank)} of {numbers.count(decoys + 1)}"


def quartiles(attack: AttackFindings, name: str) -> tuple[float, ...]:
    """Quartiles of one measure: those that redaction kept, else those of the outcomes."""
    found = numbers.quartiles(numbers.measured(attack.outcomes, name))
    return attack.quartiles.get(name, found)


def noise_ratios(attack: AttackFindings) -> str:
    """Median and quartiles of PSNR."""
    digits = numbers.QUARTILE_DIGITS["PSNR"]
    return numbers.written_quartiles(quartiles(attack, "PSNR"), "dB", digits)


def root_errors(attack: AttackFindings) -> str:
    """Median and quartiles of the root mean squared error, in standard deviations."""
    digits = numbers.QUARTILE_DIGITS["RMSE"]
    return numbers.written_quartiles(quartiles(attack, "RMSE"), "sd", digits)


def similarity(attack: AttackFindings, name: str = "SSIM") -> str:
    """Median of SSIM, or of ROUGE-L."""
    found = quartiles(attack, name)
    return numbers.written_quartiles(found[len(found) // 2 :][:1], "", 2)


def label_accuracy(attack: AttackFindings) -> str:
    """Mean share of labels that were right."""
    known = [o.label_accuracy for o in attack.outcomes if o.label_accuracy is not None]
    if not known:
        return numbers.EN_DASH
    (mean,) = attack.quartiles.get("labels", (sum(known) / len(known),))
    return "all" if mean >= 1 else "none" if mean <= 0 else numbers.percent(mean)
