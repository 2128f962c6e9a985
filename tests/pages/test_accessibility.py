"""Every kind of page: names, headings, landmarks, its bytes; and axe-core where it is at hand."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from vestige.bounds import DPSGD, state
from vestige.pages import render
from vestige.runs.index_page import render_index
from vestige.runs.summaries import RunSummary

from .comparison_worlds import COMPARISONS
from .noise_studies import NOISE_STUDIES
from .repeated_studies import REPEATED
from .risk_studies import RISKS
from .states import STATES
from .studies import STUDIES

MOST_BYTES = 1_000_000
"""Most bytes of one page."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHECKS = Path(__file__).with_name("accessibility.js").read_text()
AXE = os.environ.get("VESTIGE_AXE", "")
"""The file axe.min.js of axe-core, which is not kept here; nothing is downloaded."""


def listed() -> str:
    verdicts = ("DEMONSTRATED", "NOT_DEMONSTRATED", "CLAIM_REFUTED", "INVALID", "CANDIDATES")
    lines = [
        RunSummary(f"run-{n}", "audit", verdict, f"Run {n}", 0.2, 0.3, chance=0.01,
                   guess_rate=0.02, done=9, planned=9, added=n or None, release="a gradient",
                   model="ab" * 32, data="cd" * 32, date=f"2026-01-1{n}T10:00:00+00:00",
                   cpu_seconds=12.0, page=n == 0, public_title="Audit of a gradient")
        for n, verdict in enumerate(verdicts)
    ]  # fmt: skip
    lines.append(RunSummary("going", "audit", "UNFINISHED", done=2, planned=9))
    lines.append(RunSummary("broken", "", "DAMAGED", problem="report.json is damaged."))
    return render_index(lines)


def drawn(build: Callable[[], object]) -> Callable[[], str]:
    return lambda: render(build())


PAGES: dict[str, Callable[[], str]] = {
    **{name: drawn(build) for name, build in STATES.items()},
    **{name: drawn(build) for name, build in STUDIES.items()},
    **{name: drawn(build) for name, build in NOISE_STUDIES.items()},
    **{name: drawn(build) for name, build in COMPARISONS.items()},
    **{name: drawn(build) for name, build in (RISKS | REPEATED).items()},
    "bounds": drawn(lambda: state(DPSGD(1.0, 0.01, 100))),
    "index": listed,
}
PAGES = {name: cache(build) for name, build in PAGES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_to_its_bytes(name):
    assert len(PAGES[name]().encode()) <= MOST_BYTES


def test_a_small_page_keeps_to_its_bytes():
    assert len(listed().encode()) <= 100_000


browser_test = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Iterator[Callable]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    folder = tmp_path_factory.mktemp("accessible")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(content: str, theme: str = "light"):
            (folder / "page.html").write_text(content, encoding="utf-8")
            context = chromium.new_context(
                viewport={"width": 1280, "height": 800}, color_scheme=theme, bypass_csp=True
            )
            page = context.new_page()
            page.goto((folder / "page.html").as_uri())
            return page

        yield open_page
        chromium.close()


@pytest.mark.parametrize("name", PAGES)
class TestInChromium:
    """What a browser makes of every kind of page."""

    pytestmark = browser_test

    def test_names_headings_and_landmarks(self, opened, name):
        page = opened(PAGES[name]())
        found = page.evaluate(CHECKS)
        page.context.close()
        assert found == []

    @pytest.mark.skipif(not AXE, reason="VESTIGE_AXE does not name axe.min.js of axe-core")
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_axe_finds_nothing(self, opened, name, theme):
        page = opened(PAGES[name](), theme)
        page.evaluate(Path(AXE).read_text())
        found = page.evaluate(
            "axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html.slice(0, 200)]))"
        )
        page.context.close()
        assert found == []


SPOILED = {
    "a heading skips a level": ("<h1", "<h1>x</h1><h4>y</h4><h1"),
    "a control has no name": ("<main ", "<input type=text><main "),
    "an image has no alternative text": ("</main>", "<img src='data:,'></main>"),
    "a drawing is neither named nor hidden": ("</main>", "<svg width=9 height=9></svg></main>"),
    "a button has no name": ("</main>", "<button></button></main>"),
    "a link leads nowhere": ("</main>", "<a href='#nowhere'>x</a></main>"),
    "a table header has no scope": ("</main>", "<table><tr><th>x</table></main>"),
    "an id is used twice": ("</main>", "<p id=runs>x</p></main>"),
    "there is not one main landmark": ("</main>", "</main><main>x</main>"),
    "two landmarks have one name": ("</main>", "<nav aria-label=a></nav><nav aria-label=a></nav>"),
    "aria-labelledby names what is not there": (
        "</main>",
        "<p aria-labelledby=nowhere>x</p></main>",
    ),
}


@pytest.mark.parametrize("problem", SPOILED)
class TestTheChecksThemselves:
    """Each check fails on a page that has what it looks for."""

    pytestmark = browser_test

    def test_a_spoiled_page_is_found(self, opened, problem):
        before, after = SPOILED[problem]
        page = opened(listed().replace(before, after, 1))
        found = page.evaluate(CHECKS)
        page.context.close()
        assert any(one.startswith(problem) for one in found), found
