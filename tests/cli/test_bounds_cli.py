"""`vestige bounds` and `vestige calibrate`: closed forms, JSON, one sentence when wrong."""

# Fixtures come by import, and every test names them again.
# ruff: noqa: F401, F811

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import norm
from test_cli import place, refused, vestige

from vestige.bounds import DPSGD, Composition, Gaussian, PrivacyLossBound, mechanism_to_json

CALIBRATE = ("calibrate", "--success", "0.05", "--prior-success", "0.01", "--sampling-rate", "0.01")


def read(vestige, *words):
    code, out, err = vestige(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(
    ("words", "kappa", "expected"),
    [
        (("--epsilon", 1), 0.01, 0.01 * math.e),
        (("--epsilon", 1, "--delta", 1e-5), 0.01, 0.01 * math.e + 1e-5),
        (("--rho", 0.5), 0.01, math.exp(-((math.sqrt(math.log(100)) - math.sqrt(0.5)) ** 2))),
        (("--noise-multiplier", 1), 0.01, norm.cdf(norm.ppf(0.01) + 1)),
        (("--noise-multiplier", 4, "--steps", 16), 0.1, norm.cdf(norm.ppf(0.1) + 1)),
        (("--noise-multiplier", 2, "--replace-one"), 0.01, norm.cdf(norm.ppf(0.01) + 1)),
        (
            ("--noise-multiplier", 1, "--sampling-rate", 0.1),
            0.01,
            0.9 * 0.01 + 0.1 * norm.cdf(norm.ppf(0.01) + 1),
        ),
        (("--laplace", 3), 0.1, 1 - math.exp(-3) / 0.4),
    ],
)
def test_bounds_are_the_closed_forms(vestige, words, kappa, expected):
    said = read(vestige, "bounds", *words, "--prior-success", kappa)
    (found,) = said["tightest"]
    assert found["prior_success"] == kappa
    assert found["success"] == pytest.approx(expected, rel=1e-4)
    assert found["success"] == min(bound["success"][0] for bound in said["bounds"])
    assert found["success"] >= expected * (1 - 1e-9)


def test_what_it_buys(vestige):
    words = ("bounds", "--noise-multiplier", 2, "--candidates", 4, "--candidates", 50)
    said = read(vestige, *words)
    found = {row["candidates"]: row["success"] for row in said["re_identification"]}
    assert found == {n: pytest.approx(norm.cdf(norm.ppf(1 / n) + 0.5), rel=1e-4) for n in (4, 50)}
    assert said["membership_advantage"] == pytest.approx(2 * norm.cdf(0.25) - 1, rel=1e-3)
    assert [row["prior_success"] for row in said["tightest"]] == [0.0001, 0.001, 0.01, 0.1]


def test_a_mechanism_from_a_file(vestige, place):
    parts = Composition((Gaussian(2.0, 4), DPSGD(1.0, 0.01, 100)))
    (place / "m.json").write_text(mechanism_to_json(parts))
    said = read(vestige, "bounds", "--mechanism", "m.json", "--prior-success", 0.01)
    assert said["tightest"][0]["success"] == pytest.approx(
        PrivacyLossBound()(parts, 0.01), rel=1e-3
    )
    assert "then" in said["words"]
    assert vestige("bounds", "--mechanism", "m.json", "--page", "m.html")[0] == 0
    assert "No second chart" in Path("m.html").read_text()


def test_tables_show_every_bound_and_the_tightest(vestige):
    code, out, _ = vestige("bounds", "--noise-multiplier", 1, "--prior-success", 0.01)
    assert code == 0
    for word in ("Gaussian noise", "Rényi DP", "ρ-zCDP", "tightest", "9.24%", "ε = 4.4 at δ"):
        assert word in out
    assert "no attack exceeds 9.24%" in out
    assert not re.search(r"\bsafe\b", out)


def test_no_bound_and_a_vacuous_bound(vestige, place):
    (place / "m.json").write_text('{"kind": "local aggregation", "local_steps": 5}')
    code, out, _ = vestige("bounds", "--mechanism", "m.json", "--page", "none.html")
    assert code == 0
    assert "No bound is known for this mechanism" in out
    assert "No bound is known" in Path("none.html").read_text()
    assert "rules out nothing" in vestige("bounds", "--epsilon", 80)[1]
    for weak in (("--epsilon", 1e9), ("--noise-multiplier", 1e-9)):
        assert vestige("bounds", *weak, "--page", "weak.html")[0] == 0


def test_calibrated_noise_keeps_the_target_and_less_does_not(vestige):
    said = read(vestige, *CALIBRATE, "--steps", 100, "--dataset-size", 1000)
    noise = said["noise_multiplier"]
    bound = PrivacyLossBound(1e-6)
    assert said["success"] <= 0.05
    assert bound(DPSGD(noise, 0.01, 100), 0.01) <= 0.05
    assert bound(DPSGD(0.99 * noise, 0.01, 100), 0.01) > 0.05
    assert said["noise_on_mean"] == pytest.approx(noise / 10)
    table = vestige(*CALIBRATE, "--steps", 100)[1]
    assert f"{noise:g}" in table
    assert "at δ = 1e-05" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bounds",), "No mechanism"),
        (("bounds", "--epsilon", 1, "--rho", 1), "--epsilon and --rho"),
        (("bounds", "--epsilon", -1), "ε is at least 0"),
        (("bounds", "--epsilon", "nan"), "ε is at least 0"),
        (("bounds", "--epsilon", "inf"), "finite"),
        (("bounds", "--epsilon", 1, "--delta", 2), "δ lies"),
        (("bounds", "--epsilon", 1, "--steps", 3), "--steps belongs"),
        (("bounds", "--epsilon", 1, "--sampling-rate", 0.1), "--sampling-rate belongs"),
        (("bounds", "--rho", -1), "ρ is at least 0"),
        (("bounds", "--laplace", 0), "Laplace"),
        (("bounds", "--noise-multiplier", 0), "noise multiplier is positive"),
        (("bounds", "--noise-multiplier", 1e-300), "noise multiplier is positive"),
        (("bounds", "--noise-multiplier", 1, "--sampling-rate", 2), "sampling rate"),
        (("bounds", "--noise-multiplier", 1, "--steps", 0), "Steps are"),
        (("bounds", "--noise-multiplier", 1, "--delta", 3), "δ lies"),
        (("bounds", "--epsilon", 1, "--prior-success", 0), "prior success"),
        (("bounds", "--epsilon", 1, "--prior-success", "nan"), "prior success"),
        (("bounds", "--epsilon", 1, "--page", "nowhere/p.html"), "does not exist"),
        (("bounds", "--mechanism", "nowhere.json"), "cannot be read"),
        (("bounds", "--mechanism", "."), "cannot be read"),
        ((*CALIBRATE, "--steps", 0), "Steps"),
        ((*CALIBRATE, "--steps", 10, "--delta", 0), "δ lies"),
        ((*CALIBRATE, "--steps", 10, "--success", 0.001), "out of reach"),
        ((*CALIBRATE, "--steps", 10, "--prior-success", 2), "prior success"),
        ((*CALIBRATE, "--steps", 10, "--sampling-rate", 0), "sampling rate"),
        ((*CALIBRATE, "--steps", 10, "--dataset-size", 0), "at least one record"),
        (("bounds", "--noise-multiplier", 1, "--delta", 0), "δ lies"),
        (("bounds", "--noise-multiplier", 1e308), "noise multiplier is positive"),
        (("bounds", "--rho", 1e308), "ρ is at least 0"),
        (("bounds", "--laplace", 1e308), "Laplace"),
        (("bounds", "--laplace", 1e-320), "Laplace"),
        ((*CALIBRATE, "--steps", -5, "--sampling-rate", 1), "Steps"),
        ((*CALIBRATE, "--steps", 5, "--sampling-rate", 1e308), "sampling rate"),
        ((*CALIBRATE, "--steps", 5, "--sampling-rate", "nan"), "sampling rate"),
        ((*CALIBRATE, "--steps", 5, "--success", "nan"), "out of reach"),
        ((*CALIBRATE, "--steps", 5, "--delta", 1e-320), "larger δ"),
    ],
)
def test_bad_values_are_one_sentence(refused, words, said):
    assert said in refused(*words)


