"""The reconstructor of published heads: its parts against naive ones, its training when stopped."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vestige import Prior, Records, datasets, progress
from vestige.attacks import HeadReconstructor
from vestige.attacks.head_reconstructor import reader_training
from vestige.attacks.head_reconstructor.drawing_goals import DrawingGoals, goal_losses, softmin
from vestige.attacks.head_reconstructor.head_reader import HeadReader
from vestige.attacks.head_reconstructor.head_validation import (
    HeldBackHeads,
    split_validation,
)
from vestige.attacks.head_reconstructor.linear_sketch import (
    SketchedGenerator,
    principal_components,
    ridge,
)
from vestige.attacks.head_reconstructor.residual_generator import ResidualBlock, ResidualGenerator
from vestige.attacks.head_reconstructor.shadow_stream import BATCHES, ShadowStream
from vestige.errors import BadInput, NotFound
from vestige.files import read_safetensors, tensor_bytes
from vestige.interfaces import Hints, ModelRelease, Observation, Public
from vestige.networks import HeadedModel
from vestige.records import TableSpace
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.standardization import Standardization
from vestige.simulation.backbone_features import features_of
from vestige.simulation.training_sets import TrainingSets
from vestige.statistics.head_roc import counted_rate
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, OneAgainstRest, ReleasedHead, SharedGradient
from worlds import CLASSES, draws, head_world, sequential

QUICK = HeadReconstructor(size=2, steps=6, batch_size=4, statistics=30, validation_interval=2)


def known(victim: ReleasedHead | None = None, prior: Prior | None = None) -> Public:
    """What a weak adversary knows of the small world, or of another victim in it."""
    own, parts = head_world()
    return WeakAdversary().public(victim or own, prior or parts.prior)


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return build()


def test_softmin_is_the_papers_weighted_mean(generator):
    losses = torch.rand((5, 4), generator=generator) / 20
    present = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 1]])
    found = softmin(losses, present.bool(), 100.0)
    for row, kept, value in zip(losses.tolist(), present.tolist(), found.tolist()):
        chosen = [loss for loss, here in zip(row, kept) if here]
        weights = [math.exp(-100 * loss) for loss in chosen]
        wanted = sum(loss * weight for loss, weight in zip(chosen, weights)) / sum(weights)
        assert value == pytest.approx(wanted, rel=1e-4)


def test_losses_of_goals_are_half_of_both_errors(generator):
    drawn = torch.rand((3, 1, 4, 5), generator=generator)
    goals = torch.rand((3, 2, 1, 4, 5), generator=generator)
    found = goal_losses(drawn, goals)
    for i in range(3):
        for j in range(2):
            mse = nn.functional.mse_loss(drawn[i], goals[i, j])
            mae = nn.functional.l1_loss(drawn[i], goals[i, j])
            assert float(found[i, j]) == pytest.approx(float(mse + mae) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "channels_of_blocks"),
    [
        ((1, 4, 4), []),
        ((1, 8, 8), [4]),
        ((1, 28, 28), [4, 2, 2]),
        ((1, 25, 25), [4, 2, 2]),
        ((3, 32, 32), [4, 2, 2]),
        ((3, 64, 64), [4, 2, 2, 2]),
        ((1, 20, 64), [4, 2, 2, 2]),
    ],
)
def test_generator_has_the_papers_layers_and_any_size(shape, channels_of_blocks):
    inputs, size = 7, 2
    made = seeded(lambda: ResidualGenerator(inputs, size, shape))
    assert made(torch.zeros(3, inputs)).shape == (3, *shape)
    assert sum(p.numel() for p in made.first.parameters()) == 4 * size * (16 * inputs + 1)
    blocks = [block for block in made.blocks if isinstance(block, ResidualBlock)]
    assert [block.first.out_channels for block in blocks] == channels_of_blocks


def test_first_layer_is_a_transposed_convolution(generator):
    made = seeded(lambda: ResidualGenerator(5, 2, (1, 8, 8)))
    rows = torch.randn((3, 5), generator=generator)
    assert torch.allclose(made._drawn_small(rows), made.first(rows[:, :, None, None]), atol=1e-6)


@pytest.mark.parametrize("after", [3, 4])
def test_block_is_the_papers_figure(generator, after):
    """The bypass is doubled before its convolution there, with the same result."""
    block = seeded(lambda: ResidualBlock(4, after)).eval()
    x = torch.randn((2, 4, 3, 3), generator=generator)
    larger = nn.Upsample(scale_factor=2, mode="nearest")
    inner = block.first(larger(torch.relu(block.first_norm(x))))
    inner = block.second(torch.relu(block.second_norm(inner)))
    assert torch.allclose(block(x), inner + block.bypass(larger(x)), atol=1e-6)


def test_goals_are_the_records_of_the_class():
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    makeup = ClassCounts((1, 1, 2), (0, 1, 0))
    sets = makeup.draw(labels, 20, generator=stream(0, "sets"))
    found = DrawingGoals(makeup, conditional=True).of(sets, labels)
    for members, goals in zip(sets.members.tolist(), found.tolist()):
        for label in range(3):
            own = [index for index in members if labels[index] == label]
            assert sorted(index for index in goals[label] if index >= 0) == sorted(own)
    assert torch.equal(DrawingGoals(makeup, conditional=False).of(sets, labels)[:, 0], sets.members)
    faces = TrainingSets(torch.tensor([[4, 1, 0, 2]]), torch.tensor([[1, 1, 0, 0]]))
    assert DrawingGoals(OneAgainstRest(2, 2), False).of(faces, labels).tolist() == [[[4, 1]]]


def test_validation_counts_ties_as_misses(generator):
    true = torch.rand(40, generator=generator) / 2
    false = torch.rand(200, generator=generator)
    thresholds = [t for t in false.tolist() if sum(f < t for f in false.tolist()) <= 10]
    wanted = max(sum(t < limit for t in true.tolist()) for limit in thresholds) / 40
    assert counted_rate(true, false, 0.05) == pytest.approx(wanted)
    assert counted_rate(torch.zeros(5), torch.zeros(100), 0.05) == 0.0


def test_distances_are_to_the_nearest_goal_of_each_set(generator):
    images = torch.rand((6, 1, 3, 3), generator=generator)
    goals = torch.tensor([[[0, 1], [2, -1]], [[3, 4], [5, -1]]])
    drawn = torch.rand((2, 2, 1, 3, 3), generator=generator)
    held = HeldBackHeads(torch.zeros(2, 1), goals, images)
    found = held.distances(drawn)
    for head in range(2):
        for other in range(2):
            for number in range(2):
                own = [images[i] for i in goals[other, number].tolist() if i >= 0]
                wanted = min(float((drawn[head, number] - one).square().mean()) for one in own)
                assert float(found[head, other, number]) == pytest.approx(wanted, rel=1e-4)
    true, false = held.true_and_false(drawn)
    assert true.tolist() == [*found[0, 0].tolist(), *found[1, 1].tolist()]
    assert sorted(false.tolist()) == sorted([*found[0, 1].tolist(), *found[1, 0].tolist()])


def test_held_back_records_are_shared_with_no_shadow():
    labels = torch.arange(60) % 3
    kept, apart = split_validation(
        labels, ClassCounts((2, 2, 2)), 0.1, generator=stream(0, "split")
    )
    assert sorted([*kept.tolist(), *apart.tolist()]) == list(range(60))
    assert torch.bincount(labels[apart]).tolist() == [4, 4, 4]  # no fewer than two sets need
    people = torch.arange(60) // 6
    kept, apart = split_validation(people, OneAgainstRest(1, 3), 0.3, generator=stream(0, "split"))
    assert len(people[apart].unique()) == 3
    assert not set(people[kept].tolist()) & set(people[apart].tolist())


def shadow_stream(total: int, batch_size: int = 4) -> ShadowStream:
    victim, parts = head_world()
    records, makeup = parts.prior.records, victim.training.makeup
    factory = HeadFactory(victim.simulator, features_of(victim.simulator, records), records.y)
    return ShadowStream(factory, DrawingGoals(makeup, conditional=True), total, batch_size, 5)


@pytest.mark.parametrize("total", [50, 300])
def test_a_stream_uses_all_its_heads_equally_often_and_starts_anywhere(total):
    """300 heads are three chunks of 100, so a visit of 128 places holds each once or twice."""
    shadows = shadow_stream(total)
    found = shadows.batches(0)
    steps = [next(found) for _ in range(BATCHES * shadows.chunks)]
    rows = torch.cat([batch.weights for batch in steps])
    counts = rows.unique(dim=0, return_counts=True)[1]
    assert len(counts) == total
    size = total / shadows.chunks
    assert counts.min() >= math.floor(BATCHES * 4 / size)
    assert counts.max() <= math.ceil(BATCHES * 4 / size)
    later = next(shadows.batches(37 % len(steps)))
    assert torch.equal(later.weights, steps[37 % len(steps)].weights)
    assert torch.equal(later.goals, steps[37 % len(steps)].goals)
    weights, goals = shadows.first(30)
    assert weights.shape[0] == goals.shape[0] == 30
    assert torch.equal(weights, shadows.chunk(0).weights[:30])


def test_standardisation_comes_from_the_heads_that_are_learned_from():
    """Other held-back records leave it as it was, other shadow records do not."""
    _, parts = head_world()
    records = parts.prior.records
    seed = int(torch.randint(2**62, (), generator=stream(0, "fit")))
    kept, apart = split_validation(
        records.y,
        ClassCounts((1,) * CLASSES),
        QUICK.validation,
        generator=stream(seed, "held back"),
    )

    def mean_with(changed):
        x = records.x.clone()
        x[changed] = 1 - x[changed]
        prior = Prior(Records(x, records.y, records.space))
        return QUICK.fitted(known(prior=prior), generator=stream(0, "fit")).standardization.mean

    plain = QUICK.fitted(known(), generator=stream(0, "fit")).standardization.mean
    assert torch.allclose(mean_with(apart), plain, atol=1e-6)
    assert not torch.allclose(mean_with(kept), plain, atol=1e-3)


def test_surrogates_have_the_covariance_of_the_shadows(generator):
    """40,000 draws: an entry's deviation is at most √2·σᵢσⱼ/200; five of these are allowed."""
    shadows = torch.randn((50, 4), generator=generator) @ torch.rand((4, 4), generator=generator)
    everything = Standardization(torch.zeros(4), torch.ones(4), torch.arange(4))
    reader = HeadReader(everything, shadows, nn.Identity(), ())
    found = reader.surrogates(40_000, generator=generator)
    spread = shadows.std(0)
    error = (found.T.cov() - shadows.T.cov()).abs() / (spread[:, None] * spread)
    assert float(error.max()) < 5 * 2**0.5 / 200
    assert float((found.mean(0).abs() / spread).max()) < 5 / 200


