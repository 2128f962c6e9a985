"""What of a run folder was made from an earlier report: its annex and its signature."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vestige.reports.report import Report
from vestige.runs.annex_files import compare_annex
from vestige.runs.signatures import present_signature
from vestige.studies.run_digests import SIGNATURE


def stale_files(folder: Path, report: Report[Any, Any]) -> list[str]:
    """One sentence about each file in a folder that its report, as it is now, does not bear out."""
    found = compare_annex(folder, report).differences
    if os.path.lexists(folder / SIGNATURE):
        found += present_signature(folder).differences
    return found