def test_a_file_that_is_no_mechanism(refused, place):
    for text in ("", "{}", "[1]", '{"kind": "Gaussian", "noise_multiplier": -1}', "\x00"):
        (place / "m.json").write_text(text)
        refused("bounds", "--mechanism", "m.json")
    (place / "m.json").write_bytes(b"\xff\xfe")
    refused("bounds", "--mechanism", "m.json")


def test_a_misspelt_field_is_refused_and_not_dropped(refused, place):
    """Without its relation the mechanism would be accounted with half the sensitivity."""
    text = '{"kind": "Gaussian", "noise_multiplier": 1, "relations": "replace one"}'
    (place / "m.json").write_text(text)
    assert "has no 'relations'" in refused("bounds", "--mechanism", "m.json")
    (place / "m.json").write_text(f'{{"kind": "composition", "parts": [{text}]}}')
    assert "has no 'relations'" in refused("bounds", "--mechanism", "m.json")


def test_a_delta_without_a_finite_epsilon_leaves_it_out(vestige):
    words = ("bounds", "--noise-multiplier", 1, "--sampling-rate", 0.1, "--steps", 3)
    said = read(vestige, *words, "--delta", 1e-200)
    assert said["epsilon"] is None
    assert said["tightest"]


def test_bounds_need_no_torch():
    code = (
        "import sys; from vestige.cli.app import main\n"
        "sys.argv = ['vestige', 'bounds', '--epsilon', '1', '--json']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PAGES = {
    "sgd": ("--noise-multiplier", 1, "--sampling-rate", 0.01, "--steps", 1000),
    "pure": ("--epsilon", 3, "--prior-success", 0.1),
    "tiny": ("--rho", 0.5, "--prior-success", 1e-12, "--prior-success", 1e-9),
}


