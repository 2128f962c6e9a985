"""The page of a head study: what it says, what it escapes, what it withholds."""

from __future__ import annotations

import re

import pytest

from vestige.pages.heads.page import privacy_view, render_heads
from vestige.pages.heads.tables import (
    ceiling_sentence,
    class_verdicts,
    counted_table,
    exposed_sentence,
    null_table,
    written_point,
)
from vestige.reports.heads import HeadReport, OperatingPoint
from vestige.reports.parts import VerdictKind
from vestige.studies.judge import judge

from .studies import STUDIES, heads, made_rates, null_heads


@pytest.mark.parametrize("name", STUDIES)
def test_pages_are_pure_escaped_and_keep_their_words(name):
    page = render_heads(STUDIES[name]())
    assert page == render_heads(STUDIES[name]())
    assert "Digits behind &lt;heads&gt;" in page
    assert "<heads>" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    for word in (r"\bsafe\b", r"\bsecure\b", "no risk", r"\bproves\b", "up to"):
        assert not re.search(word, re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)), word
    assert " style=" not in page
    assert page.count("<h1") == 1


def test_a_redacted_study_holds_no_image_anywhere():
    study = heads().without_secrets()
    assert "pixels" not in study.model_dump_json().replace('"pixels":null', "")
    assert "data:image" not in render_heads(heads(), redact=True)
    assert HeadReport.model_validate_json(study.model_dump_json()).findings.redacted


def test_the_table_tells_the_head_from_the_decoder():
    table = counted_table(made_rates(1.0))
    assert [row.name for row in table.rows] == [
        "Pooled",
        "Per class",
        "Class-normalised",
        "Ceiling, pooled",
        "Ceiling, per class",
        "Ceiling, class-normalised",
    ]
    rates = made_rates(1.0)
    assert "hidden by the head" in ceiling_sentence(rates)
    swapped = rates.model_copy(update={"ceiling": rates.counted})
    assert "hides nothing" in ceiling_sentence(swapped)
    assert ceiling_sentence(null_heads().findings.rates) == ""


@pytest.mark.parametrize(
    ("value", "lower", "upper", "said"),
    [
        (0.5, 0.4, 0.6, "50% (40–60%)"),
        (0.5, None, None, "50% (limits need 368 heads)"),
        (0.0, 0.0, 0.031, "none (at most 3.1%)"),
        (1.0, 0.9, 1.0, "all (at least 90%)"),
    ],
)
def test_points_are_written_with_their_limits(value, lower, upper, said):
    point = OperatingPoint(
        false_positive_rate=0.01, true_positive_rate=value, lower=lower, upper=upper, needed=368
    )
    assert written_point(point).replace("\N{NO-BREAK SPACE}", " ") == said


def test_noise_is_shown_with_accuracy_and_the_same_image():
    view = privacy_view(heads().findings)
    assert [frame.role for frame in view.strip] == [
        "Original",
        "ε = 1.5",
        "ε = 14.0",
        "ε = 250",
        "no noise",
    ]
    assert "From no noise to ε = 1.5: accuracy 60% to 12%" in view.title
    assert view.svg.count('class="mark"') == 8
    assert privacy_view(null_heads().findings) is None


def test_a_null_study_says_that_it_is_no_evidence():
    page = render_heads(null_heads())
    assert "NOT DEMONSTRATED" in page
    assert "not evidence of safety" in page
    assert "Noise</a>" not in page


def test_a_reconstruction_that_is_missing_is_a_miss():
    shown = heads().findings.exhibit.classes[4]
    assert not shown.hit
    assert not shown.false_hit
    page = render_heads(heads())
    assert "Reconstruction: nothing" in page


def test_all_counts_stand_together_and_the_verdict_rests_on_the_marked_one():
    report, rates = heads(1.0), made_rates(1.0)
    strongest = rates.strongest
    assert strongest.joint_lower == max(one.joint_lower for one in rates.counted)
    marked = [row.name for row in counted_table(rates).rows if row.lead]
    assert marked == [strongest.name.capitalize()]
    assert f"({strongest.name.replace(' ', '-')} count)" in report.verdict.headline
    for one in rates.counted:
        assert f"{one.name} {one.operating_point.true_positive_rate:.0%}" in report.verdict.lede
    assert len(null_table(rates).columns) == 1 + len(rates.counted)
    view = privacy_view(report.findings)
    assert len(view.table.columns) == 2 + len(rates.counted)


def test_exposed_classes_are_named_in_words():
    rates = made_rates(1.0)
    table = class_verdicts(rates)
    words = [row.cells[0] for row in table.rows]
    assert words[0] == "nothing shown"
    assert words[-1] == "exposed: images are redrawn"
    shown = sum(one.shown for one in rates.classes)
    assert exposed_sentence(rates).startswith(f"{shown} of 10 classes are exposed.")
    assert [row.lead for row in table.rows] == [one.shown for one in rates.classes]
    assert "does not show that one is protected" in exposed_sentence(null_heads().findings.rates)


def test_a_count_that_fails_its_test_shows_nothing_whatever_its_limit():
    report = heads(1.0)
    rates = report.findings.rates
    failed = tuple(
        one.model_copy(update={"test": one.test.model_copy(update={"as_extreme": 25})})
        for one in rates.counted
    )
    found = report.findings.model_copy(
        update={"rates": rates.model_copy(update={"counted": failed})}
    )
    assert judge(found).verdict.kind is VerdictKind.NOT_DEMONSTRATED  # p = .026
    unlimited = tuple(one.model_copy(update={"joint_lower": None}) for one in rates.counted)
    found = report.findings.model_copy(
        update={"rates": rates.model_copy(update={"counted": unlimited})}
    )
    verdict = judge(found).verdict
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert "How many needs more heads" in verdict.headline
    assert "p = 0.001" in verdict.lede


def test_documents_without_tests_and_joint_limits_are_read_judged_and_drawn():
    held = heads(1.0).model_dump(mode="json")
    rates = held["findings"]["rates"]
    rates["redrawn"] = rates["counted"][0]["redrawn"]
    for one in rates["counted"] + rates["ceiling"]:
        for name in ("joint_lower", "redrawn", "test"):
            del one[name]
    for one in rates["classes"]:
        del one["test"]
    for one in rates["nulls"]:
        del one["points"]
    for one in held["findings"]["privacy"]:
        del one["counted"]
    report = HeadReport.model_validate(held)
    assert report.findings.rates.strongest.name == "pooled"
    verdict = judge(report.findings).verdict
    assert verdict.kind is VerdictKind.DEMONSTRATED
    assert "count)" not in verdict.headline
    assert "Class by class" in render_heads(report)
