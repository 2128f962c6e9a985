"""The tables of a report as CSV files, for spreadsheets; pictures and features are left out.

A text that a spreadsheet would run as a formula gets a leading apostrophe, which spreadsheets take
as "this is text" (OWASP, "CSV injection"). Numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from vestige.errors import BadInput, brief
from vestige.files import explain_errors, make_folder, write_atomically
from vestige.printable import clean_text
from vestige.reports.parts import Picture
from vestige.reports.report import Report
from vestige.runs.paths import given_path

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""How a text begins that a spreadsheet may run; the last four are read as the first four."""

Row = dict[str, object]
Scalar = str | int | float | bool | None


def report_tables(report: Report[Any, Any]) -> dict[str, list[Row]]:
    """Every list of a report as a table, by name; ``summary`` holds what stands alone.

    Rows of a list inside a list begin with the numbers of the rows that they belong to.
    """
    tables: dict[str, list[Row]] = {}
    summary: Row = {"kind": report.kind}
    for name in ("judgement", "findings"):
        summary |= _flat(getattr(report, name), name, "", {}, tables)
    lines: list[Row] = [{"name": name, "value": value} for name, value in summary.items()]
    return {"summary": lines, **tables}


def _flat(
    value: BaseModel, table: str, prefix: str, parents: Row, tables: dict[str, list[Row]]
) -> Row:
    """The scalars of a document as columns; its lists become tables of their own."""
    found: Row = {}
    for field in type(value).model_fields:
        part, name = getattr(value, field), f"{prefix}{field}"
        if isinstance(part, Picture):
            continue
        if isinstance(part, BaseModel):
            found |= _flat(part, table, f"{name}.", parents, tables)
        elif isinstance(part, (Mapping, list, tuple)):
            cell = _listed(part, f"{table}.{name}", parents, tables)
            found |= {} if cell is None else {name: cell}
        else:
            found[name] = part
    return found


def _listed(
    value: Mapping[str, Any] | Sequence[Any],
    table: str,
    parents: Row,
    tables: dict[str, list[Row]],
) -> str | None:
    """Put a list into its table; a list of plain values is one cell instead."""
    items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    whole = table.removeprefix("findings.")
    if not items or all(isinstance(part, Picture) or part is None for _, part in items):
        return None
    if any(isinstance(part, BaseModel) for _, part in items):
        for key, part in items:
            own = {**parents, whole.rsplit(".", 1)[-1]: key}
            if isinstance(part, BaseModel) and not isinstance(part, Picture):
                tables.setdefault(whole, [])
                row: Row = dict(own)
                tables[whole].append(row)
                row |= _flat(part, table, "", own, tables)
        return None
    if isinstance(value, Mapping):
        rows = [{**parents, "name": key, "value": _cell(part)} for key, part in items]
        tables.setdefault(whole, []).extend(rows)
        return None
    return "; ".join(str(_cell(part)) for _, part in items)


def _cell(part: object) -> Scalar:
    if part is None or isinstance(part, (str, int, float, bool)):
        return part
    return json.dumps(part, default=lambda _: None)


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV (RFC 4180), with a head; what a row does not have is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([as_text(name) for name in columns])
    writer.writerows([as_text(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def as_text(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; numbers and nothing stay what they are."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    text = clean_text(str(value))
    return f"'{text}" if text.startswith(FORMULAS) else text


def write_tables(report: Report[Any, Any], folder: str | Path) -> list[Path]:
    """Write every table of a report as a private CSV file; return their paths."""
    base = given_path(folder, "The folder of the tables")
    if not isinstance(report, Report):
        raise BadInput(f"Tables are made of a report, not of {brief(report)}.")
    with explain_errors(base):
        make_folder(base)
        return list(_written(report, base))


def _written(report: Report[Any, Any], base: Path) -> Iterator[Path]:
    for name, rows in report_tables(report).items():
        path = base / f"{name}.csv"
        write_atomically(path, csv_text(rows).encode())
        yield path
