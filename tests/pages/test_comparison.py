"""The page of a comparison: what it says, draws, escapes and withholds."""

from __future__ import annotations

import math
import re
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from profiles import examples, slow_unless_quick
from vestige.cli.app import app
from vestige.cli.rendering import render_again
from vestige.defenses import Undefended
from vestige.errors import BadInput
from vestige.pages.comparison.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Costs,
    boxes,
    cost_scale,
    labels,
    places,
)
from vestige.pages.comparison.marks import DASHES, SHAPES, families, styles
from vestige.pages.comparison.page import (
    best_within_budget,
    looks,
    not_drawn,
    pictures_beside,
    render_comparison,
    static_sentence,
)
from vestige.pages.comparison.tables import (
    accuracy_with_limits,
    attack_table,
    cost,
    floor_words,
    matched_table,
    overlooked,
    summary_table,
    training_table,
)
from vestige.reports.comparison import (
    UNDEFENDED,
    ComparisonReport,
    ErrorFloor,
    Matched,
    SearchCost,
)
from vestige.reports.comparison_words import (
    cost_words,
    error_with_limits,
    lost_with_limits,
    lost_words,
)
from vestige.reports.files import load_report
from vestige.studies.judge import judge

from .audits import changed
from .comparison_worlds import (
    COMPARISONS,
    HONEST,
    MALICIOUS,
    SETTINGS,
    comparison,
    mean,
    of_tables,
    one_server,
)


@pytest.fixture(scope="module")
def whole() -> ComparisonReport:
    return comparison()


@pytest.fixture(scope="module")
def page(whole) -> str:
    return render_comparison(whole)


def words_of(page: str) -> str:
    return unescape(re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL))


def row_of(table, name):
    return next(row for row in table.rows if row.name == name)


@pytest.mark.parametrize("name", COMPARISONS)
def test_pages_are_pure_small_escaped_and_keep_their_words(name):
    page = render_comparison(COMPARISONS[name]())
    assert page == render_comparison(COMPARISONS[name]())
    assert len(page.encode()) < 1_000_000
    assert ("Digits &amp; &lt;defences&gt;" in page) is not name.endswith("redacted")
    assert "<defences>" not in page
    said = words_of(page)
    for word in (r"\bsafe\b", r"\bsecure\b", "no risk", r"\bproves\b", "up to", r"\bnan\b", "None"):
        assert not re.search(word, said), word
    assert " style=" not in page
    assert "default-src" in page
    assert page.count("<h1") == 1
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    for used in re.findall(r'aria-labelledby="([^"]+)"|href="#([^"]+)"', page):
        assert (used[0] or used[1]) in identifiers
    assert len(COMPARISONS[name]().verdict.headline.split()) <= 15


