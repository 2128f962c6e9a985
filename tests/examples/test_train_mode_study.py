"""The study of batch norm in examples/ runs small, on bundled data."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from vestige import Prior
from vestige.attacks.gradient_matching.batch_norm import inferred_statistics
from vestige.interfaces import Run
from vestige.networks import resnet
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import SPACE, draws

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("train_mode_study", "train_mode_knowledge")
SMALL = ("--width", "2", "--trials", "2", "--iterations", "2", "--steps", "2")


@pytest.fixture
def study(monkeypatch, tmp_path):
    # No data but the bundled one.
    monkeypatch.setenv("VESTIGE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module(NAMES[0])
    for name in NAMES:
        sys.modules.pop(name, None)


def rows(printed: str, network: str) -> list[tuple[str, ...]]:
    """Phase, mode, batch and knowledge of every row of a network."""
    lines = [line.split() for line in printed.splitlines() if line.startswith(network + " ")]
    return [tuple(line[1:5]) for line in lines]


@pytest.mark.slow
def test_every_cell_has_a_row_or_a_reason(study, capsys):
    study.main([*SMALL, "--networks", "resnet8", "convnet", "--batches", "2"])
    printed = capsys.readouterr().out
    assert "digits of scikit-learn are used" in printed
    found = rows(printed, "resnet8")
    assert len(found) == len(set(found)) == 12
    for phase in ("initial", "trained"):
        assert {row[1:] for row in found if row[0] == phase} == {
            ("eval", "2", "nothing"),
            ("eval", "2", "proxy"),
            ("eval", "2", "told"),
            ("train", "2", "nothing"),
            ("train", "2", "inferred"),
            ("train", "2", "proxy"),
        }
    assert rows(printed, "convnet") == [
        ("initial", "eval", "2", "nothing"),
        ("trained", "eval", "2", "nothing"),
    ]
    for reason in ("carries no buffers", "equal to inferred", "equal to eval", "no statistics"):
        assert f"{reason}: " in printed
    assert "train over eval        resnet8-initial-train-2-nothing" in printed


def test_train_mode_refuses_one_value_per_channel(study, capsys):
    words = ["--networks", "resnet18", "--batches", "1", "--modes", "train", "--phases", "initial"]
    study.main([*SMALL, *words, "--knowledge", "nothing"])
    printed = capsys.readouterr().out
    assert "Batch norm cannot train on a single record" in printed
    assert rows(printed, "resnet18") == []


def test_cells_are_left_out_when_the_minutes_are_over(study, capsys):
    study.main([*SMALL, "--networks", "convnet", "--minutes", "1e-9"])
    assert "left out: 16 cells" in capsys.readouterr().out


def test_told_statistics_are_those_of_the_secret(study):
    victim = SharedGradient(resnet(SPACE, width=2).double())
    secret = draws(4, 0)
    release = victim.release(secret, generator=stream(0))
    server = study.StatisticsServer(HonestServer(labels=True), victim.simulator)
    seen = server.observe(Run(secret, release))
    told = inferred_statistics(victim.simulator, seen.release.buffers)
    # In train mode the client's own buffers say the same.
    read = inferred_statistics(victim.simulator, release.buffers)
    assert told.keys() == read.keys()
    for name, pair in read.items():
        assert all(torch.allclose(mine, own, atol=1e-9) for mine, own in zip(told[name], pair))
    assert "statistics of the batch" in server.briefing(victim, 4).told


def test_proxies_never_see_the_secret(study):
    victim = SharedGradient(resnet(SPACE, width=2), mode="eval")
    server = HonestServer(labels=True)
    attack = study.ProxyStatistics(
        study.InvertingGradients(iterations=2, batch_norm_weight=1.0, polish=0.0)
    )
    public = server.public(victim, Prior(draws(30, 1)))
    reconstruct = attack.prepare(public, generator=stream(0))
    plain = study.InvertingGradients(iterations=2, polish=0.0).prepare(public, generator=stream(0))
    secret = draws(3, 0)
    seen = server.observe(Run(secret, victim.release(secret, generator=stream(0))))
    assert dict(seen.release.buffers) == {}
    found, without = (one(seen, stream(1)).candidates for one in (reconstruct, plain))
    assert found.isfinite().all()
    assert not torch.equal(found, without)
