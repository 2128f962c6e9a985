"""The run directory: private, atomic, and never somebody else's."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import struct
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pages.audits import changed
from vestige import Audit, run, save_page
from vestige.attacks import InvertingGradients
from vestige.content import document_bytes
from vestige.errors import BadInput, Conflict, NotFound, VestigeError
from vestige.files import read_safetensors, write_atomically
from vestige.reports.audit import AuditReport, Outcome
from vestige.reports.files import load_report
from vestige.reports.parts import Failure, Times, VerdictKind
from vestige.studies.audit.trial_files import TrialResult, trial_bytes, trial_of
from vestige.studies.field_digests import field_digests
from vestige.studies.stopped import stopped_verdict
from vestige.studies.store import SCHEMA, MemoryUnits, RunFolder
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import LabelOnly, linear_network, small_audit

MANIFEST = {"kind": "audit", "identity": "f", "title": "t", "units": 3, "seed": 0}
LENIENT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def result(trial: int = 0, **changes) -> TrialResult:
    outcome = Outcome(
        trial=trial, rank=1, distance=0.1, decoy_distance=None, nearest_decoy=1 / 3, psnr=1e-300
    )
    facts = {
        "trial": trial,
        "slot": 0,
        "outcomes": {"A": outcome},
        "seconds": {"A": 0.25},
        "remarks": {"A": "ω \n <b>"},
        "tensors": {"secret/x": torch.rand(2, 1, 2, 2, generator=torch.Generator().manual_seed(1))},
    }
    return TrialResult(**{**facts, **changes})


def contents(folder) -> dict[str, bytes | None]:
    """Everything below a folder, byte for byte."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def one_sentence(problem: BaseException) -> str:
    text = str(problem)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    assert len(text) < 400
    return text


def quick_audit(**changes):
    return small_audit([LabelOnly()], threat=HonestServer(labels=True), **changes)


def test_everything_is_private(tmp_path):
    folder = tmp_path / "runs" / "a"
    before = os.umask(0)
    try:
        report = run(replace(quick_audit(), trials=2), directory=folder)
        save_page(report, folder / "page.html")
    finally:
        os.umask(before)
    assert (folder / "page.html").is_file()
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_exists_keeps_its_mode(tmp_path):
    """It is its user's, and may be shared; what is written into it is private."""
    tmp_path.chmod(0o755)
    run(replace(quick_audit(), trials=2), directory=tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("problem", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch, call, problem):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise problem

    monkeypatch.setattr(f"vestige.files.os.{call}", fail)
    with pytest.raises(type(problem)):
        write_atomically(path, b"new")
    assert contents(tmp_path) == {"file": b"old"}


def test_a_crash_between_write_and_rename_leaves_the_old_content(tmp_path):
    """Nothing cleans up after a crash, so the next run sweeps what it left."""
    with RunFolder.opened(tmp_path / "run", MANIFEST, {}) as directory:
        directory.write(0, trial_bytes(result(0)))
    before = contents(tmp_path / "run")

    def crash(*_):
        os._exit(9)

    def child():
        with RunFolder.opened(tmp_path / "run", MANIFEST, {}) as directory:
            os.replace = crash
            directory.write(0, trial_bytes(result(0, remarks={"A": "new"})))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 9
    after = contents(tmp_path / "run")
    left = set(after) - set(before)
    assert len(left) == 1
    assert {name: after[name] for name in before} == before
    with RunFolder.opened(tmp_path / "run", MANIFEST, {}) as directory:
        assert directory.finished() == [0]
        assert trial_of(directory.read(0)).remarks == {"A": "ω \n <b>"}
    assert contents(tmp_path / "run") == before


def test_killed_before_the_manifest_goes_on(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "units").mkdir()
    (tmp_path / ".vestige-abc.part").write_bytes(b"half a mani")
    with RunFolder.opened(tmp_path, MANIFEST, {}) as directory:
        assert directory.manifest()["units"] == 3
    assert not list(tmp_path.glob(".*"))


def fill_foreign(folder):
    (folder / "thesis.tex").write_text("dear reader")


def fill_foreign_trials(folder):
    (folder / "units").mkdir()
    (folder / "units" / "000000.safetensors").write_bytes(b"somebody's")


def fill_with(**changes):
    def fill(folder):
        (folder / "manifest.json").write_text(json.dumps({**MANIFEST, "schema": SCHEMA, **changes}))
        (folder / "report.json").write_text("{}")

    return fill


def fill_damaged(folder):
    (folder / "manifest.json").write_bytes(b'{"fingerprint": "f", "ti')


def fill_list(folder):
    (folder / "manifest.json").write_text("[1, 2]")


def fill_binary(folder):
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (fill_foreign, "holds other files"),
        (fill_foreign_trials, "holds other files"),
        (fill_with(identity="g"), "data, models, attacks or settings"),
        (fill_with(kind="noise study"), "another kind, 'noise study'"),
        (fill_with(title="other"), "another title, 'other'"),
        (fill_with(seed=1), "seed 1, not 0"),
        (fill_with(units=30), "30 units, not 3"),
        (fill_with(schema=SCHEMA + 1), f"format {SCHEMA + 1}"),
        (fill_damaged, "damaged"),
        (fill_list, "damaged"),
        (fill_binary, "damaged"),
    ],
)
def test_what_belongs_to_something_else_is_left_as_it_was(tmp_path, fill, said):
    fill(tmp_path)
    before, mode = contents(tmp_path), tmp_path.stat().st_mode
    with pytest.raises(VestigeError) as caught, RunFolder.opened(tmp_path, MANIFEST, {}):
        pass
    assert said in one_sentence(caught.value)
    assert contents(tmp_path) == before
    assert tmp_path.stat().st_mode == mode


