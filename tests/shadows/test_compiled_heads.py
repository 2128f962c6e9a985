"""Heads by compiled kernels: against torch's path, a plain loop in float64, and in law."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from test_shadow_heads import TRAINING, VARIANTS, factory
from torch import Tensor, nn

from vestige.bounds import DPSGD
from vestige.networks import HeadedModel
from vestige.shadows.heads import acceleration
from vestige.shadows.heads import factory as factory_module
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.simulation.training_sets import TrainingSets
from vestige.streams import stream
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead

needs_numba = pytest.mark.skipif(
    acceleration.compiled_kernels() is None, reason=acceleration.trained_by()
)
PRIVATE = replace(TRAINING, weight_decay=0.1, private=DPSGD(1.0, 0.5, 6, 0.7))
COMPILED = {
    **{
        name: training
        for name, training in VARIANTS.items()
        if "adam" not in name and name != "more records than features"
    },
    "private": PRIVATE,
    "private, class weights": replace(PRIVATE, class_weights=(1.0, 3.0, 0.5)),
    "private, single output": replace(PRIVATE, makeup=OneAgainstRest(3, 8), class_weights=None),
    "private, hardly any noise": replace(PRIVATE, private=DPSGD(1e-9, 1.0, 6, 0.7)),
}


def both(made: HeadFactory, count: int, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Heads of both paths from one seed, which leave the generator in the same state."""
    sets = made.training.makeup.draw(made.labels, count, generator=stream(1, "sets"))
    assert made._kernels(sets) is not None
    found, states = [], []
    for chosen in (made, replace(made, compiled=False)):
        generator = stream(seed, "heads")
        found.append(chosen.trained(sets, generator=generator).weights)
        states.append(generator.get_state())
    assert torch.equal(*states)
    return found[0], found[1]


@needs_numba
@pytest.mark.parametrize("count", [2, 16, 45, 700])
@pytest.mark.parametrize("name", COMPILED)
def test_both_paths_give_the_same_heads_for_a_seed(name, count):
    ours, theirs = both(factory(COMPILED[name], dtype=torch.float32), count)
    assert (ours - theirs).abs().max() < 2e-6 * max(1, float(theirs.abs().max()))


@needs_numba
@pytest.mark.parametrize("private", [None, DPSGD(1.0, 0.5, 5, 1.0)])
@pytest.mark.parametrize(
    ("records", "classes", "width"),
    [(2, 2, 9), (2, 2, 16), (7, 7, 33), (10, 10, 256), (24, 3, 79), (40, 10, 64), (60, 20, 100)],
)
def test_any_number_of_records_classes_and_features(records, classes, width, private):
    """None of these is a multiple of the tiles of the kernels in every case."""
    makeup = ClassCounts.balanced(classes, records)
    training = HeadTraining(makeup, 5, 0.05, 0.01, initial_deviation=0.1, private=private)
    victim = ReleasedHead(HeadedModel(nn.Flatten(), width, classes), training)
    generator = stream(0, "features")
    features = torch.randn((400, width), generator=generator).relu()
    made = HeadFactory(victim.simulator, features, torch.arange(400) % classes)
    ours, theirs = both(made, 53)
    assert (ours - theirs).abs().max() < 5e-6


def plain_sgd(made: HeadFactory, start: Tensor, members: Tensor, targets: Tensor) -> Tensor:
    """A head by full-batch SGD with momentum and decay, step by step in float64."""
    training = made.training
    x = nn.functional.pad(made.features[members].double(), (0, 1), value=1.0)
    weights = nn.functional.pad(start.double(), (0, 1))
    speed = torch.zeros_like(weights)
    goals = nn.functional.one_hot(targets, len(start)).double()
    for _ in range(training.steps):
        slopes = (torch.softmax(x @ weights.T, 1) - goals).T @ x / len(x)
        speed = training.momentum * speed + slopes + training.weight_decay * weights
        weights = weights - training.learning_rate * speed
    return torch.cat([weights[:, :-1].flatten(), weights[:, -1]])


@needs_numba
@pytest.mark.parametrize("name", ["full batch", "decay", "momentum"])
def test_heads_from_given_weights_are_those_of_a_plain_loop(name):
    kernels = acceleration.compiled_kernels()
    made = factory(COMPILED[name], dtype=torch.float32)
    sets = made.training.makeup.draw(made.labels, 21, generator=stream(1, "sets"))
    start = torch.randn((21, 3, made.model.width), generator=stream(4, "start"))
    generator = stream(2, "unused")
    before = generator.get_state()
    found = kernels.train_heads(made.training, made.features, sets, 3, 16, generator, start)
    assert torch.equal(generator.get_state(), before)
    for head in range(21):
        expected = plain_sgd(made, start[head], sets.members[head], sets.targets[head])
        assert (found[head] - expected).abs().max() < 3e-6


@needs_numba
@pytest.mark.parametrize("name", ["full batch", "single output", "private"])
def test_far_logits_stay_finite(name):
    training = replace(COMPILED[name], learning_rate=50.0, initial_deviation=200.0, momentum=0.0)
    training = replace(training, weight_decay=0.0)
    ours, theirs = both(factory(training, dtype=torch.float32), 40)
    assert bool(torch.isfinite(ours).all())
    # Residuals of such logits are 0 or 1; few heads have one at the edge between them.
    near = (ours - theirs).abs().amax(1) < 1e-4 * theirs.abs().max()
    assert float(near.float().mean()) > 0.9


