"""From a run on disk to its page, again: no model, no data, no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from vestige.bounds.statement import Statement
from vestige.comparison import Comparison
from vestige.errors import BadInput, NotFound, VestigeError, brief
from vestige.files import explained, read_document, write_atomically
from vestige.head_study import HeadStudy
from vestige.noise_study import NoiseStudy
from vestige.record import Record
from vestige.report import render
from vestige.report.bounds import render_bounds
from vestige.report.comparison import render_comparison
from vestige.report.head_study import render_head_study
from vestige.report.noise_study import render_noise_study
from vestige.store import RunDirectory, load_record
from vestige.verdicts import judge

Study = HeadStudy | NoiseStudy | Comparison

STUDIES: dict[str, tuple[type[HeadStudy] | type[NoiseStudy] | type[Comparison], str]] = {
    "head study": (HeadStudy, "heads"),
    "noise study": (NoiseStudy, "noise"),
    "comparison": (Comparison, "comparison"),
}
"""Every kind of study: what reads it, and how its files are called."""


def render_again(
    path: Path, out: Path | None, *, redact: bool = False
) -> tuple[Record | Study, Path]:
    """Judge and render a finished run or a study again; ``out`` is the page, or a folder for it."""
    if os.path.isdir(path):  # where Path raises for a name too long
        studies = [path / f"{name}.json" for _, name in STUDIES.values()]
        kept = next((p for p in (path / "record.json", *studies) if p.is_file()), None)
        if kept is None:
            directory = RunDirectory.existing(path)
            planned = directory.manifest().get("trials")
            raise NotFound(
                f"{path} holds {len(directory.finished())} of {brief(planned)} trials and no "
                "Record yet: run the audit again with the same command, it goes on."
            )
        path = kept
    found = load_study(path) or load_record(path)
    name = "page.html" if isinstance(found, Record) else f"{STUDIES[found.kind][1]}.html"
    page = out or path.parent / name
    if os.path.isdir(page):
        page = page / name
    try:
        judged = judge(found) if isinstance(found, Record) else found
        save_page(judged, page, redact=redact)
    except VestigeError:
        raise
    except Exception as error:  # every part can be sound and the whole make no sense
        raise BadInput(
            f"{path} holds numbers or pictures that do not belong together: write it anew with the "
            "command that made it."
        ) from error
    return judged, page


def load_study(path: Path) -> Study | None:
    """Read a study; None if the file holds something else, such as a Record, or cannot be read."""
    try:
        content = read_document(path)
        held = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    kind = held.get("kind") if isinstance(held, dict) else None
    if not isinstance(kind, str) or kind not in STUDIES:
        return None
    document, name = STUDIES[kind]
    if held.get("schema_version") != document.model_fields["schema_version"].default:
        raise BadInput(
            f"{path} was written in another format of a {kind}: use the version that wrote it."
        )
    try:
        return document.model_validate_json(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "its first character"
        raise BadInput(
            f"{path} is damaged (at {where}): write {name}.json anew with the same command."
        ) from error


def save_page(
    record: Record | Study | Statement, path: str | Path, *, redact: bool = False
) -> None:
    """Render a Record, a study or a statement of bounds and write its page, for its owner alone."""
    if isinstance(record, Statement):
        page = render_bounds(record)
    elif isinstance(record, HeadStudy):
        page = render_head_study(record, redact=redact)
    elif isinstance(record, NoiseStudy):
        page = render_noise_study(record, redact=redact)
    elif isinstance(record, Comparison):
        page = render_comparison(record, redact=redact)
    else:
        page = render(record, redact=redact)
    write_page(Path(path), page)


def write_page(path: Path, page: str) -> None:
    """Write a page, or say why not."""
    with explained(path):
        write_atomically(path, page.encode())
