"""The comparison of defences: every cell an audit, every cost a training, all of it paired.

Liu, Wang, Chen and Lei 2025, §4 and Figure 3, with four changes: protection is the *smallest* error
over the attacks; honest and malicious servers are compared apart; utility comes from repeated
trainings with limits; and attackers know the defence.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from vestige import progress
from vestige.compared_cells import MeasuredCell, measure_cell
from vestige.comparison import Comparison, Server
from vestige.comparison_figures import limited_mean
from vestige.comparison_plan import ComparedServer, ComparisonPlan, label_of
from vestige.comparison_sentences import (
    UNDEFENDED,
    Offer,
    comparison_limits,
    judge_comparison,
    recommend,
)
from vestige.defenses import Defense
from vestige.engines import Engine, InProcess
from vestige.engines.metered import Metered
from vestige.errors import BadInput
from vestige.files import explained
from vestige.measured_defenses import (
    MeasuredDefense,
    front_of,
    matched_at_costs,
    measured_defense,
)
from vestige.numbers import count
from vestige.observations import Attack
from vestige.record import ThreatRecord
from vestige.record_parts import environment, space_record
from vestige.trials import Moment, Watcher
from vestige.utilities import UtilityRuns, measure_utility, train_ahead


@dataclass(frozen=True)
class ComparisonMoment:
    """Where a comparison is: ``done`` of ``total`` trainings and cells, and what it does now.

    ``step`` is how far that is: rounds of training, or trials of an audit.
    """

    done: int
    total: int
    what: str
    step: progress.Step


ComparisonWatcher = Callable[[ComparisonMoment], None]


def compare(
    plan: ComparisonPlan,
    *,
    trials: int,
    seed: int = 0,
    directory: str | Path | None = None,
    watcher: ComparisonWatcher | None = None,
    engine: Engine | None = None,
) -> Comparison:
    """Train with every defence and attack it before every server; return the comparison.

    All cells have the same secrets, batches' owners and seeds, so differences are paired. With a
    directory, finished trainings, cells and trials are on disk at once, and the same call goes on
    where a killed one stopped. Trainings and trials run where the ``engine`` runs them.
    """
    if not 2 <= trials <= len(plan.secrets):
        raise BadInput(
            f"Means with limits need at least two trials, each with another secret: ask for "
            f"2 … {len(plan.secrets):,} trials."
        )
    began = time.process_time()
    place = (
        tempfile.TemporaryDirectory(prefix="vestige-")
        if directory is None
        else nullcontext(str(directory))
    )
    with place as folder:
        with explained(Path(folder)):
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        meter = Metered(engine or InProcess())
        found = _compared(plan, trials, seed, Path(folder), watcher, meter)
        spent = time.process_time() - began + meter.cpu_seconds
        return found.model_copy(update={"cpu_seconds": spent})


def _compared(
    plan: ComparisonPlan,
    trials: int,
    seed: int,
    folder: Path,
    watcher: ComparisonWatcher | None,
    engine: Engine,
) -> Comparison:
    defenses = plan.all_defenses
    steps = _Steps(len(defenses) * (1 + len(plan.servers)), trials, watcher)
    runs: list[UtilityRuns] = []
    if not engine.here:
        with progress.listening(steps.listener("trainings")):
            train_ahead(
                defenses,
                plan.servers[0].victim,
                plan.sized_training,
                seed=seed,
                cache=folder / "utilities",
                engine=engine,
            )
    for defense in defenses:
        with progress.listening(steps.listener(f"training: {label_of(defense)}")):
            runs.append(_utility_runs(plan, defense, seed, folder / "utilities"))
        steps.done += 1
    measured = []
    for defense, found in zip(defenses, runs):
        cells = {}
        for server in plan.servers:
            what = f"{server.name}: {label_of(defense)}"
            cells[server.name] = measure_cell(
                plan,
                server,
                defense,
                trials=trials,
                seed=seed,
                folder=folder / "cells",
                watcher=steps.watcher(what),
                engine=engine,
            )
            steps.done += 1
        measured.append(measured_defense(plan, defense, found, runs[0], cells))
    return _document(plan, measured, trials, seed)


def _document(
    plan: ComparisonPlan, measured: Sequence[MeasuredDefense], trials: int, seed: int
) -> Comparison:
    points = tuple(one.point for one in measured)
    offers = {
        server.name: [
            Offer(one.point, one.cells[server.name].cell, one.cells[server.name].strongest_errors)
            for one in measured
            if one.cells[server.name].errors is not None
        ]
        for server in plan.servers
    }
    recommendations, defended = [], {}
    for name, some in offers.items():
        bare = next((o for o in some if o.point.defense == UNDEFENDED), None)
        defended[name] = [o for o in some if o.point.defense != UNDEFENDED]
        recommendations.append(recommend(name, defended[name], bare, plan))
    whole = [cell for one in measured for cell in one.cells.values() if cell.errors is not None]
    if not whole:
        raise BadInput(
            f"No cell of the comparison could be measured: {measured[0].point.cells[0].problem}"
        )
    guessed = limited_mean(whole[0].guess_errors, plan.confidence, low=0.0)
    device = next(iter(plan.servers[0].victim.simulator.model.parameters())).device
    return Comparison(
        title=plan.title,
        space=space_record(plan.prior.space),
        servers=tuple(_server(plan, server) for server in plan.servers),
        attacks=_summaries(plan, whole),
        points=points,
        matched=tuple(matched_at_costs(plan, measured, seed)),
        fronts=tuple(front_of(name, some) for name, some in offers.items()),
        recommendations=tuple(recommendations),
        budget=plan.budget,
        secrets=whole[0].secrets,
        guess_error=guessed,
        trials=trials,
        seed=seed,
        batch_size=plan.batch_size,
        false_positive_rate=plan.false_positive_rate,
        confidence=plan.confidence,
        limits=comparison_limits(plan, points),
        settings=_settings(plan, trials, seed),
        environment=environment(device),
        verdict=judge_comparison(
            plan, points[0], defended, [c.claim_refuted for c in whole if c.claim_refuted]
        ),
    )


def _utility_runs(plan: ComparisonPlan, defense: Defense, seed: int, cache: Path) -> UtilityRuns:
    """Trainings with a defence, or why it cannot be trained with."""
    victim = plan.servers[0].victim
    try:
        return measure_utility(defense, victim, plan.sized_training, seed=seed, cache=cache)
    except BadInput as problem:
        if defense.name == UNDEFENDED:
            raise
        return UtilityRuns(problem=str(problem))


def _server(plan: ComparisonPlan, server: ComparedServer) -> Server:
    briefing = server.threat.briefing(server.victim, plan.batch_size)
    return Server(
        name=server.name,
        threat=ThreatRecord(
            attacker=briefing.attacker,
            who=briefing.who,
            sees=briefing.sees,
            told=briefing.told,
            not_told=briefing.not_told,
            prior=f"{len(plan.prior.records):,} other records of the same kind; no secret is "
            "among them.",
        ),
    )


def _summaries(plan: ComparisonPlan, cells: Sequence[MeasuredCell]) -> dict[str, str]:
    """Names of all attacks with what each does."""
    known: dict[str, Attack] = {}
    for server in plan.servers:
        known |= plan.audit(server, plan.all_defenses[0]).all_attacks
    used = dict.fromkeys(m.attack for cell in cells for m in cell.cell.measures)
    return {name: known[name].summary for name in used}


def _settings(plan: ComparisonPlan, trials: int, seed: int) -> dict[str, str]:
    training, victim = plan.sized_training, plan.servers[0].victim
    start = "drawn for each seed" if training.fresh_initialization else "the victim's"
    audit = plan.audit(plan.servers[0], plan.all_defenses[0])
    return {
        **victim.describe(),
        "Secrets, prior": f"{count(len(plan.secrets))}, {count(len(plan.prior.records))} records",
        "Batch size": str(plan.batch_size),
        "Trials, seed": f"{count(trials)}, {seed}",
        "Decoys per trial": str(audit.decoy_count),
        "Utility training": f"{count(training.rounds)} rounds, {training.clients} clients of "
        f"{training.batch_size} records, learning rate {training.learning_rate:g}",
        "Utility seeds, initial weights": f"{training.repeats}, {start}",
        "Utility records, held out": f"{count(len(training.records))}, "
        f"{count(len(training.held_out))}",
        "DP-SGD trained by": training.by,
    }


@dataclass
class _Steps:
    """Tells the watcher of a comparison what its parts report."""

    total: int
    trials: int
    tell: ComparisonWatcher | None
    done: int = 0

    def listener(self, what: str) -> progress.Listener:
        """Passes on the rounds of a training."""

        def listen(step: progress.Step) -> None:
            if self.tell is not None:
                self.tell(ComparisonMoment(self.done, self.total, what, step))

        return listen

    def watcher(self, what: str) -> Watcher:
        """Passes on the trials of an audit."""

        def watch(moment: Moment) -> None:
            if self.tell is not None:
                step = progress.Step(moment.trial, self.trials, moment.step.distance)
                self.tell(ComparisonMoment(self.done, self.total, what, step))

        return watch
