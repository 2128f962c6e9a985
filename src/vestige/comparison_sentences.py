"""What a comparison says in sentences: its verdict, what follows for a reader, its limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vestige.compared_cells import GUESS
from vestige.comparison import Cell, DefendedPoint, Recommendation
from vestige.comparison_figures import limited_mean
from vestige.comparison_plan import ComparisonPlan
from vestige.noise_study import Mean
from vestige.numbers import (
    EN_DASH,
    MINUS,
    at_least,
    count,
    distance,
    rate_with_limits,
    share,
)
from vestige.record import Rate, Verdict, VerdictKind

UNDEFENDED = "No defence"

NOT_EVIDENCE = "This is not evidence of safety."

UNSETTLED = 0.1
"""Width of the limits of the undefended accuracy beyond which losses of points mean little."""

TELLING = 0.25
"""A rate whose upper limit lies beyond this looks like guessing only because trials are few."""


@dataclass(frozen=True)
class Offer:
    """A point before one server with the errors (trials,) that its strongest attack left."""

    point: DefendedPoint
    cell: Cell
    errors: np.ndarray

    @property
    def protection(self) -> Mean:
        """The error that the strongest attack leaves."""
        assert self.cell.protection is not None
        return self.cell.protection

    def within(self, budget: float) -> bool:
        """Whether its measured cost is within a budget, and no training with it diverged."""
        lost = self.point.utility.accuracy_lost
        return lost is not None and not self.point.utility.diverged and lost.value <= budget


def recommend(
    server: str, offers: Sequence[Offer], undefended: Offer | None, plan: ComparisonPlan
) -> Recommendation:
    """Say which defence leaves the largest error within the budget, and how sure that is."""
    budget, alpha = plan.budget, plan.false_positive_rate
    affordable = [offer for offer in offers if offer.within(budget)]
    details = [*_left_out(offers, budget)]
    if undefended is not None:
        details.insert(
            0,
            f"Without a defence an error of {error_words(undefended.protection)} is left "
            f"{_under(undefended.cell)}.{_baseline(undefended.point)}",
        )
    if undefended is not None and undefended.point.utility.diverged:
        return Recommendation(
            server=server,
            sentence="Training without a defence diverged, so no cost is known: lower its "
            "learning rate.",
            details=tuple(details),
        )
    if not affordable:
        return Recommendation(
            server=server,
            sentence=f"No defence here costs at most {budget_words(budget)} of accuracy: allow "
            "more, or try weaker ones.",
            details=tuple(details),
        )
    best = max(affordable, key=lambda offer: (offer.protection.value, -_lost(offer).value))
    alike = _alike(best, [o for o in affordable if o is not best], plan.confidence)
    place = "the only defence at this cost" if len(affordable) == 1 else "the largest at this cost"
    doubt = (
        "" if _lost(best).upper <= budget else ", so these seeds do not show that the cost holds"
    )
    sentence = (
        f"At a cost of at most {budget_words(budget)} of accuracy, {best.point.label} leaves an "
        f"error of {error_words(best.protection)} {_under(best.cell)}, {place}; it costs "
        f"{_cost(best.point)}{doubt}."
    )
    for other in alike[:3]:
        sentence += (
            f" {other.point.label} leaves {error_words(other.protection)}: these trials cannot "
            "tell the two apart."
        )
    if len(alike) > 3:
        more = len(alike) - 3
        sentence += f" The same holds for {count(more)} other{'' if more == 1 else 's'}."
    if undefended is not None and not _larger(best, undefended, plan.confidence):
        sentence += " These trials cannot tell it from no defence."
    return Recommendation(
        server=server,
        sentence=f"{sentence} {_hits(best, affordable, alpha)}",
        details=tuple(details),
    )


def judge_comparison(
    plan: ComparisonPlan,
    undefended: DefendedPoint,
    offers: Mapping[str, Sequence[Offer]],
    refuted: Sequence[str],
) -> Verdict:
    """Say whether anything was to be defended, and whether a defence within the budget hid it."""
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
    alpha = plan.false_positive_rate
    cells = {cell.server: cell for cell in undefended.cells}
    exposed = {name: cell for name, cell in cells.items() if _rate(cell).lower > alpha}
    if not exposed:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="These attacks recover nothing even without a defence.",
            lede="So a comparison of defences shows nothing: give stronger attacks, smaller "
            f"batches, or more trials. {NOT_EVIDENCE}",
        )
    worst_name, worst = max(exposed.items(), key=lambda pair: _rate(pair[1]).value)
    hidden = [name for name in exposed if _hiding(offers[name], plan)]
    budget = budget_words(plan.budget)
    lede = (
        f"Without a defence, hits are {rate_with_limits(_rate(worst))} of secrets "
        f"({worst_name}), where guessing reaches {share(alpha)}."
    )
    if len(hidden) == len(exposed):
        offer = _hiding(offers[hidden[0]], plan)[0]
        known = _rate(offer.cell).upper <= TELLING
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline="Undefended releases give records away; "
            + (
                f"a defence within {budget} left these attacks guessing."
                if known
                else f"what a defence within {budget} hides needs more trials."
            ),
            lede=f"{lede} With {offer.point.label} the hits are "
            f"{rate_with_limits(_rate(offer.cell))}. {NOT_EVIDENCE}",
            attack=worst.strongest,
        )
    where = "" if not hidden else f" before the {next(n for n in exposed if n not in hidden)}"
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"Records are given away{where} with every defence that costs at most {budget} of "
        "accuracy."
        if any(o.within(plan.budget) for n in exposed for o in offers[n])
        else f"Undefended releases give records away, and no defence here costs at most {budget} "
        "of accuracy.",
        lede=lede,
        attack=worst.strongest,
    )


def comparison_limits(plan: ComparisonPlan, points: Sequence[DefendedPoint]) -> tuple[str, ...]:
    """Say what the comparison does not show."""
    training = plan.sized_training
    strengths = Counter(point.defense for point in points if point.defense != UNDEFENDED)
    lonely = [name for name, number in strengths.items() if number == 1]
    said = [
        "Protection is what these attacks left. A stronger attack leaves a smaller error; only a "
        "guarantee limits attacks that nobody has tried.",
        f"Cost is that of {count(training.rounds)} rounds of plain training on "
        f"{count(len(training.records))} records with one learning rate, "
        f"{count(training.repeats)} seeds. Another schedule can make a defence cheaper or dearer.",
        f"Limits of costs are over seeds, for these {count(len(training.held_out))} held-out "
        "records; other records add a doubt that they do not count.",
        "Rounds are the same for all: larger batches, sums over more clients than a round has and "
        "local steps see more records or make more steps in them.",
        "At equal cost, protection is interpolated between measured strengths along a straight "
        "line.",
        "One release was attacked. Several releases about the same record reveal more.",
        "Error and rank are not what a person recognises: look at the pictures.",
    ]
    if lonely:
        names = ", ".join(lonely)
        said.append(
            f"{names}: one strength was measured, so what is said at equal cost is a line between "
            "it and no defence."
        )
    return tuple(said)


def error_words(mean: Mean) -> str:
    """Write an error with limits: ``0.27 (0.25–0.29)``."""
    return f"{distance(mean.value)} ({distance(mean.lower)}{EN_DASH}{distance(mean.upper)})"


def budget_words(budget: float) -> str:
    """Write a loss of accuracy that is allowed: ``2 points``."""
    hundredfold = f"{100 * budget:.3g}"
    return f"{hundredfold} point{'' if hundredfold == '1' else 's'}"


def cost_words(lost: Mean | None) -> str:
    """Write a loss of accuracy with limits: ``1.2 points (−0.3 to 2.7)``."""
    if lost is None:
        return EN_DASH
    value, lower, upper = (
        f"{100 * part:.1f}".replace("-0.0", "0.0").replace("-", MINUS)
        for part in (lost.value, lost.lower, lost.upper)
    )
    return f"{value} points ({lower} to {upper})"


def _under(cell: Cell) -> str:
    """Say under which attack; the guess is none."""
    if cell.strongest == GUESS:
        return "by a guess, which no attack beat"
    return f"under the strongest attack ({cell.strongest})"


def _lost(offer: Offer) -> Mean:
    assert offer.point.utility.accuracy_lost is not None
    return offer.point.utility.accuracy_lost


def _cost(point: DefendedPoint) -> str:
    return cost_words(point.utility.accuracy_lost)


def _why_invalid(
    undefended: DefendedPoint, offers: Mapping[str, Sequence[Offer]]
) -> tuple[str, str]:
    """Why a comparison has nothing to go by, and what to do; empty if it has."""
    again = "Mend what it says and run the same command again: finished cells are kept."
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


def _alike(best: Offer, others: Sequence[Offer], confidence: float) -> list[Offer]:
    """Others whose error these trials cannot tell from the best one's, secret by secret."""
    joint = 1 - (1 - confidence) / max(1, len(others))
    found = [o for o in others if limited_mean(best.errors - o.errors, joint).lower <= 0]
    return sorted(found, key=lambda offer: -offer.protection.value)


