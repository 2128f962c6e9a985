"""The command line as a user meets it: one sentence, the right exit code, nothing written over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from head_worlds import LeastSquares
from test_store import contents
from vestige import HeadStudy, HonestServer, NoiseStudy, SharedGradient
from vestige import attacks as attack_room
from vestige.archive import save_observation
from vestige.cli import app, main
from vestige.demonstration import digits_as_large_as_mnist
from vestige.observations import GradientRelease, Hints, Observation, UpdateRelease
from vestige.record import VerdictKind
from vestige.store import RunDirectory, load_record
from vestige.streams import stream
from worlds import LabelOnly, draws, linear_network, small_audit

TESTS = Path(__file__).parent
PREAMBLE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import os, time
from dataclasses import dataclass
import torch
from vestige import HonestServer
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
    return ["invert", "g.safetensors", "--model", "net.py:make", "--shape", "1,4,4"]


QUICK = ["--iterations", "3", "--samples", "2", "--out", "made"]


COMMANDS = ("demo", "audit", "invert", "report", "attacks", "bounds", "calibrate")


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


def test_attacks_lists_every_attack(vestige):
    code, out, _ = vestige("attacks")
    assert code == 0
    flat = " ".join(out.split())
    for name in attack_room.__all__:
        attack = getattr(attack_room, name)()
        assert name in out
        for text in (attack.needs, attack.cites, *(cls.__name__ for cls in attack.reads)):
            assert " ".join(text.split()) in flat
        for word in ("reads", "needs", "cites"):
            assert out.count(word) >= len(attack_room.__all__)


def test_demo(vestige, monkeypatch):
    small = small_audit([LabelOnly()], threat=HonestServer(labels=True))
    monkeypatch.setattr("vestige.demonstration.demonstration", lambda: small)
    code, out, _ = vestige("demo", "--trials", "2")
    assert code == 0
    assert "NOT DEMONSTRATED" in out
    assert out.endswith("Page: demo/page.html\n")
    assert "<html" in Path("demo/page.html").read_text()
    again = vestige("demo", "--trials", "2")
    assert again[:2] == (code, out)


def test_demo_of_a_head(vestige, monkeypatch):
    monkeypatch.setattr("vestige.demonstration.demonstration_attack", lambda: LeastSquares(60))
    monkeypatch.setattr("vestige.demonstration.HEADS", 12)
    code, out, err = vestige("demo", "--head", "--trials", "2", "--redact")
    assert code == 0, err
    assert "Study of many heads: demo/heads.html" in out
    assert out.endswith("Page: demo/page.html\n")
    study = HeadStudy.model_validate_json(Path("demo/heads.json").read_text())
    assert study.rates.heads == 12
    assert Path("demo/heads.json").stat().st_mode & 0o077 == 0
    for name in ("heads", "page"):
        assert "data:image" not in Path(f"demo/{name}.html").read_text()
    again = vestige("report", "demo/heads.json")
    assert again[0] == 0
    assert again[1].endswith("Page: demo/heads.html\n")
    assert "data:image" in Path("demo/heads.html").read_text()
    assert vestige("demo", "--head", "--trials", "2", "--redact")[:2] == (code, out)


def test_demo_of_noise(vestige, monkeypatch):
    monkeypatch.setattr("vestige.demonstration.STRENGTHS", (50.0, 5.0))
    monkeypatch.setattr("vestige.demonstration._unseen_clothes", digits_as_large_as_mnist)
    code, out, err = vestige("demo", "--dp", "--trials", "6", "--out", "d")
    assert code == 0, err
    assert out.endswith("Page: d/noise.html\n")
    study = NoiseStudy.model_validate_json(Path("d/noise.json").read_text())
    assert (study.images, study.steps) == (6, 1000)
    assert Path("d/noise.json").stat().st_mode & 0o077 == 0
    assert "data:image" in Path("d/noise.html").read_text()
    for place in ("d", "d/noise.json"):
        again = vestige("report", place, "--redact")
        assert again[:2] == (0, out)
        assert "data:image" not in Path("d/noise.html").read_text()
    assert vestige("demo", "--dp", "--head")[0] == 2
    Path("d/noise.json").write_text('{"kind": "noise study", "schema_version": 1}')
    code, _, err = vestige("report", "d")
    assert code == 2
    assert "damaged" in err
    Path("d/noise.json").write_text('{"kind": "noise study", "schema_version": 9}')
    assert "another format" in vestige("report", "d")[2]


def test_the_real_demo_starts(vestige):
    code, out, err = vestige("demo", "--trials", "1")
    assert code == 0, err
    assert "One trial is a picture" in out


def test_audit_from_end_to_end(place):
    """The installed program, as a user starts it."""
    write("mine.py", AUDIT)
    done = subprocess.run(
        [sys.executable, "-c", "from vestige.cli import main; main()", "audit", "mine.py"],
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
    assert load_record(place / "o" / "record.json").title == "From beside"


LEAKY = PREAMBLE + (
    "from vestige import InvertingGradients\n"
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
    code, out, _ = vestige(*words)
    assert code == 0
    assert load_record("o/record.json").trials_finished == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "defines no audit"),
        ("audit = 3", "is a int"),
        ("from vestige import Audit\naudit = Audit", "is a type"),
        ("audit = (", "SyntaxError"),
        (
            "x = 1\nraise ValueError('so\\nlong')",
            "in line 2, mend it and run again: ValueError: so.",
        ),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("from vestige import load\nload('cifra10')", "cif"),
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
        + "from vestige import ImageSpace, SharedGradient, networks\n"
        + "victim = SharedGradient(networks.mlp(ImageSpace(1, 5, 5, ('a', 'b', 'c'))))\n"
        + "audit = small_audit([LabelOnly()], threat=told, victim=victim)\n",
    )
    assert "does not accept records of shape (1, 4, 4)" in refused("audit", "mine.py")


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
    assert "2 trials, not 3" in refused("audit", "mine.py", "--trials", "3", "--out", "o")
    assert "seed 0, not 1" in refused(
        "audit", "mine.py", "--trials", "2", "--seed", "1", "--out", "o"
    )
    assert "is a file" in refused("audit", "mine.py", "--out", "mine.py")
    assert "holds other files" in refused("audit", "mine.py", "--out", ".")


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
    assert vestige("report", "o/record.json", "--out", "again.html")[0] == 0
    assert Path("again.html").read_text() == page
    Path("folder").mkdir()
    assert vestige("report", "o", "--out", "folder")[1].endswith("Page: folder/page.html\n")
    assert "folder does not exist" in refused("report", "o", "--out", "no/where.html")


def test_report_redacts(vestige):
    write("leaky.py", LEAKY)
    vestige("audit", "leaky.py", "--trials", "2", "--out", "o")
    record = load_record("o/record.json")
    shown = [e.secret.pixels for e in record.exhibits if e.secret]
    assert shown
    assert vestige("report", "o", "--redact")[0] == 0
    page = Path("o/page.html").read_text()
    assert "<html" in page
    assert not any(pixels and pixels in page for pixels in shown)
    assert "withheld" in page.lower()


def test_report_of_what_is_no_finished_run(refused, vestige):
    write("mine.py", AUDIT)
    vestige("audit", "mine.py", "--trials", "3", "--out", "o")
    whole = Path("o/record.json").read_text()
    Path("o/record.json").unlink()
    assert "holds 3 of 3 trials and no Record yet" in refused("report", "o")
    Path("o/record.json").write_text(whole.replace('"schema_version": 2', '"schema_version": 99'))
    assert "format 99" in refused("report", "o")
    Path("o/record.json").write_text(whole[: len(whole) // 2])
    assert "damaged or no Record" in refused("report", "o")
    Path("o/record.json").write_text("")
    assert "damaged or no Record" in refused("report", "o/record.json")
    assert "does not exist" in refused("report", "nowhere")
    assert "no run directory" in refused("report", ".")


def test_invert(vestige, captured):
    code, out, err = vestige(*captured, *QUICK, "--attack", "inverting-gradients")
    assert (code, err) == (0, "")
    assert "No secret was given" in out
    record = load_record("made/record.json")
    assert len(record.candidates) == 1
    assert record.candidates[0].agreement is not None
    assert "<html" in Path("made/page.html").read_text()
    assert Path("made").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in Path("made").iterdir()} == {0o600}
    Path("made/page.html").unlink()
    assert vestige("report", "made") == (code, out, "")
    assert Path("made/page.html").is_file()


def test_invert_reads_hints_from_an_observation(vestige, captured):
    release = SharedGradient(linear_network()).release(draws(2, 8), generator=stream(0))
    save_observation(Observation(release, Hints(2, torch.tensor([0, 1]))), "g.safetensors")
    assert vestige(*captured, *QUICK)[0] == 0
    record = load_record("made/record.json")
    assert [c.label for c in record.candidates] == ["0", "1"]


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


def test_a_pickle_is_refused(refused, captured):
    torch.save(gradient(), "g.pt")
    assert "g.pt is a pickle" in refused("invert", "g.pt", *captured[2:])
    assert "g.pt is a pickle" in refused(*captured, "--weights", "g.pt")
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
        (["--labels", "1.5"], "no list of whole numbers"),
        (["--labels", "1,2", "--batch-size", "1"], "make --labels and --batch-size agree"),
        (["--mean", "0.5"], "one mean and one positive std"),
        (["--mean", "0.5", "--std", "zero"], "no list of numbers"),
        (["--mode", "both"], "it is train or eval"),
        (["--reduction", "max"], "it is mean or sum"),
        (["--prior", "nodata"], "nodata"),
        (["--weights", "g.safetensors", "--model", "net.py:nothing"], "has no 'nothing'"),
        (["--model", "net.py"], "module:factory or file.py:factory"),
        (["--model", "net.py:"], "module:factory or file.py:factory"),
        (["--model", "net.py:number"], "made a int"),
        (["--model", "net.py:list_of"], "made a list"),
        (["--model", "nowhere.py:make"], "does not exist"),
        (["--model", "no_such_module:make"], "no module 'no_such_module'"),
        (["--model", "torch.nn:Identity"], "without trainable parameters"),
        (["--model", "torch.nn:Linear"], "torch.nn:Linear stopped, mend it"),
        (["--out", "net.py"], "is not an empty folder"),
        (["--out", "."], "is not an empty folder"),
    ],
)
def test_words_that_do_not_fit(refused, captured, words, said):
    assert said in refused(*captured, *words)


def test_weights_must_fit(refused, vestige, captured):
    save_file({n: t.clone() for n, t in linear_network().state_dict().items()}, "w.safetensors")
    assert vestige(*captured, *QUICK, "--weights", "w.safetensors")[0] == 0
    save_file({"other": torch.ones(1)}, "w.safetensors")
    assert "does not fit the model" in refused(
        *captured, "--out", "new", "--weights", "w.safetensors"
    )


def test_a_factory_that_stumbles_says_where(refused, captured):
    write("bad.py", "def make():\n    x = 1\n    return x / 0\n")
    said = refused(*captured[:2], "--model", "bad.py:make", "--shape", "1,4,4")
    assert "bad.py:make stopped in line 3, mend it and run again: ZeroDivisionError" in said


def started(*words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", "from vestige.cli import main; main()", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not start"
        time.sleep(0.05)


def test_ctrl_c_in_invert_keeps_the_best_so_far(captured, place):
    process = started(*captured, "--iterations", "100000000", "--out", "made")
    wait_for(place / "made", process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Page: made/page.html" in out
    record = load_record("made/record.json")
    assert len(record.candidates) == 1
    assert any("stopped Inverting Gradients in run 1 of 3" in c.sentence for c in record.checks)
    assert Path("made/page.html").is_file()


def test_ctrl_c_in_audit_can_go_on(vestige, place):
    slow = PREAMBLE + (
        "class Slow(LabelOnly):\n"
        "    def prepare(self, public, *, generator):\n"
        "        good = super().prepare(public, generator=generator)\n"
        "        def reconstruct(*told):\n"
        "            time.sleep(PAUSE)\n"
        "            return good(*told)\n"
        "        return reconstruct\n"
        "audit = small_audit([Slow()], threat=told)\n"
    )
    write("slow.py", slow.replace("PAUSE", "0.3"))
    words = ["audit", "slow.py", "--trials", "50", "--out", "o"]
    process = started(*words)
    wait_for(place / "o" / "trials" / "000001.safetensors", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "INVALID" in out
    assert "Run the same command again" in out
    assert "Traceback" not in err
    done = RunDirectory(place / "o").finished()
    assert 2 <= len(done) < 50
    assert load_record("o/record.json").verdict.kind is VerdictKind.INVALID
    write("slow.py", slow.replace("PAUSE", "0"))
    assert vestige(*words)[0] == 0
    assert load_record("o/record.json").trials_finished == 50


def test_an_interrupt_before_the_first_trial_is_one_sentence(vestige, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vestige.audit.preflight_checks", interrupt)
    write("mine.py", AUDIT)
    code, out, err = vestige("audit", "mine.py", "--out", "o")
    assert (code, out) == (130, "")
    assert err.startswith("vestige: Stopped; finished trials are kept")


def test_audits_run_elsewhere_by_an_option(vestige, refused, place):
    (place / "a.py").write_text(AUDIT)
    assert "add --engine ray" in refused("audit", "a.py", "--address", "somewhere:6379")
    assert "add --engine processes" in refused("audit", "a.py", "--workers", 3)
    words = ("audit", "a.py", "--trials", 3, "--out")
    assert vestige(*words, "here")[0] == 0
    assert vestige(*words, "there", "--engine", "processes", "--workers", 1)[0] == 0
    here, there = (RunDirectory(place / name).record() for name in ("here", "there"))
    assert here.model_copy(update={"times": there.times}) == there


@pytest.mark.parametrize(
    ("per_second", "said"), [(25.0, "25/s"), (0.5, "30/min"), (1 / 7200, "0.5/h"), (0, "0/h")]
)
def test_a_pace_is_said_in_a_unit_that_suits_it(per_second, said):
    from vestige.terminal import pace

    assert pace(per_second) == said
