"""Readers of safetensors: whatever the file, tensors or one sentence, and no memory for a lie."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import pytest
import torch
from mutations import CASES, contents, damaged_safetensors, joined, parted, refused, tried
from torch import nn

from vestige import files as files_room
from vestige.archive import (
    load_captured,
    load_observation,
    load_reconstruction,
    save_observation,
    save_reconstruction,
)
from vestige.bounds import DPSGD
from vestige.cli.user_code import load_model
from vestige.files import read_safetensors, tensor_bytes
from vestige.integrations.captured_steps import (
    CapturedStep,
    load_captured_run,
    write_mechanism,
    write_step,
)
from vestige.interfaces import GradientRelease, Hints, Observation, Reconstruction
from vestige.networks import HeadedModel
from vestige.networks.backbones import BackboneForm, load_backbone, save_backbone
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.simulation.backbone_features import features_of
from vestige.simulation.dp_sgd import ClippedNoise
from vestige.streams import stream
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead
from worlds import draws, released_head

pytestmark = pytest.mark.timeout(600)


def test_more_than_a_thousand_cases_are_tried():
    """Every number here is held against the cases that ran by ``tried``."""
    assert sum(CASES.values()) >= 1000


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=stream(0, "numbers"))


def observation() -> Observation:
    tensors = {"1.weight": numbers(3, 4), "1.bias": numbers(3)}
    return Observation(GradientRelease(tensors), Hints(2, torch.tensor([0, 1])))


@pytest.fixture
def canary(tmp_path):
    """A folder that no reader may change, beside the one that it works in."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def rewritten(path: Path, read):
    """Damage a file, read it, and put it back as it was."""
    whole = path.read_bytes()

    def damage(rng: random.Random) -> object:
        try:
            path.write_bytes(damaged_safetensors(whole, rng))
            return read()
        finally:
            path.write_bytes(whole)

    return damage


def test_observations_and_captured_gradients(tmp_path, canary):
    path = tmp_path / "g.safetensors"
    save_observation(observation(), path)
    tried("observation", rewritten(path, lambda: load_observation(path)))
    tried("captured gradient", rewritten(path, lambda: load_captured(path)))


def test_reconstructions(tmp_path, canary):
    path = tmp_path / "r.safetensors"
    found = Reconstruction(numbers(2, 1, 4, 4), torch.tensor([0, 1]), numbers(2), 0.5)
    save_reconstruction(found, path)
    tried("reconstruction", rewritten(path, lambda: load_reconstruction(path)))


@pytest.mark.parametrize(
    ("labels", "batch"),
    [
        (torch.tensor(1), 1),
        (torch.tensor([0.5]), 1),
        (torch.zeros(0, dtype=torch.int64), 1),
        (torch.zeros((2, 2), dtype=torch.int64), 2),
        (torch.tensor([1]), 0),
        (torch.tensor([1]), -(10**30)),
    ],
)
def test_hints_that_cannot_be_are_refused(tmp_path, labels, batch):
    path = tmp_path / "g.safetensors"
    facts = json.dumps({"kind": "gradient", "batch_size": batch})
    tensors = {"release/w": numbers(2), "hints/labels": labels}
    path.write_bytes(tensor_bytes(tensors, {"vestige-observation": facts}))
    assert refused(lambda: load_observation(path))


def shards(folder: Path) -> HeadShards:
    training = HeadTraining(ClassCounts.balanced(3, 3), epochs=2, learning_rate=0.2)
    victim = ReleasedHead(HeadedModel(nn.Flatten(), 6, 3), training)
    features = torch.randn((12, 6), generator=stream(0, "features")).relu()
    made = HeadFactory(victim.simulator, features, torch.arange(12) % 3)
    return HeadShards(made, 3, heads=4, folder=folder)


def test_shards(tmp_path, canary):
    source = shards(tmp_path / "shards")
    source.shard(0)
    (path,) = (tmp_path / "shards").iterdir()
    tried("shard", rewritten(path, lambda: source.shard(0)))
    tensors, said = read_safetensors(path)
    for name, wrong in (("members", 99), ("targets", -1), ("targets", 3)):
        changed = {n: t.clone() for n, t in tensors.items()}
        changed[name][0, 0] = wrong
        path.write_bytes(tensor_bytes(changed, said))
        assert refused(lambda: source.shard(0)), f"{name} {wrong}"
    for name in tensors:
        changed = tensors | {name: tensors[name].to(torch.complex64)}
        path.write_bytes(tensor_bytes(changed, said))
        assert refused(lambda: source.shard(0)), name


