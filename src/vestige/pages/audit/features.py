"""Tables of features: one row of a secret beside its reconstruction and a decoy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from vestige.pages.tables import Cell, Column, Row, Table
from vestige.reports import numbers
from vestige.reports.parts import ColumnDescription, Picture

# A feature counts as recovered within half a standard deviation.
TOLERANCE = 0.5
SHOWN = 8
WITHHELD = "withheld"
MISSING = numbers.EN_DASH


@dataclass(frozen=True)
class FeatureRow:
    """One feature in original units; ``recovered`` is None where it cannot be said."""

    name: str
    secret: str
    reconstruction: str
    decoy: str
    recovered: bool | None


@dataclass(frozen=True)
class FeatureTable:
    """The features of one trial, most exposed first, with the sentence that sums them up."""

    rows: tuple[FeatureRow, ...]
    summary: str
    ordered: bool = False

    @property
    def note(self) -> str:
        """How rows are ordered, and how many are not in the open."""
        order = "Recovered features come first. " if self.ordered else ""
        left = len(self.rows) - SHOWN
        return f"{order}{left} more not shown here, listed below." if left > 0 else order.strip()

    @property
    def shown(self) -> Table:
        """Rows in the open."""
        return _drawn(self.rows[:SHOWN])

    @property
    def folded(self) -> Table:
        """Rows behind a fold."""
        return _drawn(self.rows[SHOWN:])


RECOVERED: dict[bool | None, Cell] = {
    None: MISSING,
    True: Markup('<b class="hit">✓ yes</b>'),
    False: Markup('<span class="miss">✗ no</span>'),
}


def _drawn(rows: Sequence[FeatureRow]) -> Table:
    columns = (
        Column("Secret"),
        Column("Reconstr.", kind="leak"),
        Column("Decoy"),
        Column(f"Within ½{numbers.NO_BREAK}sd", number=False, kind="within"),
    )
    cells = ((r.secret, r.reconstruction, r.decoy, RECOVERED[r.recovered]) for r in rows)
    return Table("Feature", columns, tuple(Row(r.name, "", c) for r, c in zip(rows, cells)))


def original(column: ColumnDescription, stored: float) -> str:
    """Write a stored value in its original unit, a category as its word."""
    if column.categories:
        return column.categories[category(column, stored)]
    return numbers.quantity(stored * column.scale + column.center)


def category(column: ColumnDescription, stored: float) -> int:
    """Return the index of the category nearest to a stored value."""
    return int(min(max(round(stored), 0), len(column.categories) - 1))


def agrees(column: ColumnDescription, secret: float, other: float) -> bool:
    """Say whether a feature is the same category, or within half a standard deviation."""
    if column.categories:
        return category(column, secret) == category(column, other)
    return abs(secret - other) <= TOLERANCE


def feature_table(
    columns: Sequence[ColumnDescription],
    secret: Picture | None,
    reconstruction: Picture | None,
    decoy: Picture | None,
    *,
    withheld: bool,
) -> FeatureTable:
    """Set a secret beside its reconstruction and a decoy, feature by feature.

    Where the secret or its reconstruction is not there, the features keep the order of the
    columns: an order by exposure would tell about both.
    """
    absent = WITHHELD if withheld else MISSING
    decoy_values = None if decoy is None else decoy.array()

    def shown(column: ColumnDescription, values: np.ndarray | None, index: int) -> str:
        return absent if values is None else original(column, values[index])

    if secret is None or reconstruction is None:
        given = None if secret is None else secret.array()
        drawn = None if reconstruction is None else reconstruction.array()
        rows = tuple(
            FeatureRow(
                name=c.name,
                secret=shown(c, given, i),
                reconstruction=shown(c, drawn, i),
                decoy=shown(c, decoy_values, i),
                recovered=None,
            )
            for i, c in enumerate(columns)
        )
        features = numbers.plural(len(columns), "feature")
        summary = f"{features}, withheld" if withheld else "The attack returned no finite row."
        return FeatureTable(rows=rows, summary=summary)

    secret_values, drawn_values = secret.array(), reconstruction.array()
    recovered = [agrees(c, secret_values[i], drawn_values[i]) for i, c in enumerate(columns)]
    errors = np.abs(drawn_values - secret_values)
    gain = -errors if decoy_values is None else np.abs(decoy_values - secret_values) - errors
    order = sorted(range(len(columns)), key=lambda i: (not recovered[i], -gain[i], i))
    rows = tuple(
        FeatureRow(
            name=columns[i].name,
            secret=original(columns[i], secret_values[i]),
            reconstruction=original(columns[i], drawn_values[i]),
            decoy=shown(columns[i], decoy_values, i),
            recovered=recovered[i],
        )
        for i in order
    )
    summary = f"{sum(recovered)} of {numbers.plural(len(columns), 'feature')} recovered"
    if decoy_values is not None:
        chance = sum(agrees(c, secret_values[i], decoy_values[i]) for i, c in enumerate(columns))
        summary += f"; decoy {chance}"
    return FeatureTable(rows=rows, summary=summary, ordered=True)