@pytest.mark.parametrize("count", [9, 40])
def test_ridge_solves_its_normal_equations(generator, count):
    inputs = torch.randn((count, 20), generator=generator, dtype=torch.float64).float()
    outputs = torch.randn((count, 3), generator=generator)
    for penalty, found in zip((0.5, 2.0), ridge(inputs, outputs, (0.5, 2.0))):
        exact = inputs.double()
        gram = exact.T @ exact + penalty * torch.eye(20, dtype=torch.float64)
        wanted = torch.linalg.inv(gram) @ exact.T @ outputs.double()
        assert torch.allclose(found.double(), wanted, atol=1e-4)


@pytest.mark.parametrize("count", [12, 80])
def test_components_span_what_varies(generator, count):
    """Pictures of rank 5 are their own projections, whichever side is smaller."""
    rows = torch.randn((count, 5), generator=generator) @ torch.randn((5, 30), generator=generator)
    basis = principal_components(rows - rows.mean(0))
    assert torch.allclose(basis @ basis.T, torch.eye(len(basis)), atol=1e-4)
    assert torch.allclose((rows - rows.mean(0)) @ basis.T @ basis, rows - rows.mean(0), atol=1e-3)


def test_a_sketched_generator_starts_at_its_sketch():
    attack = dataclasses.replace(QUICK, steps=1, learning_rate=1e-30)
    reader = attack.fitted(known(), generator=stream(0, "fit"))
    network = reader.network
    assert isinstance(network, SketchedGenerator)
    sketched = network.sketch.all_of(reader.standard_shadows[:4])
    assert torch.allclose(reader.drawn(reader.standard_shadows[:4]), (sketched + 1) / 2, atol=1e-5)