FIELDS = {"attacks[0].iterations": "a", "prior": "b", "trials": "c"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**FIELDS, "prior": "x"}, "which differs in prior;"),
        ({**FIELDS, "prior": "x", "trials": "y"}, "which differs in prior, trials;"),
        ({"prior": "b", "trials": "c"}, "which differs in attacks[0].iterations;"),
        ({**FIELDS, "distance": "d"}, "which differs in distance;"),
        ({**FIELDS, "a\x1bb": "d"}, "data, models, attacks or settings"),
        (
            {str(n): "x" for n in range(3)},
            "in 0, 1, 2, attacks[0].iterations and 2 more;",
        ),
        (FIELDS, "data, models, attacks or settings"),
        (None, "data, models, attacks or settings"),
        ([1], "data, models, attacks or settings"),
    ],
)
def test_a_refusal_names_the_fields_that_differ(tmp_path, fields, said):
    fill_with(identity="g", fields=fields)(tmp_path)
    with pytest.raises(Conflict) as caught, RunFolder.opened(tmp_path, MANIFEST, {}, FIELDS):
        pass
    assert said in one_sentence(caught.value)


def test_other_fields_of_the_same_study_are_resumed(tmp_path):
    """Digests of fields explain a refusal; the identity decides."""
    for fields in (FIELDS, {}):
        with RunFolder.opened(tmp_path, MANIFEST, {}, fields):
            pass


def absolute_error(candidates, records):
    return torch.cdist(candidates.flatten(1), records.flatten(1), p=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attacks": [InvertingGradients(3)]}, "attacks[0].iterations"),
        ({"batch_size": 2}, "batch_size"),
        ({"threat": HonestServer(labels=True)}, "threat.labels"),
        ({"victim": SharedGradient(linear_network(), mode="eval")}, "victim.mode"),
        ({"distance": absolute_error}, "distance"),
    ],
)
def test_an_audit_that_was_changed_names_the_change(tmp_path, changes, said):
    audit = small_audit([InvertingGradients(2)], victim=SharedGradient(linear_network()))
    audit = replace(audit, trials=1)
    run(audit, directory=tmp_path)
    with pytest.raises(Conflict) as caught:
        run(replace(audit, **changes), directory=tmp_path)
    assert f"holds another study, which differs in {said};" in one_sentence(caught.value)


def test_a_refusal_says_that_the_attacks_were_chosen(tmp_path):
    audit = small_audit([InvertingGradients(2)], victim=SharedGradient(linear_network()))
    audit = replace(audit, trials=1)
    run(audit, directory=tmp_path)
    with pytest.raises(Conflict) as caught:
        run(replace(audit, attacks=None), directory=tmp_path)
    assert "differs in the attacks, which Vestige chose at least once;" in str(caught.value)


def test_digests_of_fields_are_those_of_content():
    one, same = (field_digests(small_audit([InvertingGradients(2)])) for _ in range(2))
    assert one == same
    assert {"victim.model", "secrets", "prior.records", "attacks[0].iterations"} <= set(one)
    weights = linear_network()
    with torch.no_grad():
        next(weights.parameters()).add_(1)
    other = small_audit([InvertingGradients(2)], victim=SharedGradient(weights))
    differing = {name for name, digest in field_digests(other).items() if one[name] != digest}
    assert differing == {"victim.model"}