@pytest.mark.parametrize(
    "name", [pytest.param("sgd", marks=pytest.mark.slow), *(n for n in PAGES if n != "sgd")]
)
def test_the_page_holds_the_numbers_and_loads_nothing(vestige, name):
    words = PAGES[name]
    code, out, _ = vestige("bounds", *words, "--page", "p.html")
    assert code == 0
    assert out.endswith("Page: p.html\n")
    page = Path("p.html").read_text()
    assert not re.search(r"\b(safe|secure|proves|up to)\b", page, re.IGNORECASE)
    assert "nan" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)
    allowed = re.findall(r"([^│]+) │$", out, re.MULTILINE)
    assert len(allowed) >= 8
    for shown in allowed:
        assert shown.strip() in page
    vestige("bounds", *words, "--page", "again.html")
    assert Path("again.html").read_text() == page


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_page_in_chromium(vestige, place):
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from pages.test_browser import ARGUMENTS, CONTRAST

    for name, words in PAGES.items():
        vestige("bounds", *words, "--page", f"{name}.html")
    vestige(*CALIBRATE, "--steps", 100, "--page", "noise.html")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name in (*PAGES, "noise"):
            for theme in ("light", "dark"):
                complaints: list[str] = []
                page = browser.new_context(color_scheme=theme).new_page()
                page.on("console", lambda m, c=complaints: c.append(m.text))
                page.on("pageerror", lambda e, c=complaints: c.append(str(e)))
                page.goto((place / f"{name}.html").as_uri())
                for width in (1280, 768, 390, 360):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                ratio, text = page.evaluate(CONTRAST)
                assert ratio >= 4.5, text
                assert page.locator(".bound-dot").count() >= 2
                assert complaints == []
        browser.close()
