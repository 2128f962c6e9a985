"""The page of a noise study: what it says, what it escapes, what it withholds."""

from __future__ import annotations

import math
import re

import pytest

from vestige.noise_study import NoiseStudy
from vestige.record import VerdictKind
from vestige.report.bound_charts import LogScale
from vestige.report.noise_charts import mu_scale, within
from vestige.report.noise_study import (
    error_table,
    film,
    naming_table,
    panel,
    readouts,
    render_noise_study,
)

from .noise_studies import METHODS, NOISE_STUDIES, STRENGTHS, noise


@pytest.mark.parametrize("name", NOISE_STUDIES)
def test_pages_are_pure_escaped_and_keep_their_words(name):
    page = render_noise_study(NOISE_STUDIES[name]())
    assert page == render_noise_study(NOISE_STUDIES[name]())
    assert "Digits under &lt;noise&gt;" in page
    assert "<noise>" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    said = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    for word in (r"\bsafe\b", r"\bsecure\b", "no risk", r"\bproves\b", "up to"):
        assert not re.search(word, said), word
    assert " style=" not in page
    assert page.count("<h1") == 1


def test_verdicts_count_the_strengths():
    assert noise().verdict.headline.startswith("At four of five strengths of noise, pictures")
    assert noise(seen=5).verdict.headline.startswith("At all five strengths of noise, pictures")
    assert NOISE_STUDIES["noise-one"]().verdict.headline.startswith("At this strength of noise")
    assert "At μ = 5 their structural similarity" in noise().verdict.lede
    assert "30% of 100 releases: at least 21%" in noise().verdict.lede
    null = noise(seen=0).verdict
    assert null.kind is VerdictKind.NOT_DEMONSTRATED
    assert "not evidence of safety" in null.lede
    for name, build in NOISE_STUDIES.items():
        assert len(build().verdict.headline.split()) <= 15, name


def test_more_hits_than_the_bound_allows_invalidate_the_study():
    verdict = NOISE_STUDIES["noise-invalid"]().verdict
    assert verdict.kind is VerdictKind.INVALID
    assert "no attack on such noise exceeds 50%" in verdict.lede
    assert "What to do" in render_noise_study(NOISE_STUDIES["noise-invalid"]())


def test_a_redacted_study_holds_no_image_anywhere():
    study = noise().without_secrets()
    assert '"pixels":"' not in study.model_dump_json()
    page = render_noise_study(noise(), redact=True)
    assert "data:image" not in page
    assert "withheld" in page
    assert NoiseStudy.model_validate_json(study.model_dump_json()) == study


def test_every_strength_shows_at_once_with_its_epsilon():
    study = noise()
    page = render_noise_study(study)
    ticks = re.findall(r"<b>μ ([\d.]+)</b><small>ε ([^<]+)</small>", page)
    assert [float(mu) for mu, _ in ticks] == list(STRENGTHS)
    assert [epsilon for _, epsilon in ticks] == ["∞", "12,300", "1,230", "123", "12.3"]
    assert [strip.name for strip in film(study)] == ["Release", "Posterior mean"]
    assert [strip.name for strip in panel(study)] == [
        *("Secret", "Release", "Posterior mean", "DDIM", "Total variation", "Agreement")
    ]
    told = readouts(study)
    assert told["text"][2]["eps-training"] == "(1,230, 10⁻⁵)"
    assert told["text"][2]["mu-named"] == "80% (70–88%)"


def test_tables_hold_every_number():
    rows = error_table(noise()).rows
    assert [row.name for row in rows] == [f"μ = {mu:g}" for mu in STRENGTHS]
    assert rows[0].cells[0] == "0.0010 ±0.000100, 0.95 ±0.01"
    assert len(naming_table(noise()).rows[0].cells) == 3 + len(METHODS)


def test_less_noise_is_left_and_charts_end_at_their_frame():
    x = mu_scale(noise())
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
