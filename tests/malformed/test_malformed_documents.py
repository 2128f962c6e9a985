"""Readers of JSON and of run directories: a page or one sentence, and nothing outside touched."""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import contents, damaged_json, damaged_safetensors, one_sentence, refused, tried

from pages.comparison_worlds import comparison
from pages.noise_studies import noise
from pages.risk_studies import risk
from pages.studies import heads
from vestige import run, save_page
from vestige.bounds import DPSGD, Composition, Gaussian, PureDP, mechanism_to_json
from vestige.cli.app import main
from vestige.cli.rendering import render_again
from vestige.errors import VestigeError
from vestige.files import read_safetensors
from vestige.mechanisms import RenyiDP, TradeOff, mechanism_from_json
from vestige.reports.files import load_report
from vestige.reports.parts import Picture
from vestige.studies.audit.trial_files import trial_bytes, trial_of
from vestige.studies.store import RunFolder
from vestige.threats import HonestServer
from worlds import LabelOnly, small_audit

pytestmark = pytest.mark.timeout(900)

MANIFEST = {"kind": "audit", "identity": "f", "title": "t", "units": 3, "seed": 0}


def audit():
    return small_audit([LabelOnly()], threat=HonestServer(labels=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(replace(audit(), trials=3), directory=folder)
    return folder


@pytest.fixture
def place(tmp_path):
    """A folder to work in, beside one that nobody may change."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "mine.txt").write_text("mine")
    (canary / ".mine.part").write_text("mine")
    before = contents(canary)
    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
    assert contents(canary) == before
    assert sorted(os.listdir(tmp_path)) == ["canary", "work"]


def rendered(folder: Path, name: str, whole: str):
    def damage(rng: random.Random) -> None:
        (folder / name).write_bytes(damaged_json(whole, rng))
        render_again(folder / name, folder / "page.html")

    return damage


def test_records(place, finished):
    tried("record", rendered(place, "report.json", (finished / "report.json").read_text()))


@pytest.mark.parametrize(
    ("reader", "name", "made"),
    [
        ("head study", "report.json", heads),
        ("noise study", "report.json", noise),
        ("record risk", "report.json", risk),
        pytest.param("comparison", "report.json", comparison, marks=pytest.mark.slow),
    ],
)
def test_studies(place, reader, name, made):
    tried(reader, rendered(place, name, made().model_dump_json()))


@pytest.mark.parametrize(
    "change",
    [
        {"false_positive_rate": 0},
        {"false_positive_rate": -3},
        {"confidence": 7},
        {"decoys": -1},
        {"decoys": 10**400},
        {"trials_planned": 10**300},
        {"batch_size": -(10**30)},
        {"space": {"kind": "image", "shape": [], "noun": "x", "class_names": []}},
        {"space": {"kind": "image", "shape": [10**9] * 3, "noun": "x", "class_names": ["a"]}},
        {"kind": []},
        {"kind": {"a": 1}},
        {"kind": "head study"},
    ],
)
def test_records_whose_parts_make_no_sense(place, finished, change):
    """None of these may hang or stop with anything but a sentence; some can be drawn."""
    whole = json.loads((finished / "report.json").read_text())
    (place / "report.json").write_text(json.dumps(whole | change))
    refused(lambda: render_again(place / "report.json", place / "page.html"))


@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        ([1, 2, 2], "AAAA"),
        ([10**9, 10**9, 10**9], "AAAA"),
        ([-1, -3], "AAAA"),
        ([], ""),
        ([1, 1, 3], "AA=="),
    ],
)
def test_pictures_that_do_not_fill_their_shape(shape, pixels):
    with pytest.raises(ValueError, match="picture"):
        Picture.model_validate({"shape": shape, "pixels": pixels})
    assert Picture.model_validate({"shape": [1, 1, 3], "pixels": "AAAA"}).array().shape == (1, 1, 3)


def test_documents_that_are_no_files(place):
    os.mkfifo(place / "report.json")
    for path in (place / "report.json", Path("/dev/zero"), place, Path("x" * 300)):
        assert refused(lambda: load_report(path)), path  # noqa: B023
        assert refused(lambda: render_again(path, place / "p.html")), path  # noqa: B023
    for content in (
        b"[" * 200_000,
        b'{"a":' * 5000,
        b"\xff\xfe",
        b"9" * 10_000,
        b'"' + b"x" * 10**6,
    ):
        (place / "r.json").write_bytes(content)
        assert refused(lambda: render_again(place / "r.json", place / "p.html"))


def test_an_enormous_document_is_not_read(place, monkeypatch):
    monkeypatch.setattr("vestige.studies.store.read_document.__defaults__", (1000,))
    (place / "report.json").write_text(" " * 2000)
    with pytest.raises(VestigeError, match="more than 1,000 bytes"):
        load_report(place / "report.json")


MECHANISMS = (
    DPSGD(1.0, 0.1, 100, 1.0),
    PureDP(1.0),
    Composition((Gaussian(1.0), DPSGD(1.0, 0.1, 100))),
    RenyiDP((2.0, 3.0), (0.1, 0.2)),
    TradeOff((0.0, 0.5, 1.0), (1.0, 0.2, 0.0)),
)


def test_mechanisms(place):
    whole = [mechanism_to_json(mechanism) for mechanism in MECHANISMS]

    def damage(rng: random.Random) -> object:
        return mechanism_from_json(damaged_json(rng.choice(whole), rng).decode(errors="replace"))

    tried("mechanism", damage)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda part: (
        st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=8), part, max_size=4)
    ),
    max_leaves=12,
)
EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@EXAMPLES
@given(value=anything, kind=st.sampled_from(("Gaussian", "head study", "comparison", None, [])))
def test_any_json_is_refused_in_a_sentence(place, value, kind):
    held = {**value, "kind": kind} if isinstance(value, dict) else value
    (place / "any.json").write_text(json.dumps(held))
    assert refused(lambda: render_again(place / "any.json", place / "page.html"))
    refused(lambda: mechanism_from_json(json.dumps(held)))


@EXAMPLES
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_in_a_sentence(place, content):
    (place / "any").write_bytes(content)
    assert refused(lambda: render_again(place / "any", place / "page.html"))
    refused(lambda: read_safetensors(place / "any"))


NINES = "9" * 5000


@pytest.mark.parametrize(
    "text",
    ['{"kind":"Gaussian","noise_multiplier":1,"steps":' + NINES + "}",
     '{"kind":"pure DP","epsilon":' + NINES + "}",
     '{"kind":"pure DP","epsilon":1,"x":' + "[" * 150 + "1" + "]" * 150 + "}",
     '{"kind":"DP-SGD","noise_multiplier":1,"sampling_rate":0.1,"steps":1000000000000000000}',
     '{"kind":"pure DP","epsilon":NaN}', "[]", "", "\x00"],
)  # fmt: skip
def test_mechanisms_with_impossible_numbers(text):
    assert refused(lambda: mechanism_from_json(text))


def test_manifests(place):
    with RunFolder.opened(place / "run", MANIFEST, {}):
        pass
    path = place / "run" / "manifest.json"
    whole = path.read_text()

    def damage(rng: random.Random) -> None:
        changed = damaged_json(whole, rng)
        try:
            path.write_bytes(changed)
            with RunFolder.opened(place / "run", MANIFEST, {}):
                pass
        finally:
            assert path.read_bytes() == changed, "what is somebody else's is left as it was"

    tried("manifest", damage)


@pytest.mark.slow
def test_trials(place):
    folder = place / "run"
    run(replace(audit(), trials=3), directory=folder)
    path = folder / "units" / "000001.safetensors"
    whole = path.read_bytes()

    def damage(rng: random.Random) -> object:
        try:
            path.write_bytes(damaged_safetensors(whole, rng))
            return run(replace(audit(), trials=3), directory=folder)
        finally:
            path.write_bytes(whole)

    tried("trial", damage)
    assert run(replace(audit(), trials=3), directory=folder).findings.trials_finished == 3


def test_a_trial_of_other_attacks_is_refused_before_any_work(place, monkeypatch):
    study, folder = replace(audit(), trials=3), place / "run"
    run(study, directory=folder)
    known = {key: RunFolder.existing(folder).manifest()[key] for key in MANIFEST}
    with RunFolder.opened(folder, known, study.code()) as opened:
        trial = trial_of(opened.read(0))
        outcome = next(iter(trial.outcomes.values()))
        name = "An attack of tomorrow"
        other = replace(trial, outcomes={name: outcome}, seconds={name: 0.0}, remarks={name: ""})
        opened.write(0, trial_bytes(other))
    (folder / "units" / "000002.safetensors").unlink()  # work is left to do
    monkeypatch.setattr(type(study), "prepare", lambda *_: pytest.fail("work began"))
    with pytest.raises(VestigeError, match="trial 0 lacks an attack"):
        run(study, directory=folder)


@pytest.mark.parametrize("name", ["lock", "units"])
@pytest.mark.parametrize("began", [False, True])
def test_links_do_not_lead_out_of_a_run(place, name, began):
    """The fixture sees that nothing outside was written, locked or swept."""
    folder, canary = place / "run", place.parent / "canary"
    folder.mkdir()
    if began:
        with RunFolder.opened(folder, MANIFEST, {}):
            pass
        (folder / "lock").unlink()
        (folder / "units").rmdir()
        if name == "lock":
            (folder / "units").mkdir()
    (folder / name).symlink_to(canary if name == "units" else canary / "new file")

    def go_on() -> None:
        with RunFolder.opened(folder, MANIFEST, {}):
            pass

    assert refused(go_on)
    assert not (canary / "new file").exists()


def test_a_link_in_place_of_a_result_is_replaced_and_not_followed(place):
    folder, target = place / "run", place.parent / "canary" / "mine.txt"
    folder.mkdir()
    run(replace(audit(), trials=2), directory=folder)
    for name in ("report.json", "page.html"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    report = run(replace(audit(), trials=2), directory=folder)
    save_page(report, folder / "page.html")
    assert load_report(folder / "report.json") == report
    assert not (folder / "page.html").is_symlink()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "units" / "0000001.safetensors").write_bytes(b"x"),
        lambda folder: (folder / "units" / "000007.safetensors").mkdir(),
        lambda folder: (folder / "units" / "000001.safetensors").symlink_to("/dev/zero"),
        lambda folder: os.mkfifo(folder / "units" / "000001.safetensors"),
        lambda folder: (folder / "units" / ("9" * 200 + ".safetensors")).write_bytes(b""),
        lambda folder: (folder / ".x.part").mkdir(),
        lambda folder: (folder / "notes.txt").write_text("mine"),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: os.mkfifo(folder / "report.json"),
        lambda folder: (folder / os.fsdecode(b"\xff\xfe")).write_text("mine"),
    ],
)
def test_run_folders_with_foreign_things(place, spoil):
    folder = place / "run"
    with RunFolder.opened(folder, MANIFEST, {}):
        pass
    spoil(folder)

    def go_on() -> None:
        with RunFolder.opened(folder, MANIFEST, {}) as directory:
            directory.finished()

    refused(go_on)
    refused(lambda: render_again(folder, place / "page.html"))


@pytest.fixture
def called(capsys, monkeypatch, tmp_path_factory):
    """Run the command line in this process: exit code and standard error."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["vestige", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        out, err = capsys.readouterr()
        # Neither a file nor its name may speak to the terminal.
        assert all(character.isprintable() or character == "\n" for character in out + err)
        return code, err

    return call


def test_the_command_line_exits_with_two_and_one_sentence(place, finished, called):
    report = (finished / "report.json").read_text()
    mechanisms = [mechanism_to_json(mechanism) for mechanism in MECHANISMS]
    page = place / "page.html"

    def damage(rng: random.Random) -> None:
        if rng.random() < 0.5:
            (place / "report.json").write_bytes(damaged_json(report, rng))
            code, err = called("report", place / "report.json", "--out", page)
        else:
            text = damaged_json(rng.choice(mechanisms), rng)
            (place / "m.json").write_bytes(text)
            code, err = called("bounds", "--mechanism", place / "m.json", "--candidates", "10")
        assert (code == 2) or (code in (0, 3) and not err), (code, err)
        if err:
            assert err.startswith("vestige: ")
            assert len(err.strip().splitlines()) == 1
            raise VestigeError(err.strip())

    tried("command line", damage)


def test_names_that_are_no_text_are_printed(place, finished, called):
    folder = place / os.fsdecode(b"run\xff\x1b[31m")
    folder.mkdir()
    (folder / "report.json").write_bytes((finished / "report.json").read_bytes())
    assert called("report", folder)[0] == 0
    assert (folder / "page.html").is_file()
    code, err = called("report", folder / "nothing")
    assert (code, len(err.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--shape", "100000,100000,3"),
        ("--shape", "99999999999999999999"),
        ("--shape", "1,4,4", "--classes", "1000000000"),
        ("--shape", "1,4,4", "--batch-size", "1000000000"),
        ("--shape", "1,4,4", "--labels", "99999999999999999999"),
        ("--shape", "1,4,4", "--mean", "nan", "--std", "0"),
        ("--shape", ","),
        ("--shape", "-1,4,4"),
    ],
)
def test_options_of_an_inversion_that_no_memory_holds(place, called, words):
    from safetensors.torch import save_file

    from worlds import linear_network

    (place / "model.py").write_text("from worlds import linear_network as made\n")
    save_file(
        {n: p.detach() for n, p in linear_network().named_parameters()}, place / "g.safetensors"
    )
    code, err = called(
        "invert", place / "g.safetensors", "--model", f"{place / 'model.py'}:made",
        "--weights-in-model", *words,
        "--iterations", "1", "--samples", "1", "--out", place / "made",
    )  # fmt: skip
    assert code == 2
    one_sentence(VestigeError(err.strip()))