def _baseline(undefended: DefendedPoint) -> str:
    """The accuracy that losses are counted from; a training that says little says so."""
    accuracy = undefended.utility.accuracy
    if accuracy is None:
        return ""
    value, lower, upper = (
        share(min(max(one, 0.0), 1.0)) for one in (accuracy.value, accuracy.lower, accuracy.upper)
    )
    said = f" Its accuracy is {value} ({lower} to {upper})."
    if accuracy.upper - accuracy.lower > UNSETTLED:
        said += " So wide a range hides small losses: train for more rounds or with more seeds."
    return said


def _larger(best: Offer, other: Offer, confidence: float) -> bool:
    return limited_mean(best.errors - other.errors, confidence).lower > 0


def _rate(cell: Cell) -> Rate:
    assert cell.most_hits is not None
    return cell.most_hits


def _hiding(offers: Sequence[Offer], plan: ComparisonPlan) -> list[Offer]:
    """Affordable offers whose hits cannot be told from guessing, the largest error first."""
    found = [
        o
        for o in offers
        if o.within(plan.budget) and _rate(o.cell).lower <= plan.false_positive_rate
    ]
    return sorted(found, key=lambda offer: -offer.protection.value)


def _hits(best: Offer, affordable: Sequence[Offer], alpha: float) -> str:
    rate = _rate(best.cell)
    said = f"Hits with {best.point.label}: {rate_with_limits(rate)} of secrets"
    if rate.lower <= alpha:
        return f"{said}, which cannot be told from guessing ({share(alpha)}). {NOT_EVIDENCE}"
    said = f"{said}, where guessing reaches {share(alpha)}."
    least = min(affordable, key=lambda offer: _rate(offer.cell).lower)
    if _rate(least.cell).lower > alpha:
        return (
            f"{said} No defence here within the budget hides secrets from the strongest attack: "
            f"each leaves at least {at_least(_rate(least.cell).lower)} of them hit."
        )
    return (
        f"{said} {least.point.label} leaves a smaller error, but its hits cannot be told from "
        f"guessing: {rate_with_limits(_rate(least.cell))}. {NOT_EVIDENCE}"
    )


def _left_out(offers: Sequence[Offer], budget: float) -> list[str]:
    """Offers that were not considered, and why."""
    said = []
    for offer in offers:
        point, utility = offer.point, offer.point.utility
        if utility.diverged:
            said.append(
                f"{point.label}: training diverged with {count(utility.diverged)} of "
                f"{count(utility.repeats)} seeds, so its cost is not known."
            )
        elif utility.accuracy_lost is None:
            said.append(f"{point.label}: its cost is not known. {utility.problem}".rstrip())
        elif utility.accuracy_lost.value > budget:
            said.append(
                f"{point.label} costs {_cost(point)} and leaves {error_words(offer.protection)}."
            )
        elif utility.accuracy_lost.upper > budget:
            said.append(
                f"{point.label} counts as within the budget by its mean, {_cost(point)}, whose "
                "limits reach beyond it."
            )
    return said
