"""Control characters of somebody's file reach no document, no page and no terminal."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from dataclasses import replace
from html import unescape

import pytest

from captured_worlds import Painter, captured, grey, one_by_one
from pages.comparison_worlds import comparison
from pages.hostile import lengthened
from pages.noise_studies import noise
from pages.states import STATES
from pages.studies import heads
from vestige import run
from vestige.cli.app import main
from vestige.cli.comparison import show_comparison
from vestige.content import document_bytes
from vestige.errors import BadInput
from vestige.pages import render
from vestige.pages.comparison.page import render_comparison
from vestige.pages.heads.page import render_heads
from vestige.pages.noise.page import render_noise
from vestige.printable import clean_text, terminal_text
from vestige.reports.files import load_report
from vestige.reports.parts import Check, CheckOutcome, SpaceDescription
from vestige.studies.captured.plan import CapturedAudit
from vestige.threats import HonestServer
from worlds import LabelOnly, draws, small_audit

# A title of the window, a clear screen, C1's form of the same, reversed text, isolates, no width.
HOSTILE = "a\x1b]0;t\x07\x1b[2J\x9b2J\x00\x7f\u202e\u2066\u2069\u200b\u200f\ufeff\u2028b"
FORBIDDEN = set(HOSTILE) - set("ab]0;t[2J")


def test_exactly_the_characters_that_act_are_escaped():
    # Planes 2 to 13 hold ideographs and nothing else.
    for number in (*range(0x20000), *range(0xE0000, 0xE0200)):
        character = chr(number)
        acts = (
            unicodedata.category(character) in ("Cc", "Cf", "Cs")
            or unicodedata.bidirectional(character) in ("LRE", "RLO", "LRI", "RLI", "FSI", "PDI")
            or character in "\u2028\u2029"
        ) and character not in "\n\t"
        if acts:
            assert clean_text(character) == ascii(character)[1:-1], hex(number)
        else:
            assert clean_text(character) == character, hex(number)


def test_cleaning_twice_is_cleaning_once():
    once = clean_text(HOSTILE)
    assert not FORBIDDEN & set(once)
    assert "\\x1b[2J" in once
    assert "\\u202e" in once
    assert clean_text(once) == once
    assert clean_text("Straße 東京 \N{NO-BREAK SPACE}½\n\té") == (
        "Straße 東京 \N{NO-BREAK SPACE}½\n\té"
    )
    assert terminal_text("one\ntwo\x1b") == "one\\ntwo\\x1b"


def test_documents_hold_no_control_characters():
    check = Check(outcome=CheckOutcome.PASSED, sentence=HOSTILE)
    assert not FORBIDDEN & set(check.sentence)
    read = Check.model_validate_json(
        json.dumps({"outcome": "passed", "sentence": HOSTILE, "remedy": HOSTILE})
    )
    assert not FORBIDDEN & set(read.sentence + read.remedy)
    space = SpaceDescription(
        kind="image", shape=(1, 2, 2), noun=HOSTILE, class_names=(HOSTILE, "b")
    )
    assert not FORBIDDEN & set(space.noun + "".join(space.class_names))


def test_a_report_of_somebody_is_cleaned_when_it_is_read(tmp_path):
    report = lengthened(STATES["demonstrated"](), HOSTILE)
    (tmp_path / "report.json").write_bytes(document_bytes(report))
    read = load_report(tmp_path / "report.json")
    assert not FORBIDDEN & set(
        "".join(read.findings.settings.values()) + "".join(read.findings.settings)
    )
    assert not FORBIDDEN & set(read.findings.title + read.verdict.headline)


@pytest.mark.parametrize(
    ("build", "write"),
    [
        (STATES["demonstrated"], render),
        (STATES["features"], render),
        (STATES["invalid"], render),
        (STATES["captured"], render),
        (heads, render_heads),
        (noise, render_noise),
        (comparison, render_comparison),
    ],
)
def test_pages_hold_no_control_characters(build, write):
    document = lengthened(build(), HOSTILE)
    page = write(document)
    assert "\\x1b" in page
    assert not {hex(ord(c)) for c in FORBIDDEN & set(page)}
    # Nor as references, nor in what a script reads, which a browser turns into characters.
    page = unescape(write(type(document).model_validate_json(document.model_dump_json())))
    assert not {hex(ord(c)) for c in FORBIDDEN & set(page)}
    for data in re.findall(r"<script type=.application/json.[^>]*>(.*?)</script>", page, re.DOTALL):
        read = json.dumps(json.loads(data), ensure_ascii=False)
        assert not {hex(ord(c)) for c in FORBIDDEN & set(read)}


def test_sentences_hold_no_control_characters():
    said = str(BadInput(f"{HOSTILE} is no name: choose another."))
    assert not FORBIDDEN & set(said)


def test_the_terminal_is_not_spoken_to(capsys, monkeypatch, tmp_path):
    report = lengthened(STATES["demonstrated"](), HOSTILE)
    (tmp_path / "report.json").write_bytes(document_bytes(report))
    monkeypatch.setattr(
        sys, "argv", ["vestige", "report", str(tmp_path), "--out", str(tmp_path / "p.html")]
    )
    with pytest.raises(SystemExit):
        main()
    # A copy that no validation has seen, as a program could make one.
    show_comparison(lengthened(comparison(), HOSTILE), tmp_path / f"c{HOSTILE[1:5]}")
    out, err = capsys.readouterr()
    assert not FORBIDDEN & set(out + err)
    assert "\\x1b" in out


@pytest.mark.parametrize("mark", ["\x1b[31m", "\u200b", "\u202e", "\u2028", "\ud800"])
def test_attacks_may_be_named_with_characters_that_act(mark, tmp_path):
    class Mine(LabelOnly):
        name = f"Mine{mark}"

    attack = Mine()
    audit = small_audit([attack, LabelOnly()], threat=HonestServer(labels=True))
    report = run(replace(audit, trials=2), directory=tmp_path / "run")
    assert report.findings.attacks[0].name == clean_text(attack.name) != attack.name
    assert [len(one.outcomes) for one in report.findings.attacks] == [2, 2, 2, 2]
    assert (
        run(replace(audit, trials=2), directory=tmp_path / "run").findings.attacks
        == report.findings.attacks
    )

    records = draws(66, 40_001)
    releases = captured(one_by_one(records[:6]), draws(30, 1), real=True)
    painter = Painter(grey, name=f"Painter{mark}")
    known = run(CapturedAudit(releases, records[6:], [painter], false_positive_rate=0.1))
    assert known.findings.attacks[0].name == clean_text(painter.name)
    assert len(known.findings.attacks[0].outcomes) == 6


def test_a_terminal_shows_spaces_of_every_width_as_spaces():
    assert terminal_text("3\u00a0trials, 4\u202f096 heads") == "3 trials, 4 096 heads"
