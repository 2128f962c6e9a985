"""Reports as files: read with their digest checked, or refused in one sentence; their schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vestige.content import FIELD, verify_document
from vestige.errors import BadInput, NotFound, brief
from vestige.files import read_document
from vestige.reports.audit import AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.repeated import RepeatedReport
from vestige.reports.report import KINDS, SCHEMA_VERSION, Report
from vestige.reports.risk import RiskReport

OWN_REPORTS = (
    AuditReport,
    InversionReport,
    HeadReport,
    NoiseReport,
    ComparisonReport,
    RiskReport,
    RepeatedReport,
)
"""What this package writes; importing a class of reports makes its kind known."""

AGAIN = "rerun the command that wrote it"


def load_report(path: str | Path) -> Report[Any, Any]:
    """Read a report of any kind, by its file or its run folder, or say why it cannot be read."""
    if not isinstance(path, (str, Path)):
        raise BadInput(
            f"The path of a report is {brief(path)}: give a run folder or a report.json."
        )
    path = Path(path)
    if os.path.isdir(path):  # where Path raises for a name too long
        path = path / "report.json"
    try:
        content = read_document(path)
    except FileNotFoundError as error:
        raise NotFound(f"{path} does not exist: run the study that writes it first.") from error
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror or error}): give a run folder or a "
            "report.json."
        ) from error
    try:
        held = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(_no_report(path, "its first character")) from error
    if not isinstance(held, dict):
        raise BadInput(_no_report(path, "its first character"))
    version, kind = held.get("schema_version"), held.get("kind")
    if isinstance(version, int) and version != SCHEMA_VERSION:  # it may have another digest
        raise BadInput(
            f"{path} was written in format {brief(version)}, and this version of Vestige reads "
            f"format {SCHEMA_VERSION}: use the version that wrote it."
        )
    verify_document(held, str(path), AGAIN)
    if FIELD not in held and (path.parent / "manifest.json").is_file():
        raise BadInput(
            f"{path} has lost its digest, so whether it was changed cannot be told: {AGAIN}."
        )
    if not isinstance(kind, str):
        raise BadInput(_no_report(path, "kind"))
    if kind not in KINDS:
        raise BadInput(
            f"{path} holds a report of the kind {kind!r}, which is not known here: import the "
            "module that defines it first, and use load_report in Python."
        )
    try:
        return KINDS[kind].model_validate_json(json.dumps(held))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its first character"
        raise BadInput(_no_report(path, where)) from error


def report_schema(kind: type[Report[Any, Any]] = AuditReport) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a report as it is written."""
    schema = kind.model_json_schema(mode="serialization")
    schema["properties"]["digest"] = {
        "description": "SHA-256 of the document without this field, as canonical JSON: keys "
        "sorted, no spaces, whole numbers without a fraction.",
        "pattern": "^[0-9a-f]{64}$",
        "title": "Digest",
        "type": "string",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{schema['title']}, format {SCHEMA_VERSION}",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _no_report(path: Path, where: str) -> str:
    return f"{path} is damaged or no report of Vestige (at {where}): {AGAIN}."
