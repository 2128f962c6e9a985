"""From what was measured of defences, their costs and cells, to the findings of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vestige.bounds.description import in_words
from vestige.defenses.defended_victims import mechanism_of
from vestige.defenses.undefended import Undefended
from vestige.errors import BadInput
from vestige.mechanisms import Mechanism, NonPrivate, has_guarantee
from vestige.records import TextSpace
from vestige.reports.comparison import ComparisonFindings, DefendedPoint, Server, Utility
from vestige.reports.numbers import count
from vestige.statistics.tradeoff import mean_with_limits
from vestige.studies.comparison.orders import (
    joint_costs,
    matched_at_costs,
    order_settings,
    told_apart,
    with_static_orders,
)
from vestige.studies.comparison.search_cost import search_cost
from vestige.studies.report_parts import (
    describe_prior,
    describe_space,
    describe_threat,
    environment,
    with_table,
)

if TYPE_CHECKING:
    from vestige.interfaces import Attack, Defense
    from vestige.studies.comparison.cells import MeasuredCell
    from vestige.studies.comparison.plan import ComparedServer, Comparison
    from vestige.studies.comparison.utility_training import UtilityRuns
    from vestige.studies.study import Header


@dataclass(frozen=True)
class MeasuredDefense:
    """A defence with all that was measured of it; ``costs`` (seeds,) is None without a cost.

    ``mechanism`` is what its release is said to be.
    """

    defense: Defense
    point: DefendedPoint
    costs: np.ndarray | None
    cells: dict[str, MeasuredCell]
    mechanism: Mechanism = field(default_factory=lambda: NonPrivate("nothing is stated"))


def measured_defense(
    plan: Comparison,
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
            mechanism = mechanism_of(defense(plan.servers[0].victim))
    point = DefendedPoint(
        defense=defense.name,
        undefended=isinstance(defense, Undefended),
        strength=defense.strength,
        setting=defense.setting,
        mechanism=in_words(mechanism),
        guarantee=has_guarantee(mechanism),
        records=defense.records(plan.batch_size),
        utility=utility,
        cells=tuple(cell.cell for cell in cells.values()),
    )
    return MeasuredDefense(defense, point, costs, cells, mechanism)


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
        accuracy=mean_with_limits(accuracies, confidence, low=0.0, high=1.0) if several else None,
        loss=mean_with_limits(losses, confidence, low=0.0) if several else None,
        accuracy_lost=mean_with_limits(lost, confidence, low=-1.0, high=1.0) if paired else None,
        loss_added=mean_with_limits(added, confidence) if paired else None,
        problem=runs.problem,
    )
    return utility, lost if paired and len(pairs) == len(runs.runs) else None


def assemble_comparison(
    plan: Comparison, measured: Sequence[MeasuredDefense], about: Header
) -> ComparisonFindings:
    """Put together what was measured; nothing is run."""
    whole = [cell for one in measured for cell in one.cells.values() if cell.errors is not None]
    if not whole:
        raise BadInput(
            f"No cell of the comparison could be measured: {measured[0].point.cells[0].problem}"
        )
    orders = order_settings(measured)
    points = tuple(with_static_orders(one.point, one, orders, plan.confidence) for one in measured)
    labels = [point.label for point in points]
    larger = {s.name: orders.larger(s.name, labels, plan.confidence) for s in plan.servers}
    device = next(iter(plan.servers[0].victim.simulator.model.parameters())).device
    return ComparisonFindings(
        title=plan.title,
        space=describe_space(plan.prior.space),
        servers=tuple(_server(plan, server) for server in plan.servers),
        attacks=_summaries(plan, whole),
        points=points,
        matched=tuple(matched_at_costs(plan, measured, orders)),
        told_apart=told_apart(larger),
        joint_costs=joint_costs(measured, plan.confidence),
        refuted=tuple(cell.claim_refuted for cell in whole if cell.claim_refuted),
        search=search_cost(
            [one.mechanism for one in measured if one.point.guarantee],
            plan.sized_training.repeats,
        ),
        budget=plan.budget,
        secrets=whole[0].secrets,
        guess_error=whole[0].guess_error,
        trials=plan.trials,
        seed=about.seed,
        batch_size=plan.batch_size,
        false_positive_rate=plan.false_positive_rate,
        confidence=plan.confidence,
        limits=comparison_limits(plan, points),
        settings=_settings(plan, about.seed),
        environment=environment(device),
        times=about.times,
    )


def _server(plan: Comparison, server: ComparedServer) -> Server:
    briefing = server.threat.briefing(server.victim, plan.batch_size)
    return Server(
        name=server.name,
        threat=describe_threat(briefing, describe_prior(plan.prior)),
    )


def _summaries(plan: Comparison, cells: Sequence[MeasuredCell]) -> dict[str, str]:
    """Names of all attacks with what each does."""
    known: dict[str, Attack] = {}
    for server in plan.servers:
        known |= plan.audit(server, plan.all_defenses[0]).all_attacks
    used = dict.fromkeys(m.attack for cell in cells for m in cell.cell.measures)
    return {name: known[name].summary for name in used}


def _settings(plan: Comparison, seed: int) -> dict[str, str]:
    training, victim = plan.sized_training, plan.servers[0].victim
    start = "drawn for each seed" if training.fresh_initialization else "the victim's"
    audit = plan.audit(plan.servers[0], plan.all_defenses[0])
    return {
        **with_table(victim.describe(), plan.secrets.space),
        "Secrets, prior": f"{count(len(plan.secrets))}, {count(len(plan.prior.records))} records",
        "Batch size": str(plan.batch_size),
        "Trials, seed": f"{count(plan.trials)}, {seed}",
        "Decoys per trial": str(audit.decoy_count),
        "Utility training": f"{count(training.rounds)} rounds, {training.clients} clients of "
        f"{training.batch_size} records, learning rate {training.learning_rate:g}",
        "Utility seeds, initial weights": f"{training.repeats}, {start}",
        "Utility records, held out": f"{count(len(training.records))}, "
        f"{count(len(training.held_out))}",
        "DP-SGD trained by": training.by,
    }


def comparison_limits(plan: Comparison, points: Sequence[DefendedPoint]) -> tuple[str, ...]:
    """Say what the comparison does not show."""
    training = plan.sized_training
    strengths = Counter(point.defense for point in points if not point.undefended)
    lonely = [name for name, number in strengths.items() if number == 1]
    said = [
        "Protection is what these attacks left. A stronger attack leaves a smaller error; only a "
        "guarantee limits attacks that were not tried.",
        f"Cost is that of {count(training.rounds)} rounds of plain training on "
        f"{count(len(training.records))} records with one learning rate, "
        f"{count(training.repeats)} seeds. Another schedule can make a defence cheaper or dearer.",
        f"Limits of costs are over seeds, for these {count(len(training.held_out))} held-out "
        "records; other records add a doubt that they do not count.",
        "Rounds are the same for all: larger batches, sums over more clients than a round has and "
        "local steps see more records or make more steps in them.",
        "At equal cost, protection is interpolated between measured strengths along a straight "
        "line.",
        "Two settings are told apart by their mean errors, trial by trial, and all pairs hold "
        "together. Errors that are small in nearly all trials and large in a few can mislead this: "
        "look at more trials.",
        "One release was attacked. Several releases about the same record reveal more.",
        "Error and rank are not what a person recognises: look at the "
        f"{'texts' if isinstance(plan.secrets.space, TextSpace) else 'pictures'}.",
    ]
    if lonely:
        names = ", ".join(lonely)
        said.append(
            f"{names}: one strength was measured, so what is said at equal cost is a line between "
            "it and no defence."
        )
    return tuple(said)
