from __future__ import annotations

import numpy as np

from vestige.pages.audit.features import feature_table
from vestige.reports.parts import ColumnDescription, Picture

COLUMNS = (
    ColumnDescription(name="age", center=50, scale=10),
    ColumnDescription(name="dose", center=0.1, scale=0.02),
    ColumnDescription(name="clinic", center=0, scale=1, categories=("north", "south")),
)


def row(*values: float) -> Picture:
    return Picture.of(np.array(values))


def test_original_units_and_words() -> None:
    table = feature_table(COLUMNS, row(1, -1, 1), row(1.4, -2, 0.9), row(0, -1, 0), withheld=False)
    rows = {r.name: r for r in table.rows}
    assert (rows["age"].secret, rows["age"].reconstruction, rows["age"].decoy) == (
        "60.0",
        "64.0",
        "50.0",
    )
    assert (rows["clinic"].secret, rows["clinic"].decoy) == ("south", "north")
    assert [r.recovered for r in table.rows] == [True, True, False]
    assert table.summary.replace("\N{NO-BREAK SPACE}", " ") == "2 of 3 features recovered; decoy 1"


def test_most_exposed_first_and_the_rest_folded() -> None:
    columns = tuple(ColumnDescription(name=f"f{i}", center=0, scale=1) for i in range(12))
    secret = np.zeros(12)
    table = feature_table(
        columns, row(*secret), row(*(secret + 0.01)), row(*np.arange(12)), withheld=False
    )
    assert [r.name for r in table.shown.rows] == [f"f{i}" for i in range(11, 3, -1)]
    assert len(table.folded.rows) == 4
    assert table.note == "Recovered features come first. 4 more not shown here, listed below."


def test_withheld_rows_keep_the_order_of_the_columns() -> None:
    table = feature_table(COLUMNS, None, None, row(0, 0, 0), withheld=True)
    assert [r.name for r in table.rows] == ["age", "dose", "clinic"]
    assert {r.secret for r in table.rows} == {r.reconstruction for r in table.rows} == {"withheld"}
    assert table.rows[0].decoy == "50.0"
    assert all(r.recovered is None for r in table.rows)
    assert table.note == ""