def test_a_file_in_place_of_the_folder(tmp_path):
    path = tmp_path / "run"
    path.write_text("mine")
    for place in (path, path / "below"):
        with pytest.raises(VestigeError) as caught, RunFolder.opened(place, MANIFEST, {}):
            pass
        assert "file" in one_sentence(caught.value)
    assert contents(tmp_path) == {"run": b"mine"}


def test_another_audit_in_the_same_folder(tmp_path):
    run(replace(quick_audit(), trials=2), directory=tmp_path)
    before = contents(tmp_path)
    for audit, changes in [
        (quick_audit(trials=2, seed=1), {}),
        (quick_audit(trials=2, title="Another"), {}),
        (quick_audit(trials=1), {}),  # more trials are added, fewer are another audit
        (quick_audit(trials=2), {"seed": 9}),
    ]:
        with pytest.raises(Conflict) as caught:
            run(audit, **changes, directory=tmp_path)
        one_sentence(caught.value)
        assert contents(tmp_path) == before


def test_only_one_process_at_a_time(tmp_path):
    def child(answer):
        try:
            with RunFolder.opened(tmp_path, MANIFEST, {}):
                answer.put("opened")
        except Conflict as problem:
            answer.put(str(problem))

    fork = multiprocessing.get_context("fork")
    answer = fork.Queue()
    for expected in ("Another process", "opened"):
        process = fork.Process(target=child, args=(answer,))
        if expected == "opened":
            process.start()
        else:
            with RunFolder.opened(tmp_path, MANIFEST, {}):
                before = contents(tmp_path)
                process.start()
                process.join()
                assert contents(tmp_path) == before
        process.join()
        assert answer.get(timeout=120).startswith(expected)


def test_a_full_disk_keeps_finished_trials(tmp_path, monkeypatch):
    audit, real = quick_audit(), os.fsync
    whole = run(replace(audit, trials=4))
    written = 0

    def full(handle):
        nonlocal written
        written += 1
        if written > 3:  # the manifest and two trials fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr("vestige.files.os.fsync", full)
    with pytest.raises(VestigeError) as caught:
        run(replace(audit, trials=4), directory=tmp_path)
    assert "disk is full" in one_sentence(caught.value)
    assert "finished units are kept" in str(caught.value)
    monkeypatch.undo()
    assert RunFolder(tmp_path).finished() == [0, 1]
    assert not list(tmp_path.rglob("*.part"))
    again = run(replace(audit, trials=4), directory=tmp_path)
    assert changed(again, times=Times()) == changed(whole, times=Times())


def test_a_file_that_may_not_grow(tmp_path):
    """The kernel itself refuses: a limit on the size of files stands for the full disk."""
    resource = pytest.importorskip("resource")

    def child(answer):
        with RunFolder.opened(tmp_path, MANIFEST, {}) as directory:
            directory.write(0, trial_bytes(result(0)))
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                directory.write(1, trial_bytes(result(1, tensors={"x": torch.zeros(10_000)})))
            except VestigeError as problem:
                answer.put(str(problem))

    fork = multiprocessing.get_context("fork")
    answer = fork.Queue()
    process = fork.Process(target=child, args=(answer,))
    process.start()
    assert "Cannot write" in answer.get(timeout=120)
    process.join()
    assert RunFolder(tmp_path).finished() == [0]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"\x00" * len(content),
        lambda content: content.replace(b"outcomes", b"outcomez"),
        lambda content: content.replace(rb"\"trial\":1", rb"\"trial\":2"),
    ],
)
def test_a_damaged_trial_is_said_at_once(tmp_path, damage):
    run(replace(quick_audit(), trials=3), directory=tmp_path)
    path = tmp_path / "units" / "000001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    before = contents(tmp_path)
    with pytest.raises(BadInput) as caught:
        run(replace(quick_audit(), trials=3), directory=tmp_path)
    assert "000001.safetensors is damaged: delete" in one_sentence(caught.value)
    assert contents(tmp_path) == before
    path.unlink()
    report = run(replace(quick_audit(), trials=3), directory=tmp_path)
    assert report.findings.trials_finished == 3


