"""What all pages share: the shell, the table, the dispatch on the type, the notebook hook."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import vestige.reports
from vestige.bounds import DPSGD, state
from vestige.errors import BadInput
from vestige.pages import render
from vestige.pages.saving import save_page
from vestige.pages.shell import Front, Section, complete_settings, render_page
from vestige.pages.tables import Column, Row, Table, pairs
from vestige.pages.templates import fragment

from .comparison_worlds import comparison
from .noise_studies import noise
from .repeated_studies import REPEATED
from .risk_studies import RISKS
from .states import STATES
from .studies import heads
from .test_render import Reader

DOCUMENTS = {
    "record": STATES["demonstrated"],
    "captured": STATES["captured"],
    "invalid": STATES["invalid"],
    "heads": heads,
    "noise": noise,
    "comparison": comparison,
    **RISKS,
    **REPEATED,
    "bounds": lambda: state(DPSGD(1.0, 0.01, 100)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "bounds")) for n in DOCUMENTS]
)
def test_every_kind_has_the_same_frame_in_the_same_order(name: str) -> None:
    reader = Reader(render(DOCUMENTS[name]()))
    identifiers = [a["id"] for _, a in reader.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    order = [i for i in ("verdict", "threats", "checks", "limits", "settings") if i in identifiers]
    assert [i for i in identifiers if i in order] == order
    assert {"verdict", "limits", "settings"} <= set(order)
    assert len(reader.all("h1")) == len(reader.all("nav")) == len(reader.all("footer")) == 1
    sections = [a["id"] for a in reader.all("section")]
    links = [(a["href"] or "")[1:] for a in reader.all("a")]
    assert links[0] == "verdict"
    assert set(links) <= set(identifiers)
    assert set(sections) - set(links) <= {"assumed"}


@pytest.mark.parametrize("name", [n for n in DOCUMENTS if n != "bounds"])
def test_limits_and_settings_of_a_document_are_all_on_its_page(name: str) -> None:
    document = DOCUMENTS[name]()
    text = Reader(render(document)).text
    found = getattr(document, "findings", document)
    said = [*found.limits, *found.settings.values(), *found.environment.values()]
    assert said
    for sentence in said:
        assert re.sub(r"\s+", " ", sentence) in text


@dataclass(frozen=True)
class Foreign:
    """A document of another package."""

    title: str


def render_foreign(document: Foreign, *, redact: bool = False) -> str:
    said = "withheld" if redact else document.title
    return render_page(
        title=said,
        front=Front("A headline", ("A lede",)),
        body=[Section("own", "Own", "A question?", fragment("bounds.html", "assumed", [said]))],
        limits=["A limit"],
        settings=[("Seed", "3")],
        source="a test",
    )


def test_another_package_registers_its_own_document(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="A page shows a report"):
        render(Foreign("<b>mine</b>"))
    render.register(Foreign, render_foreign)
    page = render(Foreign("<b>mine</b>"))
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "<b>mine" not in page
    assert [a["id"] for a in Reader(page).all("section")] == ["own", "limits", "settings"]
    save_page(Foreign("mine"), tmp_path / "own.html", redact=True)
    assert "mine" not in (tmp_path / "own.html").read_text()


def test_settings_that_are_given_are_not_repeated() -> None:
    own = {"trials, seed": "8, 1", "decoys": "3"}
    derived = [("Seed", "1"), ("Decoys", "3"), ("Distance", "mse")]
    assert complete_settings(own, derived) == [
        ("Trials, seed", "8, 1"),
        ("Decoys", "3"),
        ("Distance", "mse"),
    ]


def test_columns_without_a_known_cell_are_dropped() -> None:
    columns = (Column("a"), Column("b"), Column("c", number=False))
    rows = (Row("x", "", ("1", "–", "")), Row("y", "", ("", "–", "2"), lead=True))
    table = Table("name", columns, rows).without_empty_columns()
    assert [column.title for column in table.columns] == ["a", "c"]
    assert [row.cells for row in table.rows] == [("1", ""), ("", "2")]
    assert table.rows[1].lead


def test_a_table_escapes_its_text_and_names_its_headers() -> None:
    table = Table(
        "<i>", (Column("<u>"), Column("w", False, "mono")), (Row("<a>", "<s>", ("<b>", "k")),)
    )
    drawn = str(fragment("parts.html", "table", table, "heading"))
    assert not re.search(r"<[iuasb]>", drawn)
    assert drawn.count('aria-labelledby="heading"') == 2
    assert '<td class="num">&lt;b&gt;</td><td class="mono">k</td>' in drawn
    assert drawn.count('scope="col"') == 3
    assert "<thead" not in str(fragment("parts.html", "table", pairs([("a", "b")])))


def test_documents_fall_back_to_repr_without_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [build() for name, build in DOCUMENTS.items() if name != "bounds"]
    for document in documents:
        assert document.verdict.headline.split()[0] in str(document._repr_html_())
    monkeypatch.setattr("vestige.reports.document.notebook_view", None)
    for document in documents:
        assert document._repr_html_() is None
        assert document.verdict.kind.value in repr(document)


def test_reports_import_nothing_from_above() -> None:
    allowed = {"reports", "errors", "printable", "content", "files", "streams", "mechanisms"}
    folder = Path(vestige.reports.__path__[0])
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name.startswith("vestige."):
                    assert name.split(".")[1] in allowed, f"{path.name} imports {name}"
