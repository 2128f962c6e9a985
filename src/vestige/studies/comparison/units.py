"""The units of work of a comparison: trainings with every defence, trials of every cell.

Units do not depend on each other, so that an engine may run them in any order. What the trials of
a cell share, attacks that are prepared for it, is made by every process with the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING

from vestige.defenses.undefended import Undefended
from vestige.errors import BadInput, VestigeError
from vestige.reports.parts import CheckOutcome
from vestige.simulation.kinds import ClientSimulator
from vestige.studies.audit.trials import AttackStopped
from vestige.studies.comparison.utility_training import DefendedTraining, UtilityRun, UtilityRuns
from vestige.studies.unit_files import UnitResult, parsed_unit, unit_bytes

if TYPE_CHECKING:
    from vestige.engines import Work
    from vestige.interfaces import Defense
    from vestige.studies.audit.plan import Audit
    from vestige.studies.comparison.plan import ComparedServer, Comparison

Results = Mapping[int, UnitResult]
"""Results of units, by their numbers."""


@dataclass(frozen=True)
class TrainingUnit:
    """One training with one seed."""

    name: str
    training: DefendedTraining
    repeat: int

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored result is not whole."""
        parsed_unit(result, UtilityRun)


@dataclass(frozen=True)
class TrialUnit:
    """One trial of a cell's audit."""

    name: str
    audit: Audit
    trial: int

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored result is not whole."""
        self.audit.check(replace(result, number=self.trial))


@dataclass(frozen=True)
class PlannedTraining:
    """The trainings with one defence: their units, or why there are none."""

    defense: Defense
    identity: str
    first: int
    repeats: int = 0
    problem: str = ""

    def measured(self, held: Results) -> UtilityRuns:
        """The runs of all seeds, or why one of them could not be trained."""
        results = [held[number] for number in range(self.first, self.first + self.repeats)]
        problem = self.problem or problem_of(results)
        if problem:
            return UtilityRuns(problem=problem)
        return UtilityRuns(tuple(parsed_unit(one, UtilityRun) for one in results))


@dataclass(frozen=True)
class PlannedAudit:
    """An audit of a cell; the number of its first trial among all units."""

    audit: Audit
    first: int

    def results(self, held: Results) -> list[UnitResult]:
        """The results of its trials, numbered by trial."""
        return [
            replace(held[self.first + trial], number=trial) for trial in range(self.audit.trials)
        ]


@dataclass(frozen=True)
class PlannedCell:
    """A defence before a server: its audits, or why there are none.

    ``static`` is that of an attacker who is not told of the defence, None where it would be the
    same one.
    """

    server: ComparedServer
    defense: Defense
    told: PlannedAudit | None = None
    static: PlannedAudit | None = None
    problem: str = ""


@dataclass(frozen=True)
class Layout:
    """All units of a comparison, and which of them belong to which training and cell."""

    defenses: tuple[Defense, ...]
    trainings: tuple[PlannedTraining, ...]
    cells: tuple[PlannedCell, ...]
    units: tuple[TrainingUnit | TrialUnit, ...]
    identities: tuple[str, ...]


def lay_out(plan: Comparison) -> Layout:
    """Plan every training and every trial; what does not fit is a problem of its place."""
    units: list[TrainingUnit | TrialUnit] = []
    defenses = plan.all_defenses
    trainings = tuple(_planned_training(plan, defense, units) for defense in defenses)
    identities = [one.identity or one.problem for one in trainings]
    cells = []
    for defense in defenses:
        for server in plan.servers:
            try:
                audit = plan.audit(server, defense)
                identities.append(audit.identity())
            except BadInput as problem:
                cells.append(PlannedCell(server, defense, problem=str(problem)))
                identities.append(str(problem))
                continue
            name = f"{server.name}: {label_of(defense)}"
            told, static = _planned_audit(audit, name, units), None
            if plan.static and _differs_for_static(audit):
                unaware = plan.audit(server, defense, static=True)
                static = _planned_audit(unaware, f"{name}, not told", units)
            cells.append(PlannedCell(server, defense, told, static))
    return Layout(defenses, trainings, tuple(cells), tuple(units), tuple(identities))


def label_of(defense: Defense) -> str:
    """Name and setting of a defence, as a comparison names it."""
    return f"{defense.name} {defense.setting}".strip()


def problem_of(results: Sequence[UnitResult]) -> str:
    """Why the first of some units could not be computed; empty if all were."""
    return next((json.loads(one.body)["problem"] for one in results if one.provisional), "")


@dataclass(frozen=True)
class ComparisonWork:
    """Trains, or runs a trial.

    A unit that cannot be computed returns its problem, which is not stored: it is tried again when
    the same comparison is run again.
    """

    units: Sequence[TrainingUnit | TrialUnit]
    seed: int
    _cells: dict[int, Work | bytes] = field(default_factory=dict, repr=False)

    def __call__(self, number: int) -> bytes:
        """Compute a unit, or say why not."""
        unit = self.units[number]
        if isinstance(unit, TrialUnit):
            return self._trial(unit)
        try:
            return unit_bytes(unit.training.run(self.seed, unit.repeat).model_dump_json())
        except VestigeError as problem:
            if isinstance(unit.training.defense, Undefended):
                raise  # without it nothing has a cost
            return _problem(str(problem))

    def _trial(self, unit: TrialUnit) -> bytes:
        key = id(unit.audit)
        if key not in self._cells:
            self._cells.clear()  # prepared attacks can be large; the units of a cell are neighbours
            self._cells[key] = self._prepared(unit.audit)
        work = self._cells[key]
        if isinstance(work, bytes):
            return work
        try:
            return work(unit.trial)
        except VestigeError as problem:
            self._cells[key] = _stopped(unit.audit, problem)
            return _stopped(unit.audit, problem)

    def _prepared(self, audit: Audit) -> Work | bytes:
        """What runs the trials of an audit, or why none can be run."""
        try:
            for check in audit.preflight(self.seed):
                if check.outcome is CheckOutcome.FAILED:
                    return _problem(check.sentence)
            return audit.prepare(self.seed)
        except VestigeError as problem:
            return _stopped(audit, problem)


def _stopped(audit: Audit, problem: VestigeError) -> bytes:
    if not isinstance(problem, AttackStopped):
        return _problem(str(problem))
    where = f"{problem.part} stopped in trial {problem.number + 1:,} of {audit.trials:,}"
    return _problem(f"{where}: {problem.message}")


def _problem(sentence: str) -> bytes:
    return unit_bytes(json.dumps({"problem": sentence}), provisional=True)


def _planned_training(
    plan: Comparison, defense: Defense, units: list[TrainingUnit | TrialUnit]
) -> PlannedTraining:
    first = len(units)
    try:
        training = DefendedTraining.of(defense, plan.servers[0].victim, plan.sized_training)
        identity = training.identity()
    except BadInput as problem:
        return PlannedTraining(defense, "", first, problem=str(problem))
    repeats = plan.training.repeats
    for repeat in range(repeats):
        name = f"training: {label_of(defense)}, seed {repeat + 1}"
        units.append(TrainingUnit(name, training, repeat))
    return PlannedTraining(defense, identity, first, repeats)


def _planned_audit(audit: Audit, name: str, units: list[TrainingUnit | TrialUnit]) -> PlannedAudit:
    first = len(units)
    units += [TrialUnit(f"{name}, trial {t + 1}", audit, t) for t in range(audit.trials)]
    return PlannedAudit(audit, first)


def _differs_for_static(audit: Audit) -> bool:
    """Whether an attacker who is not told of the defence would compute anything else."""
    threat = audit.threat
    if not is_dataclass(threat) or "defense" not in {field.name for field in fields(threat)}:
        return False
    simulator = audit.victim.simulator
    return isinstance(simulator, ClientSimulator) and simulator.defended
