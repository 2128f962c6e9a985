"""What studies of many releases contribute to an annex: single records, and repeated audits."""

from __future__ import annotations

from vestige.pages.annex import enough
from vestige.pages.annex.enough import NOTHING_MISSING
from vestige.pages.annex.facts import (
    NO_FIGURE,
    Facts,
    annex_facts,
    bound_words,
    is_invalid,
    stage_of,
)
from vestige.pages.annex.not_tried import attacks_left, budget_words, defense_left, not_tried
from vestige.reports import numbers
from vestige.reports.audit import HitBounds
from vestige.reports.repeated import RepeatedReport
from vestige.reports.repeated_words import sizes_words, spread_words
from vestige.reports.risk import AttackRisk, RiskFindings, RiskReport
from vestige.reports.shown import plain

MOST_NAMED = 3
"""Most records that an annex names."""

NOT_STATED = "No mechanism was stated, so no bound is known: all above the measured rates is open."


def _theory(bounds: HitBounds | None, mechanism: str, average: str) -> str:
    """What theory allows on average; ``average`` is the measured rate beside it."""
    if not mechanism and (bounds is None or bounds.epsilon is None) and not _bounded(bounds):
        return NOT_STATED
    said = bound_words(bounds, mechanism)
    if bounds is not None and bounds.epsilon is not None:
        said += f" Stated: ε = {plain(bounds.epsilon)} (δ = {plain(bounds.delta)})."
    return f"{said} Measured: {average}." if average and _bounded(bounds) else said


def _bounded(bounds: HitBounds | None) -> bool:
    return bounds is not None and bounds.success < 1


@annex_facts.register
def risk_facts(report: RiskReport) -> Facts:
    """Single records in many releases: the average over records at random, and the most exposed."""
    found = report.findings
    attacks = tuple(attack.name for attack in found.attacks)
    risks = report.judgement.attacks
    leading = [one for one in risks if one.attack == report.verdict.attack] or list(risks[:1])
    cited = bool(leading) and not is_invalid(report)
    records = numbers.plural(len(found.records), "record")
    return Facts(
        subject=f"{numbers.defended(found.release, found.defense)}; {records}, each in "
        f"{numbers.plural(found.repeats, 'release')} of "
        f"{numbers.plural(found.batch_size, 'record')}",
        trials=found.releases_finished,
        planned=found.releases_planned,
        threats=(("", found.threat),),
        stage=stage_of(found.release),
        attacks=attacks,
        average=_average(found, leading[0]) if cited else NO_FIGURE,
        maximum=most_exposed(report) if cited else NO_FIGURE,
        sure=f"{numbers.share(found.confidence)} confidence, jointly over {records} and "
        f"{numbers.plural(len(attacks), 'attack')}",
        theory=_theory(
            found.bounds,
            found.settings.get("Stated mechanism", ""),
            f"{numbers.rate_with_limits(leading[0].average)} on average over records at random"
            if cited and leading[0].average
            else "",
        ),
        mechanism=found.settings.get("Stated mechanism", ""),
        bounded=_bounded(found.bounds),
        not_tried=not_tried(
            (found.threat.attacker,),
            attacks_left(found.release, found.space.kind, attacks),
            budget_words(found.attacks),
            f"records other than these {numbers.count(len(found.records))}",
            defense_left(found.defense),
        ),
        enough=enough.risk_enough(report) if cited else NOTHING_MISSING,
        guess="Releases with another record of the class in its place were read alike: a record "
        "counts as exposed only if it is hit more often with it than without it.",
        quantity=(
            ("Releases", f"{numbers.count(found.repeats)} of each record"),
            ("Controls", f"{numbers.count(found.repeats * found.controls)} for each record"),
            ("Decoys", f"{numbers.count(found.decoys)} in each release, of the record's class"),
        ),
    )


def _average(found: RiskFindings, risk: AttackRisk) -> str:
    drawn = sum(record.group == "random" for record in found.records)
    if risk.average is None or risk.average_without is None:
        return "No record was drawn at random."
    return (
        f"Of {numbers.plural(drawn, 'record')} drawn at random, "
        f"{numbers.rate_with_limits(risk.average)} of the releases were hits by {risk.attack}; "
        f"without them {numbers.percent(risk.average_without)}."
    )


def most_exposed(report: RiskReport) -> str:
    """The records with the highest lower limits by any attack, by their keyed names."""
    found, risks = report.findings, report.judgement.attacks
    best = {
        record.name: max(
            (
                (one.rates[place].rate.lower, one.rates[place].rate.value, one.rates[place].rate)
                for one in risks
                if one.rates[place].exposed
            ),
            key=lambda seen: seen[:2],
        )
        for place, record in enumerate(found.records)
        if any(one.rates[place].exposed for one in risks)
    }
    if not best:
        return "No single record was shown to be hit more often in releases that hold it."
    ordered = sorted(best, key=lambda name: best[name][:2], reverse=True)
    named = "; ".join(
        f"{name} {numbers.rate_with_limits(best[name][2])}" for name in ordered[:MOST_NAMED]
    )
    total = numbers.plural(len(found.records), "record")
    tied = sum(one[:2] == best[ordered[0]][:2] for one in best.values())
    tie = "" if tied == 1 else f" {numbers.count(tied)} records tie for the most."
    return (
        f"{numbers.count(len(best))} of {total} {'is' if len(best) == 1 else 'are'} exposed; "
        f"the most, by keyed name and share of releases that are hits: {named}.{tie} Limits hold "
        f"for all {total} together."
    )


@annex_facts.register
def repeated_facts(report: RepeatedReport) -> Facts:
    """The same audit with several seeds: how far its rates vary."""
    found = report.findings
    chance = numbers.share(found.false_positive_rate)
    said = spread_words(found) or "no attack has a rate"
    return Facts(
        subject=f"{numbers.defended(found.release, found.defense)}, audited with "
        f"{numbers.plural(found.repeats, 'seed')}",
        trials=sum(run.trials for run in found.runs),
        planned=found.repeats * found.trials_planned,
        threats=(("", found.threat),),
        stage=stage_of(found.release),
        attacks=found.attacks,
        average=NO_FIGURE
        if is_invalid(report)
        else f"Over {sizes_words(found)}: {said}; by chance {chance}.",
        maximum=NO_FIGURE
        if is_invalid(report)
        else "Which records are most exposed was not computed. A study of single records "
        "(RecordRisk) measures it.",
        sure=f"{numbers.share(found.confidence)} confidence, jointly over attacks and "
        f"{numbers.plural(found.repeats, 'repetition')}",
        theory=_theory(
            found.bounds,
            found.settings.get("Stated mechanism", ""),
            "" if is_invalid(report) else said,
        ),
        mechanism=found.settings.get("Stated mechanism", ""),
        bounded=_bounded(found.bounds),
        not_tried=not_tried(
            (found.threat.attacker,),
            attacks_left(found.release, found.space.kind, found.attacks),
            "other models, pools of secrets and priors (all seeds share them)",
            defense_left(found.defense),
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.repeated_enough(report),
        guess=f"Guesses with the same hints were compared with the same records; by chance "
        f"{numbers.by_chance(found.false_positive_rate)}.",
        quantity=(
            ("Repetitions", numbers.count(found.repeats)),
            ("Decoys", f"{numbers.count(found.decoys)} in each trial, of the secret's class"),
        ),
    )