def test_what_is_no_trial_is_not_taken_for_one(tmp_path):
    with RunFolder.opened(tmp_path, MANIFEST, {}) as directory:
        directory.write(2, trial_bytes(result(2)))
        for name in (
            ".abc.part", ".000001.safetensors", "000001.safetensors.part", "1.safetensors",
            "000001 (copy).safetensors", "٠٠٠٠٠١.safetensors", "000001.json",
        ):  # fmt: skip
            (tmp_path / "units" / name).write_bytes(b"")
        assert directory.finished() == [2]


def test_tensors_are_read_when_they_are_looked_at(tmp_path):
    with RunFolder.opened(tmp_path, MANIFEST, {}) as directory:
        directory.write(0, trial_bytes(result(0)))
        held = directory.read(0)
        assert list(held.tensors) == ["secret/x"]
        assert torch.equal(held.tensors["secret/x"], result(0).tensors["secret/x"])
        with pytest.raises(KeyError):
            held.tensors["nothing"]
        (tmp_path / "units" / "000000.safetensors").write_bytes(b"gone")
        with pytest.raises(BadInput, match="damaged"):
            held.tensors["secret/x"]


def test_existing_needs_a_run(tmp_path):
    with pytest.raises(NotFound, match="no run folder"):
        RunFolder.existing(tmp_path)


finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]), max_size=30)
outcomes = st.builds(
    Outcome,
    trial=st.integers(0, 10**9),
    rank=st.integers(1, 10**9),
    distance=st.none() | finite,
    decoy_distance=st.none() | finite,
    nearest_decoy=st.none() | finite,
    confidence=st.none() | finite,
    diverged=st.booleans(),
)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@LENIENT
@given(
    trial=st.integers(0, 10**7),
    slot=st.integers(0, 100),
    told=st.dictionaries(words, st.tuples(outcomes, finite, words), max_size=3),
    tensors=st.dictionaries(words.filter(lambda name: name != "__metadata__"), shapes, max_size=3),
)
def test_a_trial_comes_back_as_it_was(tmp_path, trial, slot, told, tensors):
    made = TrialResult(
        trial,
        slot,
        {name: facts[0] for name, facts in told.items()},
        {name: facts[1] for name, facts in told.items()},
        {name: facts[2] for name, facts in told.items()},
        {name: torch.full(shape, float("nan")) for name, shape in tensors.items()},
    )
    stores = [MemoryUnits(), RunFolder(tmp_path)]
    (tmp_path / "units").mkdir(exist_ok=True)
    for store in stores:
        store.write(trial, trial_bytes(made))
        found = trial_of(store.read(trial))
        assert (found.trial, found.slot) == (trial, slot)
        assert dict(found.outcomes) == made.outcomes
        assert dict(found.seconds) == made.seconds
        assert dict(found.remarks) == made.remarks
        assert {n: t.shape for n, t in found.tensors.items()} == tensors
        assert all(bool(t.isnan().all()) for t in found.tensors.values())


def header(value: object) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text


dtypes = st.sampled_from(["F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F4", "F8_E8M0", "X"])
entries = st.fixed_dictionaries(
    {
        "dtype": dtypes,
        "shape": st.lists(st.integers(0, 3) | st.integers(-1, 2**64), max_size=3),
        "data_offsets": st.lists(st.integers(0, 64), min_size=1, max_size=3),
    }
)
almost_files = st.builds(
    lambda entry, data: header(entry) + data,
    st.dictionaries(words, entries, max_size=2) | st.just(b"[" * 5000) | st.just({"a": None}),
    st.binary(max_size=64),
)


@LENIENT
@given(
    content=st.binary(max_size=200)
    | almost_files
    | st.binary(max_size=40).map(lambda b: b"\x80\x02" + b)
)
def test_any_bytes_give_tensors_or_a_sentence(tmp_path, content):
    path = tmp_path / "any.safetensors"
    path.write_bytes(content)
    try:
        tensors, metadata = read_safetensors(path)
    except BadInput as problem:
        one_sentence(problem)
    else:
        assert all(isinstance(t, torch.Tensor) for t in tensors.values())
        assert isinstance(metadata, dict)


def test_a_shape_beyond_all_numbers_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    entry = {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}
    path.write_bytes(header({"a": entry}))
    with pytest.raises(BadInput, match="no readable safetensors"):
        read_safetensors(path)


