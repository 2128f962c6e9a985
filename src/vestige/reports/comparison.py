"""The comparison of defences: what each costs and what each leaves, as one JSON document.

Rendering needs nothing else: no model, no data, no torch. Protection is the error that the
strongest attack leaves, the *smallest* over the attacks (Liu, Wang, Chen and Lei 2025 write a
maximum and compute a minimum), and the largest rate of hits. Cost is what training with the
defence loses on held-out records. Errors are root mean squared errors of records with values in
[0, 1].
"""

from __future__ import annotations

from pydantic import Field

from vestige.reports.document import Document
from vestige.reports.noise import Mean
from vestige.reports.parts import Picture, Rate, ThreatDescription
from vestige.reports.report import Findings, Judgement, Report

UNDEFENDED = "No defence"
"""How the point without any defence is called."""


class Utility(Document):
    """What a model trained with a defence is worth on held-out records, over repeated seeds.

    ``accuracy`` and ``loss`` are None where every run diverged; runs that did are counted and not
    averaged in. ``accuracy_lost`` is the undefended accuracy minus this one, pairwise by seed, in
    [−1, 1]; None without a comparison. ``problem`` says why nothing could be trained.
    """

    repeats: int
    diverged: int
    accuracy: Mean | None
    loss: Mean | None
    accuracy_lost: Mean | None
    loss_added: Mean | None
    problem: str = ""


class AttackMeasure(Document):
    """One attack on one defended release: mean error, hits, and the same for a static attacker.

    A static attacker does not know that there is a defence. ``error`` and ``rate`` have limits
    that are joint over the attacks of the cell. A ``guess`` never looks at the release.
    """

    attack: str
    guess: bool = False
    error: Mean
    rate: Rate
    static_error: Mean | None = None
    static_rate: Rate | None = None
    diverged: int = 0


class ErrorFloor(Document):
    """What theory allows: the least mean error, as a root mean square per value.

    ``all_attacks`` is van Trees' bound, ``unbiased`` Cramér and Rao's; None where there is none,
    and ``reason`` says why.
    """

    all_attacks: float | None = None
    unbiased: float | None = None
    reason: str = ""


class Cell(Document):
    """One defence at one strength before one server.

    ``strongest`` names the attack with the smallest mean error, ``protection`` is that error with
    limits that allow for the choice (the least of the lower, the least of the upper limits);
    ``most_hits`` is the largest rate over the attacks. ``pictures`` are the strongest attack's
    reconstructions of the comparison's shown secrets. ``static_larger`` says whether attackers who
    were not told of the defence are shown to leave a larger error; None where none were asked.
    ``problem`` says why a cell holds nothing.
    """

    server: str
    measures: tuple[AttackMeasure, ...] = ()
    strongest: str | None = None
    protection: Mean | None = None
    most_hits: Rate | None = None
    static_larger: bool | None = None
    floor: ErrorFloor = ErrorFloor()
    pictures: tuple[Picture | None, ...] = ()
    verdict: str = ""
    problem: str = ""

    @property
    def guess_is_strongest(self) -> bool:
        """Whether no attack left a smaller error than a guess."""
        return any(m.guess and m.attack == self.strongest for m in self.measures)


class DefendedPoint(Document):
    """One defence at one strength: its cost, and its cells, one for each server.

    ``undefended`` marks the point that all others are compared with.
    """

    defense: str
    undefended: bool = False
    strength: float
    setting: str
    mechanism: str
    guarantee: bool
    records: int
    utility: Utility
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """Name and setting."""
        return f"{self.defense} {self.setting}".strip()

    @property
    def measured(self) -> bool:
        """Whether any release of it was attacked."""
        return any(cell.protection is not None for cell in self.cells)


