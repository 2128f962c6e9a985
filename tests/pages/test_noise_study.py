"""The page of a noise study: what it says, what it escapes, what it withholds."""

from __future__ import annotations

import math
import re

import pytest

from vestige.pages.annex.several_settings import hidden_words
from vestige.pages.charts import LogScale
from vestige.pages.noise.charts import mu_scale, within
from vestige.pages.noise.page import (
    error_table,
    film,
    naming_table,
    panel,
    plainly,
    readouts,
    render_noise,
)
from vestige.reports.noise import NoiseReport
from vestige.reports.numbers import at_least, limits
from vestige.reports.parts import Verdict, VerdictKind
from vestige.statistics.rates import lower_limit, upper_limit
from vestige.studies.noise.judge import judge_points

from .noise_studies import METHODS, NOISE_STUDIES, STRENGTHS, noise, point, rate


@pytest.mark.parametrize("name", NOISE_STUDIES)
def test_pages_are_pure_escaped_and_keep_their_words(name):
    page = render_noise(NOISE_STUDIES[name]())
    assert page == render_noise(NOISE_STUDIES[name]())
    assert ("Digits under &lt;noise&gt;" in page) is not name.endswith("redacted")
    assert "<noise>" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    said = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    for word in (r"\bsafe\b", r"\bsecure\b", "no risk", r"\bproves\b", "up to"):
        assert not re.search(word, said), word
    assert " style=" not in page
    assert page.count("<h1") == 1


def test_verdicts_count_the_strengths_at_which_most_pictures_resemble_their_secret():
    """80 of 100 is surely more than half and 30 of 100 is not, though its SSIM is higher."""
    verdict = noise().verdict
    assert verdict.headline == (
        "At three of five strengths of noise, most pictures from a prior resemble their secret."
    )
    # Joint over five strengths and four methods: 0.025 / 20 for each lower limit.
    lower = lower_limit(80, 100, 0.025 / 20)
    assert f"nearer to their own secret than to 255 others: at least {at_least(lower)}." in (
        verdict.lede
    )
    assert "At μ = 10, 80% of 100 pictures by Posterior mean are nearer" in verdict.lede
    assert f"80% of 100 releases: at least {at_least(lower)}" in verdict.lede
    assert noise(seen=2).verdict.headline.startswith("At two of five strengths of noise, most")
    assert NOISE_STUDIES["noise-one"]().verdict.headline.startswith("At this strength of noise")
    null = noise(seen=0).verdict
    assert null.kind is VerdictKind.NOT_DEMONSTRATED
    assert "not evidence of safety" in null.lede
    for name, build in NOISE_STUDIES.items():
        assert len(build().verdict.headline.split()) <= 15, name


def judged(*, seen: bool, pictures: int, releases: int) -> Verdict:
    """The verdict of one strength at which so many of 100 are named by pictures and by releases."""
    one = point(2, seen=seen, hits=pictures, bound=1.0)
    points = [one.model_copy(update={"matched": rate(releases)})]
    return judge_points(points, METHODS, 256, 100)


def test_similarity_alone_does_not_say_that_pictures_resemble_their_secret():
    few = judged(seen=True, pictures=30, releases=50).headline
    assert few == ("At this strength of noise, some pictures from a prior resemble their secret.")
    for told in (
        judged(seen=True, pictures=5, releases=50),
        judged(seen=False, pictures=90, releases=90),
    ):
        assert told.kind is VerdictKind.DEMONSTRATED
        assert told.headline == (
            "At this strength of noise, images can be told apart. Drawing them was not shown."
        )
    nothing = judged(seen=True, pictures=1, releases=1)
    assert nothing.kind is VerdictKind.NOT_DEMONSTRATED


def test_more_hits_than_the_bound_allows_invalidate_the_study():
    verdict = NOISE_STUDIES["noise-invalid"]().verdict
    assert verdict.kind is VerdictKind.INVALID
    assert "no attack on such noise exceeds 50%" in verdict.lede
    assert "What to do" in render_noise(NOISE_STUDIES["noise-invalid"]())


def test_a_redacted_study_holds_no_image_anywhere():
    study = noise().without_secrets()
    assert '"pixels":"' not in study.model_dump_json()
    page = render_noise(noise(), redact=True)
    assert "data:image" not in page
    assert "withheld" in page
    assert NoiseReport.model_validate_json(study.model_dump_json()) == study


