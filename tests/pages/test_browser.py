"""The page in Chromium: what a reader sees, and what a keyboard reaches."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vestige import run
from vestige.attacks import PriorMatching
from vestige.bounds import DPSGD, state
from vestige.pages import render
from vestige.pages.bounds.page import render_bounds
from vestige.pages.comparison.page import render_comparison
from vestige.pages.heads.page import render_heads
from vestige.pages.noise.page import render_noise
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from worlds import private_audit, private_training

from .comparison_worlds import COMPARISONS, SIDE
from .hostile import lengthened
from .noise_studies import NOISE_STUDIES, STRENGTHS
from .repeated_studies import REPEATED
from .risk_studies import RISKS
from .states import STATES
from .studies import STUDIES

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# The smallest contrast of any visible text with the ground it stands on, and that text.
CONTRAST = """() => {
  const linear = v => v <= 10.3 ? v / 3294.6 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = c => c.match(/[\\d.]+/g).slice(0, 3)
    .reduce((sum, v, i) => sum + [.2126, .7152, .0722][i] * linear(+v), 0);
  const ground = e => {
    const c = getComputedStyle(e).backgroundColor;
    return c !== 'rgba(0, 0, 0, 0)' || !e.parentElement ? c : ground(e.parentElement);
  };
  const seen = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || e.closest('script,style') || !e.checkVisibility()) continue;
    const style = getComputedStyle(e);
    const a = light(e.closest('svg') ? style.fill : style.color), b = light(ground(e));
    seen.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), text]);
  }
  return seen.sort((a, b) => a[0] - b[0])[0];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, build in STATES.items():
        (folder / f"{name}.html").write_text(render(build()), encoding="utf-8")
        redacted = render(build(), redact=True)
        (folder / f"{name}-redacted.html").write_text(redacted, encoding="utf-8")
    for name, study in STUDIES.items():
        (folder / f"{name}.html").write_text(render_heads(study()), encoding="utf-8")
    for name, build in NOISE_STUDIES.items():
        (folder / f"{name}.html").write_text(render_noise(build()), encoding="utf-8")
    for name, build in COMPARISONS.items():
        (folder / f"{name}.html").write_text(render_comparison(build()), encoding="utf-8")
    for name, build in (RISKS | REPEATED).items():
        (folder / f"{name}.html").write_text(render(build()), encoding="utf-8")
        redacted = render(build(), redact=True)
        (folder / f"{name}-redacted.html").write_text(redacted, encoding="utf-8")
    return folder


class Opened:
    """Opens pages, and remembers what they complained about or asked for."""

    def __init__(self, browser: playwright.Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __call__(
        self, name: str, width: int = 1280, height: int = 800, theme: str = "light"
    ) -> playwright.Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme
        )
        page = context.new_page()
        page.on("console", lambda m: self.complaints.append(m.text))
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        page.on("request", lambda r: self.requests.append(r.url))
        page.goto((self.folder / f"{name}.html").as_uri())
        return page


@pytest.fixture
def opened(browser: playwright.Browser, pages: Path) -> Iterator[Opened]:
    opener = Opened(browser, pages)
    yield opener
    for context in browser.contexts:
        context.close()
    assert opener.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in opener.requests)