@slow_unless_quick
@settings(max_examples=examples(15), deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_any_title_and_any_name_are_only_text(text):
    whole = one_server()
    name = f"<b>{text}</b>"
    renamed = changed(
        whole,
        title=name,
        servers=(whole.findings.servers[0].model_copy(update={"name": name}),),
        points=tuple(
            point.model_copy(
                update={
                    "defense": name,
                    "setting": f"{name}{place}",
                    "cells": (
                        point.cells[0].model_copy(
                            update={"server": name, "strongest": name, "problem": name}
                        ),
                    ),
                }
            )
            for place, point in enumerate(whole.findings.points)
        ),
        fronts=(),
        recommendations=(),
    )
    page = render_comparison(renamed)
    body = page[page.index("<body>") :]
    original = render_comparison(whole)
    assert body.count("<b>") <= original[original.index("<body>") :].count("<b>")
    assert body.count("<script") == 1


def test_a_redacted_comparison_holds_no_pixel_anywhere(whole):
    hidden = whole.without_secrets()
    assert '"pixels":"' not in hidden.model_dump_json()
    page = render_comparison(whole, redact=True)
    assert "data:image" not in page
    assert '<span class="redacted">redacted</span>' in page
    assert page.count('class="pic withheld"') == render_comparison(whole).count('<img class="pic"')
    assert page == render_comparison(hidden)


def test_a_picture_that_is_missing_is_not_called_withheld(whole):
    first = whole.findings.points[0]
    cells = tuple(
        cell.model_copy(update={"pictures": (None, *cell.pictures[1:])}) for cell in first.cells
    )
    found = changed(whole, points=(first.model_copy(update={"cells": cells}),))
    alone = render_comparison(found)
    assert "under No defence, mean error 0.040, secret 1: missing" in alone
    assert "secret 1: withheld" not in alone
    assert "secret 2: withheld" in render_comparison(found, redact=True)


def test_the_first_screen_says_what_to_choose(whole, page):
    for advice in whole.judgement.recommendations:
        assert advice.sentence in page
        assert all(detail in page for detail in advice.details)
    assert "Which defence, for at most 2 points of accuracy?" in page
    assert Undefended.name == UNDEFENDED
    # By hand: the largest error among settings that lose no more than two points.
    allowed = [(s[4], f"{s[0]} {s[2]}") for s in SETTINGS if s[3] is not None and s[3] <= 2]
    assert best_within_budget(whole, HONEST).label == max(allowed)[1] == "Pruning 0.9"
    names = [(look.name, look.detail) for look in looks(whole)]
    assert names == [
        ("Secret", ""),
        ("No defence", f"{HONEST}, error 0.040"),
        ("Pruning 0.9", f"{HONEST}, error 0.17"),
        ("No defence", f"{MALICIOUS}, error 0.024"),
        ("Pruning 0.9", f"{MALICIOUS}, error 0.10"),
    ]


def test_numbers_have_limits_that_stay_limits():
    assert error_with_limits(mean(0.27, 0.0151)) == "0.27 (0.25–0.29)"
    assert error_with_limits(mean(0.0412, 0.0101)) == "0.041 (0.031–0.052)"
    assert error_with_limits(mean(0.0, 0.0)) == "0.00"
    assert error_with_limits(mean(0.3, 0.0)) == "0.30"
    assert error_with_limits(mean(2e-7, 1e-8)) == "<0.0001"
    assert lost_with_limits(mean(0.017, 0.003)) == "1.7 (1.4–2.0)"
    assert lost_with_limits(mean(-0.001, 0.003)) == "−0.1 (−0.4 to 0.2)"
    assert lost_with_limits(mean(-0.0001, 0.0)) == "0.0"
    assert lost_with_limits(mean(0.0, 0.0), 2) == "0.0 (no spread over 2 runs)"
    assert cost_words(mean(0.0, 0.0), 2) == "0.0 points (no spread over 2 runs)"
    assert cost_words(mean(0.0, 0.0), 1) == "0.0 points (one run)"
    assert cost_words(mean(0.017, 0.003), 2) == "1.7 points (1.4–2.0)"
    assert accuracy_with_limits(mean(0.942, 0.004)) == "94% (93–95%)"
    assert [lost_words(v) for v in (0.005, 0.01, 0.02)] == ["0.5 points", "1 point", "2 points"]
    assert floor_words(ErrorFloor(all_attacks=0.1129)) == "at least 0.112"
    assert floor_words(ErrorFloor(all_attacks=0.11, unbiased=0.2)).endswith("unbiased 0.200")
    assert floor_words(ErrorFloor(reason="no noise")) == "none: no noise"


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-1, 1).filter(lambda v: v == 0 or abs(v) > 1e-3),
    st.floats(1e-4, 0.5),
    st.floats(1e-4, 0.5),
)
def test_written_limits_hold_the_true_ones(value, below, above):
    true = mean(value, 0).model_copy(update={"lower": value - below, "upper": value + above})
    for written, unit in ((error_with_limits(true), 1.0), (lost_with_limits(true), 100.0)):
        found = [float(n.replace("−", "-")) for n in re.findall(r"−?\d+(?:\.\d+)?", written)]
        middle, low, high = found
        assert low <= unit * true.lower + 1e-6
        assert high >= unit * true.upper - 1e-6
        assert middle == pytest.approx(unit * value, abs=0.051 if unit > 1 else 0.0051)


