"""Texts in files: lines of a .txt, a column of a .csv, a field of a .jsonl."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vestige.errors import BadInput, NotFound
from vestige.files.memory import refuse_memory

SUFFIXES = (".txt", ".csv", ".jsonl")
"""Ends of the names of files that hold texts."""

MOST_BYTES = 2**30
"""Bytes of a file of texts that is read into memory."""

TEXT, LABEL = "text", "label"
"""Columns of a .csv and fields of a .jsonl."""


def read_texts(path: Path) -> tuple[list[str], list[str] | None]:
    """The texts of a file, and their labels as written where it has any; blank texts are left out.

    A ``.txt`` has one text on each line. A ``.csv`` has a heading with the column ``text`` (the
    only column may have any name) and may have a column ``label``; a ``.jsonl`` has an object with
    the same fields on each line. All are UTF-8.
    """
    if path.suffix == ".txt":
        texts = [line for line in _content(path).splitlines() if line.strip()]
        labels = None
    else:
        rows = list(_csv_rows(path) if path.suffix == ".csv" else _json_rows(path))
        rows = [row for row in rows if row[TEXT].strip()]
        texts = [row[TEXT] for row in rows]
        labelled = [row[LABEL] for row in rows if LABEL in row]
        if labelled and len(labelled) < len(rows):
            raise BadInput(f"Some texts of {path} have a label and some do not: give all or none.")
        labels = labelled or None
    if not texts:
        raise BadInput(f"{path} holds no text: give at least one.")
    return texts, labels


def _content(path: Path) -> str:
    try:
        size = path.stat().st_size
        refuse_memory(size, MOST_BYTES, f"{path}", "give a part of it")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}: give one with texts.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as text in UTF-8: convert it first.") from error


def _csv_rows(path: Path) -> Iterable[dict[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(_content(path), newline=""), strict=True)
        heading = list(reader.fieldnames or ())
        column = heading[0] if len(heading) == 1 else TEXT
        if column not in heading:
            raise BadInput(
                f"{path} has the columns {', '.join(map(repr, heading[:8]))}: call the one with "
                f"the texts {TEXT!r}."
            )
        for row in reader:
            found = {TEXT: row[column] or ""}
            yield found | ({LABEL: row[LABEL] or ""} if LABEL in heading else {})
    except csv.Error as error:
        raise BadInput(f"{path} is no table of comma-separated values: {error}.") from error


def _json_rows(path: Path) -> Iterable[dict[str, str]]:
    for number, line in enumerate(_content(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            held: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"Line {number} of {path} is no JSON: write one object a line.") from (
                error
            )
        if not isinstance(held, Mapping) or not isinstance(held.get(TEXT), str):
            raise BadInput(f"Line {number} of {path} has no {TEXT!r}: write an object with one.")
        label = held.get(LABEL)
        yield {TEXT: held[TEXT]} | ({} if label is None else {LABEL: str(label)})