@pytest.mark.parametrize(
    "name",
    [
        *(*STATES, "demonstrated-redacted", "features-redacted"),
        *(*STUDIES, *NOISE_STUDIES, *COMPARISONS),
        *(*RISKS, *REPEATED, "risk-redacted", "repeated-redacted"),
    ],
)
def test_no_state_scrolls_sideways_or_complains(opened: Opened, name: str) -> None:
    page = opened(name)
    for width in (1280, 1024, 768, 390, 380, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len([url for url in opened.requests if url.startswith("file:")]) == 1


LONG_WORDS = {
    **{name: (STATES[name], render) for name in ("demonstrated", "features", "invalid")},
    "captured": (STATES["captured"], render),
    "heads": (STUDIES["heads"], render_heads),
    "noise": (NOISE_STUDIES["noise"], render_noise),
    "comparison": (COMPARISONS["comparison"], render_comparison),
    "risk": (RISKS["risk"], render),
    "repeated": (REPEATED["repeated"], render),
    "bounds": (lambda: state(DPSGD(1.0, 0.01, 100)), render_bounds),
}


@pytest.mark.parametrize("name", LONG_WORDS)
def test_a_word_of_5000_letters_does_not_widen_a_page(browser, tmp_path, monkeypatch, name) -> None:
    build, write = LONG_WORDS[name]
    document = build()
    if name == "bounds":  # it has no text of a file; as if its words came from one
        monkeypatch.setattr(type(document), "words", property(lambda _: "W" * 5000))
    page_text = write(lengthened(document, "W" * 5000))
    assert page_text.count("W" * 5000) >= (1 if name == "bounds" else 10)
    (tmp_path / f"{name}.html").write_text(page_text, encoding="utf-8")
    page = Opened(browser, tmp_path)(name)
    for width in (1200, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


@pytest.mark.parametrize("name", ["demonstrated", "not_demonstrated", "claim_refuted", "all_hits"])
def test_the_first_screen_holds_verdict_pictures_and_attacker(opened: Opened, name: str) -> None:
    page = opened(name)
    for selector in ("h1", ".lede", ".arrays", ".threat", ".trio", ".triplet .outcome"):
        for box in page.locator(selector).all():
            place = box.bounding_box()
            assert place is not None
            assert place["y"] + place["height"] <= 800, selector


def test_the_roc_follows_the_arrow_keys(opened: Opened) -> None:
    page = opened("demonstrated")
    slider, readout = page.locator("#roc-in"), page.locator("#roc-out")
    assert readout.inner_text().startswith("At FPR = 1%:")
    slider.focus()
    for expected in ("2%", "3%", "4%"):
        page.keyboard.press("ArrowRight")
        assert readout.inner_text().startswith(f"At FPR = {expected}:")
        assert slider.get_attribute("aria-valuetext") == readout.inner_text()
    page.keyboard.press("ArrowLeft")
    assert readout.inner_text().startswith("At FPR = 3%:")
    page.keyboard.press("End")
    assert readout.inner_text().startswith("At FPR = 100%: all")
    page.keyboard.press("Home")
    assert "too few" in readout.inner_text()
    outline = slider.evaluate("e => getComputedStyle(e).outlineWidth")
    assert outline == "3px"


def test_the_noise_slider_moves_pictures_numbers_and_cursors(opened: Opened) -> None:
    page = opened("noise")
    slider, shown = page.locator("#mu-in"), page.locator("#mu-out")
    picture = page.locator(".clip.moving img").first
    tile = page.locator(".clip.moving").first
    cursors = page.locator(".mu-cursor")

    def offset() -> float:
        outer, inner = tile.bounding_box(), picture.bounding_box()
        assert outer is not None
        assert inner is not None
        return round((outer["x"] - inner["x"]) / outer["width"], 3)

    slider.focus()
    page.keyboard.press("Home")
    before = tile.screenshot()
    seen = set()
    for place, mu in enumerate(STRENGTHS):
        assert shown.inner_text() == f"μ = {mu:g}"
        assert offset() == place
        assert str(slider.get_attribute("aria-valuetext")).startswith(f"μ = {mu:g}, ε = ")
        places = {c.get_attribute("transform") for c in cursors.all()}
        assert len(places) == 1
        seen |= places
        assert page.locator(".ticks .now").inner_text().startswith(f"μ {mu:g}")
        page.keyboard.press("ArrowRight")
    assert cursors.count() == 3
    assert len(seen) == len(STRENGTHS)
    assert tile.screenshot() != before
    assert page.locator("#eps-training").inner_text() == "(12.3, 10⁻⁵)"
    row = page.locator(".film .row").first
    box = row.bounding_box()
    assert box is not None
    row.click(position={"x": box["width"] * 1.5 / len(STRENGTHS), "y": 5})
    assert shown.inner_text() == "μ = 50"
    assert slider.input_value() == "1"


def test_without_script_every_strength_is_on_the_page(
    browser: playwright.Browser, pages: Path
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((pages / "noise.html").as_uri())
    assert not page.locator("#mu-in").is_visible()
    assert page.locator(".ticks span").count() == len(STRENGTHS)
    for strip in page.locator(".film img").all():
        box = strip.bounding_box()
        assert box is not None
        assert box["width"] == len(STRENGTHS) * box["height"]
    context.close()


def test_the_theme_button_overrides_the_system(opened: Opened) -> None:
    page = opened("demonstrated", theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    button = page.get_by_role("button", name="Switch to light colours")
    button.click()
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(23, 22, 20)", "rgb(251, 250, 246)")
    page.get_by_role("button", name="Switch to dark colours").press("Enter")
    assert page.evaluate(ground) == dark


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [
        *("claim_refuted", "invalid", "features", "demonstrated-redacted", "captured"),
        *("exclusivity", "heads", "heads-redacted", "noise", "noise-redacted"),
        *("comparison", "comparison-redacted", "comparison-invalid"),
    ],
)
def test_text_contrast(opened: Opened, name: str, theme: str) -> None:
    ratio, text = opened(name, theme=theme).evaluate(CONTRAST)
    assert ratio >= 4.5, text


def test_skip_link_comes_first_and_everything_is_reachable(opened: Opened) -> None:
    page = opened("demonstrated")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    seen = set()
    for _ in range(42):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "roc-in", "SUMMARY", "A"} <= seen


def test_accessibility_tree(opened: Opened) -> None:
    tree = opened("demonstrated").locator("body").aria_snapshot()
    for landmark in ("- banner", "- main", "- navigation", "- complementary", "- contentinfo"):
        assert landmark in tree
    assert len(re.findall(r"- heading .* \[level=1\]", tree)) == 1
    assert 'heading "How sure is that?" [level=2]' in tree
    assert 'slider "Share of decoys allowed to pass"' in tree
    assert 'button "Secret of the best trial"' in tree
    assert 'columnheader "Rate (limits)"' in tree
    assert 'rowheader "Inverting Gradients' in tree
    assert re.search(r'region "Rates by attack', tree)


@pytest.mark.parametrize(
    "name", ["demonstrated", "features", "batches", "invalid", "exclusivity", "heads", "noise"]
)
def test_paper(opened: Opened, name: str) -> None:
    page = opened(name, theme="dark")
    document = page.pdf(prefer_css_page_size=True)
    assert document.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 6
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AuditReport]:
    """The page of a real audit of DP-SGD, whose bound rules something out."""
    noisy = replace(private_training(), mechanism=DPSGD(2.0, 0.5, 4, clipping_norm=0.5))
    report = run(replace(private_audit([PriorMatching()], victim=noisy), trials=12), seed=0)
    folder = tmp_path_factory.mktemp("private")
    (folder / "private.html").write_text(render(report), encoding="utf-8")
    return folder, report


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_audit_of_private_training_shows_its_bounds(
    browser: playwright.Browser, private: tuple[Path, AuditReport], theme: str
) -> None:
    folder, report = private
    assert report.findings.bounds is not None
    assert report.judgement.rates_of(report.findings.attacks[0]).rate is not None
    opener = Opened(browser, folder)
    page = opener("private", theme=theme)
    section = page.locator("#bounds")
    text = section.inner_text()
    assert "DP-SGD, noise multiplier 2, sampling rate 0.5, 4 steps (add or remove one)" in text
    assert f"Bound: at most {numbers.allowed(report.findings.bounds.success)}." in text
    rows = section.locator("table.theorems tbody tr")
    assert rows.count() == len(report.findings.bounds.bounds) > 1
    for bound, row in zip(report.findings.bounds.bounds, rows.all()):
        said = row.inner_text()
        assert numbers.allowed(bound.success) in said
        assert bound.name.lower() in said.lower()
    # The part that is ruled out begins at the bound and ends at 100%.
    strip = section.locator(".claim svg").bounding_box()
    beyond = section.locator(".claim svg .f-bound").bounding_box()
    assert strip is not None
    assert beyond is not None
    share = (beyond["x"] - strip["x"]) / strip["width"]
    assert share == pytest.approx(report.findings.bounds.success, abs=0.02)
    assert beyond["x"] + beyond["width"] == pytest.approx(strip["x"] + strip["width"], abs=2)
    for width in (1280, 390, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    ratio, words = page.evaluate(CONTRAST)
    assert ratio >= 4.5, words
    page.context.close()
    assert opener.complaints == []


def test_without_script_the_numbers_are_there(browser: playwright.Browser, pages: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((pages / "demonstrated.html").as_uri())
    assert page.locator("#roc-out").is_visible()
    assert not page.locator("#roc-in").is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()


def test_a_head_study_shows_every_class_on_the_first_screen(opened: Opened) -> None:
    page = opened("heads")
    for selector in ("h1", ".lede", ".arrays", ".threat", ".card .trio", ".card .outcome"):
        for box in page.locator(selector).all():
            place = box.bounding_box()
            assert place is not None
            assert place["y"] + place["height"] <= 900, selector
    assert page.locator(".card").count() == 10
    for width in (1280, 380):
        page.set_viewport_size({"width": width, "height": 800})
        box = page.locator(".card img.pic").first.bounding_box()
        assert box is not None
        assert box["width"] % 8 == 0


def test_a_head_study_is_readable_without_eyes(opened: Opened) -> None:
    page = opened("heads")
    assert not re.search("[τφ]|FPR|TPR", page.locator(".front").inner_text())
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    tree = page.locator("body").aria_snapshot()
    assert len(re.findall(r"- heading .* \[level=1\]", tree)) == 1
    assert 'heading "What does noise cost, and what does it buy?" [level=2]' in tree
    assert 'img "Original of class 3"' in tree
    assert re.search(r'img "Pooled ROC on a logarithmic axis, four curves', tree)
    assert re.search(r'rowheader "Ceiling, pooled', tree)
    assert 'region "One image at every strength of noise"' in tree


def test_a_comparison_fits_its_first_screen_and_keeps_whole_pixels(opened: Opened) -> None:
    page = opened("comparison")
    for selector in ("h1", ".lede", ".advice", ".looks"):
        box = page.locator(selector).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 800, selector
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for selector in (".looks .pic", ".pictures .pic"):
            box = page.locator(selector).first.bounding_box()
            assert box is not None
            assert box["width"] >= SIDE
            assert box["width"] % SIDE == box["height"] % SIDE == 0


def test_a_comparison_is_readable_without_eyes_and_on_paper(opened: Opened) -> None:
    page = opened("comparison")
    tree = page.locator("body").aria_snapshot()
    assert len(re.findall(r"- heading .* \[level=1\]", tree)) == 1
    assert 'heading "Which defence protects most at equal utility?" [level=2]' in tree
    assert re.search(r'img "Error left by the strongest attack against accuracy lost', tree)
    assert re.search(r'img "Reconstruction by Inverting Gradients under Pruning 0.9', tree)
    assert re.search(r'rowheader "Pruning 0.9', tree)
    document = page.pdf(prefer_css_page_size=True)
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 14
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_words_of_the_plane_do_not_touch_each_other_on_screen(opened: Opened) -> None:
    for width, kind in ((1280, ".plane .halo"), (390, ".plane .halo.named")):
        page = opened("comparison", width)
        for chart in page.locator(".plane").all():
            found = [one.bounding_box() for one in chart.locator(kind.split()[1]).all()]
            boxes = [box for box in found if box is not None]
            assert len(boxes) >= 5
            for place, one in enumerate(boxes):
                for other in boxes[:place]:
                    beside = (
                        one["x"] >= other["x"] + other["width"] - 1
                        or other["x"] >= one["x"] + one["width"] - 1
                    )
                    # A line is taller than its letters.
                    over = abs(one["y"] - other["y"]) >= 0.7 * min(one["height"], other["height"])
                    assert beside or over, (one, other)


@pytest.mark.parametrize(
    "name",
    [
        *(*STATES, "demonstrated-redacted", *STUDIES, *NOISE_STUDIES, *COMPARISONS),
        *(*RISKS, *REPEATED, "risk-redacted", "repeated-redacted"),
    ],
)
def test_seven_questions_are_answered_on_the_first_two_screens(opened: Opened, name: str) -> None:
    page = opened(name)
    answers = page.locator("#decision dl > div")
    assert answers.count() == 7
    for answer in answers.all():
        place = answer.bounding_box()
        assert place is not None
        assert place["y"] + place["height"] <= 1600
        assert answer.locator("dd").inner_text().strip()
