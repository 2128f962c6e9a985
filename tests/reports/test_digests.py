"""Digests: a flipped byte, an edited number, a foreign trial or other code is noticed and said."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_comparisons import plan_of
from test_head_shards import shards

from pages.comparison_worlds import comparison
from pages.noise_studies import noise
from pages.studies import heads
from vestige import run
from vestige.cli.app import main
from vestige.cli.user_code import load_plan
from vestige.content import add_digest, code_digest, document_bytes, is_unchanged
from vestige.errors import BadInput, Conflict, VestigeError
from vestige.files import tensor_bytes
from vestige.networks.backbones import BackboneForm, load_backbone, save_backbone
from vestige.reports.files import load_report
from vestige.reports.parts import CheckOutcome
from vestige.threats import HonestServer
from worlds import LabelOnly, small_audit


def audit():
    return small_audit([LabelOnly()], threat=HonestServer(labels=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digests") / "run"
    run(replace(audit(), trials=3), directory=folder)
    return folder


@pytest.fixture
def place(tmp_path, finished) -> Path:
    """A finished run to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flipped(content: bytes, number: int) -> bytes:
    """Content with one bit of one byte changed."""
    rng = random.Random(number)
    spot = rng.randrange(len(content))
    return content[:spot] + bytes([content[spot] ^ 1 << rng.randrange(7)]) + content[spot + 1 :]


def plain(value: object) -> object:
    """A naive canonical form: 1.0 is 1."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return int(value) if isinstance(value, float) and value == int(value) else value


def test_the_digest_is_what_the_documents_say(finished):
    held = json.loads((finished / "report.json").read_text())
    stated = held.pop("digest")
    text = json.dumps(plain(held), sort_keys=True, separators=(",", ":"))
    assert stated == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_of_tensors_by_hand(tmp_path):
    content = add_digest(tensor_bytes({"b": torch.arange(3.0), "a": torch.ones(2)}, {"who": "ω"}))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    stated = header["__metadata__"].pop("digest")
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    assert stated == hashlib.sha256(text + content[8 + length :]).hexdigest()
    (tmp_path / "a.safetensors").write_bytes(content)
    assert is_unchanged(tmp_path / "a.safetensors")


@pytest.mark.parametrize("number", range(40))
def test_a_flipped_bit_of_a_record_is_noticed(place, number):
    path = place / "report.json"
    path.write_bytes(flipped(path.read_bytes(), number))
    with pytest.raises(VestigeError):
        load_report(path)


def test_an_edited_rank_is_noticed_and_a_new_layout_is_not(place, monkeypatch, capsys):
    path = place / "report.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(plain(held)))
    assert load_report(path).findings.trials_finished == 3
    held["findings"]["attacks"][0]["outcomes"][1]["rank"] += 1
    path.write_text(json.dumps(held))
    with pytest.raises(BadInput, match="was changed after it was written"):
        load_report(path)
    monkeypatch.setattr(sys, "argv", ["vestige", "report", str(place)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "was changed after it was written" in capsys.readouterr().err


@pytest.mark.parametrize("build", [heads, noise, comparison])
def test_an_edited_study_is_noticed(tmp_path, build):
    study = build()
    path = tmp_path / "study.json"
    path.write_bytes(document_bytes(study))
    assert load_report(path) == study
    held = json.loads(path.read_text())
    held.get("findings", held)["title"] += "!"
    path.write_text(json.dumps(held))
    with pytest.raises(BadInput, match="was changed after it was written"):
        load_report(path)


@pytest.mark.parametrize("number", range(30))
def test_a_flipped_bit_of_a_trial_is_noticed(place, number, monkeypatch, capsys):
    path = place / "units" / "000001.safetensors"
    path.write_bytes(flipped(path.read_bytes(), number))
    with pytest.raises(BadInput, match=r"000001\.safetensors is damaged"):
        run(replace(audit(), trials=3), directory=place)
    monkeypatch.setattr(sys, "argv", ["vestige", "report", str(place)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "000001.safetensors is damaged" in capsys.readouterr().err


def test_a_trial_of_another_run_is_noticed(place, tmp_path):
    run(replace(audit(), trials=3), seed=1, directory=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "units" / "000001.safetensors", place / "units")
    with pytest.raises(Conflict, match="belongs to another run"):
        run(replace(audit(), trials=3), directory=place)


def test_another_version_is_refused(place, monkeypatch):
    monkeypatch.setattr("vestige.studies.store.__version__", "99.0")
    with pytest.raises(Conflict, match=r"started with Vestige '0\.1\.0', this is 99\.0"):
        run(replace(audit(), trials=3), directory=place)


OWN = """from worlds import LabelOnly, small_audit
from vestige.threats import HonestServer

