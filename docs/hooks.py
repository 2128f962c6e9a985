"""Builds what the documentation site does not keep: the reference, from docstrings and schemas.

MkDocs calls the functions by their names. Generated pages exist in a build only, so they cannot
fall behind the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import command_line_page
import reference_pages
import report_page
import threat_pages

OPTIONAL_PAGES = {"peers.md": "Beside other tools"}
"""Pages that exist once their figures have been measured, with their titles."""

_LINK = re.compile(r"\[([^\]]+)\]\((\.\.?/[^)#]*|[\w./-]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each attack, bound and defence into the navigation."""
    sections = {
        "attacks": reference_pages.attack_pages(),
        "bounds": reference_pages.bound_pages(),
        "defences": reference_pages.defence_pages(),
    }
    navigation: list[Any] = list(config.nav or [])
    for entry in navigation:
        for title, target in list(entry.items()):
            if isinstance(target, str) and target in sections:
                entry[title] = [_entry(page) for page in sections[target]]
            if title == "Findings":
                found = [p for p in OPTIONAL_PAGES if (Path(config.docs_dir) / p).is_file()]
                entry[title] = [*target, *({OPTIONAL_PAGES[p]: p} for p in found)]
    config.nav = navigation
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = [
        *reference_pages.attack_pages(),
        *reference_pages.bound_pages(),
        *reference_pages.defence_pages(),
        threat_pages.page(),
        command_line_page.page(),
        report_page.page(Path(config.docs_dir) / "report-schema.json"),
    ]
    for page in pages:
        files.append(File.generated(config, page.path, content=page.text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show what lies outside docs/ by its path: a site has no such page to link to."""
    here = Path(config.docs_dir) / Path(page.file.src_uri).parent
    root = Path(config.docs_dir).resolve()

    def inside(match: re.Match[str]) -> str:
        target = (here / match.group(2)).resolve()
        if target.is_relative_to(root):
            return match.group(0)
        path = target.relative_to(root.parent)
        text = match.group(1)
        return f"`{path}`" if text.endswith(path.name) else f"{text} (`{path}`)"

    return _LINK.sub(inside, markdown)


def _entry(page: reference_pages.GeneratedPage) -> Any:
    return page.path if page.path.endswith("index.md") else {page.title: page.path}
