"""From a run on disk to its judgement and page, again: no model, no data, no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vestige.errors import BadInput, NotFound, VestigeError, brief
from vestige.pages.saving import save_page
from vestige.reports.files import AGAIN, load_report
from vestige.reports.report import Report
from vestige.studies.judge import judged_again
from vestige.studies.run_digests import PAGE, list_page
from vestige.studies.store import RunFolder


def render_again(
    path: Path, out: Path | None, *, redact: bool | None = None
) -> tuple[Report[Any, Any], Path]:
    """Judge and render a finished run again; ``out`` is the page, or a folder for it.

    Without a choice to ``redact``, a redacted page is replaced by a redacted one.
    """
    if os.path.isdir(path):  # where Path raises for a name too long
        kept = path / "report.json"
        if not kept.is_file():
            folder = RunFolder.existing(path)
            manifest = folder.manifest()
            planned = manifest.get("units")
            raise NotFound(
                f"{path} holds {len(folder.finished())} of {brief(planned)} units and no report "
                f"yet: {folder.again(manifest)} to resume."
            )
        if (path / "manifest.json").exists() or (path / "units").exists():
            RunFolder(path).check_units()
        path = kept
    found = load_report(path)
    page = out or path.parent / PAGE
    if os.path.isdir(page):
        page = page / PAGE
    try:
        report = judged_again(found)
        save_page(report, page, redact=redact)
        if page == path.parent / PAGE:
            list_page(path.parent)
    except VestigeError:
        raise
    except Exception as error:  # every part can be sound and the whole make no sense
        raise BadInput(
            f"{path} holds numbers or pictures that do not belong together: {AGAIN}."
        ) from error
    return report, page
