"""Reports as files: every kind is read and judged again, others are refused in one sentence."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from pages.noise_studies import noise
from pages.states import STATES
from pages.studies import heads
from vestige.cli.rendering import render_again
from vestige.content import document_bytes
from vestige.errors import BadInput
from vestige.pages import render
from vestige.reports.audit import AuditReport
from vestige.reports.files import load_report, report_schema
from vestige.reports.parts import Verdict, VerdictKind
from vestige.reports.report import Findings, Judgement, Report
from vestige.studies.judge import judge, judged_again, report_on

EVERY = {name: STATES[name] for name in ("few_trials", "captured")} | {
    "heads": heads,
    "noise": noise,
    "redacted": lambda: STATES["few_trials"]().without_secrets(),
}

ROOT = Path(__file__).parents[2]


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("build", EVERY.values(), ids=list(EVERY))
def test_a_report_of_any_kind_is_read_and_judged_again(tmp_path, build):
    report = build()
    path = written(tmp_path, json.loads(document_bytes(report)))
    assert load_report(path) == report
    again = judged_again(load_report(path))
    assert type(again) is type(report)
    assert again.findings == report.findings
    assert render(again)


def test_studies_of_heads_and_noise_are_judged_again_alike(tmp_path):
    for build in (heads, noise):
        report = build()
        assert judged_again(report) == report
        changed = report.judgement.verdict.model_copy(update={"headline": "All is well."})
        edited = report.model_copy(
            update={"judgement": report.judgement.model_copy(update={"verdict": changed})}
        )
        path = written(tmp_path, json.loads(edited.model_dump_json()))
        assert render_again(path, None)[0] == report


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 99}, "was written in format 99, and this version of Vestige reads"),
        ({"schema_version": 0}, "was written in format 0"),
        ({"schema_version": -1}, "was written in format -1"),
        ({"schema_version": "1"}, r"no report of Vestige \(at schema_version\)"),
        ({"kind": "a poem"}, "of the kind 'a poem', which is not known here"),
        ({"kind": ["audit"]}, r"no report of Vestige \(at kind\)"),
        ({"kind": "head study"}, r"no report of Vestige \(at findings"),
        ({"findings": "none"}, r"no report of Vestige \(at findings\)"),
        ({"judgement": {}}, r"no report of Vestige \(at judgement.verdict\)"),
        ({"digest": "0" * 64}, "was changed after it was written"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, change, said):
    whole = json.loads(STATES["few_trials"]().model_dump_json())
    with pytest.raises(BadInput, match=said) as caught:
        load_report(written(tmp_path, {**whole, **change}))
    assert "\n" not in str(caught.value)


def test_a_judgement_on_other_exhibits_is_refused(tmp_path):
    whole = json.loads(STATES["few_trials"]().model_dump_json())
    whole["judgement"]["hits"].append(True)
    with pytest.raises(BadInput, match="no report of Vestige"):
        load_report(written(tmp_path, whole))


class Counted(Findings):
    """What another package measured."""

    number: int

    def without_secrets(self) -> Counted:
        return self.model_copy(update={"redacted": True, "number": 0})


class CountedReport(Report[Counted, Judgement]):
    """The report of another package."""

    kind: str = "counting"


def test_another_package_adds_a_kind(tmp_path):
    @judge.register
    def judge_counted(findings: Counted) -> Judgement:
        kind = VerdictKind.DEMONSTRATED if findings.number > 3 else VerdictKind.NOT_DEMONSTRATED
        return Judgement(verdict=Verdict(kind=kind, headline=f"{findings.number}.", lede=""))

    space = STATES["few_trials"]().findings.space
    report = report_on(Counted(title="Counting", space=space, seed=0, number=4))
    assert isinstance(report, CountedReport)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED
    assert load_report(written(tmp_path, json.loads(document_bytes(report)))) == report
    left = report.without_secrets()
    assert (left.findings.number, judged_again(left)) == (0, left)


def test_what_no_judge_knows_is_refused():
    with pytest.raises(BadInput, match="cannot be judged"):
        judge("findings")


def test_the_schema_in_the_documents_is_current():
    """If this fails: python scripts/write_schema.py, and look whether the version must rise."""
    script = runpy.run_path(str(ROOT / "scripts" / "write_schema.py"))
    assert script["PLACE"].read_text(encoding="utf-8") == script["schema_text"]()


@pytest.mark.slow
def test_reports_follow_the_schema_and_others_do_not():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(report_schema())
    validator.check_schema(report_schema())
    audits = [build() for name, build in STATES.items() if name != "captured"]
    for report in audits:
        validator.validate(json.loads(report.model_dump_json()))
    whole = json.loads(STATES["demonstrated"]().model_dump_json())
    assert not validator.is_valid({**whole, "news": 1})
    assert not validator.is_valid({**whole, "judgement": {"verdict": {"kind": "FINE"}}})
    assert set(report_schema()["properties"]) == {*AuditReport.model_fields, "digest"}
    written = json.loads(document_bytes(STATES["demonstrated"]()))
    validator.validate(written)
    assert not validator.is_valid({**written, "digest": "none"})
