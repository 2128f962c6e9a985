"""Runs as a table for pandas."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from vestige.errors import NotFound, extra
from vestige.runs.summaries import RunSummary, summaries

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = ("lower", "rate", "chance", "guess_rate", "done", "planned", "added", "cpu_seconds")


def frame(folder: str | Path) -> DataFrame:
    """One row for each run below a folder, newest first, without records, as a pandas table.

    The columns are the fields of ``vestige.runs.summaries.RunSummary``; ``date`` is a time in UTC,
    and numbers that a kind does not have are missing. It is for the owner of the runs: titles and
    digests of data are in it.
    """
    try:
        import pandas
    except ImportError as error:
        raise NotFound(f"A table of runs needs pandas: {extra('table')}.") from error
    columns = [field.name for field in fields(RunSummary)]
    table = pandas.DataFrame([asdict(one) for one in summaries(folder)], columns=columns)
    table["date"] = pandas.to_datetime(table["date"], errors="coerce", utc=True)
    for name in NUMBERS:
        table[name] = pandas.to_numeric(table[name])
    return table
