"""The command line as a user meets it: one sentence, the right exit code, nothing written over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_store import contents
from typer.testing import CliRunner

from head_worlds import LeastSquares
from pages.audits import changed
from process_groups import process_group
from vestige import attacks as attack_room
from vestige import run
from vestige.archive import save_observation
from vestige.cli.app import app, main
from vestige.cli.demonstration import digits_as_large_as_mnist
from vestige.cli.prior_records import with_model_classes
from vestige.cli.user_code import load_model, load_plan
from vestige.errors import BadInput
from vestige.interfaces import GradientRelease, Hints, Observation, UpdateRelease
from vestige.records import ImageSpace, Records
from vestige.reports.files import load_report
from vestige.reports.heads import HeadReport
from vestige.reports.noise import NoiseReport
from vestige.reports.parts import VerdictKind
from vestige.streams import stream
from vestige.studies.audit.plan import Audit
from vestige.studies.store import RunFolder
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import LabelOnly, draws, linear_network, small_audit

TESTS = Path(__file__).parents[1]
PREAMBLE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import os, time
from dataclasses import dataclass
import torch
from vestige.threats import HonestServer
from worlds import LabelOnly, linear_network, small_audit
told = HonestServer(labels=True)
"""
AUDIT = PREAMBLE + "audit = small_audit([LabelOnly()], threat=told, title='<b>T</b>')\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def vestige(place, capsys, monkeypatch):
    """Run the command line in this process: exit code, stdout, stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vestige", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def refused(vestige, place):
    """Run the command line on bad input and return its one sentence."""

    def call(*words: object) -> str:
        before = contents(place)
        code, out, err = vestige(*words)
        assert code == 2, (code, out, err)
        assert err.startswith("vestige: "), err
        assert err.count("\n") == 1, err
        assert err.rstrip().endswith((".", "?")), err
        assert "Traceback" not in err
        assert out == ""
        after = {name: held for name, held in contents(place).items() if "__pycache__" not in name}
        assert after == {n: h for n, h in before.items() if "__pycache__" not in n}
        return err

    return call


def write(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


def gradient(**changes) -> dict[str, torch.Tensor]:
    victim = SharedGradient(linear_network())
    return {**victim.release(draws(1, 8), generator=stream(0)).tensors, **changes}


@pytest.fixture
def captured(place):
    """A captured gradient and the words that invert it quickly."""
    write("net.py", PREAMBLE + "make = linear_network\nnumber = 3\nlist_of = list\n")
    save_file(gradient(), "g.safetensors")
    words = ["invert", "g.safetensors", "--model", "net.py:make", "--shape", "1,4,4"]
    return [*words, "--weights-in-model"]


QUICK = ["--iterations", "60", "--samples", "2", "--out", "made"]


COMMANDS = ("demo", "run", "audit", "compare", "invert", "report", "attacks", "bounds", "calibrate")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help(command):
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    assert "Usage" in done.output


def test_version_and_wrong_words(vestige):
    assert vestige("--version")[:2] == (0, "vestige 0.1.0\n")
    assert vestige("adit")[0] == 2
    assert vestige("audit", "a.py", "--trials", "0")[0] == 2
    assert vestige("audit", "a.py", "--fail-above", "7")[0] == 2


def test_a_mistyped_command_names_the_nearest_one_once(vestige):
    code, _, err = vestige("inver")
    assert code == 2
    assert " ".join(err.split()).count("Did you mean 'invert'?") == 1


def test_attacks_lists_every_attack(vestige):
    code, out, _ = vestige("attacks")
    assert code == 0
    flat = " ".join(out.split())
    names = [n for n in attack_room.__all__ if hasattr(getattr(attack_room, n), "prepare")]
    names = [n for n in names if n not in ("BestOfRestarts", "RehearsedConfidence")]
    for name in names:
        attack = getattr(attack_room, name)()
        assert name in out
        for text in (attack.needs, attack.cites, *(cls.__name__ for cls in attack.reads)):
            assert " ".join(text.split()) in flat
        for word in ("reads", "needs", "cites"):
            assert out.count(word) >= len(names)


def test_demo(vestige, monkeypatch):
    small = small_audit([LabelOnly()], threat=HonestServer(labels=True))
    monkeypatch.setattr("vestige.cli.demonstration.demonstration", lambda: small)
    code, out, _ = vestige("demo", "--trials", "2")
    assert code == 0
    assert "NOT DEMONSTRATED" in out
    assert out.endswith("Page: demo/page.html\n")
    assert "<html" in Path("demo/page.html").read_text()
    again = vestige("demo", "--trials", "2")
    assert again[:2] == (code, out)


@pytest.mark.slow
def test_demo_of_a_head(vestige, monkeypatch):
    monkeypatch.setattr("vestige.cli.demonstration.demonstration_attack", lambda: LeastSquares(60))
    monkeypatch.setattr("vestige.cli.demonstration.HEADS", 12)
    code, out, err = vestige("demo", "--head", "--trials", "2", "--redact")
    assert code == 0, err
    assert "Study of many heads: demo/heads/page.html" in out
    assert "makes two pages" in out
    assert "their verdicts may differ" in out
    for page, other in (("page", "heads/page.html"), ("heads/page", "in the folder above")):
        written = Path(f"demo/{page}.html").read_text()
        assert "their verdicts may differ" in written
        assert other in written
    assert out.endswith("Page: demo/page.html\n")
    study = HeadReport.model_validate_json(Path("demo/heads/report.json").read_text())
    assert study.findings.rates.heads == 12
    assert Path("demo/heads/report.json").stat().st_mode & 0o077 == 0
    for name in ("heads/page", "page"):
        assert "data:image" not in Path(f"demo/{name}.html").read_text()
    again = vestige("report", "demo/heads")
    assert again[0] == 0
    assert again[1].endswith("Page: demo/heads/page.html\n")
    assert "data:image" not in Path("demo/heads/page.html").read_text()
    assert vestige("report", "demo/heads", "--no-redact")[0] == 0
    assert "data:image" in Path("demo/heads/page.html").read_text()
    assert vestige("demo", "--head", "--trials", "2", "--redact")[:2] == (code, out)


@pytest.mark.slow
def test_demo_of_noise(vestige, monkeypatch):
    monkeypatch.setattr("vestige.cli.demonstration.STRENGTHS", (50.0, 5.0))
    monkeypatch.setattr("vestige.cli.demonstration._unseen_clothes", digits_as_large_as_mnist)
    code, out, err = vestige("demo", "--dp", "--trials", "6", "--out", "d")
    assert code == 0, err
    assert out.endswith("Page: d/page.html\n")
    study = NoiseReport.model_validate_json(Path("d/report.json").read_text())
    assert (study.findings.images, study.findings.steps) == (6, 1000)
    assert Path("d/report.json").stat().st_mode & 0o077 == 0
    assert "data:image" in Path("d/page.html").read_text()
    for place in ("d", "d/report.json"):
        again = vestige("report", place, "--redact")
        assert again[:2] == (0, out)
        assert "data:image" not in Path("d/page.html").read_text()
    assert vestige("demo", "--dp", "--head")[0] == 2
    Path("d/report.json").write_text('{"kind": "noise study", "schema_version": 1}')
    code, _, err = vestige("report", "d")
    assert code == 2
    assert "has lost its digest" in err
    Path("d/report.json").write_text('{"kind": "noise study", "schema_version": 9}')
    assert "was written in format 9" in vestige("report", "d")[2]


def test_the_real_demo_starts(vestige):
    code, out, err = vestige("demo", "--trials", "1")
    assert code == 0, err
    assert "One trial is a picture" in out


@pytest.mark.slow
def test_audit_from_end_to_end(place):
    """The installed program, as a user starts it."""
    write("mine.py", AUDIT)
    done = subprocess.run(
        [sys.executable, "-c", "from vestige.cli.app import main; main()", "audit", "mine.py"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert "Page: runs/mine-40-0/page.html" in done.stdout
    page = Path("runs/mine-40-0/page.html").read_text()
    assert "<html" in page
    assert "<b>T</b>" not in page


def test_audit_imports_what_lies_beside_it(vestige, place):
    (place / "deep").mkdir()
    write("deep/neighbour_of_mine.py", "TITLE = 'From beside'\n")
    write(
        "deep/mine.py",
        "from __future__ import annotations\n"
        + PREAMBLE
        + "from typing import ClassVar\n"
        + "from neighbour_of_mine import TITLE\n"
        + "@dataclass(frozen=True)\nclass Own(LabelOnly):\n    kind: ClassVar[str] = 'own'\n"
        + "audit = small_audit([Own()], threat=told, title=TITLE)\n",
    )
    code, _, err = vestige("audit", "deep/mine.py", "--trials", "1", "--out", "o")
    assert code == 0, err
    assert load_report(place / "o" / "report.json").findings.title == "From beside"


LEAKY = PREAMBLE + (
    "from vestige.attacks import InvertingGradients\n"
    "audit = small_audit([InvertingGradients(iterations=100)])\n"
)


def test_fail_above(vestige):
    write("leaky.py", LEAKY)
    words = ["audit", "leaky.py", "--trials", "8", "--out", "o"]
    code, out, _ = vestige(*words, "--fail-above", "0.5")
    assert code == 3
    assert out.splitlines()[0] == "DEMONSTRATED"
    assert "Above the limit: 100.0% of secrets, 50.0% allowed." in out
    assert vestige(*words, "--fail-above", "1")[0] == 0


def test_invalid_exits_with_2_and_can_be_mended(vestige):
    broken = PREAMBLE + (
        "class Breaks(LabelOnly):\n"
        "    def prepare(self, public, *, generator):\n"
        "        good, seen = super().prepare(public, generator=generator), []\n"
        "        def reconstruct(*told):\n"
        "            seen.append(1)\n"
        "            if len(seen) == 2:\n"
        "                raise ValueError('no luck')\n"
        "            return good(*told)\n"
        "        return reconstruct\n"
        "audit = small_audit([Breaks()], threat=told)\n"
    )
    write("b.py", broken)
    words = ["audit", "b.py", "--trials", "3", "--out", "o"]
    code, out, err = vestige(*words)
    assert (code, err) == (2, "")
    assert "INVALID" in out
    assert "Label only stopped in trial 2 of 3: ValueError: no luck." in out
    assert Path("o/page.html").is_file()
    assert vestige("report", "o")[0] == 2
    write("b.py", broken.replace("len(seen) == 2", "False"))
    code, out, err = vestige(*words)
    assert code == 2
    assert "The code of Label only was changed" in err, "two programs are not one audit"
    assert vestige(*words[:-1], "new")[0] == 0
    assert load_report("new/report.json").findings.trials_finished == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "defines no audit"),
        ("audit = 3", "is a int"),
        ("from vestige import Audit\naudit = Audit", "is a type"),
        ("audit = (", "SyntaxError"),
        (
            "x = 1\nraise ValueError('so\\nlong')",
            "in line 2, fix it and run again: ValueError: so.",
        ),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("from vestige.datasets import load\nload('cifra10')", "cif"),
        (PREAMBLE + "audit = small_audit(['Inverting'])", "'Inverting' is no attack"),
        (PREAMBLE + "audit = small_audit([LabelOnly()], batch_size=99)", "A batch of 99"),
    ],
)
def test_audit_files_that_do_not_work(refused, text, said):
    write("mine.py", text)
    assert said in refused("audit", "mine.py")


def test_audit_files_that_are_none(refused):
    assert "does not exist" in refused("audit", "nowhere.py")
    assert "is a folder" in refused("audit", ".")
    write("notes.txt", "audit")
    assert "no Python file" in refused("audit", "notes.txt")


def test_a_victim_that_cannot_run(refused):
    write(
        "mine.py",
        PREAMBLE
        + "from vestige import ImageSpace, networks\nfrom vestige.victims import SharedGradient\n"
        + "victim = SharedGradient(networks.mlp(ImageSpace(1, 5, 5, ('a', 'b', 'c'))))\n"
        + "audit = small_audit([LabelOnly()], threat=told, victim=victim)\n",
    )
    assert "does not accept records of shape (1, 4, 4)" in refused("audit", "mine.py")


SEVERAL = AUDIT + "other = small_audit([LabelOnly()], threat=told, title='Other', trials=2)\n"


def test_run_takes_a_study_of_any_kind(vestige, refused, place):
    write("mine.py", SEVERAL)
    said = refused("run", "mine.py")
    assert (
        "mine.py defines several studies (audit, a study of the kind audit and other, a study of "
        "the kind audit): choose one by its name, mine.py:audit or mine.py:other." in said
    )
    code, out, err = vestige("run", "mine.py:other")
    assert (code, err) == (0, "")
    assert out.endswith("Page: runs/mine-other-2-0/page.html\n")
    write(
        "noise.py",
        "import torch\nfrom test_noise_studies import PRIOR, images\n"
        "from vestige import NoiseStudy\n"
        "study = NoiseStudy(images(20), PRIOR, (50.0,), candidates=4, sampled=2, shown=1)\n"
        "alias = study\n",
    )
    code, out, err = vestige("run", "noise.py", "--seed", "2", "--redact")
    assert code == 0, err
    assert out.endswith("Page: runs/noise-2/page.html\n")
    assert "data:image" not in Path("runs/noise-2/page.html").read_text()
    assert RunFolder(place / "runs" / "noise-2").finished() == [0]
    assert "mine.py defines no nothing" in refused("run", "mine.py:nothing")
    assert "told in mine.py is a HonestServer" in refused("run", "mine.py:told")
    write("empty.py", "from vestige import Audit\n")
    assert "empty.py defines no study" in refused("run", "empty.py")


def test_an_inversion_is_resumed_in_its_folder(vestige, captured):
    words = [*captured, *QUICK, "--attack", "InvertingGradients"]
    code, out, _ = vestige(*words)
    kept = {p: p.stat().st_mtime_ns for p in Path("made/units").iterdir()}
    assert len(kept) == 2
    Path("made/units/000001.safetensors").unlink()
    assert vestige(*words)[:2] == (code, out)
    again = {p: p.stat().st_mtime_ns for p in Path("made/units").iterdir()}
    first = Path("made/units/000000.safetensors")
    assert (len(again), again[first]) == (2, kept[first])


def test_without_a_name_the_recommended_attacks_run(vestige, captured):
    assert vestige(*captured, *QUICK)[0] == 0
    found = load_report("made/report.json").findings
    assert [attack.name for attack in found.attacks] == ["Exact inversion", "Inverting Gradients"]
    assert found.attacks[1].settings["iterations"] == "60"
    assert found.settings["Attacks"].startswith("chosen by Vestige. Exact inversion: ")


def test_names_that_are_too_long(refused, captured):
    long = "x" * 300
    assert "does not exist" in refused("audit", f"{long}.py")
    assert "does not exist" in refused("invert", long, *captured[2:])
    assert "does not exist" in refused(*captured, "--model", f"{long}.py:make")
    assert "cannot be read" in refused("report", long)


def test_an_audit_in_a_folder_that_is_not_its_own(refused, vestige):
    write("mine.py", AUDIT)
    write("other.py", AUDIT.replace("<b>T</b>", "Other"))
    assert vestige("audit", "mine.py", "--trials", "2", "--out", "o")[0] == 0
    assert "another title" in refused("audit", "other.py", "--trials", "2", "--out", "o")
    assert "size 2, not 1" in refused("audit", "mine.py", "--trials", "1", "--out", "o")
    assert "seed 0, not 1" in refused(
        "audit", "mine.py", "--trials", "2", "--seed", "1", "--out", "o"
    )
    assert "is a file" in refused("audit", "mine.py", "--out", "mine.py")
    assert "holds other files" in refused("audit", "mine.py", "--out", ".")


def test_trials_are_added_to_a_finished_folder(vestige):
    write("mine.py", AUDIT)
    assert vestige("audit", "mine.py", "--trials", "2", "--out", "o")[0] == 0
    code, said, _ = vestige("run", "mine.py", "--trials", "3", "--out", "o")
    assert code == 0
    assert "no ε above 0" in said
    held = json.loads(Path("o/report.json").read_text())
    assert held["findings"]["earlier_trials"] == [2]
    assert held["findings"]["trials_finished"] == 3


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a place nobody can write to")
def test_places_that_cannot_be_written(refused, captured):
    write("mine.py", AUDIT)
    for words in (["audit", "mine.py", "--trials", "1"], [*captured, *QUICK[:-2]]):
        assert "Cannot write /proc/nowhere" in refused(*words, "--out", "/proc/nowhere/x")
        assert "name is too long" in refused(*words, "--out", "x" * 300)
        assert "file" in refused(*words, "--out", "mine.py/below")


def test_report(vestige, refused):
    write("mine.py", AUDIT)
    code, out, _ = vestige("audit", "mine.py", "--trials", "2", "--out", "o")
    page = Path("o/page.html").read_text()
    Path("o/page.html").unlink()
    assert vestige("report", "o") == (code, out, "")
    assert Path("o/page.html").read_text() == page
    assert vestige("report", "o/report.json", "--out", "again.html")[0] == 0
    assert Path("again.html").read_text() == page
    Path("folder").mkdir()
    assert vestige("report", "o", "--out", "folder")[1].endswith("Page: folder/page.html\n")
    assert "folder does not exist" in refused("report", "o", "--out", "no/where.html")


def test_report_says_that_a_manifest_is_not_what_was_written(vestige, refused):
    write("mine.py", AUDIT)
    code, out, _ = vestige("audit", "mine.py", "--trials", "2", "--out", "o")
    manifest = Path("o/manifest.json")
    whole = manifest.read_text()
    document = json.loads(whole)
    bare = {key: value for key, value in document.items() if key != "digest"}
    assert bare != document
    for text in (whole[:40], json.dumps({**document, "seed": 5}), json.dumps(bare), "[]"):
        manifest.write_text(text)
        assert "manifest.json is damaged: rerun the command that made" in refused("report", "o")
    manifest.unlink()
    assert "manifest.json is missing: rerun the command that made" in refused("report", "o")
    assert vestige("report", "o/report.json")[:2] == (code, out)


def test_report_says_that_units_were_lost(vestige, refused):
    write("mine.py", AUDIT)
    words = ("audit", "mine.py", "--trials", "3", "--out", "o")
    code, out, _ = vestige(*words)
    assert vestige("report", "o")[:2] == (code, out)
    Path("o/units/000001.safetensors").unlink()
    said = refused("report", "o")
    assert "000001.safetensors is missing" in said
    assert "rerun the command that made the run" in said
    Path("o/units/000000.safetensors").unlink()
    said = refused("report", "o")
    assert "000000.safetensors and 1 more unit are missing" in said
    assert vestige(*words)[:2] == (code, out)
    assert vestige("report", "o")[:2] == (code, out)


def test_report_of_an_unfinished_run_misses_no_unit(vestige, refused):
    write("mine.py", AUDIT)
    plan = replace(load_plan("mine.py"), trials=3)
    unfinished = run(plan, directory="o", watch=lambda where: where.done == 1)
    assert unfinished.findings.trials_finished == 1
    code, out, err = vestige("report", "o")
    assert (code, err) == (130, "")
    assert "INVALID" in out
    assert "missing" not in out
    listed = Path("o/unfinished.json").read_text()
    for text in ("[]", "{}", "{", '{"units": 3}', '{"units": ["a"]}', '{"units": [[]]}'):
        Path("o/unfinished.json").write_text(text)
        assert "unfinished.json is damaged: rerun the same command" in refused("report", "o")
    Path("o/unfinished.json").write_text(listed)
    Path("o/units/000000.safetensors").unlink()
    assert "000000.safetensors is missing" in refused("report", "o")
    assert vestige("audit", "mine.py", "--trials", "3", "--out", "o")[0] == 0
    assert not Path("o/unfinished.json").exists()
    assert vestige("report", "o")[0] == 0


def test_report_does_not_follow_links(vestige, refused):
    write("mine.py", AUDIT)
    vestige("audit", "mine.py", "--trials", "2", "--out", "o")
    Path("o/units").rename("elsewhere")
    Path("o/units").symlink_to(Path("elsewhere").resolve())
    assert "units is a link to another place" in refused("report", "o")


def test_a_manifest_that_is_written_again_is_mentioned(vestige, caplog):
    write("mine.py", AUDIT)
    words = ("audit", "mine.py", "--trials", "2", "--out", "o")
    code, out, _ = vestige(*words)
    assert caplog.messages == []
    whole = Path("o/manifest.json").read_text()
    Path("o/manifest.json").write_text(whole[:40])
    assert vestige(*words)[:2] == (code, out)
    assert "manifest.json was lost or damaged" in caplog.messages[0]
    assert Path("o/manifest.json").read_text() == whole


def test_report_redacts(vestige):
    write("leaky.py", LEAKY)
    vestige("audit", "leaky.py", "--trials", "2", "--out", "o")
    report = load_report("o/report.json")
    shown = [e.secret.pixels for e in report.findings.exhibits if e.secret]
    assert shown
    assert vestige("report", "o", "--redact")[0] == 0
    page = Path("o/page.html").read_text()
    assert "<html" in page
    assert not any(pixels and pixels in page for pixels in shown)
    assert "withheld" in page.lower()


def test_report_keeps_a_page_redacted_unless_told_otherwise(vestige):
    write("leaky.py", LEAKY)
    vestige("audit", "leaky.py", "--trials", "2", "--out", "o")
    open_page = Path("o/page.html").read_text()
    vestige("report", "o", "--redact")
    redacted = Path("o/page.html").read_text()
    code, _, err = vestige("report", "o")
    assert (code, Path("o/page.html").read_text()) == (0, redacted)
    assert "Only the page is redacted" in err
    assert "Only the page" not in vestige("report", "o", "--no-redact")[2]
    assert Path("o/page.html").read_text() == open_page
    vestige("report", "o")
    assert Path("o/page.html").read_text() == open_page


def test_a_resumed_run_keeps_its_page_redacted_unless_told_otherwise(vestige):
    write("leaky.py", LEAKY)
    words = ("audit", "leaky.py", "--trials", "2", "--out", "o")
    vestige(*words, "--redact")
    assert "Only the page is redacted" in vestige(*words)[2]
    pictures = Path("o/page.html").read_text().count("data:image/png")
    assert "Only the page" not in vestige(*words, "--no-redact")[2]
    assert Path("o/page.html").read_text().count("data:image/png") > pictures


def test_an_audit_prints_remarks_that_a_user_can_act_on(vestige):
    write("mine.py", AUDIT)
    assert "Remark" not in vestige("audit", "mine.py", "--trials", "2", "--out", "plain")[1]
    softmax = "\nfrom dataclasses import replace\nfrom torch import nn\n"
    softmax += "from vestige.victims import SharedGradient\n"
    softmax += "ending = nn.Sequential(linear_network(), nn.Softmax(-1))\n"
    softmax += "audit = replace(audit, victim=SharedGradient(ending))\n"
    write("mine.py", AUDIT + softmax)
    out = vestige("audit", "mine.py", "--trials", "2", "--out", "o")[1]
    assert "Remark: The model returns probabilities" in out


def test_report_of_what_is_no_finished_run(refused, vestige):
    write("mine.py", AUDIT)
    vestige("audit", "mine.py", "--trials", "3", "--out", "o")
    whole = Path("o/report.json").read_text()
    Path("o/report.json").unlink()
    said = refused("report", "o")
    assert "holds 3 of 3 units and no report yet" in said
    assert "'vestige run FILE.py … --out o'" in said
    Path("o/report.json").write_text(whole.replace('"schema_version": 1', '"schema_version": 99'))
    assert "format 99" in refused("report", "o")
    Path("o/report.json").write_text(whole[: len(whole) // 2])
    assert "damaged or no report of Vestige" in refused("report", "o")
    Path("o/report.json").write_text("")
    assert "damaged or no report of Vestige" in refused("report", "o/report.json")
    assert "does not exist" in refused("report", "nowhere")
    assert "no run folder" in refused("report", ".")


def test_invert(vestige, captured):
    code, out, err = vestige(*captured, *QUICK, "--attack", "inverting-gradients")
    assert (code, err) == (0, "")
    assert out.startswith("CANDIDATES\nOne candidate matches this gradient: ")
    assert "No secret was given" in out
    assert "NOT DEMONSTRATED" not in out
    report = load_report("made/report.json")
    assert len(report.findings.candidates) == 1
    assert f"Label given by the attack: {report.findings.candidates[0].label}." in out
    assert report.findings.candidates[0].agreement is not None
    assert "<html" in Path("made/page.html").read_text()
    assert Path("made").stat().st_mode & 0o777 == 0o700
    held = list(Path("made").rglob("*"))
    assert {p.stat().st_mode & 0o777 for p in held if p.is_file()} == {0o600}
    assert {p.stat().st_mode & 0o777 for p in held if p.is_dir()} == {0o700}
    Path("made/page.html").unlink()
    assert vestige("report", "made") == (code, out, "")
    assert Path("made/page.html").is_file()


def test_invert_asks_where_the_weights_come_from(refused, captured):
    """A factory that draws other weights gives pictures too, and nobody would know."""
    said = refused(*captured[:-1])
    assert "Say which weights the gradient was computed at" in said
    for word in ("--weights FILE", "--weights-in-model", "--untrained"):
        assert word in said
    assert "exclude each other" in refused(*captured, "--untrained")
    assert "exclude each other" in refused(*captured, "--weights", "g.safetensors")


def test_invert_at_other_weights_is_not_matched(vestige, captured):
    """What was attacked is a network that torch drew, and the gradient is another one's."""
    draw = (
        "def drawn():\n"
        "    from torch import nn\n"
        "    layers = nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    write("net.py", PREAMBLE + "make = linear_network\n" + draw)
    words = [*captured[:-1], *QUICK, "--model", "net.py:drawn", "--untrained", "--seed", "7"]
    before = torch.random.get_rng_state()
    code, out, _ = vestige(*words)
    assert bool((torch.random.get_rng_state() == before).all())
    assert code == 4
    assert out.startswith("CANDIDATES\nThis gradient was not matched: wrong weights, mode or")
    report = load_report("made/report.json")
    assert any(
        "the initial ones that net.py:drawn makes" in c.sentence for c in report.judgement.checks
    )
    assert report.findings.settings["Weights"].endswith("with torch's seed 7")
    assert vestige("report", "made") == (code, out, "")
    page = Path("made/page.html").read_text()
    assert "not demonstrated" not in page.lower()
    words[words.index("made")] = "again"
    assert vestige(*words)[0] == 4
    again = load_report("again/report.json")
    assert again.findings.fits == report.findings.fits, "the seed draws the same initial weights"


def test_invert_says_that_no_prior_was_given(vestige, captured):
    assert vestige(*captured, *QUICK)[0] == 0
    assert (
        load_report("made/report.json").findings.threat.prior == "No records were given as a prior."
    )
    page = Path("made/page.html").read_text()
    assert "No records were given as a prior." in page
    assert "64 records" not in page


def test_rehearsals_need_a_prior(refused, captured):
    said = refused(*captured, *QUICK, "--rehearsals", "3")
    assert "give a prior, or leave rehearsals out" in said


def test_invert_reads_hints_from_an_observation(vestige, captured):
    release = SharedGradient(linear_network()).release(draws(2, 8), generator=stream(0))
    save_observation(Observation(release, Hints(2, torch.tensor([0, 1]))), "g.safetensors")
    assert vestige(*captured, *QUICK, "--attack", "InvertingGradients")[0] == 0
    report = load_report("made/report.json")
    assert [c.label for c in report.findings.candidates] == ["0", "1"]


def test_invert_takes_half_precision(vestige, captured):
    save_file({n: t.half() for n, t in gradient().items()}, "g.safetensors")
    assert vestige(*captured, *QUICK)[0] == 0


def test_invert_an_update(vestige, refused, captured):
    negated = {n: -0.1 * t for n, t in gradient().items()}
    save_file(negated, "g.safetensors")
    code, out, _ = vestige(*captured, *QUICK)
    assert code == 2
    assert "the release is an update" in out
    assert "--learning-rate" in refused(*captured, *QUICK[:-1], "new", "--update")
    words = [*captured, *QUICK[:-1], "new", "--update", "--learning-rate", "0.1"]
    assert vestige(*words)[0] == 0
    save_observation(Observation(UpdateRelease(negated), Hints(1)), "g.safetensors")
    assert "says that it is an update: say --update" in refused(*captured, "--out", "newer")
    save_observation(Observation(GradientRelease(negated), Hints(1)), "g.safetensors")
    assert "says that it is a gradient: leave --update out" in refused(
        *captured, "--out", "newer", "--update"
    )


def test_unknown_attacks(refused, captured):
    said = refused(*captured, "--attack", "InvertingGradient")
    assert "did you mean InvertingGradients?" in said
    said = refused(*captured, "--attack", "deep leakge")
    assert "did you mean DeepLeakage?" in said
    assert "choose one of" in refused(*captured, "--attack", "zzz")


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "no readable safetensors"),
        (lambda _: b"", "is empty"),
        (lambda _: b"PK\x03\x04 and so on", "is a pickle"),
        (lambda _: b"hello, this is a letter", "no readable safetensors"),
        (lambda content: b"\xff" * len(content), "no readable safetensors"),
    ],
)
def test_files_that_are_no_gradient(refused, captured, damage, said):
    path = Path("g.safetensors")
    path.write_bytes(damage(path.read_bytes()))
    assert said in refused(*captured)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "holds no tensor"),
        ({"conv.weight": torch.ones(2)}, "'conv.weight', which is no trainable parameter"),
        (gradient(**{"1.bias": torch.ones(5)}), "has shape (5,) in the release and (12,)"),
        (gradient(**{"1.bias": torch.full((12,), float("nan"))}), "holds NaN or infinite"),
        (gradient(**{"1.bias": torch.ones(12, dtype=torch.uint8)}), "is uint8, and a gradient"),
    ],
)
def test_gradients_that_do_not_fit(refused, captured, tensors, said):
    save_file(tensors, "g.safetensors")
    assert said in refused(*captured)


