"""The annex beside a report: whether it is what the report gives, or that of an earlier one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vestige.content import document_bytes
from vestige.errors import first_line
from vestige.files import read_document
from vestige.pages.annex.build import annex_of
from vestige.pages.annex.markdown import annex_markdown
from vestige.reports.annex import Annex
from vestige.reports.report import Report
from vestige.runs.rederivation import Comparison

ANNEX: dict[str, Callable[[Annex], bytes]] = {
    "annex.md": lambda annex: annex_markdown(annex).encode(),
    "annex.json": document_bytes,
}
"""The files that ``vestige annex RUN`` writes, each as a function of the annex."""

MOST_BYTES = 2**26
"""Largest annex that is compared."""


def compare_annex(folder: Path, report: Report[Any, Any], version: str = "") -> Comparison:
    """Compare the annex in a folder, if one was written, with its report.

    It may be redacted where the report is not. ``version`` is a clause for a report of another
    version of Vestige.
    """
    found = Comparison()
    for name, written in ANNEX.items():
        if not os.path.lexists(folder / name):
            continue
        try:
            held = read_document(folder / name, MOST_BYTES)
            annexes = [annex_of(report)]
            if held != written(annexes[0]) and not report.findings.redacted:
                annexes.append(annex_of(report.without_secrets()))
            same = any(held == written(one) for one in annexes)
        except Exception as error:  # every part can be sound and the whole make no sense
            found.differences.append(f"{name} cannot be compared ({first_line(error)}).")
            continue
        if same:
            found.confirmed.append(f"{name} is what report.json gives, byte for byte.")
            continue
        own = any(one.report_digest.encode() in held for one in annexes)
        why = "" if own else ": it is of another report, such as that before trials were added"
        found.differences.append(
            f"{name} is not what report.json gives{why}{version}; vestige annex writes it again."
        )
    return found
