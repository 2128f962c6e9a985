"""What the owner of a study declares for its report: who gets the release, and the audit before.

Neither decides a result, so neither is part of a study's identity; a run can be repeated in its
folder with another declaration, and only the report changes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from vestige.choices import check_choice
from vestige.content import FIELD, document_digest
from vestige.errors import BadInput, VestigeError, brief
from vestige.files import read_document
from vestige.reports.files import load_report
from vestige.reports.parts import ReleaseContext
from vestige.reports.report import Findings

F = TypeVar("F", bound=Findings)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Base of studies: what their owner declares.

    ``release_context`` says who gets the release: "public weights", "public interface", "partners"
    or "internal". ``previous`` is the audit before this one: the path of its run folder or of its
    report.json, or the digest in it. Both stand in the annex of the report; None is "not declared".
    """

    release_context: ReleaseContext | None = field(default=None, compare=False)
    previous: str | None = field(default=None, compare=False)


def declarations(study: object) -> dict[str, object]:
    """The fields of findings that a study declares; raise BadInput where one makes no sense.

    A study of another package declares by attributes of the same names. A study around an audit,
    such as a repeated one, declares what the audit does where it says nothing itself.
    """
    context, previous = (_own_or_inner(study, name) for name in ("release_context", "previous"))
    if context is not None:
        check_choice("release_context", context, get_args(ReleaseContext))
    return {"release_context": context, "previous": previous_digest(previous)}


def _own_or_inner(study: object, name: str) -> Any:
    own = getattr(study, name, None)
    return getattr(getattr(study, "audit", None), name, None) if own is None else own


def previous_digest(previous: str | Path | None) -> str:
    """The digest of the report before this one, read from its file where a path is given."""
    if previous is None:
        return ""
    if isinstance(previous, str) and re.fullmatch("[0-9a-f]{64}", previous):
        return previous
    if not isinstance(previous, (str, Path)):
        raise BadInput(
            f"previous is {brief(previous)}: give the run folder of the audit before this one, its "
            "report.json, or the digest in it."
        )
    path = Path(previous)
    try:
        load_report(path)
    except VestigeError as error:
        raise BadInput(f"The audit named by previous cannot be read: {error}") from error
    # The digest of the file, not of the report as this version of Vestige would write it.
    held = json.loads(read_document(path / "report.json" if path.is_dir() else path))
    return held.get(FIELD) or document_digest(held)
