"""The verdict on a comparison, from its findings alone. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vestige.reports.comparison import ComparisonFindings, ComparisonJudgement, DefendedPoint
from vestige.reports.comparison_words import lost_words
from vestige.reports.numbers import count, rate_with_limits, share
from vestige.reports.parts import Verdict, VerdictKind
from vestige.statistics.rates import clopper_pearson
from vestige.studies.comparison.advice import (
    NOT_EVIDENCE,
    Larger,
    Offer,
    front_of,
    hits_of,
    recommend,
    say_equal_cost,
)

TELLING = 0.25
"""A rate whose upper limit lies beyond this looks like guessing only because trials are few."""


def judge_comparison(findings: ComparisonFindings) -> ComparisonJudgement:
    """Say whether a defence hid what was given away, and what follows before each server."""
    defended: dict[str, list[Offer]] = {}
    larger: dict[str, Larger] = {}
    recommendations, fronts = [], []
    for name in (server.name for server in findings.servers):
        offers = [
            Offer(point, cell, findings.joint_costs.get(point.label))
            for point in findings.points
            if (cell := findings.cell(point, name)).protection is not None
        ]
        bare = next((offer for offer in offers if offer.point.undefended), None)
        defended[name] = [offer for offer in offers if not offer.point.undefended]
        told = findings.told_apart
        larger[name] = {(t.larger, t.smaller) for t in told if t.server == name}
        advice = recommend(name, defended[name], bare, larger[name], findings)
        matched = [one for one in findings.matched if one.server == name]
        said = say_equal_cost(matched, findings.budget)
        recommendations.append(advice.model_copy(update={"equal_cost": said}))
        fronts.append(front_of(name, offers))
    return ComparisonJudgement(
        verdict=_with_gaps(judge_offers(findings, defended, larger), findings),
        checks=findings.preflight,
        recommendations=tuple(recommendations),
        fronts=tuple(fronts),
    )


def _with_gaps(verdict: Verdict, findings: ComparisonFindings) -> Verdict:
    """The verdict, and which settings it says nothing about because nothing ran under them."""
    missing = [
        point.label
        for point in findings.points
        if any(cell.protection is None for cell in point.cells)
    ]
    if not missing or verdict.kind is VerdictKind.INVALID:
        return verdict
    said = f"Not measured, and not compared: {'; '.join(missing)} (the tables say why)."
    return verdict.model_copy(update={"lede": f"{verdict.lede} {said}"})


def judge_offers(
    findings: ComparisonFindings,
    offers: Mapping[str, Sequence[Offer]],
    larger: Mapping[str, Larger],
) -> Verdict:
    """Say whether anything was to be defended, and whether a defence within the budget hid it."""
    undefended, refuted = findings.points[0], findings.refuted
    if refuted:
        return Verdict(
            kind=VerdictKind.CLAIM_REFUTED,
            headline="A defence does not keep what it guarantees.",
            lede=refuted[0],
        )
    why, remedy = _why_invalid(undefended, offers)
    if why:
        return Verdict(
            kind=VerdictKind.INVALID,
            headline="This comparison says nothing yet.",
            lede=why,
            remedy=remedy,
        )
    alpha = findings.false_positive_rate
    cells = {cell.server: cell for cell in undefended.cells}
    exposed = {name: cell for name, cell in cells.items() if hits_of(cell).lower > alpha}
    if not exposed:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="These attacks were not shown to recover secrets, even without a defence.",
            lede="So a comparison of defences shows nothing: give stronger attacks, smaller "
            f"batches, or more trials. {NOT_EVIDENCE}",
        )
    worst_name, worst = max(exposed.items(), key=lambda pair: hits_of(pair[1]).value)
    hidden = [name for name in exposed if _hiding(offers[name], findings)]
    budget = lost_words(findings.budget)
    lede = (
        f"Without a defence, hits are {rate_with_limits(hits_of(worst))} of secrets "
        f"({worst_name}), where guessing reaches {share(alpha)}."
    )
    if len(hidden) == len(exposed):
        offer = _hiding(offers[hidden[0]], findings)[0]
        told = (offer.point.label, undefended.label) in larger[hidden[0]]
        known = told and _joint_upper(offer, offers[hidden[0]], findings) <= TELLING
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline="Undefended releases give records away; "
            + (
                f"a defence within {budget} left these attacks guessing."
                if known
                else f"what a defence within {budget} hides needs more trials."
            ),
            lede=f"{lede} With {offer.point.label} the hits are "
            f"{rate_with_limits(hits_of(offer.cell))}. {NOT_EVIDENCE}",
            attack=worst.strongest,
        )
    where = "" if not hidden else f" before the {next(n for n in exposed if n not in hidden)}"
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"Records are given away{where} with every defence that costs at most {budget} of "
        "accuracy."
        if any(o.within(findings.budget) for n in exposed for o in offers[n])
        else f"Undefended releases give records away, and no defence here costs at most {budget} "
        "of accuracy.",
        lede=lede,
        attack=worst.strongest,
    )


def _why_invalid(
    undefended: DefendedPoint, offers: Mapping[str, Sequence[Offer]]
) -> tuple[str, str]:
    """Why a comparison has nothing to go by, and what to do; empty if it has."""
    again = "Fix what it says and run the same command again: finished cells are kept."
    broken = [cell.problem for cell in undefended.cells if cell.problem]
    if broken:
        return f"Without a defence: {broken[0]}", again
    utility = undefended.utility
    if utility.diverged:
        return (
            f"Training without a defence diverged with {count(utility.diverged)} of "
            f"{count(utility.repeats)} seeds, so no cost is known.",
            "Lower the learning rate of the UtilityTraining.",
        )
    if not any(offers.values()):
        return "No defence could be measured before any server.", again
    return "", ""


def _hiding(offers: Sequence[Offer], findings: ComparisonFindings) -> list[Offer]:
    """Affordable offers whose hits cannot be told from guessing, the largest error first."""
    found = [
        o
        for o in offers
        if o.within(findings.budget) and hits_of(o.cell).lower <= findings.false_positive_rate
    ]
    return sorted(found, key=lambda offer: -offer.protection.value)


def _joint_upper(offer: Offer, offers: Sequence[Offer], findings: ComparisonFindings) -> float:
    """Upper limit of a rate of hits, joint over attacks and the offers it was chosen from."""
    chosen_from = sum(other.within(findings.budget) for other in offers)
    several = max(1, len(offer.cell.measures)) * max(1, chosen_from)
    rate = hits_of(offer.cell)
    return clopper_pearson(rate.hits, rate.trials, 1 - (1 - findings.confidence) / several)[1]
