"""Pictures of trials in Chromium: their size, and what a click or a key does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vestige.pages import render

from .states import STATES
from .test_browser import ARGUMENTS, CHROMIUM, Opened, playwright

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
NAMES = ("demonstrated", "claim_refuted", "one_trial", "few_trials", "colour", "all_hits")
EXPANDED = '.triplets .pic[aria-expanded="true"]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("trials")
    for name in NAMES:
        (made / f"{name}.html").write_text(render(STATES[name]()), encoding="utf-8")
    redacted = render(STATES["demonstrated"](), redact=True)
    (made / "redacted.html").write_text(redacted, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def chromium() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(chromium: playwright.Browser, folder: Path) -> Iterator[Opened]:
    opener = Opened(chromium, folder)
    yield opener
    for context in chromium.contexts:
        context.close()
    assert opener.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in opener.requests)


def box_of(locator: playwright.Locator) -> dict[str, float]:
    box = locator.bounding_box()
    assert box is not None
    return dict(box)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1280, 375])
def test_pictures_are_at_least_128_wide_and_no_page_scrolls_sideways(
    opened: Opened, name: str, width: int
) -> None:
    page = opened(name, width)
    pictures = page.locator(".triplets .pic").all()
    assert len(pictures) in (4, 12, 16)
    for picture in pictures:
        assert box_of(picture)["width"] >= 128
    for selector in (".triplets img.pic", ".triplets .pic image"):
        rendering = page.locator(selector).first.evaluate("e => getComputedStyle(e).imageRendering")
        assert rendering == "pixelated"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["demonstrated", "claim_refuted", "all_hits"])
def test_three_trials_stand_in_one_row_on_the_first_screen(opened: Opened, name: str) -> None:
    page = opened(name)
    boxes = [box_of(one) for one in page.locator(".triplet").all()]
    assert len(boxes) == 3
    assert len({box["y"] for box in boxes}) == 1
    assert max(box["y"] + box["height"] for box in boxes) <= 800


@pytest.mark.parametrize("width", [1280, 375])
def test_a_click_enlarges_by_a_whole_number_and_moves_nothing_else(
    opened: Opened, width: int
) -> None:
    page = opened("demonstrated", width)
    pictures = page.locator(".triplets .pic")
    before = [box_of(pictures.nth(i)) for i in range(12)]
    for place in range(12):
        picture = pictures.nth(place)
        picture.scroll_into_view_if_needed()
        picture.click()
        assert page.locator(EXPANDED).count() == 1
        large = box_of(picture)
        assert large["width"] >= 2 * before[place]["width"]
        assert large["width"] % 25 == large["height"] % 25 == 0
        assert large["x"] >= 0
        assert large["x"] + large["width"] <= width
        assert large["y"] >= 0
        assert large["y"] + large["height"] <= 800
        scrolled = page.evaluate("scrollY")
        for other in {0, 3, 11} - {place}:
            now = box_of(pictures.nth(other))
            assert now["y"] + scrolled == pytest.approx(before[other]["y"], abs=0.6)
            assert now["x"] == before[other]["x"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        picture.click()
        assert page.locator(EXPANDED).count() == 0
        assert box_of(picture)["width"] == before[place]["width"]


def test_the_keyboard_enlarges_and_closes(opened: Opened) -> None:
    page = opened("demonstrated")
    first = page.get_by_role("button", name="Secret of the best trial")
    difference = page.get_by_role("button", name="Difference of reconstruction").first
    small = box_of(first)["width"]
    first.focus()
    assert first.evaluate("e => getComputedStyle(e).outlineWidth") != "0px"
    for opening, closing in (("Enter", "Escape"), ("Enter", "Enter"), (" ", "Escape")):
        page.keyboard.press(opening)
        assert first.get_attribute("aria-expanded") == "true"
        assert box_of(first)["width"] > small
        page.keyboard.press(closing)
        assert first.get_attribute("aria-expanded") == "false"
        assert box_of(first)["width"] == small
        assert first.evaluate("e => e === document.activeElement")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert difference.evaluate("e => e === document.activeElement")
    page.keyboard.press("Enter")
    assert first.get_attribute("aria-expanded") == "false"
    assert difference.get_attribute("aria-expanded") == "true"


def test_paper_shows_no_enlarged_picture(opened: Opened) -> None:
    page = opened("demonstrated")
    page.emulate_media(media="print")
    before = [box_of(one) for one in page.locator(".triplets .pic").all()]
    page.emulate_media(media="screen")
    page.locator(".triplets .pic").nth(5).click()
    page.emulate_media(media="print")
    assert [box_of(one) for one in page.locator(".triplets .pic").all()] == before


def test_without_script_pictures_are_plain_images(
    chromium: playwright.Browser, folder: Path
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((folder / "demonstrated.html").as_uri())
    tree = page.locator(".trials").aria_snapshot()
    assert 'img "Secret of the best trial"' in tree
    assert 'img "Difference of reconstruction and secret: ' in tree
    assert "button" not in tree
    assert not page.get_by_text("enlarges a picture").is_visible()
    context.close()


def test_withheld_boxes_are_no_buttons(opened: Opened) -> None:
    page = opened("redacted")
    assert page.locator(".triplets .withheld").count() == 9
    assert page.locator(".triplets [role=button]").count() == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_film_strip_keeps_whole_pixels_and_stays_on_the_page(opened: Opened, name: str) -> None:
    space = STATES[name]().findings.space
    for width in (1280, 1024, 768, 390, 360):
        page = opened(name, width)
        pictures = page.locator(".reel .pic").all()
        assert len(pictures) == 6
        for picture in pictures:
            box = box_of(picture)
            assert box["width"] % space.shape[2] == box["height"] % space.shape[1] == 0
            assert box["width"] >= 48
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        rendering = page.locator(".reel .pic").first
        assert rendering.evaluate("e => getComputedStyle(e).imageRendering") == "pixelated"
        # Three or more stand in a row, in order of the iterations.
        boxes = [box_of(picture) for picture in pictures]
        assert sum(box["y"] == boxes[0]["y"] for box in boxes) >= 3
        assert boxes == sorted(boxes, key=lambda box: (box["y"], box["x"]))
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_film_strip_is_one_row_beside_its_label(opened: Opened) -> None:
    for name in ("demonstrated", "one_trial"):
        page = opened(name)
        tops = {box_of(picture)["y"] for picture in page.locator(".reel .pic").all()}
        assert len(tops) == 1, name


def test_the_film_strip_on_paper_and_without_script(
    chromium: playwright.Browser, folder: Path
) -> None:
    context = chromium.new_context(
        java_script_enabled=False, viewport={"width": 688, "height": 900}
    )
    page = context.new_page()
    page.goto((folder / "demonstrated.html").as_uri())
    tree = page.locator(".reel").aria_snapshot()
    assert 'group "How the reconstruction of the median trial emerged"' in tree
    assert 'img "Reconstruction of the median trial after 12 of 1,200 iterations"' in tree
    page.emulate_media(media="print")
    boxes = [box_of(picture) for picture in page.locator(".reel .pic").all()]
    assert len(boxes) == 6
    assert len({box["y"] for box in boxes}) == 1
    assert max(box["x"] + box["width"] for box in boxes) <= 688
    context.close()


def test_a_redacted_page_has_no_film_strip(opened: Opened) -> None:
    assert opened("redacted").locator(".reel").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_differences_have_the_colours_of_the_theme(opened: Opened, theme: str) -> None:
    page = opened("claim_refuted", theme=theme)
    token = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    for kind in ("leak", "bound"):
        mark = page.locator(f".triplets .pic rect.f-{kind}").last
        red, green, blue = mark.evaluate("e => getComputedStyle(e).fill.match(/\\d+/g)")
        drawn = f"#{int(red):02x}{int(green):02x}{int(blue):02x}"
        assert drawn == page.evaluate(token, f"--{kind}").strip()