BATCH_NORM = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3))
"""


def test_batch_norm_asks_for_the_batch_size_that_was_not_told(refused, captured):
    write("normed.py", BATCH_NORM)
    words = [*captured, "--model", "normed.py:make"]
    said = refused(*words)
    assert "needs more than one record, and one is assumed" in said
    assert "--batch-size" in said
    assert "--shape" not in said
    said = refused(*words, "--batch-size", "1")
    assert "cannot train on a single record" in said
    assert "is assumed where" not in said


def save_pictures(folder: str, side: int) -> None:
    for number in range(6):
        place = Path(folder) / f"class {number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        values = torch.rand((side, side), generator=torch.Generator().manual_seed(number))
        Image.fromarray((values * 255).byte().numpy()).save(place / f"{number}.png")


def test_a_prior_of_ones_own_files(vestige, refused, captured):
    records = draws(12, 5)
    np.savez("mine.npz", x=records.x.numpy(), y=records.y.numpy())
    save_pictures("pictures", 4)
    save_pictures("large", 9)
    whole = captured[: captured.index("--shape")] + captured[captured.index("--shape") + 2 :]
    for number, (words, prior) in enumerate(
        [(whole, "mine.npz"), (whole, "./pictures/"), (captured, "large")]
    ):
        code, out, err = vestige(*words, "--prior", prior, *QUICK[:-1], f"made{number}")
        assert (code, err) == (0, ""), (prior, out, err)
        report = load_report(f"made{number}/report.json")
        assert report.findings.space.shape == (1, 4, 4)
        assert "collected" not in out
    assert "does not accept records of shape 1,9,9" in refused(*whole, "--prior", "large")
    assert "nowhere.npz" in refused(*whole, "--prior", "nowhere.npz")
    assert "no/where" in refused(*whole, "--prior", "no/where")
    nothing = refused(*whole, "--prior", "digit")
    assert "There is no folder 'digit' here either" in nothing
    assert "no dataset 'digit'" in nothing
    np.savez("bad.npz", x=np.zeros((2, 4, 4)), y=np.zeros(3, dtype=int))
    assert "bad.npz" in refused(*whole, "--prior", "bad.npz")


def test_a_folder_with_fewer_classes_than_the_model_says_which_they_are(vestige, refused, captured):
    save_pictures("pictures", 4)
    shutil.rmtree("pictures/class 0")
    words = [*captured, "--prior", "./pictures/"]
    said = refused(*words)
    assert "has 2 subfolders and the model 3 outputs" in said
    assert "--class-names" in said
    assert "different names for 3 classes" in refused(*words, "--class-names", "class 1,class 2")
    assert "'class 2' of" in refused(*words, "--class-names", "class 1,b,c")
    named = ["--class-names", "class 2,other,class 1", *QUICK[:-1]]
    code, out, err = vestige(*words, *named, "named")
    assert (code, err) == (0, ""), out
    space = load_report("named/report.json").findings.space
    assert space.class_names == ("class 2", "other", "class 1")
    for number in (1, 2):
        Path(f"pictures/class {number}").rename(f"pictures/{number}")
    code, out, err = vestige(*words, *QUICK[:-1], "numbered")
    assert (code, err) == (0, ""), out
    assert load_report("numbered/report.json").findings.space.class_names == ("0", "1", "2")


def test_labels_of_a_folder_follow_names_and_of_a_file_numbers():
    few = Records(draws(2, 1).x, torch.tensor([0, 1]), ImageSpace(1, 4, 4, ("7", "3")))
    assert with_model_classes(few, 9, (), folder="f").y.tolist() == [7, 3]
    named = with_model_classes(few, 3, ("3", "x", "7"), folder="f")
    assert named.y.tolist() == [2, 0]
    stored = with_model_classes(few, 3, ())
    assert stored.y.tolist() == [0, 1]
    assert stored.space.class_names == ("7", "3", "2")


def test_a_pickle_is_refused(refused, captured):
    torch.save(gradient(), "g.pt")
    assert "g.pt is a pickle" in refused("invert", "g.pt", *captured[2:])
    assert "g.pt is a pickle" in refused(*captured[:-1], "--weights", "g.pt")
    assert "is a folder" in refused("invert", ".", *captured[2:])
    assert "does not exist" in refused("invert", "nowhere.safetensors", *captured[2:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shape", "nonsense"], "no list of whole numbers"),
        (["--shape", "1,4"], "neither channels,height,width"),
        (["--shape", "0,4,4"], "neither channels,height,width"),
        (["--shape", "1,4.5,4"], "no list of whole numbers"),
        (["--shape", "inf"], "no list of whole numbers"),
        (["--shape", "2,4,4"], "1 or 3 channels"),
        (["--shape", "1,5,5"], "does not accept records of shape 1,5,5"),
        (["--shape", ""], "Say what a record looks like"),
        (["--classes", "7"], "returns 3 logits for 7 classes"),
        (["--labels", "3"], "labels of this model lie in 0 … 2"),
        (["--labels", "-1"], "labels of this model lie in 0 … 2"),
        (["--labels", "1.5"], "no list of whole numbers: give it as 0,2,2, one label for each"),
        (["--labels", "1,2", "--batch-size", "1"], "make --labels and --batch-size agree"),
        (["--mean", "0.5"], "one mean and one positive std"),
        (["--mean", "0.5", "--std", "zero"], "no list of numbers"),
        (["--mode", "both"], "it is train or eval"),
        (["--reduction", "max"], "it is mean or sum"),
        (["--prior", "nodata"], "nodata"),
        (["--model", "net.py:nothing"], "has no 'nothing'"),
        (["--model", "net.py"], "module:factory or file.py:factory"),
        (["--model", "net.py:"], "module:factory or file.py:factory"),
        (["--model", "net.py:number"], "made a int"),
        (["--model", "net.py:list_of"], "made a list"),
        (["--model", "nowhere.py:make"], "does not exist"),
        (["--model", "no_such_module:make"], "no module 'no_such_module'"),
        (["--model", "torch.nn:Identity"], "without trainable parameters"),
        (["--model", "torch.nn:Linear"], "torch.nn:Linear stopped, fix it"),
        (["--out", "net.py"], "is a file: name a folder for the run"),
        (["--out", "."], "holds other files and no run: name an empty or a new folder"),
    ],
)
def test_words_that_do_not_fit(refused, captured, words, said):
    assert said in refused(*captured, *words)


def test_weights_must_fit(refused, vestige, captured):
    save_file({n: t.clone() for n, t in linear_network().state_dict().items()}, "w.safetensors")
    captured = captured[:-1]
    assert vestige(*captured, *QUICK, "--weights", "w.safetensors")[0] == 0
    save_file({"other": torch.ones(1)}, "w.safetensors")
    assert "does not fit the model" in refused(
        *captured, "--out", "new", "--weights", "w.safetensors"
    )


def test_untrained_weights_do_not_depend_on_what_a_file_draws_on_import(place):
    made = "import torch\n{}\ndef made():\n    return torch.nn.Linear(3, 2)\n"
    Path("plain.py").write_text(made.format(""))
    Path("draws.py").write_text(made.format("noise = torch.randn(5)"))
    with torch.random.fork_rng():
        torch.manual_seed(4)
        expected = torch.nn.Linear(3, 2).weight
    for name in ("plain", "draws"):
        assert torch.equal(load_model(f"{name}.py:made", seed=4).weight, expected), name


def test_a_factory_that_stumbles_says_where(refused, captured):
    write("bad.py", "def make():\n    x = 1\n    return x / 0\n")
    said = refused(*captured, "--model", "bad.py:make")
    assert "bad.py:make stopped in line 3, fix it and run again: ZeroDivisionError" in said


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command line in a process that ends with the test, even if the test fails."""
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", "from vestige.cli.app import main; main()", *words]
            return stack.enter_context(
                process_group(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )

        yield start


def wait_for(path: Path, process: subprocess.Popen) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_in_invert_keeps_the_best_so_far(captured, place, started):
    words = [*captured, "--attack", "InvertingGradients", "--iterations", "100000000"]
    process = started(*words, "--out", "made")
    wait_for(place / "made", process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Page: made/page.html" in out
    assert out.splitlines()[1].startswith("Interrupted; so far: ")
    report = load_report("made/report.json")
    assert len(report.findings.candidates) == 1
    assert any(
        "stopped Inverting Gradients in run 1 of 3" in c.sentence for c in report.judgement.checks
    )
    assert Path("made/page.html").is_file()


@pytest.mark.slow
def test_ctrl_c_in_audit_can_go_on(vestige, place, started):
    slow = PREAMBLE + (
        "class Slow(LabelOnly):\n"
        "    def prepare(self, public, *, generator):\n"
        "        good = super().prepare(public, generator=generator)\n"
        "        def reconstruct(*told):\n"
        "            time.sleep(float(open('pause').read()))\n"
        "            return good(*told)\n"
        "        return reconstruct\n"
        "audit = small_audit([Slow()], threat=told)\n"
    )
    write("slow.py", slow)
    write("pause", "0.3")  # in a file of its own: a run is not resumed with other attack code
    words = ["audit", "slow.py", "--trials", "50", "--out", "o"]
    process = started(*words)
    wait_for(place / "o" / "units" / "000001.safetensors", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "INVALID" in out
    assert "Rerun the same command" in out
    assert "Traceback" not in err
    done = RunFolder(place / "o").finished()
    assert 2 <= len(done) < 50
    assert load_report("o/report.json").verdict.kind is VerdictKind.INVALID
    write("pause", "0")
    assert vestige(*words)[0] == 0
    assert load_report("o/report.json").findings.trials_finished == 50


def test_an_interrupt_before_the_first_trial_is_one_sentence(vestige, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vestige.studies.audit.plan.preflight_checks", interrupt)
    write("mine.py", AUDIT)
    code, out, err = vestige("audit", "mine.py", "--out", "o")
    assert (code, out) == (130, "")
    assert err.startswith("vestige: Stopped; finished units are kept")


@pytest.mark.slow
def test_audits_run_elsewhere_by_an_option(vestige, refused, place):
    (place / "a.py").write_text(AUDIT)
    assert "add --engine ray" in refused("audit", "a.py", "--address", "somewhere:6379")
    assert "add --engine processes" in refused("audit", "a.py", "--workers", 3)
    words = ("audit", "a.py", "--trials", 3, "--out")
    assert vestige(*words, "here")[0] == 0
    assert vestige(*words, "there", "--engine", "processes", "--workers", 1)[0] == 0
    here, there = (load_report(place / name / "report.json") for name in ("here", "there"))
    assert changed(here, times=there.findings.times) == there


@pytest.mark.parametrize(
    ("per_second", "said"), [(25.0, "25/s"), (0.5, "30/min"), (1 / 7200, "0.5/h"), (0, "0/h")]
)
def test_a_pace_is_said_in_a_unit_that_suits_it(per_second, said):
    from vestige.cli.progress_bars import pace

    assert pace(per_second) == said


def test_the_audit_command_points_a_head_study_to_run(tmp_path):
    (tmp_path / "heads.py").write_text(
        "from vestige.cli.demonstration import head_demonstration_study\n"
        "study = head_demonstration_study()\n"
    )
    with pytest.raises(BadInput, match="holds a head study and no audit: run it with 'vestige run"):
        load_plan(tmp_path / "heads.py", Audit)
