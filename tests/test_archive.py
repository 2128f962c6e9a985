"""Observations and reconstructions on disk."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_file

from vestige.archive import (
    load_captured,
    load_observation,
    load_reconstruction,
    save_observation,
    save_reconstruction,
)
from vestige.errors import BadInput, NotFound, VestigeError
from vestige.interfaces import (
    GradientRelease,
    Hints,
    Observation,
    Reconstruction,
    UpdateRelease,
)

TENSORS = {
    "0.weight": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
    "release/0.bias": torch.tensor([math.nan, math.inf]),
    "half": torch.ones(2, dtype=torch.float16),
    "scalar": torch.tensor(3.0),
}
BUFFERS = {"bn.num_batches_tracked": torch.tensor(7), "bn.running_mean": torch.zeros(0)}


def equal(left, right) -> bool:
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype
        and left[n].shape == right[n].shape
        and torch.equal(left[n].nan_to_num(), right[n].nan_to_num())
        for n in left
    )


@pytest.mark.parametrize("kind", [GradientRelease, UpdateRelease])
@pytest.mark.parametrize("buffers", [{}, BUFFERS])
@pytest.mark.parametrize("hints", [Hints(), Hints(2), Hints(2, torch.tensor([3, 1]))])
def test_an_observation_comes_back(tmp_path, kind, buffers, hints):
    path = tmp_path / "seen.safetensors"
    save_observation(Observation(kind(TENSORS, buffers), hints), path)
    assert path.stat().st_mode & 0o777 == 0o600
    for found in (load_observation(path), load_captured(path), load_captured(path, update=True)):
        assert type(found.release) is kind
        assert equal(found.release.tensors, TENSORS)
        assert equal(found.release.buffers, buffers)
        assert found.hints.batch_size == hints.batch_size
        assert (found.hints.labels is None) == (hints.labels is None)
        if hints.labels is not None:
            assert torch.equal(found.hints.labels, hints.labels)


def test_plain_tensors_are_what_the_caller_says(tmp_path):
    path = tmp_path / "plain.safetensors"
    save_file({"w": torch.ones(2)}, path)
    assert isinstance(load_captured(path).release, GradientRelease)
    assert isinstance(load_captured(path, update=True).release, UpdateRelease)
    assert load_captured(path).hints == Hints()


@pytest.mark.parametrize(
    "made",
    [
        Reconstruction(torch.rand(2, 3, generator=torch.Generator().manual_seed(0))),
        Reconstruction(
            torch.zeros(2, 1, 2, 2),
            torch.tensor([1, 0]),
            torch.tensor([0.5, math.nan]),
            1 / 3,
            True,
            {"labels": "told", "restarts": 3, "share": 0.1, "interrupted": True, "whole": 2.0},
        ),
        Reconstruction(torch.zeros(0, 4), objective=math.inf),
    ],
)
def test_a_reconstruction_comes_back(tmp_path, made):
    path = tmp_path / "found.safetensors"
    save_reconstruction(made, path)
    found = load_reconstruction(path)
    for name in ("candidates", "labels", "confidence"):
        held, expected = getattr(found, name), getattr(made, name)
        assert (held is None) == (expected is None)
        if held is not None:
            assert equal({"": held}, {"": expected})
    assert (found.objective, found.diverged) == (made.objective, made.diverged)
    assert found.info == made.info
    assert {k: type(v) for k, v in found.info.items()} == {k: type(v) for k, v in made.info.items()}


def test_an_objective_that_is_no_number(tmp_path):
    save_reconstruction(Reconstruction(torch.zeros(1, 1), objective=math.nan), tmp_path / "a")
    assert math.isnan(load_reconstruction(tmp_path / "a").objective or 0)


@pytest.mark.parametrize("load", [load_observation, load_reconstruction])
def test_foreign_files_are_refused(tmp_path, load):
    path = tmp_path / "a.safetensors"
    save_file({"candidates": torch.ones(2)}, path)
    with pytest.raises(BadInput, match="give a file that Vestige wrote"):
        load(path)
    kind = "observation" if load is load_observation else "reconstruction"
    for facts in ("", "{", "[]", "{}", json.dumps({"kind": "weights", "batch_size": 1})):
        save_file({"candidates": torch.ones(2)}, path, {f"vestige-{kind}": facts})
        with pytest.raises(BadInput, match=f"no {kind} that this version can read"):
            load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(BadInput, match="no readable safetensors"):
        load(path)
    with pytest.raises(NotFound, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is a folder"):
        load(tmp_path)


def test_each_kind_refuses_the_other(tmp_path):
    save_reconstruction(Reconstruction(torch.zeros(1, 1)), tmp_path / "found")
    save_observation(Observation(GradientRelease(TENSORS)), tmp_path / "seen")
    with pytest.raises(BadInput, match="no observation"):
        load_observation(tmp_path / "found")
    with pytest.raises(BadInput, match="no reconstruction"):
        load_reconstruction(tmp_path / "seen")
    with pytest.raises(BadInput, match="no release"):
        load_captured(tmp_path / "found")


def test_a_reconstruction_without_candidates(tmp_path):
    facts = json.dumps({"objective": None, "diverged": False, "info": {}})
    save_file({"x": torch.ones(1)}, tmp_path / "a", {"vestige-reconstruction": facts})
    with pytest.raises(BadInput, match="holds no candidates"):
        load_reconstruction(tmp_path / "a")


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(VestigeError, match="folder does not exist"):
        save_reconstruction(Reconstruction(torch.zeros(1, 1)), tmp_path / "no" / "found")
    with pytest.raises(VestigeError, match="is a folder"):
        save_reconstruction(Reconstruction(torch.zeros(1, 1)), tmp_path)
