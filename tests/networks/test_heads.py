"""Heads on frozen backbones: victim against replay, naive training, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.worlds import sequential
from torch import nn

from vestige import Audit, Prior, Records, datasets
from vestige.attacks import Guess
from vestige.bounds import DPSGD
from vestige.errors import BadInput
from vestige.interfaces import Run
from vestige.networks import HeadedModel
from vestige.reports.parts import CheckOutcome
from vestige.simulation.backbone_features import features_of
from vestige.simulation.losses import one_hot
from vestige.streams import stream
from vestige.studies.audit.checks import preflight_checks
from vestige.studies.audit.trials import drawn
from vestige.threats import HonestServer, WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead


@pytest.fixture(scope="module")
def digits() -> Records:
    return datasets.load("digits")


def headed(outputs: int = 10, hidden: int | None = None) -> HeadedModel:
    backbone = sequential(nn.Flatten, lambda: nn.Linear(64, 12), nn.ReLU)
    return HeadedModel(backbone.eval(), 12, outputs, hidden)


TRAINING = HeadTraining(ClassCounts.balanced(10, 10), epochs=12, learning_rate=0.3)
VARIANTS = {
    "full batch": replace(TRAINING, initial_deviation=0.2),
    "decay and momentum": replace(TRAINING, weight_decay=0.05, momentum=0.8),
    "shuffled batches": replace(TRAINING, batch_size=4),
    "adam": replace(TRAINING, optimizer="adam", learning_rate=0.01, weight_decay=0.01),
    "adamw, linear schedule": replace(
        TRAINING, optimizer="adamw", learning_rate=0.02, weight_decay=0.3, schedule="linear"
    ),
    "class weights": replace(TRAINING, class_weights=tuple(1 + i / 4 for i in range(10))),
    "label map": replace(TRAINING, makeup=ClassCounts((1,) * 10, (0, 1, 2, 0, 1, 2, 0, 1, 2, 0))),
}


def batch(digits: Records, training: HeadTraining, seed: int = 0) -> Records:
    sets = training.makeup.draw(digits.y, 1, generator=stream(seed, "batch"))
    return digits[sets.members[0]]


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("hidden", [None, 5])
def test_replay_repeats_the_victims_training(digits, name, hidden):
    training = VARIANTS[name]
    victim = ReleasedHead(headed(training.makeup.outputs, hidden), training)
    secret = batch(digits, training)
    release = victim.release(secret, generator=stream(1, "run"))
    simulator = victim.simulator.started(stream(1, "run"))
    replayed = simulator(secret.x, one_hot(secret.y, 10))
    for parameter, value in release.tensors.items():
        assert torch.allclose(replayed[parameter], value, atol=2e-6), parameter
    moved = simulator.parameters
    assert any((moved[n] - v).abs().max() > 1e-4 for n, v in release.tensors.items())


def test_binary_head_weighs_positives_as_binary_cross_entropy_does(digits):
    makeup = ClassCounts((1,) * 10, (0,) * 9 + (1,))
    training = replace(TRAINING, makeup=makeup, class_weights=(1.0, 10.0), epochs=1)
    victim = ReleasedHead(headed(1), training)
    secret = batch(digits, training)
    release = victim.release(secret, generator=stream(2, "run"))
    start = victim.simulator.started(stream(2, "run"))
    model = start.model
    logits = model(secret.x).flatten()
    loss = nn.functional.binary_cross_entropy_with_logits(
        logits, (secret.y == 9).float(), pos_weight=torch.tensor(10.0)
    )
    slope = torch.autograd.grad(loss, model.head.weight)[0]
    expected = start.parameters["head.weight"] - training.learning_rate * slope
    assert torch.allclose(release.tensors["head.weight"], expected, atol=1e-6)


def test_private_training_clips_every_record(digits):
    """Without noise, sampling everybody: one step is the mean of clipped gradients."""
    mechanism = DPSGD(1e-9, 1.0, 1, clipping_norm=0.01)
    training = replace(TRAINING, private=mechanism)
    victim = ReleasedHead(headed(), training)
    secret = batch(digits, training)
    release = victim.release(secret, generator=stream(3, "run"))
    start = victim.simulator.started(stream(3, "run"))
    total = torch.zeros_like(start.parameters["head.weight"])
    for i in range(10):
        loss = nn.functional.cross_entropy(start.model(secret.x[i : i + 1]), secret.y[i : i + 1])
        slopes = torch.autograd.grad(loss, list(start.model.head.parameters()))
        norm = torch.cat([g.flatten() for g in slopes]).norm()
        total += slopes[0] * (0.01 / norm)
    moved = release.tensors["head.weight"] - start.parameters["head.weight"]
    assert torch.allclose(moved, -0.3 * total / 10, atol=1e-7)
    assert victim.mechanism == mechanism


def test_private_noise_has_its_law(digits):
    """Noise of deviation ησC/(qN) in each of 2,400 values, 5 deviations of room.

    Five clipped gradients of norm C are spread over 130 coordinates and add 1% at most.
    """
    mechanism = DPSGD(2.0, 0.5, 1, clipping_norm=1e-6)
    training = replace(TRAINING, private=mechanism, learning_rate=1.0, initial_deviation=0.0)
    victim = ReleasedHead(headed(), training)
    secret = batch(digits, training)
    values = torch.cat(
        [
            victim.release(secret, generator=stream(seed, "noise")).tensors["head.weight"].flatten()
            for seed in range(20)
        ]
    )
    expected = 2.0 * 1e-6 / 5
    assert abs(float(values.std()) / expected - 1) < 5 / (2 * len(values)) ** 0.5 + 0.02


def test_features_are_kept_by_content(digits, tmp_path):
    victim = ReleasedHead(headed(), TRAINING)
    found = features_of(victim.simulator, digits[:7], tmp_path)
    assert torch.equal(found, victim.model.features(digits.x[:7]))
    (kept,) = tmp_path.iterdir()
    stamp = kept.stat().st_mtime_ns
    assert torch.equal(features_of(victim.simulator, digits[:7], tmp_path), found)
    assert kept.stat().st_mtime_ns == stamp
    features_of(victim.simulator, digits[1:8], tmp_path)
    other = ReleasedHead(
        HeadedModel(sequential(nn.Flatten, lambda: nn.Linear(64, 12)), 12, 10), TRAINING
    )
    features_of(other.simulator, digits[:7], tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def audit(digits: Records, training: HeadTraining = TRAINING, **changes) -> Audit:
    splits = digits.split(seed=0)
    settings = {"threat": WeakAdversary(), "batch_size": 10, "false_positive_rate": 0.05}
    victim = ReleasedHead(headed(), training)
    return Audit(victim, splits.train, splits.prior, [Guess("draw")], **(settings | changes))


def test_trials_draw_the_makeup_and_the_preflight_replays(digits):
    training = replace(TRAINING, makeup=ClassCounts((2,) * 5 + (1,) * 5), batch_size=6)
    one = audit(digits, training, batch_size=15)
    for trial in range(4):
        draw = drawn(one, trial, 7)
        assert torch.bincount(draw.secret.y).tolist() == [2] * 5 + [1] * 5
        assert len(set(draw.secret.fingerprints()) | set(draw.decoys.fingerprints())) == 15 + 19
        assert (draw.decoys.y == draw.secret.y[draw.slot]).all()
    checks = preflight_checks(one, 7)
    assert any(c.outcome is CheckOutcome.PASSED and "agrees" in c.sentence for c in checks)
    assert not any(c.outcome is CheckOutcome.FAILED for c in checks)


def test_a_weak_adversary_is_told_sorted_labels_and_no_weights(digits):
    one = audit(digits)
    draw = drawn(one, 0, 0)
    run = Run(draw.secret, one.victim.release(draw.secret, generator=stream(0, "run")))
    seen = one.threat.observe(run)
    assert seen.hints.labels.tolist() == list(range(10))
    assert one.threat.public(one.victim, one.prior).simulator.order is None


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ClassCounts((1, 0, 1)), "no record"),
        (lambda: ClassCounts((1, 1), (0, 2)), "leaves some out"),
        (lambda: ClassCounts.balanced(10, 15), "evenly"),
        (lambda: ClassCounts.balanced(10, 5), "evenly"),
        (lambda: OneAgainstRest(0, 3), "both"),
        (lambda: replace(TRAINING, epochs=0), "epoch"),
        (lambda: replace(TRAINING, learning_rate=float("nan")), "learning_rate"),
        (lambda: replace(TRAINING, class_weights=(1.0,)), "class weights"),
        (lambda: replace(TRAINING, optimizer="lion"), "'sgd', 'adam' or 'adamw'"),
        (lambda: replace(TRAINING, private=DPSGD(1, 0.5, 2), batch_size=2), "Poisson"),
        (lambda: HeadedModel(nn.Sequential(nn.BatchNorm1d(3)), 3, 2), "train mode"),
        (lambda: ReleasedHead(headed(4), TRAINING), "labels"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(build, said):
    with pytest.raises(BadInput, match=said):
        build()


def test_audits_refuse_what_does_not_fit(digits):
    with pytest.raises(BadInput, match="batch_size=10"):
        audit(digits, batch_size=4)
    with pytest.raises(BadInput, match="WeakAdversary"):
        audit(digits, threat=HonestServer())
    splits = digits.split(seed=0)
    with pytest.raises(BadInput, match="both secrets and prior"):
        Audit(
            ReleasedHead(headed(), TRAINING),
            splits.train,
            Prior(splits.train[:50]),
            [Guess("draw")],
            WeakAdversary(),
            batch_size=10,
            false_positive_rate=0.05,
        )
    bad = headed()
    bad.backbone[1].weight.data[0, 0] = float("nan")
    with pytest.raises(BadInput, match="NaN"):
        features_of(ReleasedHead(bad, TRAINING).simulator, digits[:3])


def test_training_sets_are_uniform_and_disjoint(digits):
    """Every record equally often: χ² with 9,999 sets of 2 of 20 records, level 1e-6."""
    labels = torch.zeros(20, dtype=torch.int64)
    sets = ClassCounts((2,)).draw(labels, 9_999, generator=stream(0, "uniform"))
    assert (sets.members[:, 0] != sets.members[:, 1]).all()
    counts = torch.bincount(sets.members.flatten(), minlength=20).double()
    expected = 2 * 9_999 / 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 70
    apart = ClassCounts((3,) * 10).draw(digits.y, 50, disjoint=True, generator=stream(0, "d"))
    assert apart.members.unique().numel() == 50 * 30
    faces = torch.arange(12).repeat_interleave(4)
    rest = OneAgainstRest(2, 5).draw(faces, 24, disjoint=True, generator=stream(0, "faces"))
    assert rest.members[:, :2].unique().numel() == 48
    for row in rest.members:
        assert faces[row[0]] == faces[row[1]]
        assert (faces[row[2:]] != faces[row[0]]).all()
        assert row.unique().numel() == 7
