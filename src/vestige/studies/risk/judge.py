"""Judging the risk of single records: average beside maximum, joint over records and attacks."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.reports.audit import stated_bounds
from vestige.reports.numbers import (
    at_least,
    count,
    hits_of,
    limits,
    p_value,
    percent,
    share,
)
from vestige.reports.parts import CheckOutcome, Rate, Verdict, VerdictKind
from vestige.reports.risk import (
    AttackRisk,
    GroupDifference,
    RecordRate,
    ReleasedRecord,
    RiskFindings,
    RiskJudgement,
)
from vestige.statistics.rates import limited_rate
from vestige.statistics.record_risk import average_rate, difference_test, holm, with_and_without
from vestige.studies.audit.judge import failed_verdict
from vestige.studies.stopped import stopped_verdict


def judge_risk(findings: RiskFindings) -> RiskJudgement:
    """Rates of records with joint limits, which of them are exposed, and the verdict.

    One half of the permitted error goes to each side of a limit, as in an audit. That records are
    called exposed falsely has the probability of one side, over all records and attacks.
    """
    records, names = findings.records, [one.name for one in findings.attacks]
    doubt = 1 - findings.confidence
    count_of = max(1, len(records) * len(names))
    tests = [
        with_and_without(hit.hits, hit.releases, hit.control_hits, hit.controls)
        for place in range(len(names))
        for hit in (record.found[place] for record in records)
    ]
    exposed = holm(tests, doubt / 2)
    attacks = []
    for place, name in enumerate(names):
        start = place * len(records)
        rates = tuple(
            RecordRate(
                rate=limited_rate(
                    record.found[place].hits, record.found[place].releases, 1 - doubt / count_of
                ),
                p_value=tests[start + number],
                exposed=exposed[start + number],
            )
            for number, record in enumerate(records)
        )
        attacks.append(_attack_risk(findings, name, place, rates, doubt / len(names)))
    verdict = _verdict(findings, attacks)
    bounds = stated_bounds(findings.bounds)
    highest = _highest([rate for one in attacks for rate in one.rates])
    return RiskJudgement(
        verdict=verdict,
        checks=findings.preflight,
        attacks=tuple(attacks),
        most_exposed=tuple(sorted({place % len(records) for place in highest})),
        bounds=bounds,
        exceeds_bounds=bounds is not None
        and verdict.kind is not VerdictKind.INVALID
        and any(one.average is not None and one.average.lower > bounds.success for one in attacks),
    )


def _highest(rates: Sequence[RecordRate]) -> tuple[int, ...]:
    """Places of the exposed rates with the highest lower limit, all that tie by their value too."""
    keys = {n: (one.rate.lower, one.rate.value) for n, one in enumerate(rates) if one.exposed}
    most = max(keys.values(), default=None)
    return tuple(n for n, key in keys.items() if key == most)


def _attack_risk(
    findings: RiskFindings, name: str, place: int, rates: tuple[RecordRate, ...], doubt: float
) -> AttackRisk:
    groups = {"random": list[ReleasedRecord](), "outlier": list[ReleasedRecord]()}
    for record in findings.records:
        groups[record.group].append(record)
    drawn = [record.found[place] for record in groups["random"]]
    outlying = [record.found[place] for record in groups["outlier"]]
    whole = bool(drawn) and len({hit.releases for hit in drawn}) == 1 and drawn[0].releases > 0
    controls = sum(hit.controls for hit in drawn)
    difference = None
    if len(drawn) > 1 and len(outlying) > 1:
        others, outliers = ([hit.excess for hit in group] for group in (drawn, outlying))
        found = difference_test(outliers, others)
        difference = GroupDifference(
            outliers=sum(outliers) / len(outliers),
            others=sum(others) / len(others),
            p_value=found,
            differ=found <= doubt,
        )
    highest = _highest(rates)
    return AttackRisk(
        attack=name,
        average=average_rate([hit.hits for hit in drawn], drawn[0].releases, 1 - doubt)
        if whole
        else None,
        average_without=sum(hit.control_hits for hit in drawn) / controls if controls else None,
        rates=rates,
        highest=highest[0] if highest else None,
        most_exposed=highest,
        groups=difference,
    )


def strongest_risk(attacks: Sequence[AttackRisk]) -> AttackRisk:
    """The attack with the highest lower limit of an exposed record, then the highest average."""

    def key(one: AttackRisk) -> tuple[float, float]:
        lower = -1.0 if one.highest is None else one.rates[one.highest].rate.lower
        return lower, one.average.value if one.average else 0.0

    return max(attacks, key=key)


def _verdict(findings: RiskFindings, attacks: Sequence[AttackRisk]) -> Verdict:
    failed = [check for check in findings.preflight if check.outcome is CheckOutcome.FAILED]
    if failed:
        return failed_verdict(failed[0])
    planned, finished = findings.releases_planned, findings.releases_finished
    stopped = stopped_verdict(findings.failure, finished, planned, "releases")
    if stopped is not None:
        return stopped
    best = strongest_risk(attacks)
    place = [one.name for one in findings.attacks].index(best.attack)
    average = average_sentence(findings, best)
    joint = (
        f"Statements on records hold for all {count(len(findings.records))} of them"
        + (f" and {_plural(len(attacks), 'attack')}" if len(attacks) > 1 else "")
        + f" together, with {share(findings.confidence)} confidence."
    )
    if best.highest is None:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="No single record was shown to be hit more often in releases that hold it. "
            "This is not evidence of safety.",
            lede=f"{average} {joint}",
            attack=best.attack,
        )
    record, risk = findings.records[best.highest], best.rates[best.highest].rate
    found = record.found[place]
    without = Rate(hits=found.control_hits, trials=found.controls, lower=0, upper=1)
    lower = at_least(risk.lower)
    tied = [
        findings.records[number].name
        for number, one in enumerate(best.rates)
        if one.exposed and (one.rate.lower, one.rate.value) == (risk.lower, risk.value)
    ]
    exposed = sum(any(one.rates[n].exposed for one in attacks) for n in range(len(best.rates)))
    many = f"{count(exposed)} of {_plural(len(findings.records), 'record')}"
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"{_worst(tied)} in at least {lower.rstrip('%')} in 100 releases that hold "
        f"{'it' if len(tied) == 1 else 'them'}; {many} {'is' if exposed == 1 else 'are'} exposed.",
        lede=f"Maximum risk: {hits_of(risk)} releases with record {record.name} are hits (at least "
        f"{lower}, jointly over {_plural(len(best.rates), 'record')}), and "
        f"{hits_of(without)} with another one of its class in its place. {_ties(tied)}{average}"
        f"{_group_sentence(best)} {joint}",
        attack=best.attack,
    )


MOST_NAMED = 3
"""Most records of equal risk that a sentence names."""


def _worst(tied: Sequence[str]) -> str:
    """The record at the highest risk as a subject with its verb, or how many tie for it."""
    if len(tied) == 1:
        return f"Record {tied[0]} is hit"
    return f"{count(len(tied))} records alike are hit"


def _ties(tied: Sequence[str]) -> str:
    """Name the records that tie for the highest risk; nothing where one has it alone."""
    if len(tied) == 1:
        return ""
    left = len(tied) - MOST_NAMED
    more = f" and {count(left)} more" if left > 0 else ""
    return f"Equal risk: {', '.join(tied[:MOST_NAMED])}{more}. "


def average_sentence(findings: RiskFindings, best: AttackRisk) -> str:
    """Say what the average risk is."""
    if best.average is None or best.average_without is None:
        return "Average risk: no record was drawn at random."
    drawn = sum(record.group == "random" for record in findings.records)
    return (
        f"Average risk: {percent(best.average.value)} of the releases of "
        f"{_plural(drawn, 'record')} drawn at random "
        f"({limits(best.average.lower, best.average.upper)}), and "
        f"{percent(best.average_without)} without them."
    )


def _group_sentence(best: AttackRisk) -> str:
    if best.groups is None:
        return ""
    found = f"permutation test, p = {p_value(best.groups.p_value)}"
    if not best.groups.differ:
        return f" Outliers were not shown to differ from other records ({found})."
    more = "more" if best.groups.outliers > best.groups.others else "less"
    return f" Outliers are {more} exposed than other records ({found})."


def _plural(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
