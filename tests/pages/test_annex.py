"""The annex: ten points from every kind of report, seven answers, no decision, no secret."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from typer.testing import CliRunner

from vestige.bounds.shown import shown_by_audit
from vestige.cli.app import app
from vestige.content import document_bytes, document_digest
from vestige.errors import BadInput
from vestige.pages import render
from vestige.pages.annex.build import annex_of, core_time
from vestige.pages.annex.markdown import annex_markdown, escaped
from vestige.reports import numbers
from vestige.reports.annex import TITLES, Annex, CoverageState
from vestige.reports.parts import SpaceDescription, Times, Verdict, VerdictKind
from vestige.reports.report import Findings, Judgement, Report
from vestige.reports.shown import shown_sentence

from .audits import changed
from .comparison_worlds import COMPARISONS
from .noise_studies import NOISE_STUDIES
from .repeated_studies import REPEATED
from .risk_studies import RISKS
from .states import STATES
from .studies import STUDIES
from .test_render import Reader

REPORTS = {**STATES, **STUDIES, **NOISE_STUDIES, **COMPARISONS, **RISKS, **REPEATED}
KINDS = ["demonstrated", "captured", "heads", "noise", "comparison", "risk", "repeated"]
"""One report of each kind."""

SPACE = SpaceDescription(kind="image", shape=(1, 2, 2), noun="image", class_names=("a",))


class OtherFindings(Findings):
    """Findings of another package, with digests and a number of trials."""

    trials: int = 7
    digests: dict[str, str] = Field(default_factory=dict)

    def without_secrets(self) -> OtherFindings:
        return self.model_copy(update={"redacted": True, "seed": None})


class OtherReport(Report[OtherFindings, Judgement]):
    """A report of another package."""

    kind: str = "another study"


def other(title: str = "Another study", **fields: Any) -> OtherReport:
    findings = OtherFindings(title=title, space=SPACE, seed=3, **fields)
    verdict = Verdict(kind=VerdictKind.DEMONSTRATED, headline="It leaks.", lede="Half came back.")
    return OtherReport(findings=findings, judgement=Judgement(verdict=verdict))


def texts(annex: Annex) -> str:
    return " ".join(f"{one.name} {one.text}" for point in annex.points for one in point.facts)


@pytest.mark.parametrize("name", REPORTS)
def test_every_kind_has_ten_points_and_seven_answers(name: str) -> None:
    report = REPORTS[name]()
    annex = annex_of(report)
    assert tuple(point.title for point in annex.points) == TITLES
    assert [point.number for point in annex.points] == list(range(1, 11))
    assert all(point.facts and all(one.text for one in point.facts) for point in annex.points)
    assert len(annex.answers) == 7
    assert len({one.name for one in annex.answers}) == 7
    assert all(len(one.text) < 420 for one in annex.answers)
    assert annex == annex_of(report)
    failed = report.verdict.kind is VerdictKind.INVALID
    states = [one.state for one in annex.coverage]
    assert len(states) == 6
    assert states[-1] is (CoverageState.FAILED if failed else CoverageState.EXECUTED)
    assert set(states[:-1]) == {CoverageState.NOT_RUN}
    if failed:
        risk = annex.points[5].facts
        assert all("No figure can be cited" in one.text for one in risk)
    words = texts(annex) + " ".join(one.text for one in annex.answers)
    assert not re.search(r"\bsafe\b|\bsecure\b|\bno risk\b|\bproves\b|\bup to\b", words)


@pytest.mark.parametrize("name", KINDS)
def test_the_page_holds_the_annex_and_the_written_forms_agree(name: str) -> None:
    report = REPORTS[name]()
    annex, reader = annex_of(report), Reader(render(report))
    assert [a["id"] for a in reader.all("section")].index("annex") > 0
    page = re.sub(r"\s+", " ", reader.text)
    for one in annex.answers:
        assert one.name in page
        assert re.sub(r"\s+", " ", one.text) in page
    for point in annex.points:
        assert point.title in page
    held = json.loads(document_bytes(annex))
    assert held.pop("digest") == document_digest(held)
    assert Annex.model_validate(held) == annex
    written = annex_markdown(annex)
    assert [line for line in written.splitlines() if re.match(r"## \d+\. ", line)] == [
        f"## {number}. {title}" for number, title in enumerate(TITLES, 1)
    ]
    for limit in report.findings.limits:
        assert escaped(limit) in written


def test_numbers_of_an_audit_are_those_of_its_report() -> None:
    report = STATES["demonstrated"]()
    rate = report.judgement.rates["Inverting Gradients"].rate
    annex = annex_of(report)
    assert annex.coverage[-1].trials == report.findings.trials_finished == rate.trials
    average = annex.points[5].facts[0].text
    assert average.startswith(f"{rate.hits} of {rate.trials} secrets came back")
    assert annex.report_digest == document_digest(json.loads(report.model_dump_json()))


def test_the_decision_is_never_filled() -> None:
    held = json.loads(document_bytes(annex_of(STATES["demonstrated"]())))["decision"]
    assert held.pop("choices") == ["release", "revise", "refuse"]
    assert set(held.values()) == {None}
    with pytest.raises(ValueError, match="None"):
        Annex.model_validate({**held, "decision": {"choice": "release"}})


def test_the_release_context_and_the_audit_before_are_as_declared() -> None:
    report = STATES["demonstrated"]()
    assert annex_of(report).points[1].facts[0].text == "not declared"
    assert "none declared" in texts(annex_of(report))
    declared = changed(report, release_context="partners", previous="ab" * 32)
    annex = annex_of(declared)
    assert annex.release_context == annex.points[1].facts[0].text == "partners"
    assert "ab" * 32 in texts(annex)
    hidden = changed(report, previous="Mrs. Example's audit")
    assert "Example" not in texts(annex_of(hidden))
    assert hidden.without_secrets().findings.previous == ""
    assert declared.without_secrets().findings.previous == "ab" * 32


@pytest.mark.parametrize("name", KINDS)
def test_a_redacted_annex_holds_neither_pictures_nor_seed(name: str) -> None:
    report = REPORTS[name]()
    annex = annex_of(report.without_secrets())
    written = document_bytes(annex).decode() + annex_markdown(annex)
    assert annex.redacted
    assert "data:image" not in written
    assert ("Seed", "withheld") in [
        (one.name, one.text) for point in annex.points for one in point.facts
    ]
    pixels = re.findall(r'"pixels":"([^"]{24,})"', report.model_dump_json())
    assert pixels or name == "repeated"
    assert not any(one[:24] in written for one in pixels)
    assert "of the redacted report" in texts(annex)


def test_a_report_of_another_package_has_an_annex_with_its_digests() -> None:
    digests = {"model": "1" * 64, "data": "2" * 64}
    report = other(digests=digests, times=Times(cpu_seconds=70.0))
    said = texts(annex_of(report))
    assert "1" * 64 in said
    assert "2" * 64 in said
    assert "Half came back." in said
    assert "Less than an hour of one CPU core" in said
    assert annex_of(report).coverage[-1].trials == 7
    redacted = texts(annex_of(report.without_secrets()))
    assert "1" * 64 in redacted, "a model's digest names no record"
    assert "2" * 64 not in redacted, "a digest of few records lets a guess at them be tested"


def test_the_maximum_risk_is_that_of_the_most_exposed_records() -> None:
    report = RISKS["risk"]()
    first = report.judgement.attacks[0]
    names = [one.name for one in report.findings.records]
    exposed = sorted(
        (one.rate.lower, name) for one, name in zip(first.rates, names) if one.exposed
    )[::-1]
    assert len(exposed) == 3
    for shown in (report, report.without_secrets()):
        annex = annex_of(shown)
        average, maximum = (one.text for one in annex.points[5].facts)
        assert [maximum.index(name) for _, name in exposed] == sorted(
            maximum.index(name) for _, name in exposed
        )
        assert sum(name in maximum for name in names) == 3
        for one in first.rates:
            assert (numbers.rate_with_limits(one.rate) in maximum) == one.exposed
        assert numbers.rate_with_limits(first.average) in average
        assert annex.answers[3].text == maximum
    maximum = annex_of(RISKS["risk_not_shown"]()).points[5].facts[1].text
    assert maximum.startswith("No single record was shown")


def test_the_spread_over_seeds_is_the_average_of_a_repeated_audit() -> None:
    average = annex_of(REPEATED["repeated"]()).points[5].facts[0].text
    # 17, 21 and 25 of 40; 2, 3 and 4 of 40.
    assert "First 42% to 62%, median 52%" in average.replace("\xa0", " ")
    assert annex_of(REPEATED["repeated"]()).coverage[-1].trials == 120


@pytest.mark.parametrize("name", ["demonstrated", "not_demonstrated", "one_trial", "claim_refuted"])
def test_the_epsilon_shown_is_said_as_the_report_says_it(name: str) -> None:
    report = STATES[name]()
    said = {one.name: one.text for one in annex_of(report).points[4].facts}
    shown = shown_by_audit(report.findings)
    whole = changed(report, shown=shown)
    assert said["ε shown by the trials"] == "not computed in this report"
    said = {one.name: one.text for one in annex_of(whole).points[4].facts}
    assert said["ε shown by the trials"] == shown_sentence(shown)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("redact", [False, True])
def test_digests_are_on_the_page_but_for_those_of_records_on_a_redacted_one(
    name: str, redact: bool
) -> None:
    report = changed(REPORTS[name](), digests={"model": "a1" * 32, "data": "b2" * 32})
    page = render(report, redact=redact)
    assert "a1" * 32 in page
    assert ("b2" * 32 in page) is not redact
    shown = report.without_secrets() if redact else report
    assert json.loads(document_bytes(shown))["digest"] in page
    assert shown.findings.digests == {
        "model": "a1" * 32,
        "data": "withheld" if redact else "b2" * 32,
    }


@pytest.mark.parametrize("name", ["risk_invalid", "repeated_invalid"])
def test_an_invalid_study_of_several_releases_shows_no_figures(name: str) -> None:
    page = render(REPORTS[name]())
    assert '<table class="rates"' not in page
    assert '<table class="rates"' in render(REPORTS[name.removesuffix("_invalid")]())


@pytest.mark.parametrize(
    "title", ["a|b\n| c | d |", "[x](javascript:y)", "<script>", "\x1b[31m\u202eevil", "1. `*_#"]
)
def test_hostile_names_are_text_in_markdown(title: str) -> None:
    annex = annex_of(other(title))
    written = annex_markdown(annex)
    cell = next(line for line in written.splitlines() if line.startswith("| Scope |"))
    assert len(re.findall(r"(?<!\\)\|", cell)) == 3
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e]", written)
    assert not re.search(r"(?<!\\)[<`\]]", written)
    assert [line for line in written.splitlines() if line.startswith("| c ")] == []


def test_markdown_cells_do_not_begin_lists_or_become_links() -> None:
    assert escaped("1. one") == "\\1. one"
    assert escaped("- one") == "\\- one"
    assert escaped("see https://example.org") == "see https\\://example.org"
    assert escaped("5 × 3 (a-b)") == "5 × 3 (a-b)"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.5, "Less than a minute of one CPU core"),
        (60, "Less than an hour of one CPU core"),
        (3600, "Less than a day of one CPU core"),
        (86_400, "1 day of one CPU core"),
        (86_401, "2 days of one CPU core"),
    ],
)
def test_computing_in_plain_words(seconds: float, words: str) -> None:
    assert core_time(seconds).replace("\xa0", " ") == words


def test_only_a_report_has_an_annex() -> None:
    with pytest.raises(BadInput, match="An annex is made of a report"):
        annex_of("report.json")  # pyright: ignore[reportArgumentType]
    assert "vestige.pages.annex.build" in sys.modules


@pytest.mark.parametrize("name", KINDS)
def test_the_command_writes_markdown_and_json_for_their_owner(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]()
    (tmp_path / "report.json").write_bytes(document_bytes(report))
    said = CliRunner().invoke(app, ["annex", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "What is to be decided?" in said.output
    assert "not declared" in said.output
    held = json.loads((tmp_path / "annex.json").read_text())
    assert held["report_digest"] == document_digest(json.loads(report.model_dump_json()))
    assert (tmp_path / "annex.md").read_text() == annex_markdown(annex_of(report))
    assert (tmp_path / "annex.md").stat().st_mode & 0o077 == 0
    said = CliRunner().invoke(
        app, ["annex", str(tmp_path), "--redact", "--out", f"{tmp_path}/to.md"]
    )
    assert said.exit_code == 0, said.output
    assert json.loads((tmp_path / "to.json").read_text())["redacted"]
    assert "redacted" in (tmp_path / "to.md").read_text()
