"""The page of a study of single records, from its report: pure, without clock or randomness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige.pages.audit.texts import TextView, text_view
from vestige.pages.marks import interval
from vestige.pages.pictures import Frame, Scale, drawn_how, frame
from vestige.pages.shell import (
    Front,
    Panel,
    attack_settings,
    complete_settings,
    failed_checks,
    render_page,
    sections,
    surroundings,
)
from vestige.pages.tables import Cell, Column, Row, Table
from vestige.pages.templates import fragment, text
from vestige.reports import numbers
from vestige.reports.parts import VerdictKind
from vestige.reports.risk import AttackRisk, RecordHits, ReleasedRecord, RiskFindings, RiskReport

SHOWN = 3
"""Records that the first screen shows: those with the highest lower limits."""


@dataclass(frozen=True)
class Card:
    """One record on the first screen."""

    name: str
    group: str
    frames: tuple[Frame, ...]
    exposed: bool
    words: str
    texts: TextView | None = None


def render_risk(report: RiskReport, *, redact: bool = False) -> str:
    """Render the report of a study of single records as one HTML page.

    ``redact`` withholds every picture and label; records are named by their keyed digests.
    """
    report = report.without_secrets() if redact or report.findings.redacted else report
    found, invalid = report.findings, report.verdict.kind is VerdictKind.INVALID
    images, texts = (found.space.kind == one for one in ("image", "text"))
    lead = leading(report)
    cards = () if invalid or lead is None else record_cards(found, lead)
    note = _note(found, exposed=any(card.exposed for card in cards))
    return render_page(
        title=found.title,
        date=numbers.date(found.times.finished) if found.times.finished else "",
        redacted=found.redacted,
        front=replace(
            Front.of(report.verdict),
            exhibit=fragment("risk.html", "exhibit", heading(cards), cards, note)
            if cards and (images or texts)
            else "",
            failed=failed_checks(report.judgement.checks) if invalid else (),
            layout="slim" if len(cards) in (1, 2) else "",
        ),
        threat=Panel(found.threat, found.release, defense=found.defense),
        body=sections(
            "risk.html",
            records=None
            if invalid or lead is None
            else (found, lead, record_table(found, lead), risk_table(report)),
        ),
        checks=report.judgement.checks,
        limits=found.limits,
        settings=complete_settings(found.settings),
        environment=surroundings(found.environment, found.times.cpu_seconds, "vestige report RUN"),
        attacks=attack_settings(found.attacks),
        source="a study",
        report=report,
        styles=(text("trials.css"), Scale.of(found.space.shape).css() + "\n")
        if images
        else (text("texts.css"),)
        if texts
        else (),
    )


def leading(report: RiskReport) -> AttackRisk | None:
    """The risk by the attack that the verdict names, or by the first one."""
    attacks = report.judgement.attacks
    named = [one for one in attacks if one.attack == report.verdict.attack]
    return next(iter((*named, *attacks)), None)


def ordered(found: RiskFindings, lead: AttackRisk) -> list[tuple[int, ReleasedRecord]]:
    """Records with their numbers: exposed ones first, then by lower limit and by rate."""

    def key(one: tuple[int, ReleasedRecord]) -> tuple[bool, float, float, int]:
        rate = lead.rates[one[0]]
        return not rate.exposed, -rate.rate.lower, -rate.rate.value, one[0]

    return sorted(enumerate(found.records), key=key)


def record_cards(found: RiskFindings, lead: AttackRisk) -> tuple[Card, ...]:
    """The records at the highest risk, each with what came back from its first release."""
    place = _place(found, lead)
    cards = []
    for number, record in ordered(found, lead)[:SHOWN]:
        drawn = record.reconstructions[place] if record.reconstructions else None
        frames, texts = (), None
        if found.space.kind == "image":
            frames = (
                frame(found.redacted, "Secret", record.secret, f"Record {record.name}"),
                frame(found.redacted, "Reconstruction", drawn, f"What came back of {record.name}"),
            )
        elif found.space.kind == "text":
            texts = text_view(record.secret, drawn, None, details=False, withheld=found.redacted)
        rate, exposed = lead.rates[number].rate, lead.rates[number].exposed
        limit = (
            f"at most {numbers.at_most(rate.upper)}"
            if rate.hits == 0
            else f"at least {numbers.at_least(rate.lower)}"
        )
        words = (
            f"{numbers.hits_of(rate)} with it (joint limit: {limit}), "
            f"{_without(record.found[place])} without"
        )
        cards.append(Card(record.name, _group(record), frames, exposed, words, texts))
    return tuple(cards)


def heading(cards: Sequence[Card]) -> str:
    """What the records of the first screen are: at the highest risk only if one is exposed."""
    if any(card.exposed for card in cards):
        return "The records at the highest risk"
    return "Records with the highest lower limits: none was shown to be exposed"


def record_table(found: RiskFindings, lead: AttackRisk) -> Table:
    """Every record, the most exposed first."""
    place, chance = _place(found, lead), found.false_positive_rate
    columns = (
        Column("Chosen", number=False),
        Column("Label", number=False),
        Column("Rate with it (limits)", number=False),
        Column("0% to 100%; dotted: a random record's chance", number=False),
        Column("Hits with it"),
        Column("Hits without it"),
        Column("p"),
        Column("Exposed", number=False),
    )
    rows = []
    for number, record in ordered(found, lead):
        rate = lead.rates[number]
        cells: tuple[Cell, ...] = (
            _group(record),
            "" if found.redacted else record.label,
            numbers.rate_with_limits(rate.rate),
            interval(rate.rate, chance, guess=not rate.exposed),
            numbers.hits_of(rate.rate),
            _without(record.found[place]),
            numbers.p_value(rate.p_value),
            Markup('<b class="hit">✓ yes</b>') if rate.exposed else "not shown",
        )
        rows.append(Row(record.name, "", cells, number == lead.highest))
    return Table("Record", columns, tuple(rows)).without_empty_columns()


def risk_table(report: RiskReport) -> Table:
    """Average and maximum risk by attack."""
    columns = (
        Column("Average risk (limits)", number=False),
        Column("Without the records", number=False),
        Column("Maximum risk", number=False),
        Column("Records exposed"),
        Column("Outliers against others", number=False),
    )
    records = report.findings.records
    rows = []
    for one in report.judgement.attacks:
        highest = numbers.EN_DASH
        if one.highest is not None:
            lower = numbers.at_least(one.rates[one.highest].rate.lower)
            highest = f"at least {lower} ({records[one.highest].name})"
        cells = (
            numbers.rate_with_limits(one.average) if one.average else numbers.EN_DASH,
            numbers.EN_DASH
            if one.average_without is None
            else numbers.percent(one.average_without),
            highest,
            f"{numbers.count(one.exposed)} of {numbers.count(len(records))}",
            _groups(one),
        )
        rows.append(Row(one.attack, "", cells, one.attack == report.verdict.attack))
    return Table("Attack", columns, tuple(rows)).without_empty_columns()


def _groups(one: AttackRisk) -> str:
    if one.groups is None:
        return numbers.EN_DASH
    return (
        f"{numbers.points(one.groups.outliers)} against {numbers.points(one.groups.others)}, "
        f"p = {numbers.p_value(one.groups.p_value)}"
    )


def _place(found: RiskFindings, lead: AttackRisk) -> int:
    return [one.name for one in found.attacks].index(lead.attack)


def _group(record: ReleasedRecord) -> str:
    return "outlier" if record.group == "outlier" else "at random"


def _without(hits: RecordHits) -> str:
    return f"{numbers.count(hits.control_hits)} of {numbers.count(hits.controls)}"


def _note(found: RiskFindings, *, exposed: bool) -> str:
    records = numbers.plural(len(found.records), "record")
    said: Sequence[str] = (
        f"{'Exposed records first, then by' if exposed else 'In the order of'} lower limits; what "
        "came back is from the first release of each, never chosen by eye.",
        f"A joint limit holds for all {records} together and is therefore weaker than that of one "
        "record alone would be.",
        drawn_how(found.space.shape) if found.space.kind == "image" else "",
        f"{'Texts' if found.space.kind == 'text' else 'Pictures'} and labels are withheld; names "
        "are digests that only the owner of the records can compute."
        if found.redacted
        else "",
    )
    return " ".join(one for one in said if one)
