"""What is compared: defences, the servers they stand against, and how their cost is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vestige.audit import Audit
from vestige.defenses import (
    Combined,
    Defense,
    GradientClipping,
    GradientQuantization,
    RecordClipping,
    Undefended,
)
from vestige.errors import BadInput
from vestige.observations import Attack, ThreatModel, Victim
from vestige.records import Prior, Records
from vestige.threats import HonestServer
from vestige.utility_training import UtilityTraining

_SMALLER_IS_STRONGER = (GradientClipping, RecordClipping, GradientQuantization)


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


@dataclass(frozen=True)
class ComparisonPlan:
    """Defences at several strengths, before several servers, with what each costs.

    ``defenses`` of one name are one family at several strengths; :class:`Undefended` is added if it
    is missing. Cost is measured once for each defence, on the first server's victim. To the attacks
    of each server comes the guess of a class mean: nobody has to accept a worse drawing than that.
    ``static`` repeats every cell with an attacker who is not told of the defence. ``budget`` is the
    accuracy that the reader is ready to lose.
    """

    servers: Sequence[ComparedServer]
    defenses: Sequence[Defense]
    secrets: Records
    prior: Prior
    training: UtilityTraining
    title: str = "Defences compared"
    batch_size: int = 1
    static: bool = False
    false_positive_rate: float = 0.01
    decoys: int | None = None
    confidence: float = 0.95
    budget: float = 0.02

    def __post_init__(self) -> None:
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
        for server in self.servers:
            self.audit(server, Undefended())  # what does not fit is said before hours of work

    @property
    def all_defenses(self) -> tuple[Defense, ...]:
        """No defence, then family by family in the order given, each from weak to strong."""
        families: dict[str, list[Defense]] = {}
        for defense in self.defenses:
            if not isinstance(defense, Undefended):
                families.setdefault(defense.name, []).append(defense)
        ordered = [sorted(members, key=_rank) for members in families.values()]
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
            false_positive_rate=self.false_positive_rate,
            decoys=self.decoys,
            confidence=self.confidence,
        )


def label_of(defense: Defense) -> str:
    """Name and setting of a defence, as a comparison names it."""
    return f"{defense.name} {defense.setting}".strip()


def _rank(defense: Defense) -> float:
    """What sorts the strengths of a family from weak to strong."""
    varied = defense.parts[defense.varied] if isinstance(defense, Combined) else defense
    sign = -1 if isinstance(varied, _SMALLER_IS_STRONGER) else 1
    return sign * defense.strength


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
    named = [label_of(d) for d in defenses if not isinstance(d, Undefended)]
    if not named:
        raise BadInput(
            "There is nothing to compare: give at least one defence, better several at several "
            "strengths."
        )
    twice = sorted({label for label in named if named.count(label) > 1})
    if twice:
        raise BadInput(f"{twice[0]} is given twice: give every defence and strength once.")