def test_every_strength_shows_at_once_with_its_epsilon():
    study = noise()
    page = render_noise(study)
    ticks = re.findall(r"<b>μ ([\d.]+)</b><small>ε ([^<]+)</small>", page)
    assert [float(mu) for mu, _ in ticks] == list(STRENGTHS)
    assert [epsilon for _, epsilon in ticks] == ["∞", "12,300", "1,230", "123", "12.3"]
    assert [strip.name for strip in film(study.findings)] == ["Release", "Posterior mean"]
    assert [strip.name for strip in panel(study.findings)] == [
        *("Secret", "Release", "Posterior mean", "DDIM", "Total variation", "Agreement")
    ]
    told = readouts(study.findings)
    assert told["text"][2]["eps-training"] == "(1,230, 10⁻⁵)"
    # As in the verdict, joint over five strengths and four methods.
    joint = [lower_limit(80, 100, 0.025 / 20), upper_limit(80, 100, 0.025 / 20)]
    assert told["text"][2]["mu-named"] == f"80% ({limits(*joint)})"


def test_equal_counts_have_one_limit_on_the_whole_page():
    report = noise()
    page = render_noise(report)
    first = report.findings.points[2]
    assert (first.matched.hits, first.measures[0].named.hits) == (80, 80)
    found = set(re.findall(r"80% \((\d+–\d+%)\)", page))
    assert found == {limits(lower_limit(80, 100, 0.025 / 20), upper_limit(80, 100, 0.025 / 20))}
    assert set(re.findall(r"80% of 100 [^:]+: at least (\d+%)", page)) == {
        at_least(lower_limit(80, 100, 0.025 / 20))
    }


def test_strengths_that_redraw_nothing_say_whether_the_secret_is_still_named():
    few = noise(seen=2)
    hidden = few.findings.points[2]
    named = few.findings.model_copy(
        update={
            "points": (
                *few.findings.points[:2],
                hidden.model_copy(update={"matched": rate(90)}),
                *few.findings.points[3:],
            )
        }
    )
    still = few.model_copy(update={"findings": named})
    said = "the release still named its secret among 256 candidates in 90 of 100"
    assert said in plainly(still)
    assert "no picture was shown to be redrawn" in plainly(still)
    assert "the secret was named among 256 in 90 of 100 (at least " in hidden_words(named)
    for one in (still, few):
        assert "nothing was shown to be redrawn" not in render_noise(one)
    none = named.points[2].model_copy(update={"matched": rate(0)})
    silent = named.model_copy(update={"points": (*named.points[:2], none)})
    assert "still named" not in plainly(few.model_copy(update={"findings": silent}))
    assert hidden_words(silent).endswith("no picture was shown to be redrawn.")


def test_tables_hold_every_number():
    rows = error_table(noise().findings).rows
    assert [row.name for row in rows] == [f"μ = {mu:g}" for mu in STRENGTHS]
    assert rows[0].cells[0] == "0.0010 ±0.000100, 0.95 ±0.01"
    assert len(naming_table(noise().findings).rows[0].cells) == 3 + len(METHODS)


def test_less_noise_is_left_and_charts_end_at_their_frame():
    x = mu_scale(noise().findings)
    places = [x(mu) for mu in STRENGTHS]
    assert places == sorted(places)
    y = LogScale(0.01, 1.0, 300.0, 100.0)
    across = LogScale(1, 100, 0.0, 200.0)
    # From 0.1 at μ = 1 straight to 10 at μ = 100 on logarithmic axes: it leaves at μ = 10.
    assert within([(1, 0.1), (100, 10.0)], across, y) == "M0.0 200.0L100.0 100.0"
    assert within([(1, 1e-30), (100, 0.1)], across, y).endswith("200.0 200.0")
    start = float(re.match(r"M([\d.]+)", within([(1, 1e-30), (100, 0.1)], across, y)).group(1))
    assert math.isclose(start, 200 * 28 / 29, abs_tol=0.1)
    assert within([(1, 5.0), (100, 10.0)], across, y) == ""
    assert within([(1, 0.1), (100, 0.1)], across, y) == "M0.0 200.0L200.0 200.0"
