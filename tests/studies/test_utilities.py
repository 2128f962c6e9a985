"""Training with a defence: against hand-written loops, kept runs, divergence, Opacus."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Comparison, Prior, run
from vestige.defenses import (
    BatchSize,
    ClientAggregation,
    GradientNoise,
    GradientPruning,
    HalfPrecision,
    LocalAggregation,
    PrivateGradients,
    RecordClipping,
    TopKSparsification,
    Undefended,
)
from vestige.engines import InProcess, LocalProcesses
from vestige.errors import BadInput
from vestige.simulation.network import reinitialized
from vestige.streams import stream
from vestige.studies import ComparedServer
from vestige.studies.comparison import utility_training
from vestige.studies.comparison.utility_training import (
    DefendedTraining,
    UtilityRun,
    UtilityRuns,
    UtilityTraining,
)
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
from vestige.victims.opacus_client import OpacusClient
from worlds import CLASSES, LabelOnly, draws, linear_network, sequential

TRAINING = UtilityTraining(
    draws(30, 11), draws(60, 12), rounds=14, clients=1, batch_size=4, learning_rate=0.3, repeats=2
)
VICTIM = SharedGradient(linear_network(), mode="eval")


def batches(training: UtilityTraining, repeat: int, size: int, number: int, seed: int = 0):
    """Batches in the order of epochs, each in a new random order."""
    generator = stream(seed, "utility order", repeat)
    order: list[int] = []
    while len(order) < number * size:
        order += torch.randperm(len(training.records), generator=generator).tolist()
    return [training.records[order[i * size : (i + 1) * size]] for i in range(number)]


def start(repeat: int, model: nn.Module = VICTIM.model, seed: int = 0) -> nn.Module:
    return reinitialized(model, stream(seed, "utility weights", repeat))


def worth(model: nn.Module, training: UtilityTraining = TRAINING) -> tuple[float, float]:
    """Accuracy and loss on held-out records."""
    held = training.held_out
    with torch.no_grad():
        logits = model.eval()(held.x)
    right = int((logits.argmax(1) == held.y).sum())
    return right / len(held), float(nn.functional.cross_entropy(logits, held.y))


def runs_of(defense, victim=VICTIM, training=TRAINING) -> list[UtilityRun]:
    one = DefendedTraining.of(defense, victim, training)
    return [one.run(0, repeat) for repeat in range(training.repeats)]


def measured(defense, victim=VICTIM, training=TRAINING) -> list[tuple[float, float]]:
    return [(run.accuracy, run.loss) for run in runs_of(defense, victim, training)]


def same(found, expected, tolerance: float = 1e-6) -> None:
    assert [a for a, _ in found] == [a for a, _ in expected]
    assert [b for _, b in found] == pytest.approx([b for _, b in expected], rel=tolerance)


def test_one_client_is_plain_sgd():
    expected = []
    for repeat in range(2):
        model = start(repeat)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for batch in batches(TRAINING, repeat, 4, 14):
            optimizer.zero_grad()
            targets = nn.functional.one_hot(batch.y, CLASSES).float()
            nn.functional.cross_entropy(model(batch.x), targets).backward()
            optimizer.step()
        expected.append(worth(model))
    same(measured(Undefended()), expected)
    assert expected[0] != expected[1], "seeds share nothing but the data"


def test_the_weights_of_one_client_are_those_of_plain_sgd_exactly(monkeypatch):
    seen = []
    monkeypatch.setattr(
        utility_training,
        "evaluated",
        lambda s, model, *rest: seen.append(copy.deepcopy(model)) or (0, 1),
    )
    runs_of(Undefended())
    model = start(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for batch in batches(TRAINING, 0, 4, 14):
        optimizer.zero_grad()
        targets = nn.functional.one_hot(batch.y, CLASSES).float()
        nn.functional.cross_entropy(model(batch.x), targets, reduction="none").mean().backward()
        optimizer.step()
    first, last = seen[0], seen[1]
    for name, weight in start(0).state_dict().items():
        assert torch.equal(weight, first.state_dict()[name])
    for name, weight in model.state_dict().items():
        assert torch.equal(last.state_dict()[name], weight)


def test_several_clients_are_averaged():
    training = replace(TRAINING, clients=3)
    expected = []
    for repeat in range(2):
        model = start(repeat)
        dealt = batches(training, repeat, 4, 3 * 14)
        for number in range(14):
            gradients = []
            for batch in dealt[3 * number : 3 * number + 3]:
                loss = nn.functional.cross_entropy(model(batch.x), batch.y)
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
            with torch.no_grad():
                for parameter, *slopes in zip(model.parameters(), *gradients):
                    parameter -= 0.3 * sum(slopes) / 3
        expected.append(worth(model))
    same(measured(Undefended(), training=training), expected, 1e-5)


def test_updates_of_local_steps_are_added():
    victim = FederatedUpdate(VICTIM.model, LocalTraining(1, 0.2), mode="eval")
    expected = []
    for repeat in range(2):
        model = start(repeat)
        for batch in batches(TRAINING, repeat, 4, 14):
            for _ in range(3):
                loss = nn.functional.cross_entropy(model(batch.x), batch.y)
                slopes = torch.autograd.grad(loss, list(model.parameters()))
                with torch.no_grad():
                    for parameter, slope in zip(model.parameters(), slopes):
                        parameter -= 0.2 * slope
        expected.append(worth(model))
    same(measured(LocalAggregation(3), victim), expected, 1e-4)


def test_buffers_follow_the_clients():
    model = sequential(
        nn.Flatten, lambda: nn.Linear(16, 8), lambda: nn.BatchNorm1d(8), lambda: nn.Linear(8, 3)
    )
    expected = []
    for repeat in range(2):
        own = start(repeat, model)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.3)
        for batch in batches(TRAINING, repeat, 4, 14):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own.train()(batch.x), batch.y).backward()
            optimizer.step()
        expected.append(worth(own))
    same(measured(Undefended(), SharedGradient(model)), expected, 1e-4)


def test_error_feedback_remembers_from_round_to_round():
    training, kept = replace(TRAINING, clients=2), 0.1
    expected = []
    for repeat in range(2):
        model = start(repeat)
        dealt = batches(training, repeat, 4, 2 * 14)
        memories = [torch.zeros(sum(p.numel() for p in model.parameters())) for _ in range(2)]
        for number in range(14):
            sent = []
            for client in range(2):
                batch = dealt[2 * number + client]
                loss = nn.functional.cross_entropy(model(batch.x), batch.y)
                slopes = torch.autograd.grad(loss, list(model.parameters()))
                total = torch.cat([slope.flatten() for slope in slopes]) + memories[client]
                order = total.abs().argsort(descending=True)[: round(kept * len(total))]
                chosen = torch.zeros_like(total)
                chosen[order] = total[order]
                memories[client] = total - chosen
                sent.append(chosen)
            vector = nn.utils.parameters_to_vector(model.parameters()) - 0.3 * sum(sent) / 2
            nn.utils.vector_to_parameters(vector.detach(), model.parameters())
        expected.append(worth(model))
    found = measured(TopKSparsification(kept), training=training)
    same(found, expected, 1e-4)
    # Clients of a sum remember too, each for itself.
    both = measured(TopKSparsification(kept), training=replace(training, clients=1))
    assert [a for _, a in both] != pytest.approx([a for _, a in found], rel=1e-4)


def test_a_sum_over_the_clients_of_a_round_costs_nothing():
    training = replace(TRAINING, clients=4)
    plain = measured(Undefended(), training=training)
    same(measured(ClientAggregation(2), training=training), plain, 1e-5)
    same(measured(ClientAggregation(4), training=training), plain, 1e-5)


def test_a_batch_size_changes_the_batch():
    larger = measured(Undefended(), training=replace(TRAINING, batch_size=6))
    same(measured(BatchSize(6)), larger)


@pytest.mark.parametrize(
    "defense", [GradientNoise(1e-9), GradientPruning(0.0), PrivateGradients(1e6, 1e-15)]
)
def test_defences_share_weights_and_batches(defense):
    same(measured(defense), measured(Undefended()), 1e-4)


def test_a_training_is_known_by_all_that_decides_it():
    pruning = GradientPruning(0.5)

    def identity(defense=pruning, victim=VICTIM, training=TRAINING) -> str:
        return DefendedTraining.of(defense, victim, training).identity()

    assert identity() == identity(GradientPruning(0.5))
    changes = [
        {"defense": GradientPruning(0.6)},
        {"training": replace(TRAINING, learning_rate=0.2)},
        {"training": replace(TRAINING, records=draws(30, 13))},
        {"training": replace(TRAINING, held_out=draws(60, 14))},
        {"training": replace(TRAINING, fresh_initialization=False)},
        {"victim": replace(VICTIM, reduction="sum")},
    ]
    assert len({identity(), *(identity(**change) for change in changes)}) == 1 + len(changes)


def test_defences_that_code_alone_tells_apart_are_kept_apart():
    class Twice(GradientPruning):
        def __repr__(self):
            return "own defence"

    some, many = (DefendedTraining.of(Twice(rate), VICTIM, TRAINING) for rate in (0.5, 0.95))
    assert some.identity() != many.identity()


@pytest.mark.parametrize(
    ("defense", "rate"), [(Undefended(), 1e30), (GradientNoise(1e4), 0.3), (HalfPrecision(), 1e7)]
)
def test_divergence_is_said_and_is_no_accuracy(defense, rate):
    runs = runs_of(defense, training=replace(TRAINING, learning_rate=rate))
    assert UtilityRuns(tuple(runs)).diverged == 2
    assert all(run.accuracy is None and run.loss is None and run.reason for run in runs)


def test_opacus_clips_as_the_victim_does():
    pytest.importorskip("opacus")
    batch = draws(6, 21)
    federated = FederatedUpdate(VICTIM.model, LocalTraining(3, 0.2, 4, 0.5), mode="eval")
    for plain in (VICTIM, replace(VICTIM, reduction="sum"), federated):
        for norm in (0.05, 1.0, 1e4):
            victim = RecordClipping(norm)(plain)
            ours = victim.release(batch, generator=torch.Generator())
            theirs = OpacusClient(victim).release(batch, generator=torch.Generator())
            assert list(ours.tensors) == list(theirs.tensors)
            for name, tensor in ours.tensors.items():
                torch.testing.assert_close(theirs.tensors[name], tensor, rtol=1e-4, atol=1e-6)


def test_opacus_and_the_victim_add_noise_of_one_law():
    """Over 9,720 normal entries a deviation is within 3% with probability 0.9999."""
    pytest.importorskip("opacus")
    batch, defense = draws(6, 21), PrivateGradients(0.5, 2.0)
    clipped = RecordClipping(0.5)(VICTIM).release(batch, generator=torch.Generator())
    for make in (lambda victim: victim, OpacusClient):
        victim = make(defense(VICTIM))
        left = []
        for seed in range(40):
            release = victim.release(batch, generator=torch.Generator().manual_seed(seed))
            left += [(release.tensors[n] - clipped.tensors[n]).flatten() for n in clipped.tensors]
        noise = torch.cat(left)
        assert len(noise) == 9720
        assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 6, rel=0.03)
        assert abs(float(noise.mean())) < 4 * (1 / 6) / 9720**0.5


def test_training_by_opacus_is_training():
    pytest.importorskip("opacus")
    tiny = PrivateGradients(0.5, 1e-9)
    same(measured(tiny, training=replace(TRAINING, by="opacus")), measured(tiny), 1e-3)


def test_opacus_says_what_it_cannot_do():
    pytest.importorskip("opacus")
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 3), lambda: nn.BatchNorm1d(3))
    victim = PrivateGradients(1.0, 1.0)(SharedGradient(model, mode="eval"))
    with pytest.raises(BadInput, match="group norm"):
        OpacusClient(victim).release(draws(4, 1), generator=torch.Generator())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": 0}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"repeats": 1}, "two seeds"),
        ({"learning_rate": 0.0}, "positive"),
        ({"by": "torch"}, "'victim' or 'opacus'"),
        ({"held_out": draws(30, 11)}, "also trained on"),
        ({"records": draws(30, 11)[:0]}, "records to train on"),
    ],
)
def test_what_does_not_fit_is_said(change, said):
    with pytest.raises(BadInput, match=said):
        replace(TRAINING, **change)


def test_what_cannot_be_trained_is_said():
    with pytest.raises(BadInput, match="sends updates"):
        runs_of(LocalAggregation(3))
    with pytest.raises(BadInput, match="needs 31 records"):
        runs_of(BatchSize(31))
    with pytest.raises(BadInput, match="batch_size"):
        runs_of(Undefended(), training=replace(TRAINING, batch_size=None))


@pytest.mark.parametrize(
    "engine",
    [InProcess(), pytest.param(LocalProcesses(2), marks=pytest.mark.slow)],
    ids=["here", "processes"],
)
def test_a_comparison_trains_once_and_keeps_what_is_trained(tmp_path, engine, monkeypatch):
    """Runs that are there stay; one that cannot be done is a problem, and the others land."""
    plan = Comparison(
        [ComparedServer("server", VICTIM, [LabelOnly()], HonestServer(labels=True))],
        [LocalAggregation(3), GradientNoise(0.5)],
        draws(60, 1000),
        Prior(draws(60, 2000)),
        TRAINING,
        trials=2,
        false_positive_rate=0.1,
    )
    found = run(plan, directory=tmp_path, engine=engine)
    bare, noisy, local = (found.findings.points[place].utility for place in (0, 2, 1))
    for utility, defense in ((bare, Undefended()), (noisy, GradientNoise(0.5))):
        expected = measured(defense)
        assert utility.accuracy.value == pytest.approx(sum(a for a, _ in expected) / 2)
        assert utility.loss.value == pytest.approx(sum(b for _, b in expected) / 2, rel=1e-12)
    assert "sends updates" in local.problem
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "units").iterdir()}
    assert len(kept) == 2 * 2 + 2 * 2
    monkeypatch.setattr(
        utility_training, "trained_once", lambda *given: pytest.fail("trained again")
    )
    (tmp_path / "units" / "000004.safetensors").unlink()  # a trial
    assert run(plan, directory=tmp_path).findings.points == found.findings.points
    assert all(p.stat().st_mtime_ns == moment for p, moment in kept.items() if p.stem != "000004")
    (tmp_path / "units" / "000001.safetensors").write_bytes(b"damaged")
    with pytest.raises(BadInput, match=r"000001\.safetensors is damaged: delete this file"):
        run(plan, directory=tmp_path)