@pytest.mark.parametrize("average", [None, 0.9])
def test_what_is_resumed_ends_as_what_was_never_stopped(tmp_path, average):
    attack = dataclasses.replace(QUICK, average=average)
    whole = attack.fitted(known(), generator=stream(0, "fit"))
    kept = dataclasses.replace(attack, checkpoints=tmp_path / "folder")
    with progress.listening(lambda step: step.total == 6 and step.done == 5):
        partial = kept.fitted(known(), generator=stream(0, "fit"))
    assert partial.steps == 5
    (file,) = (tmp_path / "folder").iterdir()
    steps = []
    with progress.listening(lambda step: steps.append(step.done)):
        resumed = kept.fitted(known(), generator=stream(0, "fit"))
    assert steps[-2:] == [5, 6]  # the checkpoint is of step 4
    assert resumed.steps == 6
    assert resumed.step == whole.step
    for name, value in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], value), name
    stamp = file.stat().st_mtime_ns
    again = kept.fitted(known(), generator=stream(0, "fit"))
    assert file.stat().st_mtime_ns == stamp
    assert torch.equal(again(torch.ones(1, 195)), whole(torch.ones(1, 195)))
    dataclasses.replace(kept, learning_rate=1e-3).fitted(known(), generator=stream(0, "fit"))
    kept.fitted(known(), generator=stream(1, "fit"))
    assert len(list((tmp_path / "folder").iterdir())) == 3


