"""Shards of shadow heads: resumed, streamed, refused where they are not one's own."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from vestige.errors import BadInput, Conflict, VestigeError
from vestige.networks import HeadedModel
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.streams import stream
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

TRAINING = HeadTraining(ClassCounts.balanced(3, 9), epochs=7, learning_rate=0.2)


def shards(folder: Path | None, seed: int = 3, **changes) -> HeadShards:
    victim = ReleasedHead(HeadedModel(nn.Flatten(), 14, 3), replace(TRAINING, **changes))
    features = torch.randn((90, 14), generator=stream(0, "features")).relu()
    made = HeadFactory(victim.simulator, features, torch.arange(90) % 3)
    return HeadShards(made, seed, heads=20, folder=folder)


def test_shards_go_on_after_a_kill_and_come_in_any_order(tmp_path):
    fresh = [shard.weights for shard in shards(None).stream(70)]
    assert [len(weights) for weights in fresh] == [20, 20, 20, 10]
    kept = shards(tmp_path)
    assert torch.equal(kept.shard(2).weights, fresh[2])
    (tmp_path / ".vestige-shard.part").write_bytes(b"half a file")
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("heads-*")}
    again = list(shards(tmp_path).stream(70))
    assert torch.equal(torch.cat([s.weights for s in again]), torch.cat(fresh))
    assert torch.equal(again[1].sets.members, shards(None).shard(1).sets.members)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert sorted(path.name[-12:] for path in tmp_path.iterdir()) == [".safetensors"] * 4
    assert not torch.equal(fresh[0], fresh[1])


def test_a_stream_holds_one_shard_at_a_time(tmp_path):
    for source in (shards(None), shards(tmp_path)):
        seen: list[weakref.ref] = []
        for shard in source.stream(200):
            seen.append(weakref.ref(shard.weights))
            del shard
            assert sum(one() is not None for one in seen) <= 1
        assert len(seen) == 10


def test_folders_of_others_are_refused(tmp_path):
    shards(tmp_path).shard(0)
    for other in (lambda: shards(tmp_path, seed=4), lambda: shards(tmp_path, epochs=8)):
        with pytest.raises(Conflict, match="another folder"):
            other()
    (path,) = tmp_path.iterdir()
    path.rename(path.with_name(path.name.replace("000000", "000001")))
    with pytest.raises(Conflict, match="delete it"):
        shards(tmp_path).shard(1)
    (tmp_path / "notes.txt").write_text("mine")
    assert len(shards(tmp_path).shard(0)) == 20


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=200), cut=st.integers(0, 4000))
def test_damaged_shards_are_refused_in_a_sentence(tmp_path, content, cut):
    one = shards(tmp_path)
    for old in tmp_path.iterdir():
        old.unlink()
    one.shard(0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + content)
    with pytest.raises(VestigeError, match=r"\.$"):
        one.shard(0)


def test_shards_that_cannot_be_are_refused():
    with pytest.raises(BadInput, match="at least one head"):
        replace(shards(None), heads=0)
    with pytest.raises(BadInput, match="counted from 0"):
        shards(None).shard(-1)
