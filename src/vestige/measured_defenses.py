"""Defences with all that was measured of them: their cost, the front, and equal costs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from vestige.bounds.description import in_words
from vestige.bounds.mechanisms import has_guarantee
from vestige.compared_cells import MeasuredCell
from vestige.comparison import DefendedPoint, Front, Matched, Utility
from vestige.comparison_figures import Curve, limited_mean, pareto_front
from vestige.comparison_plan import ComparisonPlan
from vestige.comparison_sentences import Offer, budget_words, cost_words
from vestige.defenses import Defense
from vestige.defenses.defended_victims import stated
from vestige.errors import BadInput
from vestige.utilities import UtilityRuns


@dataclass(frozen=True)
class MeasuredDefense:
    """A defence with all that was measured of it; ``costs`` (seeds,) is None without a cost."""

    defense: Defense
    point: DefendedPoint
    costs: np.ndarray | None
    cells: dict[str, MeasuredCell]


def measured_defense(
    plan: ComparisonPlan,
    defense: Defense,
    runs: UtilityRuns,
    undefended: UtilityRuns,
    cells: dict[str, MeasuredCell],
) -> MeasuredDefense:
    """Put together what was measured of a defence; ``undefended`` trainings are its yardstick."""
    utility, costs = _utility(runs, undefended, plan.confidence)
    mechanism = defense.mechanism
    if has_guarantee(mechanism):
        # What holds for one release need not hold for all steps of this victim.
        with suppress(BadInput):
            mechanism = stated(defense(plan.servers[0].victim))
    point = DefendedPoint(
        defense=defense.name,
        strength=defense.strength,
        setting=defense.setting,
        mechanism=in_words(mechanism),
        guarantee=has_guarantee(mechanism),
        records=defense.records(plan.batch_size),
        utility=utility,
        cells=tuple(cell.cell for cell in cells.values()),
    )
    return MeasuredDefense(defense, point, costs, cells)


def _utility(
    runs: UtilityRuns, undefended: UtilityRuns, confidence: float
) -> tuple[Utility, np.ndarray | None]:
    """What trainings are worth, and the accuracy that each lost where no run diverged.

    Of fewer than two sound runs there is no mean with limits, so none is given.
    """
    sound = [run for run in runs.runs if not run.diverged]
    pairs = [(a, b) for a, b in zip(undefended.runs, runs.runs) if not (a.diverged or b.diverged)]
    accuracies = np.array([run.accuracy for run in sound], dtype=float)
    losses = np.array([run.loss for run in sound], dtype=float)
    lost = np.array([float(a.accuracy or 0) - float(b.accuracy or 0) for a, b in pairs])
    added = np.array([float(b.loss or 0) - float(a.loss or 0) for a, b in pairs])
    several, paired = len(sound) > 1, len(pairs) > 1
    utility = Utility(
        repeats=len(runs.runs),
        diverged=runs.diverged,
        accuracy=limited_mean(accuracies, confidence, low=0.0, high=1.0) if several else None,
        loss=limited_mean(losses, confidence, low=0.0) if several else None,
        accuracy_lost=limited_mean(lost, confidence, low=-1.0, high=1.0) if paired else None,
        loss_added=limited_mean(added, confidence) if paired else None,
        problem=runs.problem,
    )
    return utility, lost if paired and len(pairs) == len(runs.runs) else None


def front_of(server: str, offers: Sequence[Offer]) -> Front:
    """Points of known cost that no other one beats; a training that diverged has no known cost."""
    known = [o for o in offers if o.point.utility.accuracy_lost and not o.point.utility.diverged]
    costs = [o.point.utility.accuracy_lost.value for o in known if o.point.utility.accuracy_lost]
    chosen = pareto_front(costs, [offer.protection.value for offer in known])
    ordered = sorted(chosen, key=lambda index: costs[index])
    return Front(server=server, labels=tuple(known[index].point.label for index in ordered))


def matched_at_costs(
    plan: ComparisonPlan, measured: Sequence[MeasuredDefense], seed: int
) -> list[Matched]:
    """What every defence leaves at half the budget, the budget and twice as much."""
    generator = np.random.default_rng(seed)
    families = dict.fromkeys(one.defense.name for one in measured[1:])
    found = []
    for server in plan.servers:
        for family in families:
            members = [one for one in measured[1:] if one.defense.name == family]
            known = [
                one
                for one in members
                if one.costs is not None and one.cells[server.name].errors is not None
            ]
            found += [
                _at(plan, server.name, measured[0], members, known, cost, generator)
                for cost in (plan.budget / 2, plan.budget, 2 * plan.budget)
            ]
    return found


def _at(
    plan: ComparisonPlan,
    server: str,
    undefended: MeasuredDefense,
    members: Sequence[MeasuredDefense],
    known: Sequence[MeasuredDefense],
    cost: float,
    generator: np.random.Generator,
) -> Matched:
    def nothing(reason: str) -> Matched:
        return Matched(
            server=server,
            defense=members[0].defense.name,
            accuracy_lost=cost,
            protection=None,
            reason=reason,
        )

    if undefended.costs is None or undefended.cells[server].errors is None:
        return nothing("There is no measurement without a defence to start from.")
    if not known:
        problems = [one.cells[server].cell.problem or one.point.utility.problem for one in members]
        why = next((problem for problem in problems if problem), "")
        return nothing(why or "Its cost is not known: training diverged.")
    line = [undefended, *known]
    errors = [one.cells[server].errors for one in line]
    curve = Curve(
        np.stack([one.costs for one in line if one.costs is not None], axis=1),
        tuple(array for array in errors if array is not None),
    )
    costs = curve.mean_costs
    if cost > costs[-1]:
        last = known[-1].point
        worse = len(members) - len(known)
        beyond = " Stronger ones diverged or could not be measured." if worse else ""
        return nothing(
            f"No measured strength costs {budget_words(cost)}: {last.label} costs "
            f"{cost_words(last.utility.accuracy_lost)}.{beyond}"
        )
    left = int((costs <= cost).sum()) - 1
    sides = [left] if costs[left] == cost or left == len(line) - 1 else [left, left + 1]
    return Matched(
        server=server,
        defense=members[0].defense.name,
        accuracy_lost=cost,
        protection=curve.at(cost, plan.confidence, generator),
        between=tuple(line[side].point.label for side in sides),
    )
