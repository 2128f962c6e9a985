"""A folder to hand over: the redacted report, its page, and digests of both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vestige.content import document_bytes
from vestige.errors import BadInput, Conflict, brief
from vestige.files import explain_errors, make_folder, write_atomically
from vestige.pages import render
from vestige.reports.report import Report
from vestige.runs.paths import given_path
from vestige.studies.run_digests import PAGE, write_digests


def write_redacted(report: Report[Any, Any], folder: str | Path) -> Path:
    """Write what may leave of a report into a new or empty folder, which verifies and signs."""
    if not isinstance(report, Report):
        raise BadInput(f"A redacted report is made of a report, not of {brief(report)}.")
    base, hidden = given_path(folder, "The folder to hand over"), report.without_secrets()
    with explain_errors(base):
        if base.exists() and (not base.is_dir() or os.listdir(base)):
            held = "exists and is not empty" if base.is_dir() else "is a file"
            raise Conflict(f"{base} {held}: name a new folder.")
        make_folder(base)
        write_atomically(base / "report.json", document_bytes(hidden))
        write_atomically(base / PAGE, render(hidden, redact=True).encode())
        write_digests(base, page=True)
    return base
