"""Disks that are full or read-only, pipes, links, shared folders, leftovers and lost manifests."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_comparisons import plan_of
from torch import nn

from vestige import run
from vestige.defenses import GradientPruning
from vestige.errors import BadInput, Conflict, VestigeError
from vestige.files import make_folder, sweep, write_atomically
from vestige.files.locks import lock_folder
from vestige.networks import HeadedModel
from vestige.networks.backbones import BackboneForm, save_backbone
from vestige.simulation.backbone_features import features_of
from vestige.simulation.gradient import GradientSimulator
from vestige.studies.store import RunFolder
from vestige.threats import HonestServer
from worlds import LabelOnly, draws, sequential, small_audit

pytestmark = pytest.mark.timeout(600)


def audit():
    return small_audit([LabelOnly()], threat=HonestServer(labels=True))


def plan():
    return plan_of(defenses=[GradientPruning(0.5)], trials=3)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A finished comparison and its folder."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    return run(plan(), directory=folder), folder


@pytest.fixture
def place(tmp_path, compared) -> Path:
    """A finished comparison to spoil."""
    return Path(shutil.copytree(compared[1], tmp_path / "out"))


def refuse_writes(monkeypatch, number: int, after: int = 0) -> None:
    """Let the file system refuse to write files, all but the first ones."""
    real, written = os.fsync, []

    def fsync(handle: int) -> None:
        written.append(handle)
        if len(written) > after:
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr("vestige.files.os.fsync", fsync)


def without_times(report) -> dict:
    return report.model_dump(exclude={"findings": {"times"}})


def one_sentence(problem: BaseException) -> str:
    text = str(problem)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize("after", [0, 3, 6])
@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only")]
)
def test_a_comparison_that_cannot_write_loses_nothing(
    tmp_path, compared, monkeypatch, number, said, after
):
    folder = tmp_path / "out"
    refuse_writes(monkeypatch, number, after)
    with pytest.raises(VestigeError) as caught:
        run(plan(), directory=folder)
    assert said in one_sentence(caught.value)
    assert "kept" in str(caught.value) or not after
    assert not list(folder.rglob("*.part"))
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len([path for path in kept if path.name != "lock"]) == after
    monkeypatch.undo()
    again = run(plan(), directory=folder)
    assert again.findings.points == compared[0].findings.points
    assert all(path.read_bytes() == content for path, content in kept.items())


@pytest.fixture
def small(tmp_path):
    """A disk of 32 kB, where one may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_small_disk_is_said_and_a_larger_one_goes_on(small, compared):
    with pytest.raises(VestigeError, match="the disk is full") as caught:
        run(plan(), directory=small / "out")
    assert "are kept" in one_sentence(caught.value)
    assert not list(small.rglob("*.part"))
    kept = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
    assert run(plan(), directory=small / "out").findings.points == compared[0].findings.points
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_features_are_used_where_they_cannot_be_kept(tmp_path, monkeypatch, caplog):
    model = HeadedModel(sequential(nn.Flatten, lambda: nn.Linear(16, 5)), 5, 3)
    simulator, records = GradientSimulator(model), draws(6, 1)
    wanted = features_of(simulator, records)
    refuse_writes(monkeypatch, errno.ENOSPC)
    with caplog.at_level(logging.WARNING, "vestige"):
        found = features_of(simulator, records, tmp_path / "cache")
    assert torch.equal(found, wanted)
    assert "the disk is full" in caplog.text
    monkeypatch.undo()
    features_of(simulator, records, tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    assert torch.equal(features_of(simulator, records, tmp_path / "cache"), wanted)
    assert path.read_bytes() == whole


def test_a_backbone_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    form = BackboneForm(1, 8, 8, ((2,),), 4)
    save_backbone(tmp_path / "b.safetensors", form, form.build())
    before = (tmp_path / "b.safetensors").read_bytes()
    refuse_writes(monkeypatch, errno.EROFS)
    with pytest.raises(VestigeError, match="read-only") as caught:
        save_backbone(tmp_path / "b.safetensors", form, form.build(seed=1))
    one_sentence(caught.value)
    assert (tmp_path / "b.safetensors").read_bytes() == before


def test_pipes_in_place_of_files_are_not_waited_for(place):
    kept = sorted((place / "units").iterdir())[0]
    whole = kept.read_bytes()
    kept.unlink()
    os.mkfifo(kept)
    with pytest.raises(BadInput, match=r"000000\.safetensors is damaged: delete this file"):
        run(plan(), directory=place)
    kept.unlink()
    kept.write_bytes(whole)
    manifest = place / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(VestigeError):
        RunFolder(place).check_units()
    (place / "lock").unlink()
    os.mkfifo(place / "lock")
    with pytest.raises(Conflict, match="lock is a pipe or a device"):
        run(plan(), directory=place)


@pytest.mark.parametrize("name", ["units", "lock"])
def test_links_do_not_lead_out_of_a_comparison(place, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    link = place / name
    if link.is_dir():
        shutil.rmtree(link)
    else:
        link.unlink()
    link.symlink_to(outside if name != "lock" else outside / "new")
    with pytest.raises(Conflict, match="is a link to another place"):
        run(plan(), directory=place)
    assert [path.name for path in outside.iterdir()] == ["mine"]


def test_one_process_at_a_time_compares(place):
    with lock_folder(place), pytest.raises(Conflict, match="Another process is working"):
        run(plan(), directory=place)


def test_an_edited_unit_is_not_believed(place, compared):
    """A report is made from units, which count only if they are what was written."""
    held = json.loads((place / "report.json").read_text())
    held["findings"]["points"][0]["cells"][0]["protection"]["value"] = 1e-9
    (place / "report.json").write_text(json.dumps(held))
    assert run(plan(), directory=place).findings.points == compared[0].findings.points
    first = place / "units" / "000004.safetensors"  # four trainings come before the trials
    whole = first.read_bytes()
    first.write_bytes(whole.replace(b'\\"rank\\":', b'\\"rank\\" ', 1))
    with pytest.raises(BadInput, match=r"000004\.safetensors is damaged"):
        run(plan(), directory=place)
    first.write_bytes((place / "units" / "000005.safetensors").read_bytes())
    with pytest.raises(BadInput, match=r"000004\.safetensors is damaged"):
        run(plan(), directory=place)
    first.write_bytes(whole)
    assert run(plan(), directory=place).findings.points == compared[0].findings.points


def test_a_shared_folder_stays_shared(tmp_path):
    tmp_path.chmod(0o755)
    run(replace(audit(), trials=2), directory=tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    for path in tmp_path.rglob("*"):
        mode = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == mode, path


def test_new_folders_are_private_with_their_parents(tmp_path):
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        assert make_folder(tmp_path / "a" / "b")
        assert not make_folder(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_only_own_and_abandoned_leftovers_are_swept(tmp_path):
    for name in (".download.part", ".vestige-old.part", ".vestige-live.part"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / ".vestige-folder.part").mkdir()
    (tmp_path / ".vestige-link.part").symlink_to(tmp_path / ".download.part")
    os.mkfifo(tmp_path / ".vestige-pipe.part")
    living = os.open(tmp_path / ".vestige-live.part", os.O_RDWR)
    fcntl.flock(living, fcntl.LOCK_EX)
    everything = {path.name for path in tmp_path.iterdir()}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == everything - {".vestige-old.part"}
    os.close(living)
    sweep(tmp_path)
    assert not (tmp_path / ".vestige-live.part").exists()


def test_a_file_that_is_being_written_is_not_swept(tmp_path, monkeypatch):
    real = os.fsync

    def sweeping(handle: int) -> None:
        sweep(tmp_path)
        real(handle)

    monkeypatch.setattr("vestige.files.os.fsync", sweeping)
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    "lose",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:30]),
        lambda path: path.write_text(path.read_text().replace('"units": 3', '"units": 4')),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_lost_manifest_is_known_again_by_the_trials(tmp_path, lose):
    folder = tmp_path / "run"
    whole = run(replace(audit(), trials=3), directory=folder)
    manifest = (folder / "manifest.json").read_bytes()
    trials = {p: p.stat().st_mtime_ns for p in (folder / "units").iterdir()}
    lose(folder / "manifest.json")
    with pytest.raises(VestigeError):
        run(replace(audit(), trials=3), seed=5, directory=folder)
    again = run(replace(audit(), trials=3), directory=folder)
    assert without_times(again) == without_times(whole)
    assert (folder / "manifest.json").read_bytes() == manifest
    assert {p: p.stat().st_mtime_ns for p in (folder / "units").iterdir()} == trials
