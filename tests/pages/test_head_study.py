"""The page of a head study: what it says, what it escapes, what it withholds."""

from __future__ import annotations

import re

import pytest

from vestige.pages.heads.page import arrays, privacy_view, render_heads, roc_keys
from vestige.pages.heads.tables import (
    ceiling_sentence,
    class_verdicts,
    class_words,
    counted_table,
    exposed_sentence,
    null_table,
    rule_sentence,
    written_point,
)
from vestige.reports.heads import HeadReport, OperatingPoint
from vestige.reports.parts import VerdictKind
from vestige.studies.heads.judge import judge_rates
from vestige.studies.judge import judge

from .studies import STUDIES, heads, made_rates, null_heads


@pytest.mark.parametrize("name", STUDIES)
def test_pages_are_pure_escaped_and_keep_their_words(name):
    page = render_heads(STUDIES[name]())
    assert page == render_heads(STUDIES[name]())
    assert ("Digits behind &lt;heads&gt;" in page) is not name.endswith("redacted")
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
    reached = rates.strongest.operating_point.true_positive_rate
    assert rates.strongest.name != "pooled"
    assert f"({rates.strongest.name} count)" in ceiling_sentence(rates)
    assert f"between {reached:.0%} and that" in ceiling_sentence(rates)
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
    assert "of 10 classes (by the test of each class)" in report.verdict.headline
    nothing = {"redrawn": False, "shown": False}
    classes = tuple(one.model_copy(update=nothing) for one in rates.classes)
    unnamed = report.findings.model_copy(
        update={"rates": rates.model_copy(update={"classes": classes})}
    )
    assert f"({strongest.name.replace(' ', '-')} count)" in judge(unnamed).verdict.headline
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
    redrawn = sum(one.redrawn for one in rates.classes)
    assert 0 < redrawn <= shown < 10
    said = exposed_sentence(rates)
    assert said.startswith(f"{shown} of 10 classes are exposed: images are ")
    assert ("told from others" in said) == (redrawn < shown)
    few = [
        one.model_copy(update={"redrawn": place == 9}) for place, one in enumerate(rates.classes)
    ]
    some = exposed_sentence(rates.model_copy(update={"classes": tuple(few)}))
    assert "images are told from others, and redrawn in 1 of them." in some
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


@pytest.mark.parametrize(
    ("hits", "said"),
    [(0, "none were"), (1, "1 was"), (6, "6 were"), (120, "120 were"), (600, "600 were")],
)
def test_the_tile_counts_drawings_and_says_how_many_were_redrawn(hits, said):
    rates = made_rates(1.0)
    redrawn = rates.strongest.redrawn.model_copy(update={"hits": hits, "trials": 600})
    counted = tuple(one.model_copy(update={"redrawn": redrawn}) for one in rates.counted)
    own, chance = arrays(rates.model_copy(update={"counted": counted}))
    drawings = rates.strongest.true_positives.trials
    assert drawings == rates.heads * rates.set_size
    matched = rates.strongest.operating_point.true_positive_rate * drawings
    assert matched == pytest.approx(round(matched))
    assert own.title == f"{round(matched)} of {drawings} drawings"
    assert own.text == f"match an image of their own head; {said} redrawn"
    assert chance.title == "5% of drawings"
    unknown = tuple(one.model_copy(update={"redrawn": None}) for one in rates.counted)
    assert "redrawn" not in arrays(rates.model_copy(update={"counted": unknown}))[0].text


def test_the_rule_for_exposed_classes_stands_beside_them_and_explains_every_row():
    rates = made_rates(1.0)
    rule, last = rule_sentence(rates), rates.classes[-1]
    assert "p is at most 2.5% and its lower limit exceeds chance, 5%" in rule
    assert rule in render_heads(heads(1.0))

    def words(shown: bool, lower: float | None, extreme: int) -> str:
        point = last.operating_point.model_copy(update={"lower": lower})
        test = last.test.model_copy(update={"as_extreme": extreme})
        changes = {"shown": shown, "redrawn": False, "operating_point": point, "test": test}
        return class_words(rates, last.model_copy(update=changes))

    assert words(False, 0.04, 2) == "nothing shown: passes its test, its limits include chance"
    assert words(False, 0.04, 25) == "nothing shown"
    assert words(True, None, 0).endswith("others; how many needs more heads")
    assert words(True, 0.2, 0).endswith("from others")


def test_pooled_curves_are_called_pooled():
    rates = made_rates(1.0)
    assert roc_keys(rates)[-1].label == "dot: pooled rate at FPR = 5%"
    assert "pooled TPR" in privacy_view(heads().findings).title
    single = rates.model_copy(update={"conditional": False})
    assert roc_keys(single)[-1].label == "dot: rate at FPR = 5%"


@pytest.mark.parametrize(("accuracy", "little"), [(0.12, True), (0.189, True), (0.2, False)])
def test_heads_that_hardly_beat_guessing_are_remarked(accuracy, little):
    changes = {"accuracy": accuracy, "guessing": 0.1, "tested": 500}
    report = null_heads()
    found = report.findings.model_copy(update=changes)
    assert found.learned_little is little
    page = render_heads(report.model_copy(update={"findings": found, "judgement": judge(found)}))
    said = f"right on {accuracy:.0%} of 500 of the prior&#39;s records"
    assert said in page
    assert ("learned little" in judge(found).verdict.lede) is little
    assert ("These heads learned little" in page) is little
    assert report.findings.accuracy_sentence == ""


def test_a_limit_just_above_chance_does_not_read_as_chance():
    point = OperatingPoint(
        false_positive_rate=0.1, true_positive_rate=0.2, lower=0.1034, upper=0.3, needed=57
    )
    assert written_point(point) == "20% (10.3–30%)"


def test_a_comparison_with_real_images_is_explained():
    table = null_table(made_rates(1.0))
    assert [row.name for row in table.rows][:2] == ["Another head", "A real image, no attack"]
    assert "does not mean that chance beats the attack" in render_heads(heads())
    assert "first and the last bar hold all values beyond" in render_heads(heads())


@pytest.mark.parametrize(("count", "said"), [(4, "allow no p below 4.2%"), (50, "gives p = ")])
def test_a_limit_above_chance_without_a_test_that_shows_it_is_explained(count: int, said: str):
    rates = made_rates(1.0)
    weak = [
        one.model_copy(
            update={"test": one.test.model_copy(update={"as_extreme": one.test.permutations // 2})}
        )
        for one in rates.counted
        if one.test is not None
    ]
    verdict = judge_rates(rates.model_copy(update={"heads": count, "counted": tuple(weak)}))
    assert verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert "an exact test over the heads must reach p = 2.5%" in verdict.lede
    assert said in verdict.lede
