"""What a study of the risk of single records measured and how it is judged, as one document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from vestige.reports.audit import HitBounds
from vestige.reports.document import Document
from vestige.reports.parts import AttackDescription, Picture, Rate, ThreatDescription
from vestige.reports.report import Findings, Judgement, Report


class RecordHits(Document):
    """Hits of one record by one attack: in releases that hold it, and in those that do not."""

    hits: int = Field(ge=0)
    releases: int = Field(ge=0)
    control_hits: int = Field(ge=0)
    controls: int = Field(ge=0)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse more hits than releases."""
        if self.hits > self.releases or self.control_hits > self.controls:
            raise ValueError("a record has at most as many hits as releases")
        return self

    @property
    def excess(self) -> float:
        """Rate of hits with the record minus that without it."""
        with_it = self.hits / self.releases if self.releases else 0.0
        return with_it - (self.control_hits / self.controls if self.controls else 0.0)


class ReleasedRecord(Document):
    """One record that was released again and again.

    ``name`` is a digest of the record that only the owner can compute: it is keyed with the
    identity of the study. ``found`` holds the hits by each attack, ``reconstructions`` what came
    back from the first release; pictures are None where they are withheld or missing.
    """

    name: str
    label: str
    group: Literal["random", "outlier"]
    neighbor_distance: float | None = None
    found: tuple[RecordHits, ...]
    secret: Picture | None = None
    reconstructions: tuple[Picture | None, ...] = ()

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a console shows: which record it is, and nothing of it."""
        yield from (("name", self.name), ("group", self.group))


class RiskFindings(Findings):
    """What repeated releases of the same records gave away.

    ``repeats`` releases hold each record; ``controls`` for each of those hold another record of its
    class in its place. ``bounds`` is what theory allows any attack on average over records drawn
    at random, if the release is what it is said to be; None in older reports.
    """

    release: str
    defense: str = ""
    threat: ThreatDescription
    batch_size: int
    decoys: int
    false_positive_rate: float
    confidence: float
    distance: str
    repeats: int
    controls: int
    releases_planned: int
    releases_finished: int
    attacks: tuple[AttackDescription, ...]
    records: tuple[ReleasedRecord, ...]
    bounds: HitBounds | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Refuse records that lack an attack."""
        if any(len(record.found) != len(self.attacks) for record in self.records):
            raise ValueError("every record has hits by every attack")
        return self


class RecordRate(Document):
    """The risk of one record by one attack: limits and ``exposed`` hold for all records together.

    ``exposed``: hit more often in releases that hold it than in those that do not, by ``p_value``.
    """

    rate: Rate
    p_value: float
    exposed: bool


class GroupDifference(Document):
    """Whether outliers are hit more often than other records, above what they are without."""

    outliers: float
    others: float
    p_value: float
    differ: bool


class AttackRisk(Document):
    """The risk that one attack shows: ``average`` over records drawn at random, and each record's.

    ``highest`` is the place of the exposed record with the highest lower limit, and the first one
    of those that tie; ``most_exposed`` are the places of all that do, in their order.
    """

    attack: str
    average: Rate | None
    average_without: float | None
    rates: tuple[RecordRate, ...]
    highest: int | None
    most_exposed: tuple[int, ...] = ()
    groups: GroupDifference | None = None

    @property
    def exposed(self) -> int:
        """How many records are exposed."""
        return sum(one.exposed for one in self.rates)


class RiskJudgement(Judgement):
    """The risk of the records, by attack in the order of the findings.

    ``most_exposed`` are the places of the exposed records with the highest lower limit by any
    attack, all that tie. ``bounds`` are what the stated mechanism allows any attack, where it has a
    guarantee. They hold for records drawn at random, whose prior success is chance: the average
    risk, not that of one record, which may be hit often without being released at all.
    ``exceeds_bounds``: the lower limit of an average exceeds them, so that the release is not what
    it is said to be.
    """

    attacks: tuple[AttackRisk, ...] = ()
    most_exposed: tuple[int, ...] = ()
    bounds: HitBounds | None = None
    exceeds_bounds: bool = False


class RiskReport(Report[RiskFindings, RiskJudgement]):
    """The report of a study of the risk of single records."""

    kind: str = "record risk"

    @model_validator(mode="after")
    def _judged(self) -> Self:
        """Refuse a judgement on other records."""
        count = len(self.findings.records)
        if any(len(one.rates) != count for one in self.judgement.attacks):
            raise ValueError("a judgement has a rate for every record")
        named = [one.highest for one in self.judgement.attacks if one.highest is not None]
        named += [place for one in self.judgement.attacks for place in one.most_exposed]
        named += self.judgement.most_exposed
        if any(not 0 <= place < count for place in named):
            raise ValueError("the most exposed record is one of the records")
        return self