@pytest.mark.parametrize("part", ["standing", "network/", "best/", "average/", "adam/"])
def test_a_checkpoint_that_lacks_a_part_is_named(tmp_path, part):
    attack = dataclasses.replace(QUICK, average=0.9, checkpoints=tmp_path)
    attack.fitted(known(), generator=stream(0, "fit"))
    (file,) = tmp_path.iterdir()
    tensors, said = read_safetensors(file)
    tensors = {name: t for name, t in tensors.items() if not name.startswith(part)}
    said = {name: word for name, word in said.items() if name != part}
    file.write_bytes(tensor_bytes(tensors, said))
    with pytest.raises(BadInput, match="is damaged: delete it"):
        attack.fitted(known(), generator=stream(0, "fit"))


def test_training_stops_when_validation_gets_no_better(monkeypatch):
    rates = iter([0.2, 0.5, 0.4, 0.3, 0.9])
    monkeypatch.setattr(reader_training, "counted_rate", lambda *_: next(rates))
    attack = dataclasses.replace(
        QUICK, steps=50, validation_interval=3, patience=2, sketch=False, learning_rate=0.01
    )
    reader = attack.fitted(known(), generator=stream(0, "fit"))
    assert (reader.step, reader.steps) == (6, 12)
    assert reader.true_positive_rate == 0.5
    assert reader.shadows == 30  # of the statistics; 24 by the best step


def test_one_class_against_the_rest_is_drawn_once():
    digits = datasets.load("digits")
    backbone = sequential(nn.Flatten, lambda: nn.Linear(64, 12), nn.ReLU)
    training = HeadTraining(OneAgainstRest(2, 6), epochs=5, learning_rate=0.3)
    victim = ReleasedHead(HeadedModel(backbone.eval(), 12, 2), training)
    public = known(victim, Prior(digits[:600]))
    attack = dataclasses.replace(QUICK, validation=0.2)
    reconstruct = attack.prepare(public, generator=stream(0, "fit"))
    sets = training.makeup.draw(digits.y, 1, generator=stream(0, "set"))
    heads = HeadFactory(victim.simulator, features_of(victim.simulator, digits), digits.y)
    row = heads.trained(sets, generator=stream(0, "head")).weights[0]
    tensors = {"head.weight": row[:24].reshape(2, 12), "head.bias": row[24:]}
    found = reconstruct(Observation(ModelRelease(tensors), Hints(8)), stream(0, "attacker"))
    assert found.checked(digits.space).candidates.shape[0] == 1
    assert found.labels is None
    with pytest.raises(BadInput, match="conditional=False"):
        dataclasses.replace(attack, conditional=True).prepare(public, generator=stream(0, "fit"))