@needs_numba
def test_random_numbers_are_those_of_torch():
    kernels = acceleration.compiled_kernels()
    assert kernels.agree_with_torch()
    for size in (3, 16, 100, 5000, 20_011):
        ours, theirs = stream(3, "numbers"), stream(3, "numbers")
        found = kernels.drawn_normal((size,), 0.5, torch.empty(0), ours)
        expected = torch.empty(size).normal_(0, 0.5, generator=theirs)
        assert torch.allclose(found, expected, atol=2e-6)
        assert torch.equal(ours.get_state(), theirs.get_state())
    assert stats.kstest(found.numpy() / 0.5, "norm").pvalue > 1e-4


@needs_numba
@pytest.mark.parametrize("name", ["decay", "batches with momentum", "private"])
def test_heads_of_other_seeds_have_the_same_law(name):
    """Every weight by Kolmogorov and Smirnov's test; means and covariances by their errors."""
    made = factory(COMPILED[name], dtype=torch.float32)
    one = made.training.makeup.draw(made.labels, 1, generator=stream(1, "sets"))
    sets = TrainingSets(one.members.expand(4000, -1), one.targets.expand(4000, -1))
    slow = replace(made, compiled=False)
    ours = made.trained(sets, generator=stream(5, "ours")).weights.double().numpy()
    theirs = slow.trained(sets, generator=stream(6, "theirs")).weights.double().numpy()
    values = np.array([stats.ks_2samp(a, b).pvalue for a, b in zip(ours.T, theirs.T)])
    assert values.min() * len(values) > 1e-4
    scale = theirs.std(0)
    z = (ours.mean(0) - theirs.mean(0)) / (scale * np.sqrt(2 / 4000))
    assert np.abs(z).max() < 5
    gap = (np.cov(ours.T) - np.cov(theirs.T)) / np.outer(scale, scale)
    assert np.abs(gap).max() < 6 * np.sqrt(2 * 2 / 4000)


@needs_numba
def test_a_seed_gives_the_same_bytes_again():
    made = factory(COMPILED["batches"], dtype=torch.float32)
    found = [made.draw(100, generator=stream(1, "heads")).weights for _ in range(2)]
    assert torch.equal(*found)


@needs_numba
def test_what_kernels_cannot_train_goes_the_other_way():
    made = factory(TRAINING, dtype=torch.float32)
    sets = TRAINING.makeup.draw(made.labels, 20, generator=stream(1, "sets"))
    assert made._kernels(sets) is not None
    assert made.trained_by.startswith("numba")
    for other in (
        factory(TRAINING),
        factory(TRAINING, 5, torch.float32),
        factory(VARIANTS["adam"], dtype=torch.float32),
        replace(made, coefficients=True),
        replace(made, compiled=False),
    ):
        assert other._kernels(sets) is None
        assert other.trained_by == "torch"
    outside = TrainingSets(sets.members + 1000, sets.targets)
    assert made._kernels(outside) is None
    with pytest.raises(IndexError):
        made.trained(outside, generator=stream(2, "heads"))


@needs_numba
def test_code_that_is_older_than_its_sources_is_dropped():
    from vestige.shadows.heads.compiled import training

    folder = Path(training.train.stats.cache_path)
    folder.mkdir(parents=True, exist_ok=True)
    stale = folder / "kernels.of_an_old_version.nbi"
    stale.write_bytes(b"")
    os.utime(stale, (1, 1))
    training._drop_stale_code()
    assert not stale.exists()


@pytest.fixture
def fresh_answer():
    """What is known of numba is forgotten before and after the test."""
    acceleration._load.cache_clear()
    acceleration.compiled_kernels.cache_clear()
    yield
    acceleration._load.cache_clear()
    acceleration.compiled_kernels.cache_clear()


def test_heads_are_trained_without_numba(monkeypatch, fresh_answer):
    for name in list(sys.modules):
        if name.startswith("vestige.shadows.heads.compiled"):
            monkeypatch.delitem(sys.modules, name)
    package = sys.modules.get("vestige.shadows.heads")
    monkeypatch.delattr(package, "compiled", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert "extra 'compiled'" in acceleration.trained_by()
    made = factory(TRAINING, dtype=torch.float32)
    assert made.trained_by == "torch"
    assert bool(torch.isfinite(made.draw(3, generator=stream(1, "heads")).weights).all())


def test_kernels_are_not_used_where_numba_does_not_compile(monkeypatch, fresh_answer):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert acceleration.compiled_kernels() is None
    assert "NUMBA_DISABLE_JIT" in acceleration.trained_by()


def test_shards_say_what_trained_them(tmp_path, monkeypatch):
    """Both paths have one fingerprint: a folder of one goes on with the other."""
    from vestige.files import read_safetensors

    made = factory(TRAINING, dtype=torch.float32)
    shards = HeadShards(made, seed=1, heads=20, folder=tmp_path)
    first = shards.shard(0)
    (path,) = tmp_path.glob("heads-*.safetensors")
    assert read_safetensors(path)[1]["trained by"] == made.trained_by
    monkeypatch.setattr(factory_module, "compiled_kernels", lambda: None)
    again = HeadShards(made, seed=1, heads=20, folder=tmp_path)
    assert torch.equal(again.shard(0).weights, first.weights)
    assert torch.allclose(again._trained(0).weights, first.weights, atol=2e-6)
