"""What follows from a comparison for a reader who must choose a defence. No torch."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from vestige.reports.comparison import (
    UNDEFENDED,
    Cell,
    ComparisonFindings,
    DefendedPoint,
    Front,
    Matched,
    Recommendation,
)
from vestige.reports.comparison_words import (
    cost_words,
    error_with_limits,
    joined,
    lost_words,
    runs_behind,
)
from vestige.reports.noise import Mean
from vestige.reports.numbers import at_least, count, plural, rate_with_limits, share
from vestige.reports.parts import Rate
from vestige.statistics.tradeoff import least_trials, pareto_front

NOT_EVIDENCE = "This is not evidence of safety."

UNSETTLED = 0.1
"""Width of the limits of the undefended accuracy beyond which losses of points mean little."""

Larger = Set[tuple[str, str]]
"""Labels of settings before one server, (larger, smaller), that are told apart."""

SAID_ALIKE = 3
"""Defences that cannot be told from the best one that a recommendation names."""


@dataclass(frozen=True)
class Offer:
    """A point before one server; ``joint_cost`` has limits that are joint over all settings."""

    point: DefendedPoint
    cell: Cell
    joint_cost: Mean | None = None

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
    server: str,
    offers: Sequence[Offer],
    undefended: Offer | None,
    larger: Larger,
    findings: ComparisonFindings,
) -> Recommendation:
    """Say which defence leaves the largest error within the budget, and how sure that is.

    What is said about order is in ``larger``, which holds for all settings together, so it holds
    for the one that is chosen.
    """
    budget, alpha = findings.budget, findings.false_positive_rate
    affordable = [offer for offer in offers if offer.within(budget)]
    details = [*_left_out(offers, budget)]
    if undefended is not None:
        details.insert(
            0,
            f"Without a defence an error of {error_with_limits(undefended.protection)} is left "
            f"{_under(undefended.cell)}.{_baseline(undefended.point)}",
        )
        details[1:1] = _worse(offers, undefended, larger)
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
            sentence=f"No defence here costs at most {lost_words(budget)} of accuracy: allow "
            "more, or try weaker ones.",
            details=tuple(details),
        )
    best = max(affordable, key=lambda offer: (offer.protection.value, -_lost(offer).value))
    alike = [o for o in affordable if o is not best and not _told(best, o, larger)]
    alike.sort(key=lambda offer: -offer.protection.value)
    sentence = (
        f"At a cost of at most {lost_words(budget)} of accuracy, {best.point.label} leaves an "
        f"error of {error_with_limits(best.protection)} {_under(best.cell)}, "
        f"{_place(affordable, alike)}; it costs {_cost(best.point)}{_doubt(best, budget)}."
    )
    if undefended is not None:
        sentence += _beside_none(best, undefended, larger)
    for other in alike[:SAID_ALIKE]:
        sentence += (
            f" {other.point.label} leaves {error_with_limits(other.protection)}: these trials "
            "cannot tell the two apart."
        )
    if len(alike) > SAID_ALIKE:
        more = len(alike) - SAID_ALIKE
        sentence += f" The same holds for {count(more)} other{'' if more == 1 else 's'}."
    least = least_trials(findings.confidence)
    if findings.trials < least:
        sentence += (
            f" With {plural(findings.trials, 'trial')} nothing can be told apart at "
            f"{share(findings.confidence)}: more trials are needed."
        )
    return Recommendation(
        server=server,
        sentence=f"{sentence} {_hits(best, affordable, larger, alpha)}",
        details=tuple(details),
    )


def say_equal_cost(matched: Sequence[Matched], cost: float) -> str:
    """Say which defences before one server can be told apart at a cost; empty if none has it."""
    reached = [m for m in matched if m.accuracy_lost == cost and m.protection is not None]
    if not reached:
        return ""
    said = [
        f"{m.defense} leaves more than {joined([_lowered(name) for name in m.larger_than])}"
        for m in reached
        if m.larger_than
    ]
    below = [m.defense for m in reached if UNDEFENDED in m.smaller_than]
    if below:
        said.append(f"{joined(below)} {'leaves' if len(below) == 1 else 'leave'} less than none")
    at = f"At a cost of {lost_words(cost)}"
    if not said:
        others = ", nor two of them from each other" if len(reached) > 1 else ""
        return (
            f"{at}, these trials and seeds cannot tell {joined([m.defense for m in reached])} from "
            f"no defence{others}."
        )
    return f"{at}, {'; '.join(said)}. These trials and seeds tell no other two apart there."


def front_of(server: str, offers: Sequence[Offer]) -> Front:
    """Points of known cost that no other one beats by the means; one that diverged has none.

    It orders what was measured. Which of it is more than chance is another question.
    """
    known = [o for o in offers if o.point.utility.accuracy_lost and not o.point.utility.diverged]
    costs = [o.point.utility.accuracy_lost.value for o in known if o.point.utility.accuracy_lost]
    chosen = pareto_front(costs, [offer.protection.value for offer in known])
    ordered = sorted(chosen, key=lambda index: costs[index])
    return Front(server=server, labels=tuple(known[index].point.label for index in ordered))


def hits_of(cell: Cell) -> Rate:
    """The largest rate of hits of a measured cell."""
    assert cell.most_hits is not None
    return cell.most_hits


def _under(cell: Cell) -> str:
    """Say under which attack; the guess is none."""
    if cell.guess_is_strongest:
        return "by a guess, which no attack beat"
    return f"under the strongest attack ({cell.strongest})"


def _lost(offer: Offer) -> Mean:
    assert offer.point.utility.accuracy_lost is not None
    return offer.point.utility.accuracy_lost


def _cost(point: DefendedPoint) -> str:
    return cost_words(point.utility.accuracy_lost, runs_behind(point))


def _told(one: Offer, other: Offer, larger: Larger) -> bool:
    """Whether the first is shown to leave a larger error than the second."""
    return (one.point.label, other.point.label) in larger


def _place(affordable: Sequence[Offer], alike: Sequence[Offer]) -> str:
    """What can be said of the largest mean among offers."""
    if len(affordable) == 1:
        return "the only defence at this cost"
    return "the largest mean at this cost" if alike else "more than every other at this cost"


def _doubt(best: Offer, budget: float) -> str:
    """Whether the cost of what was chosen is shown to be within the budget."""
    if best.joint_cost is not None and best.joint_cost.upper <= budget:
        return ""
    return ", but limits for all costs together reach beyond the budget"


def _beside_none(best: Offer, undefended: Offer, larger: Larger) -> str:
    if _told(best, undefended, larger):
        return " This is more than without a defence."
    if _told(undefended, best, larger):
        return " This is less than without a defence."
    return " These trials cannot tell it from no defence."


def _worse(offers: Sequence[Offer], undefended: Offer, larger: Larger) -> list[str]:
    """Settings that are shown to leave less than no defence."""
    below = [offer.point.label for offer in offers if _told(undefended, offer, larger)]
    if not below:
        return []
    return [f"Less than without a defence is left with {joined(below)}."]


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


def _hits(best: Offer, affordable: Sequence[Offer], larger: Larger, alpha: float) -> str:
    rate = hits_of(best.cell)
    said = f"Hits with {best.point.label}: {rate_with_limits(rate)} of secrets"
    if rate.lower <= alpha:
        return f"{said}, which cannot be told from guessing ({share(alpha)}). {NOT_EVIDENCE}"
    said = f"{said}, where guessing reaches {share(alpha)}."
    least = min(affordable, key=lambda offer: hits_of(offer.cell).lower)
    if hits_of(least.cell).lower > alpha:
        return (
            f"{said} No defence here within the budget hides secrets from the strongest attack: "
            f"each leaves at least {at_least(hits_of(least.cell).lower)} of them hit."
        )
    left = "a smaller error" if _told(best, least, larger) else "an error that may be as large"
    return (
        f"{said} {least.point.label} leaves {left}, but its hits cannot be told from guessing: "
        f"{rate_with_limits(hits_of(least.cell))}. {NOT_EVIDENCE}"
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
                f"{point.label} costs {_cost(point)} and leaves "
                f"{error_with_limits(offer.protection)}."
            )
        elif utility.accuracy_lost.upper > budget:
            said.append(
                f"{point.label} counts as within the budget by its mean, {_cost(point)}, whose "
                "limits reach beyond it."
            )
    return said


def _lowered(name: str) -> str:
    return name.lower() if name == UNDEFENDED else name
