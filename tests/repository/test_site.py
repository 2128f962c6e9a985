"""The documentation site: it builds strictly, its links lead somewhere, its reference is whole."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer

from vestige import attacks, bounds, defenses
from vestige.bounds import ReconstructionBound
from vestige.cli.app import app

ROOT = Path(__file__).parents[2]
ATTACKS = [name for name in attacks.__all__ if hasattr(getattr(attacks, name), "prepare")]
AROUND = ["BestOfRestarts", "RehearsedConfidence"]
pytestmark = pytest.mark.slow  # building the site takes 8 s of CPU


class Links(HTMLParser):
    """The places a page has, those it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag in ("a", "link") and values.get("href"):
            (self.links if tag == "a" else self.loaded).append(values["href"])
        if tag in ("img", "script", "iframe", "source") and values.get("src"):
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="the site needs the extra docs")
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        # Not --quiet: MkDocs then drops warnings before --strict has counted them.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return place


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Links]:
    return {path: Links(path.read_text()) for path in site.rglob("*.html")}


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_link_and_anchor_leads_somewhere(pages, site):
    wrong = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the site's root
            continue
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.is_file():
                wrong.append(f"{path.relative_to(site)} → {link}")
            elif parts.fragment and target in pages:
                places = pages[target].places | {"__toc", "__search", "__drawer"}
                if unquote(parts.fragment) not in places:
                    wrong.append(f"{path.relative_to(site)} → {link}")
    assert not wrong, "\n".join(wrong)


def test_nothing_is_loaded_from_elsewhere(pages):
    for path, page in pages.items():
        for source in page.loaded:
            assert not urlsplit(source).netloc, f"{path.name} loads {source}"


def test_every_attack_bound_and_defence_has_a_page(pages):
    headings = {
        found for path in pages for found in re.findall(r"<h1[^>]*>(\w+)", path.read_text())
    }
    missing = set(ATTACKS) - headings
    for name in bounds.__all__:
        cls = getattr(bounds, name)
        if isinstance(cls, type) and issubclass(cls, ReconstructionBound):
            missing |= {name} - headings - {"ReconstructionBound"}
    for name in defenses.__all__:
        cls = getattr(defenses, name)
        if isinstance(cls, type) and hasattr(cls, "strength"):
            missing |= {name} - headings - {"Defense"}
    assert not missing


def test_the_papers_and_assumptions_are_on_the_pages(site):
    for name in set(ATTACKS) - set(AROUND):
        place = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
        text = " ".join(text_of(site / "attacks" / f"{place}.html").split())
        cited = getattr(attacks, name)().cites
        assert " ".join(cited.split()) in text, name
    index = text_of(site / "attacks" / "index.html")
    assert all(name in index for name in ATTACKS)
    text = text_of(site / "bounds" / "gaussian-bound.html")
    assert all(line in text for line in bounds.GaussianBound.assumptions)


def test_the_command_line_page_has_every_command_and_option(site):
    text = text_of(site / "command-line.html")
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    for name, command in commands.items():
        section = text.split(f"vestige {name}\N{PILCROW SIGN}")
        assert len(section) == 2, name
        section = section[1].split("\N{PILCROW SIGN}")[0]
        for parameter in command.params:
            spelling = parameter.opts[0] if parameter.param_type_name == "option" else ""
            assert spelling == "--help" or spelling in section, (name, spelling)


def test_no_page_says_the_word(pages):
    for path in pages:
        text = re.sub(r"never says\s+\S*safe\S*", "", text_of(path))
        assert not re.search(r"\bsafe\b", text), path.name
