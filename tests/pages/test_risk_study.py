"""The page of a study of single records: what it shows, in which order, and what it withholds."""

from __future__ import annotations

import re

from pages.risk_studies import risk
from vestige.pages import render
from vestige.reports.parts import VerdictKind
from vestige.reports.risk import RiskReport
from vestige.studies.judge import judged_again


def test_exposed_records_come_first_in_the_table():
    report = risk()
    page = render(report)
    (body,) = re.findall(r'<table class="rates".*?</table>', page, re.DOTALL)
    shown = re.findall(r'<th scope="row">([0-9a-f]{8})', body)
    names = [one.name for one in report.findings.records]
    assert sorted(shown) == sorted(names)
    assert shown[:3] == [names[4], names[1], names[5]]
    assert body.count("✓ yes") == 3
    assert body.count("not shown") == 5


def test_maximum_average_and_groups_are_said():
    report = risk()
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert report.verdict.attack == "First"
    first, second = report.judgement.attacks
    assert (first.exposed, second.exposed) == (3, 0)
    assert "3 of 8 records are exposed." in report.verdict.headline
    assert "Maximum risk: 20 of 20 releases with record" in report.verdict.lede
    assert "39% of the releases of 4 records drawn at random" in report.verdict.lede
    assert "all 8 of them and 2 attacks together" in report.verdict.lede
    assert "up to" not in report.verdict.lede


def test_a_redacted_page_names_records_by_digest_alone():
    report = risk()
    page = render(report, redact=True)
    assert all(one.name in page for one in report.findings.records)
    assert "data:image" not in page
    assert "Ada" not in page
    assert page.count("withheld") > 3


def test_documents_are_read_and_judged_again():
    report = risk()
    assert RiskReport.model_validate_json(report.model_dump_json()) == report
    assert judged_again(report) == report
    assert render(report) == render(report)
