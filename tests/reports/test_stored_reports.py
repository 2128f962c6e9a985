"""Reports that earlier versions wrote: every later version loads, judges and draws them.

``stored/VERSION/KIND.json`` were written by that version of Vestige (``store_reports.py`` beside
this file); they are never changed. A new version adds its own folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vestige import __version__, load_report
from vestige.content import document_bytes
from vestige.pages import render
from vestige.reports.files import OWN_REPORTS
from vestige.runs.csv_tables import report_tables
from vestige.runs.summaries import measure_of
from vestige.studies.judge import judged_again

STORED = Path(__file__).parent / "stored"
FILES = sorted(STORED.rglob("*.json"))
MOST_BYTES = 120_000
"""Most bytes of a stored report."""


def test_every_kind_of_this_version_is_stored():
    own = {load_report(path).kind for path in (STORED / __version__).glob("*.json")}
    assert own == {kind.model_fields["kind"].default for kind in OWN_REPORTS}
    assert {"captured-audit.json", "audit-redacted.json"} <= {path.name for path in FILES}
    assert all(path.stat().st_size <= MOST_BYTES for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_report_is_read_judged_and_drawn(path):
    report = load_report(path)  # checks its digest
    assert judged_again(report).verdict.kind == report.verdict.kind
    assert report.verdict.headline in render(report).replace("&#39;", "'").replace("&amp;", "&")
    assert '<span class="redacted">redacted</span>' in render(report, redact=True)
    assert report_tables(report)["summary"]
    assert measure_of(report) is not None
    (again, digest) = (json.loads(document_bytes(report)), json.loads(path.read_text()))
    again.pop("digest"), digest.pop("digest")
    assert set(digest) <= set(again)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_report_without_newer_fields_is_read(path, tmp_path):
    held = json.loads(path.read_text())
    del held["digest"]
    del held["findings"]["digests"]
    (tmp_path / "report.json").write_text(json.dumps(held))
    assert load_report(tmp_path).findings.digests == {}