def test_what_only_looks_like_a_leftover_is_left(tmp_path, canary):
    folder = tmp_path / "shards"
    (folder / ".vestige-a.part").mkdir(parents=True)
    (folder / ".vestige-b.part").symlink_to(canary / "mine.txt")
    (folder / ".vestige-c.part").write_bytes(b"half")
    (folder / ".d.part").write_bytes(b"of another program")
    shards(folder)
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == [".d.part", ".vestige-a.part", ".vestige-b.part"]


def test_captured_steps(tmp_path, canary):
    step = CapturedStep(
        1, observation(), {"1.weight": numbers(3, 4)}, ClippedNoise(1.0, 1.0), 0.5, 4.0, "mean"
    )
    folder = tmp_path / "captured"
    folder.mkdir()
    write_step(step, folder)
    write_mechanism(DPSGD(1.0, 0.5, 3, 1.0), folder)
    ways = [
        rewritten(path, lambda: load_captured_run(folder).step(1))
        for path in sorted(folder.glob("*.safetensors"))
    ]
    tried("captured step", lambda rng: rng.choice(ways)(rng))


def test_backbones(tmp_path, canary):
    path = tmp_path / "b.safetensors"
    form = BackboneForm(1, 4, 4, ((2,),), 3)
    save_backbone(path, form, form.build())
    tried("backbone", rewritten(path, lambda: load_backbone(path)))
    header, data = parted(path.read_bytes())
    for claim in (
        {"features": 10**12},
        {"channels": -1},
        {"blocks": [[10**9, 10**9]]},
        {"blocks": [["x"]]},
        {"height": 2.5},
        {"features": 10**400},
        {"foreign": 1},
    ):
        said = json.loads(header["__metadata__"]["form"]) | claim
        path.write_bytes(joined(header | {"__metadata__": {"form": json.dumps(said)}}, data))
        assert refused(lambda: load_backbone(path)), claim
    for name in ("../trained_backbones/x", "/etc/passwd", "..", "x" * 300, "a/b", "\0"):
        assert refused(lambda: load_backbone(name)), name  # noqa: B023


def test_weights_of_a_users_model(tmp_path, canary):
    (tmp_path / "model.py").write_text("from worlds import linear_network as made\n")
    model = load_model(f"{tmp_path / 'model.py'}:made")
    path = tmp_path / "w.safetensors"
    path.write_bytes(tensor_bytes(model.state_dict(), {}))
    tried(
        "model weights",
        rewritten(path, lambda: load_model(f"{tmp_path / 'model.py'}:made", path)),
    )


def test_kept_features_are_computed_again_where_they_are_damaged(tmp_path, canary):
    simulator, records = released_head().simulator, draws(5, 1)
    fresh = features_of(simulator, records)
    folder = tmp_path / "features"
    features_of(simulator, records, folder)
    (path,) = folder.iterdir()
    rewritten_features = rewritten(path, lambda: features_of(simulator, records, folder))
    tried("features", rewritten_features, least_refused=0.0)
    path.write_bytes(tensor_bytes({"features": torch.full_like(fresh, torch.nan)}, {}))
    assert torch.equal(features_of(simulator, records, folder), fresh)
    path.write_bytes(tensor_bytes({"other": fresh}, {}))
    assert torch.equal(features_of(simulator, records, folder), fresh)


def test_a_header_that_is_not_in_the_file(tmp_path):
    path = tmp_path / "bomb.safetensors"
    for length in (9, 2**20, 2**40, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        assert refused(lambda: read_safetensors(path)), length


def test_sizes_are_refused_before_memory_is_taken(tmp_path):
    """The files are sparse: they have the size and take no room."""
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", files_room.MOST_HEADER_BYTES + 1))
        file.truncate(files_room.MOST_HEADER_BYTES + 100)
    with pytest.raises(files_room.BadInput, match="fewer tensors"):
        read_safetensors(path)
    count = files_room.MOST_TENSOR_BYTES // 4
    header = {"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}
    path.write_bytes(joined(header, b""))
    os.truncate(path, path.stat().st_size + 4 * count)
    with pytest.raises(files_room.BadInput, match="are needed"):
        read_safetensors(path)


def test_pipes_devices_and_folders_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, tmp_path / ("x" * 300)):
        assert refused(lambda: read_safetensors(path)), path  # noqa: B023
