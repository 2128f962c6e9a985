"""Tables as CSV: what a report says, readable again, and never a formula."""

from __future__ import annotations

import csv
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.comparison_worlds import comparison
from pages.noise_studies import noise
from pages.repeated_studies import repeated
from pages.risk_studies import risk
from pages.states import STATES
from pages.studies import heads
from vestige.cli.app import main
from vestige.content import document_bytes
from vestige.pages.saving import save_page
from vestige.reports.files import load_report
from vestige.runs.csv_tables import as_text, csv_text, report_tables, write_tables
from vestige.runs.verification import verify

DANGEROUS = set("=+-@\t\r\n＝＋－＠")
CELLS = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.booleans())


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@given(st.lists(st.dictionaries(st.text(min_size=1), CELLS, min_size=1), min_size=1, max_size=6))
def test_no_text_is_a_formula_and_numbers_stay_numbers(rows):
    lines = list(csv.reader(io.StringIO(csv_text(rows), newline="")))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    assert len(lines) == len(rows) + 1
    for row, line in zip(rows, lines[1:]):
        assert len(line) == len(columns)
        for name, cell in zip(columns, line):
            value = row.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                assert float(cell) == float(value)
            elif cell:
                assert cell[0] not in DANGEROUS
    assert all(not cell or cell[0] not in DANGEROUS for cell in lines[0])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "＝", "＋", "－", "＠"])
def test_formulas_are_quoted_as_text(start):
    assert as_text(f"{start}1+1") == f"'{start}1+1"
    assert as_text(-1.5) == -1.5
    assert as_text("plain") == "plain"


def test_outcomes_and_rates_of_an_audit():
    report = STATES["demonstrated"]()
    tables = {name: read(csv_text(rows)) for name, rows in report_tables(report).items()}
    outcomes = [o for attack in report.findings.attacks for o in attack.outcomes]
    assert [int(row["rank"]) for row in tables["attacks.outcomes"]] == [o.rank for o in outcomes]
    assert [row["name"] for row in tables["attacks"]] == [a.name for a in report.findings.attacks]
    rates = {row["rates"]: row for row in tables["judgement.rates"]}
    for name, one in report.judgement.rates.items():
        assert float(rates[name]["rate.lower"]) == one.rate.lower
    summary = {row["name"]: row["value"] for row in tables["summary"]}
    assert summary["title"] == report.findings.title
    assert summary["verdict.kind"] == report.verdict.kind.value


@pytest.mark.parametrize(
    "build", [noise, heads, comparison, STATES["captured"], STATES["features"], risk, repeated]
)
def test_every_kind_has_tables_and_no_pictures(build):
    report = build()
    tables = report_tables(report)
    assert len(tables) > 5
    text = "".join(csv_text(rows) for rows in tables.values())
    assert "pixels" not in text
    hidden = "".join(csv_text(rows) for rows in report_tables(report.without_secrets()).values())
    for name in report.findings.space.class_names:
        if len(name) > 4:
            assert name not in hidden


def test_points_of_a_noise_study():
    points = read(csv_text(report_tables(noise())["points"]))
    assert [float(row["mu"]) for row in points] == [p.mu for p in noise().findings.points]


def test_the_command_writes_private_files(tmp_path, monkeypatch):
    report = STATES["demonstrated"]()
    title = '=HYPERLINK("http://evil.example")'
    report = report.model_copy(
        update={"findings": report.findings.model_copy(update={"title": title})}
    )
    (tmp_path / "report.json").write_bytes(document_bytes(report))

    def command(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["vestige", "export", str(tmp_path), *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    folders = ["--csv", str(tmp_path / "csv"), "--redacted", str(tmp_path / "out")]
    assert command(*folders) == 0
    files = sorted((tmp_path / "csv").iterdir())
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    assert "'=HYPERLINK" in (tmp_path / "csv" / "summary.csv").read_text()
    assert load_report(tmp_path / "out").findings.redacted
    assert verify(tmp_path / "out").verified
    assert verify(tmp_path / "out").in_part
    assert command(*folders) == 2  # the folder to hand over is not empty any more
    assert command() == 2
    assert len(write_tables(report, tmp_path / "again")) == len(files)
    # Tables follow the page of the folder unless they are told otherwise.
    save_page(report, tmp_path / "page.html", redact=True)
    for words, whole in (((), False), (("--redact",), False), (("--no-redact",), True)):
        assert command("--csv", str(tmp_path / f"as{whole}"), *words) == 0
        held = (tmp_path / f"as{whole}" / "summary.csv").read_text()
        assert ("'=HYPERLINK" in held) == whole