def test_other_forms_draw_what_they_say():
    own, _ = head_world()
    coarse = dataclasses.replace(own.training, makeup=ClassCounts((2, 1, 1), (0, 1, 0)))
    victim = ReleasedHead(HeadedModel(own.model.backbone, 64, 2), coarse)
    conditional = QUICK.fitted(known(victim), generator=stream(0, "fit"))
    assert conditional(torch.ones(2, 130)).shape == (2, 3, 1, 8, 8)
    assert conditional.classes == (0, 1, 2)
    single = dataclasses.replace(QUICK, conditional=False, shadows=10, perceptual=lambda x: x**2)
    found = single.fitted(known(), generator=stream(0, "fit"))
    assert found(torch.ones(2, 195)).shape == (2, 1, 1, 8, 8)
    assert found.shadows == 10
    plain = dataclasses.replace(single, perceptual=None).fitted(known(), generator=stream(0, "fit"))
    assert any(
        not torch.equal(plain.network.state_dict()[name], value)
        for name, value in found.network.state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": 0}, "size"),
        ({"steps": 0}, "steps"),
        ({"batch_size": 1}, "batch_size"),
        ({"shadows": 1}, "shadows"),
        ({"statistics": 1}, "statistics of HeadReconstructor must be at least 2"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"perceptual_weight": -1.0}, "perceptual"),
        ({"validation": 1.0}, r"validation of HeadReconstructor must be in \(0, 1\)"),
        ({"false_positive_rate": 0.0}, r"false_positive_rate of .* must be in \(0, 1\)"),
        ({"average": 1.0}, "average"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(change, said):
    with pytest.raises(BadInput, match=said):
        dataclasses.replace(QUICK, **change)


def test_what_cannot_be_read_is_refused_in_a_sentence():
    victim, parts = head_world()
    few = Prior(parts.prior.records[[0, 1, 2, 3]])
    with pytest.raises(BadInput, match="larger prior"):
        QUICK.prepare(known(prior=few), generator=stream(0, "fit"))
    other = SharedGradient(victim.model)
    with pytest.raises(BadInput, match="ReleasedHead"):
        QUICK.prepare(Public(other.simulator, parts.prior), generator=stream(0, "fit"))
    table = TableSpace((), tuple("abc"))
    rows = Prior(Records(torch.zeros(9, 0), torch.arange(9) % 3, table))
    with pytest.raises(BadInput, match="images"):
        QUICK.prepare(Public(victim.simulator, rows), generator=stream(0, "fit"))
    strange = Prior(draws(60, 1))
    with pytest.raises(BadInput, match="does not accept"):
        QUICK.prepare(Public(victim.simulator, strange), generator=stream(0, "fit"))


def test_the_study_goes_on_without_mnist(monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    study = importlib.import_module("head_reconstructor_study")

    def bundled_only(name, **part):
        if name != "digits":
            raise NotFound(f"The files of {name} are nowhere.")
        return datasets.load(name)

    monkeypatch.setattr(study, "load", bundled_only)
    words = ["study", "--minutes", "0.01", "--heads", "5", "--size", "2", "--shadows", "40", "60"]
    monkeypatch.setattr(sys, "argv", words)
    study.main()
    sys.modules.pop("head_reconstructor_study")
    said = capsys.readouterr().out
    assert "bundled digits" in said
    *_, one, other = [line.split() for line in said.splitlines()]
    assert (one[0], other[0]) == ("40", "60")
    assert all(0 <= float(cell) <= 4 for cell in (*one[2:], *other[2:]))
