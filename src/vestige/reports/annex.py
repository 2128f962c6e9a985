"""The annex of a report: ten points for those who decide about a release, as one JSON document.

The points follow what data-protection authorities and standards ask for: EDPB Opinion 28/2024, the
ICO's guidance on anonymisation, NIST AI 100-2 and SP 800-226, ISO/IEC 27559. The annex is a
function of the report and holds no decision: that field is left to the controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from vestige.reports.document import Document, WrittenDocument
from vestige.reports.parts import ReleaseContext, VerdictKind

TITLES = (
    "Coverage of attacks",
    "Release context",
    "Threat model",
    "Scope, frequency, quantity, quality",
    "Theoretical resistance",
    "Average and maximum risk",
    "Cost of the means",
    "Decision",
    "Limits",
    "Integrity",
)
"""The ten points in their order."""


class CoverageState(StrEnum):
    """What was done about a class of attacks."""

    EXECUTED = "executed"
    NOT_RUN = "not run"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"


class Coverage(Document):
    """One class of attacks: whether it was executed, in how many trials, and what to know."""

    attacks: str
    state: CoverageState
    trials: int | None = None
    note: str = ""


class Fact(Document):
    """One line of a point: what it is about, and what is known."""

    name: str
    text: str


class AnnexPoint(Document):
    """One of the ten points."""

    number: int
    title: str
    facts: tuple[Fact, ...]


class Decision(Document):
    """Left empty for the controller; no program of this package fills it."""

    choices: tuple[str, ...] = ("release", "revise", "refuse")
    choice: None = None
    tolerated_rate: None = None
    decided_by: None = None
    decided_on: None = None


class Annex(WrittenDocument):
    """Ten points about one report, and seven answers for the decision.

    ``report_digest`` is that of the report that the annex was made from, redacted if it says so.
    """

    schema_version: Literal[1] = 1
    kind: Literal["annex"] = "annex"
    title: str
    study: str
    date: str = ""
    redacted: bool = False
    verdict: VerdictKind
    headline: str
    release_context: ReleaseContext | None = None
    answers: tuple[Fact, ...]
    coverage: tuple[Coverage, ...]
    points: tuple[AnnexPoint, ...]
    decision: Decision = Decision()
    limits: tuple[str, ...] = ()
    report_digest: str

    def __repr_args__(self) -> Iterator[tuple[str, str]]:
        """What a console shows."""
        yield from (("title", self.title), ("verdict", self.verdict.value))
