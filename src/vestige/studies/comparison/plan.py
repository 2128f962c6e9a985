"""The comparison of defences: every cell an audit, every cost a training, all of it paired.

Liu, Wang, Chen and Lei 2025, §4 and Figure 3, with four changes: protection is the *smallest* error
over the attacks; honest and malicious servers are compared apart; utility comes from repeated
trainings with limits; and attackers know the defence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from vestige.choices import check_fields
from vestige.content import code_digest, combined_digest
from vestige.defenses.undefended import Undefended
from vestige.distances import mean_squared_error
from vestige.errors import BadInput, Interrupted
from vestige.interfaces import Attack, Defense, ThreatModel, Victim
from vestige.records import Prior, Records
from vestige.reports.comparison import ComparisonFindings
from vestige.reports.parts import Check
from vestige.studies.audit.plan import Audit
from vestige.studies.comparison.assembly import assemble_comparison, measured_defense
from vestige.studies.comparison.cells import measure_cell
from vestige.studies.comparison.units import ComparisonWork, Layout, label_of, lay_out
from vestige.studies.comparison.utility_training import UtilityTraining
from vestige.studies.declared import Declared
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, damaged_unit
from vestige.threats.honest_server import HonestServer

STOPPED = "Stopped; finished trainings and trials are kept. Rerun the same command to resume."


@dataclass(frozen=True)
class ComparedServer:
    """Who receives releases: a name, what clients release to it, its attacks, what it is told.

    An honest server sends the model as it is; a malicious one sends a model of its own making,
    which is then the victim's (``SharedGradient(ImprintedModel(...))``, ``MaliciousServer()``).
    """

    name: str
    victim: Victim
    attacks: Sequence[Attack]
    threat: ThreatModel = field(default_factory=HonestServer)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Comparison(Declared):
    """Defences at several strengths, before several servers, with what each costs.

    ``defenses`` of one name are one family at several strengths; :class:`Undefended` is added if it
    is missing. Cost is measured once for each defence, on the first server's victim. To the attacks
    of each server comes the guess of a class mean, which every attacker can fall back on.
    ``trials`` is the number of secrets that every cell audits, the same in all cells, so that
    differences are paired. ``static`` repeats every cell with an attacker who is not told of the
    defence. ``budget`` is the accuracy that the reader is ready to lose. A unit of work is one
    training, or one trial of one cell.
    """

    servers: Sequence[ComparedServer]
    defenses: Sequence[Defense]
    secrets: Records
    prior: Prior
    training: UtilityTraining
    title: str = "Defences compared"
    trials: int = 20
    batch_size: int = 1
    static: bool = False
    false_positive_rate: float = 0.01
    decoys: int | None = None
    confidence: float = 0.95
    budget: float = 0.02

    kind = "comparison"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_servers(self.servers)
        _check_defenses(self.defenses)
        if not isinstance(self.training, UtilityTraining):
            raise BadInput(
                "A comparison needs to know what training costs: give "
                "training=UtilityTraining(records, held_out)."
            )
        if not 0 < self.budget < 1:
            raise BadInput(
                f"The budget is a loss of accuracy in (0, 1), such as 0.02, not {self.budget!r}."
            )
        if not 2 <= self.trials <= len(self.secrets):
            raise BadInput(
                f"Means with limits need at least two trials, each with another secret: ask for "
                f"2 … {len(self.secrets):,} trials."
            )
        for server in self.servers:
            self.audit(server, Undefended())  # what does not fit is said before hours of work

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title

    @property
    def all_defenses(self) -> tuple[Defense, ...]:
        """No defence, then family by family in the order given, each from weak to strong."""
        families: dict[str, list[Defense]] = {}
        for defense in self.defenses:
            if not isinstance(defense, Undefended):
                families.setdefault(defense.name, []).append(defense)
        ordered = [sorted(members, key=lambda one: one.ordering) for members in families.values()]
        return (Undefended(), *(defense for members in ordered for defense in members))

    @property
    def sized_training(self) -> UtilityTraining:
        """The training, with the audited batch size where it names none."""
        if self.training.batch_size is not None:
            return self.training
        return replace(self.training, batch_size=self.batch_size)

    def audit(self, server: ComparedServer, defense: Defense, *, static: bool = False) -> Audit:
        """The audit of one cell; a static attacker is not told of the defence."""
        threat = server.threat
        if static:
            threat = replace(threat, defense=False)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return Audit(
            defense(server.victim),
            self.secrets,
            self.prior,
            server.attacks,
            threat,
            defense.records(self.batch_size),
            title=f"{self.title}: {label_of(defense)}, {server.name}",
            distance=(mean_squared_error,),  # of texts, tokens at their places, as errors are
            false_positive_rate=self.false_positive_rate,
            decoys=self.decoys,
            confidence=self.confidence,
            trials=self.trials,
        )

    @cached_property
    def layout(self) -> Layout:
        """The trainings and cells, and the units of work that they consist of."""
        return lay_out(self)

    def identity(self) -> str:
        """Digest of all trainings and audits. The budget decides none of their results."""
        return combined_digest(self.kind, str(self.static), *self.layout.identities)

    def code(self) -> dict[str, str]:
        """Digests of the code of attacks and defences, by name."""
        attacks = {
            f"{attack.name} ({server.name})": code_digest(attack)
            for server in self.servers
            for attack in server.attacks
        }
        return attacks | {label_of(one): code_digest(one) for one in self.all_defenses}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Check that there is a training without a defence; audits check themselves, cell by cell.

        What keeps one cell from being audited is a problem of that cell.
        """
        bare = self.layout.trainings[0]
        if bare.problem:
            raise BadInput(bare.problem)
        return ()

    def units(self) -> list[str]:
        """One unit for each training and each trial of a cell."""
        return [unit.name for unit in self.layout.units]

    def prepare(self, seed: int) -> ComparisonWork:
        """Nothing to prepare here: attacks are prepared with the first trial of their cell."""
        return ComparisonWork(self.layout.units, seed)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored training or trial is damaged."""
        try:
            self.layout.units[result.number].check(result)
        except BadInput as error:
            raise BadInput(damaged_unit(result.number)) from error

    def findings(self, results: Sequence[UnitResult], about: Header) -> ComparisonFindings:
        """What all trainings and cells measured; a part of them would say nothing."""
        if about.failure is not None:
            raise Interrupted(STOPPED)
        layout, held = self.layout, {one.number: one for one in results}
        runs = [training.measured(held) for training in layout.trainings]
        measured = [
            measured_defense(
                self,
                defense,
                found,
                runs[0],
                {
                    cell.server.name: measure_cell(self, cell, held, about.seed)
                    for cell in layout.cells
                    if cell.defense is defense
                },
            )
            for defense, found in zip(layout.defenses, runs)
        ]
        return assemble_comparison(self, measured, about)


def _check_servers(servers: Sequence[ComparedServer]) -> None:
    if not isinstance(servers, Sequence) or not servers:
        raise BadInput(
            "A comparison needs a server: servers=[ComparedServer(name, victim, attacks)]."
        )
    for server in servers:
        if not isinstance(server, ComparedServer):
            raise BadInput(
                f"{server!r} is no server: write ComparedServer(name, victim, attacks, threat)."
            )
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        raise BadInput("Two servers have one name: give each its own.")


def _check_defenses(defenses: Sequence[Defense]) -> None:
    for defense in defenses:
        if isinstance(defense, type):
            raise BadInput(f"{defense.__name__} is a class: pass an object, {defense.__name__}(…).")
        if not isinstance(defense, Defense):
            raise BadInput(
                f"{defense!r} is no defence: pass objects of vestige.defenses, such as "
                "GradientPruning(0.9)."
            )
    defended = [d for d in defenses if not isinstance(d, Undefended)]
    if any(d.name == Undefended.name for d in defended):
        raise BadInput(f"{Undefended.name!r} is the name of Undefended(): give yours another one.")
    named = [label_of(d) for d in defended]
    if not named:
        raise BadInput(
            "There is nothing to compare: give at least one defence, better several at several "
            "strengths."
        )
    twice = sorted({label for label in named if named.count(label) > 1})
    if twice:
        raise BadInput(f"{twice[0]} is given twice: give every defence and strength once.")