def test_points_without_a_cost_or_an_error_are_words_and_never_at_zero(whole, page):
    assert [p.point.label for p in places(whole, HONEST)].count("Noise σ 1") == 0
    assert len(places(whole, HONEST)) == len(SETTINGS) - 1
    assert len(places(whole, MALICIOUS)) == len(SETTINGS) - 3
    said = " ".join(not_drawn(whole.findings, MALICIOUS))
    assert "Noise σ 1: all 5 trainings diverged, so it has no cost" in said
    assert "Local steps 8: An imprint layer is read from one gradient" in said
    assert "DP-SGD C 1, σ 8 is drawn by 3 of 5 trainings; the others diverged." in said
    for sentence in not_drawn(whole.findings, HONEST):
        assert sentence in unescape(page)
    assert row_of(summary_table(whole, HONEST), "Noise σ 1").cells[0] == "diverged"
    assert row_of(summary_table(whole, MALICIOUS), "Local steps 2").cells[1] == "–"


def test_every_point_lies_where_its_numbers_say(whole):
    shown = places(whole, HONEST)
    x = cost_scale(shown, 100 * whole.findings.budget)
    across = [x(p.cost.value) for p in shown]
    assert all(LEFT < a < RIGHT for a in across)
    by_cost = [x(p.cost.value) for p in sorted(shown, key=lambda p: p.cost.value)]
    assert by_cost == sorted(by_cost)
    assert x(x.low) == pytest.approx(LEFT)
    assert x(x.high) == pytest.approx(RIGHT)
    # asinh: twice the sinh of a place is halfway only where the scale says so.
    scale = Costs(0.0, math.sinh(2.0), 1.0)
    assert scale(math.sinh(1.0)) == pytest.approx((LEFT + RIGHT) / 2)
    ticks = scale.ticks()
    assert 0.0 in ticks
    assert all(b - a >= 1 for a, b in zip(map(scale, ticks), map(scale, ticks[1:])))


def test_limits_far_outside_do_not_squeeze_the_plane():
    whole = one_server()
    wide = whole.findings.points[1].utility.accuracy_lost.model_copy(
        update={"lower": -1.0, "upper": 1.0}
    )
    point = whole.findings.points[1].model_copy(
        update={
            "utility": whole.findings.points[1].utility.model_copy(update={"accuracy_lost": wide})
        }
    )
    shown = places(changed(whole, points=(whole.findings.points[0], point)), HONEST)
    x = cost_scale(shown, 2.0)
    assert x.low > -5
    assert x.high < 10


