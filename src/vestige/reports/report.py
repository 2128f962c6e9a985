"""Findings, the judgement on them, and the report that holds both.

Findings are what was measured. A judgement is derived from them by ``vestige.studies.judge`` and
nothing else, so a report can be judged again from its file. Each kind of study has one class of
each; a report of another package is known to ``load_report`` once its class is defined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Literal, Self, TypeVar, cast

from pydantic import Field

from vestige.errors import BadInput
from vestige.reports.document import Document, NotebookDocument, WrittenDocument
from vestige.reports.parts import (
    Check,
    Failure,
    ReleaseContext,
    SpaceDescription,
    Times,
    Verdict,
)

SCHEMA_VERSION = 1


class Findings(Document):
    """What a study measured: no verdict, no judged numbers.

    ``seed`` is None where it is withheld. ``failure`` says why units are missing, if they are.
    ``digests`` are SHA-256 digests of the audited ``model`` and ``data`` and of the ``prior``, as
    far as there are any.
    ``release_context`` and ``previous``, the digest of the report before this one, are what the
    owner of the study declared, if anything.
    """

    title: str
    space: SpaceDescription
    seed: int | None
    preflight: tuple[Check, ...] = ()
    failure: Failure | None = None
    limits: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    redacted: bool = False
    digests: dict[str, str] = Field(default_factory=dict)
    release_context: ReleaseContext | None = None
    previous: str = ""
    times: Times = Times()

    def __repr_args__(self) -> Iterator[tuple[str, str]]:
        """What a console shows: neither secrets nor megabytes."""
        yield "title", self.title

    def without_secrets(self) -> Self:
        """What may leave: ``vestige.reports.redaction`` says what is withheld, and why."""
        from vestige.reports.redaction import redacted_findings

        return cast("Self", redacted_findings(self))


class Judgement(Document):
    """What was concluded from findings: the verdict, and the checks it rests on."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()

    def without_secrets(self, findings: Any) -> Self:
        """What may leave; ``findings`` are those that were judged, before redaction."""
        from vestige.reports.redaction import redacted_judgement

        return cast("Self", redacted_judgement(self, findings))


F = TypeVar("F", bound=Findings)
J = TypeVar("J", bound=Judgement)


class Report(WrittenDocument, NotebookDocument, Generic[F, J]):
    """Findings with the judgement on them.

    A subclass names its kind and its types: ``class MyReport(Report[MyFindings, Judgement])`` with
    ``kind: str = "mine"``.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: str = ""
    findings: F
    judgement: J

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make the kind known to ``load_report``."""
        kind = cls.model_fields["kind"].default
        if kind:
            KINDS[kind] = cls

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.judgement.verdict

    def __repr_args__(self) -> Iterator[tuple[str, str]]:
        """What a console shows: neither secrets nor megabytes."""
        yield from (("title", self.findings.title), ("verdict", self.verdict.kind.value))

    def without_secrets(self) -> Self:
        """What may leave, findings and judgement; the judgement is kept, not reached again."""
        judgement = self.judgement.without_secrets(self.findings)
        findings = self.findings.without_secrets()
        return self.model_copy(update={"findings": findings, "judgement": judgement})


KINDS: dict[str, type[Report[Any, Any]]] = {}
"""Every class of report that is defined, by its kind."""


def report_type(findings: type[F]) -> type[Report[F, Any]]:
    """The class of the report on findings of a type."""
    for base in findings.__mro__:
        for kind in KINDS.values():
            if kind.model_fields["findings"].annotation is base:
                return cast("type[Report[F, Any]]", kind)
    raise BadInput(f"No report holds {findings.__name__}: define a subclass of Report for it.")
