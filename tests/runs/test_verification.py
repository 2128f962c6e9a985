"""Verification: every changed byte, file and swap of a run of every kind is found and said."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles import examples
from run_worlds import STUDIES, audit, run_folder
from vestige import load_report, run, save_page
from vestige.cli.app import main
from vestige.content import add_digest, document_bytes, mapping_bytes
from vestige.errors import NotFound
from vestige.reports.parts import VerdictKind
from vestige.runs.csv_tables import write_tables
from vestige.runs.hand_over import write_redacted
from vestige.runs.summaries import summaries
from vestige.runs.verification import verify
from vestige.studies.judge import report_on
from vestige.studies.run_digests import (
    counted_files,
    file_digest,
    list_page,
    read_digests,
    write_digests,
)

COUNTED = ("report.json", "page.html", "manifest.json", "digests.json")
KINDS = list(STUDIES)


class Folders(dict[str, Path]):
    """Finished runs by kind, each made when it is first asked for."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.base = base

    def __missing__(self, kind: str) -> Path:
        self[kind] = run_folder(kind, self.base / kind)
        return self[kind]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Folders:
    return Folders(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def place(tmp_path, folders) -> Path:
    """A finished audit to spoil."""
    return Path(shutil.copytree(folders["audit"], tmp_path / "run"))


def said(folder: Path, **options) -> str:
    found = verify(folder, **options)
    assert not found.verified
    for sentence in found.differences:
        assert sentence.endswith(".")
        assert "\n" not in sentence
    return " ".join(found.differences)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_untouched_run_verifies_with_and_without_its_plan(folders, kind):
    found = verify(folders[kind])
    assert found.verified, found.differences
    assert any("byte for byte" in one for one in found.confirmed)
    whole = verify(folders[kind], plan=STUDIES[kind]())
    assert whole.verified, whole.differences
    assert "All findings are those of the plan and the units." in whole.confirmed


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_changed_byte_is_found(folders, kind, data):
    folder = folders[kind]
    units = [f"units/{path.name}" for path in sorted((folder / "units").iterdir())]
    path = folder / data.draw(st.sampled_from([*COUNTED, *units]))
    before = path.read_bytes()
    spot = data.draw(st.integers(0, len(before) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != before[spot]))
    try:
        path.write_bytes(before[:spot] + bytes([value]) + before[spot + 1 :])
        found = verify(folder)
    finally:
        path.write_bytes(before)
    assert not found.verified, (path.name, spot, value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_added_and_a_cut_byte_are_found(folders, kind):
    for name in (*COUNTED, "units/000000.safetensors"):
        path = folders[kind] / name
        before = path.read_bytes()
        for content in (before + b" ", before[:-1], b"", b" " + before):
            path.write_bytes(content)
            found = verify(folders[kind])
            path.write_bytes(before)
            assert not found.verified, name
    assert verify(folders[kind]).verified


def test_digests_are_those_of_the_files(place):
    stated = read_digests(place)
    assert sorted(stated) == counted_files(place)
    for name, digest in stated.items():
        assert digest == hashlib.sha256((place / name).read_bytes()).hexdigest()
        assert digest == file_digest(place / name)


@pytest.mark.parametrize(
    "name", ["report.json", "manifest.json", "digests.json", "units/000001.safetensors"]
)
def test_a_missing_file_is_named(place, name):
    (place / name).unlink()
    assert name.removeprefix("units/") in said(place)


def test_a_missing_page_is_no_difference(place):
    (place / "page.html").unlink()
    found = verify(place)
    assert found.verified
    assert "There is no page.html to compare." in found.open


def test_a_page_that_digests_list_must_be_there(place, tmp_path):
    """Commands list the page that they write; a folder to hand over lists its own."""
    handed = write_redacted(load_report(place), tmp_path / "handed")
    list_page(place)
    for folder in (place, handed):
        assert "page.html" in read_digests(folder)
        assert verify(folder).verified
        (folder / "page.html").unlink()
        assert said(folder) == "page.html is missing; digests.json lists it."


def test_listing_the_page_leaves_other_digests_as_they_are(place):
    before = read_digests(place)
    (place / "report.json").write_bytes((place / "report.json").read_bytes() + b" ")
    list_page(place)
    assert {**before, "page.html": file_digest(place / "page.html")} == read_digests(place)
    assert "report.json was changed" in said(place)
    (place / "digests.json").write_text("{")
    list_page(place)
    assert (place / "digests.json").read_text() == "{"


@pytest.mark.parametrize("content", [b"x", b"\n"])
def test_a_lock_is_empty(place, content):
    (place / "lock").write_bytes(content)
    assert said(place) == "lock is not the empty file that a run has."


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path, monkeypatch, capsys):
    for name in ("a.txt", "b.csv", "lock"):
        (tmp_path / name).write_text("more")
    with pytest.raises(NotFound, match="is no run folder: give the folder that a study wrote"):
        verify(tmp_path)
    assert command(monkeypatch, "verify", str(tmp_path)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("name", ["notes.txt", "units/000009.safetensors", "units/x", ".hidden"])
def test_an_extra_file_is_named(place, name):
    (place / name).write_bytes(b"more")
    assert name.split("/")[-1].removesuffix(".safetensors").lstrip("0") in said(place)


def test_an_extra_unit_with_new_digests_is_named(place):
    shutil.copy(place / "units" / "000001.safetensors", place / "units" / "000003.safetensors")
    write_digests(place)
    assert "000003.safetensors is damaged" in said(place)


def test_a_nested_run_is_a_run_of_its_own(place):
    shutil.copytree(place, place / "heads")
    found = verify(place)
    assert found.verified
    assert "heads is a run of its own: verify it by itself." in found.open


def test_a_folder_with_a_file_called_manifest_is_no_run(place):
    (place / "more").mkdir()
    (place / "more" / "manifest.json").write_text("garbage")
    assert "more is no file of a run." in said(place)


@pytest.mark.parametrize("name", ["report.json", "units/000000.safetensors", "units", "page.html"])
def test_a_link_is_a_difference(place, tmp_path, name):
    os.rename(place / name, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", place / name)
    assert "is a link" in said(place)


def test_swapped_units_are_found_even_with_new_digests(place):
    one, other = (place / "units" / f"00000{n}.safetensors" for n in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    assert "000000.safetensors was changed" in said(place)
    write_digests(place)
    assert "000000.safetensors is damaged" in said(place)


def test_a_unit_of_another_run_is_found_even_with_new_digests(place, tmp_path):
    run(audit(), seed=1, directory=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "units" / "000001.safetensors", place / "units")
    write_digests(place)
    assert "belongs to another run" in said(place)


def with_body(path: Path, change) -> None:
    """Rewrite what a unit says, with a new digest, as a careful forger would."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["body"] = change(header["__metadata__"]["body"])
    del header["__metadata__"]["digest"]
    text = json.dumps(header).encode()
    path.write_bytes(add_digest(len(text).to_bytes(8, "little") + text + content[8 + length :]))


def forged_rank(body: str) -> str:
    held = json.loads(body)
    next(iter(held["outcomes"].values()))["rank"] += 1
    return json.dumps(held)


def test_a_forged_unit_with_new_digests_contradicts_the_report(place):
    with_body(place / "units" / "000001.safetensors", forged_rank)
    write_digests(place)
    assert "in trial 2 the rank is" in said(place)


def forged(place: Path, change) -> None:
    """Rewrite the report and the page, and all digests."""
    report = change(load_report(place))
    (place / "report.json").write_bytes(document_bytes(report))
    save_page(report, place / "page.html")
    write_digests(place)


def test_a_forged_verdict_with_new_digests_contradicts_the_findings(place):
    def change(report):
        verdict = report.verdict.model_copy(update={"kind": VerdictKind.DEMONSTRATED})
        judgement = report.judgement.model_copy(update={"verdict": verdict})
        return type(report).model_validate(
            {**report.model_dump(), "judgement": judgement.model_dump()}
        )

    forged(place, change)
    assert "it says DEMONSTRATED, they give NOT DEMONSTRATED" in said(place)


def test_forged_findings_with_new_judgement_contradict_the_units(place):
    def change(report):
        first, *rest = report.findings.attacks
        outcomes = tuple(one.model_copy(update={"rank": 1}) for one in first.outcomes)
        changed = (first.model_copy(update={"outcomes": outcomes}), *rest)
        return report_on(report.findings.model_copy(update={"attacks": changed}))

    forged(place, change)
    assert "report.json and the units differ about" in said(place)


def test_forged_settings_contradict_the_plan_alone(place):
    def change(report):
        return report_on(report.findings.model_copy(update={"settings": {"Model": "another"}}))

    forged(place, change)
    assert verify(place).verified  # what the plan alone knows is said to be open
    assert any("settings" in one for one in verify(place).open)
    assert "in settings" in said(place, plan=audit())
    assert "another study" in said(place, plan=audit(batch_size=2))


def test_another_version_is_said(place):
    def change(report):
        environment = {**report.findings.environment, "Vestige": "99.0"}
        return report_on(report.findings.model_copy(update={"environment": environment}))

    forged(place, change)
    (place / "page.html").write_bytes(b"of another version")
    assert "Vestige 99.0 wrote it" in said(place)


def test_a_redacted_page_verifies_and_stays_redacted(place):
    save_page(load_report(place), place / "page.html", redact=True)
    found = verify(place)
    assert found.verified
    assert "page.html is what report.json gives, redacted, byte for byte." in found.confirmed


def test_a_redacted_report_alone_verifies_as_far_as_it_goes(tmp_path, folders):
    for kind in ("audit", "noise study", "inversion"):
        folder = tmp_path / kind
        folder.mkdir()
        report = load_report(folders[kind]).without_secrets()
        (folder / "report.json").write_bytes(document_bytes(report))
        save_page(report, folder / "page.html")
        write_digests(folder)
        found = verify(folder)
        assert found.verified, found.differences
        assert any("not reached again" in one for one in found.open)
        assert any("no units to compare" in one for one in found.open)
        content = (folder / "report.json").read_bytes()
        (folder / "report.json").write_bytes(
            content.replace(b'"redacted": true', b'"redacted":true')
        )
        assert "report.json was changed" in said(folder)


@pytest.mark.parametrize("words", [(), ("--redact",)])
def test_an_annex_beside_the_report_verifies_until_it_is_changed(place, monkeypatch, words):
    assert command(monkeypatch, "annex", str(place), *words) == 0
    found = verify(place)
    assert found.verified, found.differences
    assert "annex.md is what report.json gives, byte for byte." in found.confirmed
    assert "annex.json is what report.json gives, byte for byte." in found.confirmed
    for name in ("annex.md", "annex.json"):
        content = (place / name).read_bytes()
        (place / name).write_bytes(content.replace(b"1", b"2", 1))
        assert f"{name} is not what report.json gives" in said(place)
        (place / name).write_bytes(content)


def test_a_forged_rank_of_a_single_record_contradicts_the_report(tmp_path, folders):
    place = Path(shutil.copytree(folders["record risk"], tmp_path / "run"))

    def forge(body: str) -> str:
        held = json.loads(body)
        ranks = held["ranks"]
        # What was a hit is none now, and what was none is one.
        held["ranks"] = {name: 1 if rank > 1 else 10_000 for name, rank in ranks.items()}
        return json.dumps(held)

    with_body(place / "units" / "000001.safetensors", forge)
    write_digests(place)
    assert "report.json and the units differ: hits of record" in said(place)


def test_a_forged_rate_of_a_seed_contradicts_the_units(tmp_path, folders):
    place = Path(shutil.copytree(folders["repeated audit"], tmp_path / "run"))

    def change(report):
        first, second = report.findings.runs
        rates = {n: r.model_copy(update={"upper": r.upper * 0.9}) for n, r in second.rates.items()}
        runs = (first, second.model_copy(update={"rates": rates}))
        return report_on(report.findings.model_copy(update={"runs": runs}))

    forged(place, change)
    assert "differ about repetition 2" in said(place)
    assert "in runs" in said(place, plan=STUDIES["repeated audit"]())


def test_a_plan_is_that_of_the_file_whatever_its_size_and_repetitions(folders):
    """``--trials`` and ``--repeat`` are options of the command and not in the file."""
    extended = verify(folders["extended audit"], plan=audit(2))
    assert extended.verified, extended.differences
    assert load_report(folders["extended audit"]).findings.earlier_trials == (2,)
    repeated = STUDIES["repeated audit"]()
    plain = replace(repeated.audit, trials=7)
    assert "in release_context" in said(folders["repeated audit"], plan=plain)
    assert "another study" in said(folders["repeated audit"], plan=audit(batch_size=2))


def test_what_a_study_declares_is_that_of_the_plan(tmp_path):
    plan = replace(audit(), release_context="partners", previous="ab" * 32)
    run(plan, directory=tmp_path / "run")
    whole = verify(tmp_path / "run", plan=plan)
    assert whole.verified, whole.differences
    assert "in release_context, previous" in said(tmp_path / "run", plan=audit())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed_exported_and_handed_over(folders, kind, tmp_path):
    base, report = folders[kind].parent, load_report(folders[kind])
    line = next(one for one in summaries(base) if one.folder == kind)
    assert (line.kind, line.verdict, line.problem) == (report.kind, report.verdict.kind.value, "")
    assert bool(line.model) is (kind != "noise study")
    assert line.model == report.findings.digests.get("model", "")
    assert bool(line.data) is (kind != "inversion")
    assert line.data == report.findings.digests.get("data", "")
    assert line.page
    assert len(write_tables(report, tmp_path / "csv")) > 3
    folder = write_redacted(report, tmp_path / "redacted")
    found = verify(folder)
    assert found.verified, found.differences
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    for name in ("data", "prior"):
        digest = report.findings.digests.get(name)
        assert digest is None or digest.encode() not in written
    for name in {"model"} & set(report.findings.digests):
        assert report.findings.digests[name].encode() in written


def test_an_unredacted_report_without_units_does_not_verify(place):
    shutil.rmtree(place / "units")
    (place / "manifest.json").unlink()
    write_digests(place)
    assert "manifest.json is missing" in said(place)


def test_an_unfinished_run_verifies(tmp_path):
    counted = []

    def stop(where) -> bool:
        counted.append(where)
        return where.done >= 2

    run(audit(), directory=tmp_path / "run", watch=stop)
    assert (tmp_path / "run" / "unfinished.json").exists()
    assert verify(tmp_path / "run").verified
    (tmp_path / "run" / "unfinished.json").write_bytes(mapping_bytes({"units": [1, 2]}))
    assert not verify(tmp_path / "run").verified


def test_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(NotFound, match="is no folder"):
        verify(tmp_path / "nothing")


def command(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["vestige", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_the_command_exits_with_0_or_4(place, monkeypatch, capsys):
    assert command(monkeypatch, "verify", str(place)) == 0
    assert "VERIFIED" in capsys.readouterr().out
    path = place / "units" / "000002.safetensors"
    content = bytearray(path.read_bytes())
    content[random.Random(0).randrange(len(content))] ^= 1
    path.write_bytes(content)
    assert command(monkeypatch, "verify", str(place)) == 4
    out = capsys.readouterr().out
    assert "differs: units/000002.safetensors was changed" in out
    assert "DOES NOT VERIFY" in out
    assert command(monkeypatch, "verify", str(place), "--identity", "me") == 2