class Own(LabelOnly):
    value = 1

audit = small_audit([Own()], threat=HonestServer(labels=True))
"""


def test_other_code_of_an_attack_is_refused_and_comments_are_not(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    run(replace(load_plan(file), trials=2), directory=tmp_path / "run")
    file.write_text("# a remark\n\n" + OWN)
    again = run(replace(load_plan(file), trials=2), directory=tmp_path / "run")
    assert again.findings.trials_finished == 2
    file.write_text(OWN.replace("value = 1", "value = 2"))
    with pytest.raises(Conflict, match="The code of Label only was changed after units"):
        run(replace(load_plan(file), trials=2), directory=tmp_path / "run")


def test_parts_of_an_attack_count_as_its_code():
    from vestige.attacks import DeepLeakage, InvertingGradients
    from vestige.attacks.best_of_restarts import BestOfRestarts

    one, other = (BestOfRestarts(a) for a in (DeepLeakage(), InvertingGradients()))
    assert code_digest(one) != code_digest(other)
    assert code_digest(one) == code_digest(BestOfRestarts(DeepLeakage()))


def test_other_versions_of_python_are_recorded_and_remarked(place, monkeypatch):
    before = load_report(place / "report.json")
    assert not any("version" in check.sentence for check in before.judgement.checks)
    (place / "units" / "000001.safetensors").unlink()
    monkeypatch.setattr("vestige.content.platform.python_version", lambda: "3.99.1")
    report = run(replace(audit(), trials=3), directory=place)
    (remark,) = [check for check in report.judgement.checks if "version" in check.sentence]
    assert remark.outcome is CheckOutcome.REMARK
    assert "1 with Python 3.99.1, torch" in remark.sentence
    assert "2 with Python 3." in remark.sentence
    assert report.verdict == before.verdict


def test_an_edited_training_is_noticed(tmp_path):
    plan = plan_of(trials=2)
    first = run(plan, directory=tmp_path)
    one, other = sorted((tmp_path / "units").iterdir())[:2]
    whole = one.read_bytes()
    edited = re.sub(rb'(accuracy\\\\*":)0\.\d', rb"\g<1>0.9", whole)
    assert len(edited) == len(whole)
    assert edited != whole
    for content in (edited, other.read_bytes()):
        one.write_bytes(content)
        with pytest.raises(BadInput, match=r"000000\.safetensors is damaged"):
            run(plan, directory=tmp_path)
    one.write_bytes(whole)
    assert run(plan, directory=tmp_path).findings.points == first.findings.points


def test_a_changed_weight_of_a_shard_is_noticed(tmp_path):
    shards(tmp_path).shard(0)
    (path,) = tmp_path.glob("heads-*")
    content = path.read_bytes()
    path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    with pytest.raises(Conflict, match="delete it, and it is made again"):
        shards(tmp_path).shard(0)


def test_a_changed_weight_of_a_backbone_is_noticed(tmp_path):
    form = BackboneForm(1, 8, 8, ((2,),), 4)
    path = tmp_path / "backbone.safetensors"
    save_backbone(path, form, form.build())
    assert load_backbone(path)[1] == form
    content = path.read_bytes()
    path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    with pytest.raises(BadInput, match="was changed after it was written"):
        load_backbone(path)


def test_a_record_of_a_run_without_its_digest_is_refused(place):
    path = place / "report.json"
    held = json.loads(path.read_text())
    del held["digest"]
    held["findings"]["attacks"][0]["outcomes"][0]["rank"] = 1
    path.write_text(json.dumps(held))
    with pytest.raises(BadInput, match="lost its digest"):
        load_report(path)


def test_code_beside_an_attack_counts(tmp_path, monkeypatch):
    """A module that the attack's file imports from its own folder, and the file of a base class."""
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for number, (shift, base) in enumerate([(0, 0), (1, 0), (0, 1), (0, 0)]):
        names = [f"{kind}_{number}" for kind in ("shift", "base", "attack")]
        (tmp_path / f"{names[0]}.py").write_text(f"def shift():\n    return {shift}\n")
        (tmp_path / f"{names[1]}.py").write_text(f"class Base:\n    level = {base}\n")
        (tmp_path / f"{names[2]}.py").write_text(
            "import importlib\n"
            "mine = importlib.import_module(__name__.replace('attack', 'shift'))\n"
            "Base = importlib.import_module(__name__.replace('attack', 'base')).Base\n"
            "class Own(Base):\n    def __call__(self):\n        return mine.shift()\n"
        )
        digests.append(code_digest(importlib.import_module(names[2]).Own()))
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3
