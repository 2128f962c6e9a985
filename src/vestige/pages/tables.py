"""Tables and legends of every page; ``parts.html`` has one macro for each of the two."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from markupsafe import Markup

from vestige.reports import numbers

Cell = str | Markup
"""The content of a cell: text, which is escaped, or finished markup."""

EMPTY = ("", numbers.EN_DASH)


@dataclass(frozen=True)
class Column:
    """One column of a table; ``kind`` is the class of its cells beside the alignment."""

    title: str
    number: bool = True
    kind: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a table: its name, what stands below the name, its cells."""

    name: Cell
    detail: str
    cells: tuple[Cell, ...]
    lead: bool = False


@dataclass(frozen=True)
class Table:
    """A table; ``first`` heads the names of the rows, and without it there is no head."""

    first: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def without_empty_columns(self) -> Table:
        """The same table without the columns in which nothing is known."""
        known = [
            place
            for place in range(len(self.columns))
            if any(row.cells[place] not in EMPTY for row in self.rows)
        ]
        rows = (replace(row, cells=tuple(row.cells[i] for i in known)) for row in self.rows)
        return Table(self.first, tuple(self.columns[i] for i in known), tuple(rows))

    def part(self, start: int, stop: int | None = None) -> Table:
        """Some rows of the table."""
        return replace(self, rows=self.rows[start:stop])


def pairs(items: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values, without a head."""
    rows = tuple(Row(name, "", (value,)) for name, value in items)
    return Table("", (Column("", number=False),), rows)


@dataclass(frozen=True)
class Key:
    """One line of a legend."""

    svg: Markup
    label: str


def draw_key(inside: str, label: str, width: int = 34, height: int = 14) -> Key:
    """A line of a legend from its drawing."""
    size = f'width="{width}" height="{height}"'
    return Key(Markup(f'<svg {size} aria-hidden="true">{inside}</svg>'), label)


def line_key(kind: str, label: str, width: int = 30) -> Key:
    """A legend's line in the style of a curve."""
    return draw_key(f'<path class="{kind}" d="M1 6H{width}"/>', label, width, 12)


def area_key(kind: str, label: str) -> Key:
    """A legend's bar of a histogram: ``leak`` or ``decoy``."""
    bar = f'<rect class="f-{kind}-wash" y="1" width="26" height="11"/>'
    return draw_key(f'{bar}<path class="l-{kind}" d="M0 1H26"/>', label, 26, 12)
