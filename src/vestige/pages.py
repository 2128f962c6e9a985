"""From a run on disk to its page, again: no model, no data, no torch."""

from __future__ import annotations

import os
from pathlib import Path

from vestige.bounds.statement import Statement
from vestige.errors import NotFound
from vestige.files import explained, write_atomically
from vestige.head_study import HeadStudy
from vestige.record import Record
from vestige.report import render
from vestige.report.bounds import render_bounds
from vestige.report.head_study import render_head_study
from vestige.store import RunDirectory, load_record
from vestige.verdicts import judge


def render_again(path: Path, out: Path | None, *, redact: bool = False) -> tuple[Record, Path]:
    """Judge and render a finished run again; ``out`` is the page, or a folder for it."""
    if os.path.isdir(path):  # where Path raises for a name too long
        if not (path / "record.json").is_file():
            directory = RunDirectory.existing(path)
            raise NotFound(
                f"{path} holds {len(directory.finished())} of {directory.manifest().get('trials')} "
                "trials and no Record yet: run the audit again with the same command, it goes on."
            )
        path = path / "record.json"
    record = judge(load_record(path))
    page = out or path.parent / "page.html"
    if os.path.isdir(page):
        page = page / "page.html"
    write_page(page, render(record, redact=redact))
    return record, page


def save_page(
    record: Record | HeadStudy | Statement, path: str | Path, *, redact: bool = False
) -> None:
    """Render a Record, a study or a statement of bounds and write its page, for its owner alone."""
    if isinstance(record, Statement):
        write_page(Path(path), render_bounds(record))
    elif isinstance(record, HeadStudy):
        write_page(Path(path), render_head_study(record, redact=redact))
    else:
        write_page(Path(path), render(record, redact=redact))


def write_page(path: Path, page: str) -> None:
    """Write a page, or say why not."""
    with explained(path):
        write_atomically(path, page.encode())
