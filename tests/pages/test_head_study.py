"""The page of a head study: what it says, what it escapes, what it withholds."""

from __future__ import annotations

import re

import pytest

from vestige.pages.heads.page import (
    ceiling_sentence,
    counted_table,
    privacy_view,
    render_heads,
    written_point,
)
from vestige.reports.heads import HeadReport, OperatingPoint

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