@pytest.mark.parametrize("server", [HONEST, MALICIOUS])
def test_no_word_covers_a_mark_or_another_word(whole, server):
    shown = places(whole, server)
    x = cost_scale(shown, 2.0)

    def y(error: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * error / 0.35

    words = labels(shown, x, y, whole.findings.guess_error, 2.0)
    assert words[0].text == "guessing reaches this"
    assert {"No defence", "Pruning 0.9"} <= {word.text for word in words}
    for place, word in enumerate(words):
        assert word.left >= LEFT
        assert not any(word.meets(other.box) for other in words[:place])
        assert not any(word.meets(box) for box in boxes(shown, x, y)), word.text


def test_the_plane_has_axes_front_budget_guess_and_floors(whole, page):
    charts = re.findall(r'<svg class="chart plane".*?</svg>', page, re.DOTALL)
    assert len(charts) == len(whole.findings.servers)
    for chart, front in zip(charts, whole.judgement.fronts):
        assert 'role="img"' in chart
        assert "accuracy lost, points" in chart
        assert "error left" in chart
        assert "budget: 2 points" in chart
        assert "guessing reaches this" in chart
        assert chart.count('class="l-front"') == 1
        assert chart.count(" on-front") == len(front.labels)
        assert len(re.findall(r"h12", re.search(r'class="floor" d="([^"]*)"', chart).group(1))) == 3
        label = unescape(re.search(r'aria-label="([^"]*)"', chart).group(1))
        assert "Pruning 0.9 has the largest mean error" in label
        assert all(name in label for name in front.labels)


def test_every_defence_has_its_own_shape_and_dash(whole):
    assert math.gcd(len(SHAPES), len(DASHES)) == 1
    assert len(set(SHAPES)) == len(SHAPES)
    found = styles(whole.findings)
    assert UNDEFENDED not in found
    assert sorted(found.values()) == list(range(len(found)))
    # Clipping is stronger the smaller its norm, and costs more.
    assert [p.setting for p in families(whole.findings)["Clipping"]] == ["norm 8", "norm 2"]
    assert [p.setting for p in families(whole.findings)["Pruning"]] == ["0.7", "0.9", "0.99"]


def test_the_grid_shows_every_setting(whole, page):
    section = page[page.index('<section id="grid"') : page.index('<section id="counted"')]
    assert section.count('<th scope="row">Secrets</th>') == 2
    shown = pictures_beside(whole.findings)
    assert shown == 4
    settings_drawn = len(SETTINGS) + len(SETTINGS) - 2
    assert section.count("<img") == shown * (settings_drawn + 2)
    assert "error 0.17 (0.15–0.19)" in section
    assert "1.7 (1.4–2.0) points" in section
    assert "An imprint layer is read from one gradient" in section
    assert section.count('class="onfront"') == sum(len(f.labels) for f in whole.judgement.fronts)


def test_records_of_tables_have_no_pictures_and_say_so():
    page = render_comparison(of_tables())
    assert "data:image" not in page
    assert "Records are rows of a table, so there are no pictures." in page


def test_tables_hold_what_the_document_holds(whole, page):
    row = row_of(summary_table(whole, HONEST), "DP-SGD C 1, σ 2")
    assert row.lead
    assert row.cells[0] == "8.6 (7.9–9.3)"
    assert row.cells[1:4] == ("0.28 (0.27–0.30)", "larger", "Inverting Gradients")
    assert row.cells[4] == "none (at most 5.7%)"
    assert row.cells[5] == "Gaussian, one release (a guarantee)"
    assert row.cells[6] == "at least 0.110; unbiased 0.154"
    # Trained once: no limits are made up.
    assert row_of(summary_table(whole, HONEST), "Quantisation 4 bits").cells[0] == "0.9 (one run)"
    attacks = attack_table(whole.findings, HONEST)
    assert len(attacks.rows) == 3 * len(SETTINGS)
    own = [row.cells for row in attacks.rows if row.name == "Pruning 0.9"]
    assert own[0][:3] == (*("Inverting Gradients (least)", "0.17 (0.15–0.19)", "0.27 (0.25–0.29)"),)
    assert own[1][0] == "Deep leakage"
    assert own[1][5] == "3"
    assert own[2][2] == "–"
    trained = row_of(training_table(whole.findings), "DP-SGD C 1, σ 8").cells
    assert trained[0] == "63% (62–64%)"
    assert trained[4:6] == ("5", "2")
    assert row_of(training_table(whole.findings), "Noise σ 1").cells[:3] == (
        "diverged",
        "diverged",
        "–",
    )
    assert "<summary>Every training</summary>" in page


def test_at_equal_cost_what_is_not_reached_is_words(whole):
    table = matched_table(whole.findings, HONEST)
    assert [row.name for row in table.rows] == ["Pruning", "Noise", "Dropout", "DP-SGD"]
    assert [column.title for column in table.columns[1:]] == [
        *("For 1 point", "For 2 points", "For 4 points")
    ]
    assert row_of(table, "DP-SGD").cells == (
        "not reached",
        *("not reached",) * 3,
    )
    assert row_of(table, "DP-SGD").detail == "no setting costs as little"
    assert row_of(table, "Dropout").cells[3] == "not reached"
    assert row_of(table, "Dropout").detail.endswith("; no setting costs as much")
    assert row_of(table, "Pruning").cells[2] == "0.18 (0.16–0.20)"
    bare = Matched(server=HONEST, defense="Noise", accuracy_lost=0.5, protection=None)
    alone = matched_table(changed(whole, matched=(bare,)).findings, HONEST)
    assert alone.rows[0].cells == ("not reached", "not reached")
    assert matched_table(one_server().findings, HONEST) is None


def test_attackers_who_were_not_told_are_held_against_those_who_were(whole):
    found = overlooked(whole.findings, HONEST)
    assert len(found) == len(SETTINGS) - 1
    gaps = [one.not_told.value - one.told.value for one in found]
    assert gaps == sorted(gaps, reverse=True)
    first = found[0]
    assert first.label == "Pruning 0.99"
    assert (first.told.value, first.not_told.value) == (0.255, 0.4)
    sentence = static_sentence(whole.findings, HONEST)
    assert "of 19\u00a0settings an attacker who was not told of the defence" in sentence
    assert "0.40 (0.38–0.42) not told, 0.26 (0.24–0.27) told" in sentence
    assert "nothing can be said" in static_sentence(one_server().findings, HONEST)
    # Limits that do not overlap say nothing: only the contrast of the same trials does.
    cells = [c.model_copy(update={"static_larger": False}) for c in whole.findings.points[7].cells]
    point = whole.findings.points[7].model_copy(update={"cells": tuple(cells)})
    alone = changed(whole, points=(point,))
    (one,) = overlooked(alone.findings, HONEST)
    assert one.not_told.lower > one.told.upper
    assert "In none of 1\u00a0setting do these trials tell" in static_sentence(
        alone.findings, HONEST
    )


def test_what_stands_beside_no_defence_is_what_was_told_apart(whole, page):
    rows = {row.name: row.cells[2] for row in summary_table(whole, HONEST).rows}
    assert rows["No defence"] == "–"
    assert rows["Noise σ 0.001"] == "not told apart"
    assert rows["Noise σ 0.01"] == "larger"
    turned = tuple(
        pair.model_copy(update={"larger": pair.smaller, "smaller": pair.larger})
        for pair in whole.findings.told_apart
    )
    other = summary_table(changed(whole, told_apart=turned), HONEST)
    assert row_of(other, "Noise σ 0.01").cells[2] == "smaller"
    bare = summary_table(changed(whole, told_apart=()), HONEST)
    assert {row.cells[2] for row in bare.rows} == {"–", "not told apart"}
    said = words_of(page)
    assert "At a cost of 2 points, Pruning leaves more than Dropout." in said
    assert "each for itself" not in said


def test_one_error_has_the_same_limits_wherever_the_page_shows_it(whole, page):
    """Every protection that the page writes for a setting is written with the same limits."""
    for point in whole.findings.points:
        left = whole.findings.cell(point, HONEST).protection
        written = error_with_limits(left)
        assert row_of(summary_table(whole, HONEST), point.label).cells[1] == written
        own = [
            row.cells
            for row in attack_table(whole.findings, HONEST).rows
            if row.name == point.label
        ]
        assert written in {cells[1] for cells in own}
        for one in overlooked(whole.findings, HONEST):
            if one.label == point.label:
                assert error_with_limits(one.told) == written
        assert page.count(written) >= 3


def test_report_renders_a_comparison_again(whole, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(whole.model_dump_json())
    assert load_report(path) == whole
    found, page = render_again(tmp_path, None)
    assert page == tmp_path / "page.html"
    assert found.findings == whole.findings
    assert found.judgement == judge(whole.findings)
    assert page.read_text() == render_comparison(found)
    done = CliRunner().invoke(app, ["report", str(path), "--redact"])
    assert done.exit_code == 0
    assert found.verdict.headline in done.output
    assert "data:image" not in page.read_text()
    path.write_text(whole.model_dump_json().replace('"budget":0.02', '"budget":"much"'))
    with pytest.raises(BadInput, match="damaged or no report of Vestige"):
        render_again(tmp_path, None)


def test_costs_without_spread_are_not_shown_as_certain():
    found = comparison()
    points = tuple(
        point.model_copy(
            update={
                "utility": point.utility.model_copy(
                    update={"repeats": 2, "diverged": 0, "accuracy_lost": mean(0.0, 0.0)}
                )
            }
        )
        for point in found.findings.points
    )
    page = render_comparison(changed(found, points=points))
    assert page.count("0.0 (no spread over 2 runs)") >= len(points) - 1
    assert "come from one run" not in page
    undefended = next(point for point in points if point.defense == UNDEFENDED)
    assert cost(undefended) == "0.0"


def test_what_choosing_among_private_trainings_spends_is_on_the_page() -> None:
    report = comparison()
    assert "What choosing among private trainings spends" not in render_comparison(report)
    cost = SearchCost(settings=3, trainings=60, delta=1e-5, single=1.2, composed=9.6, random=3.4)
    page = unescape(render_comparison(changed(report, search=cost)))
    assert "What choosing among private trainings spends" in page
    assert "ε = 9.6 for the list where the weakest setting alone has 1.2" in page
    assert "it would be 3.4 (Papernot and Steinke 2022, Theorem 2" in page