@pytest.mark.parametrize("length", [640, 896, 1152, 1408, 0x4B50])
def test_a_header_whose_length_looks_like_a_pickle(tmp_path, length):
    """The first bytes of a safetensors file are the length of its header, and 640 is 80 02."""
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(2)}, path, {"pad": ""})
    short = struct.unpack("<Q", path.read_bytes()[:8])[0]
    save_file({"a": torch.ones(2)}, path, {"pad": "x" * (length - short)})
    assert struct.unpack("<Q", path.read_bytes()[:8])[0] == length
    assert torch.equal(read_safetensors(path)[0]["a"], torch.ones(2))


def test_pickles_are_refused_by_name(tmp_path):
    for old in (False, True):
        torch.save({"a": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=not old)
        with pytest.raises(BadInput, match="is a pickle") as caught:
            read_safetensors(tmp_path / "a.pt")
        one_sentence(caught.value)


@pytest.fixture(scope="module")
def made_report() -> AuditReport:
    return run(replace(quick_audit(title="<b>ü</b> " + "x" * 5000), trials=3))


def test_a_report_comes_back_byte_for_byte(tmp_path, made_report):
    path = tmp_path / "report.json"
    path.write_bytes(document_bytes(made_report))
    assert load_report(path) == made_report
    assert document_bytes(load_report(path)) == path.read_bytes()


@LENIENT
@given(title=words, seed=st.integers(), rate=finite, found=st.lists(outcomes, max_size=3))
def test_any_report_comes_back_byte_for_byte(made_report, title, seed, rate, found):
    attack = made_report.findings.attacks[0].model_copy(update={"outcomes": tuple(found)})
    report = changed(made_report, title=title, seed=seed, confidence=rate, attacks=(attack,))
    again = AuditReport.model_validate_json(document_bytes(report))
    assert again == report
    assert document_bytes(again) == document_bytes(report)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged or no report of Vestige"),
        (b"{", "damaged or no report of Vestige"),
        (b"\xff\xff", "damaged or no report of Vestige"),
        (b"[]", "damaged or no report of Vestige"),
        (b'{"schema_version": 1}', "damaged or no report of Vestige (at kind)"),
        (b'{"kind": "a poem"}', "holds a report of the kind 'a poem', which is not known here"),
        (b'{"kind": "audit"}', "damaged or no report of Vestige (at findings)"),
        (b'{"schema_version": 99, "news": 1}', "was written in format 99"),
        (b"[" * 100_000, "damaged or no report of Vestige"),
    ],
)
def test_what_is_no_report_of_this_version(tmp_path, content, said):
    (tmp_path / "report.json").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_report(tmp_path / "report.json")
    assert said in one_sentence(caught.value)


def test_a_report_that_is_not_there(tmp_path):
    with pytest.raises(NotFound):
        load_report(tmp_path / "report.json")
    with pytest.raises(NotFound):
        load_report(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be read"):
        load_report(tmp_path / "file" / "report.json")


def test_the_report_on_disk_is_the_one_returned(tmp_path):
    report = run(replace(quick_audit(), trials=3), directory=tmp_path)
    assert load_report(tmp_path / "report.json") == report
    assert report.verdict.kind is not VerdictKind.INVALID


def test_a_report_is_read_by_its_folder(tmp_path):
    report = run(replace(quick_audit(), trials=2), directory=tmp_path)
    assert load_report(tmp_path) == report == load_report(tmp_path / "report.json")
    with pytest.raises(BadInput, match="path of a report is None"):
        load_report(None)


@pytest.mark.parametrize(
    ("changes", "said"), [({"study": Audit}, "run takes a study"), ({"watch": 3}, "watch is 3")]
)
def test_what_is_no_study_and_no_watch_is_one_sentence(changes, said):
    with pytest.raises(BadInput, match=said):
        run(**{"study": quick_audit(), **changes})


def test_an_interrupted_study_says_so_once():
    failure = Failure(attack=None, trial=3, message="it was interrupted.", remedy="Rerun it.")
    verdict = stopped_verdict(failure, 3, 8, "units")
    assert verdict is not None
    assert verdict.lede == "The run was interrupted; finished units are kept."


def test_objects_that_hold_each_other_have_digests():
    class Knot:
        def __init__(self):
            self.other = {"knot": self}

    @dataclass(frozen=True)
    class Plan:
        knot: Knot
        trials: int = 1

    one, other = field_digests(Plan(Knot())), field_digests(Plan(Knot(), 2))
    assert one["knot"] == other["knot"]
    assert one["trials"] != other["trials"]