class Matched(Document):
    """What one defence leaves at a given cost, between its measured strengths.

    ``protection`` is None where no strength costs as little, or none as much as is asked, and
    ``reason`` says which. ``between`` are the labels of the strengths on either side.
    ``larger_than`` and ``smaller_than`` name the defences, and no defence, that it is shown to
    leave a larger or smaller error than at this cost. Limits are the farthest that the limits of
    strengths and of their costs allow.
    """

    server: str
    defense: str
    accuracy_lost: float
    protection: Mean | None
    between: tuple[str, ...] = ()
    larger_than: tuple[str, ...] = ()
    smaller_than: tuple[str, ...] = ()
    reason: str = ""


class Front(Document):
    """Labels of the points that no other one beats in both cost and protection, one server."""

    server: str
    labels: tuple[str, ...]


class ToldApart(Document):
    """Two settings before one server, by their labels, whose errors are shown to differ.

    All pairs of a comparison hold together: the probability that any of them is wrong is at most
    one minus its confidence.
    """

    server: str
    larger: str
    smaller: str


class Server(Document):
    """Who receives the releases: the name that cells use, and the threat in words."""

    name: str
    threat: ThreatDescription


class Recommendation(Document):
    """What follows for a reader who must choose, with its uncertainty; one for each server.

    ``equal_cost`` says which defences can be told apart at a cost of the whole budget.
    """

    server: str
    sentence: str
    details: tuple[str, ...] = ()
    equal_cost: str = ""


class SearchCost(Document):
    """What choosing among private trainings spends, by the mechanisms as stated, at one δ.

    ``single`` is the ε of the weakest setting, ``composed`` that of all ``trainings`` together, and
    ``random`` that of the best of a geometric number of runs with as large a mean. All are None
    where a mechanism's Rényi divergences are not known.
    """

    settings: int = Field(ge=1)
    trainings: int = Field(ge=2)
    delta: float = Field(gt=0, lt=1)
    single: float | None = None
    composed: float | None = None
    random: float | None = None


class ComparisonFindings(Findings):
    """What defences at several strengths left to several attacks, beside what each costs.

    ``budget`` is the loss of accuracy that a recommendation allows. Limits of every error are joint
    over the attacks of its setting; ``joint_costs`` are losses of accuracy by label, with limits
    that hold for all settings together. What is said about order rests on ``told_apart`` alone,
    which is joint over all settings, servers and attackers. ``refuted`` are the headlines of audits
    that exceeded what a mechanism allows. ``search`` is what choosing among private trainings
    spends.
    """

    servers: tuple[Server, ...] = Field(min_length=1)
    attacks: dict[str, str]
    points: tuple[DefendedPoint, ...] = Field(min_length=1)
    matched: tuple[Matched, ...] = ()
    told_apart: tuple[ToldApart, ...] = ()
    joint_costs: dict[str, Mean] = Field(default_factory=dict)
    refuted: tuple[str, ...] = ()
    search: SearchCost | None = None
    budget: float
    secrets: tuple[Picture | None, ...] = ()
    guess_error: Mean
    trials: int
    batch_size: int
    false_positive_rate: float
    confidence: float

    def cell(self, point: DefendedPoint, server: str) -> Cell:
        """The cell of a point before a server."""
        return next(cell for cell in point.cells if cell.server == server)

    def beside(self, server: str, label: str, other: str) -> str:
        """How the error that one setting leaves stands to that of another, in words."""
        pairs = {(t.larger, t.smaller) for t in self.told_apart if t.server == server}
        if (label, other) in pairs:
            return "larger"
        return "smaller" if (other, label) in pairs else "not told apart"


class ComparisonJudgement(Judgement):
    """What follows for a reader who must choose, and which settings no other one beats."""

    recommendations: tuple[Recommendation, ...] = ()
    fronts: tuple[Front, ...] = ()

    def front(self, server: str) -> frozenset[str]:
        """Labels of the points that no other one beats in both cost and protection."""
        return frozenset(label for f in self.fronts if f.server == server for label in f.labels)


class ComparisonReport(Report[ComparisonFindings, ComparisonJudgement]):
    """The report of a comparison of defences."""

    kind: str = "comparison"
