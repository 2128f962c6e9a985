"""The comparison: cells are audits, pairs are pairs, problems are said, a kill loses nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vestige
from vestige import (
    BadInput,
    ComparedServer,
    Comparison,
    ComparisonPlan,
    FederatedUpdate,
    HonestServer,
    ImprintReading,
    InvertingGradients,
    LocalTraining,
    MaliciousServer,
    Prior,
    SharedGradient,
    UtilityTraining,
    compare,
    run,
)
from vestige.bounds.description import in_words
from vestige.bounds.mechanisms import DPSGD
from vestige.compared_cells import GUESS, errors_of
from vestige.comparison import Cell, DefendedPoint, Utility
from vestige.comparison_figures import limited_mean, pareto_front
from vestige.comparison_sentences import Offer, recommend
from vestige.defenses import (
    BatchSize,
    GradientClipping,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    LocalAggregation,
    PrivateGradients,
    Undefended,
)
from vestige.engines import InProcess, LocalProcesses
from vestige.noise_study import Mean
from vestige.observations import GradientRelease, Reconstruction
from vestige.record import Rate, VerdictKind
from vestige.user_code import load_comparison
from worlds import LabelOnly, draws, imprinted_network, linear_network

VICTIM = SharedGradient(linear_network(), mode="eval")
TRIALS = 8


@dataclass(frozen=True)
class FirstLayer:
    """Reads one record off the first layer: a row of its gradient, divided by the bias's."""

    name = "First layer"
    summary = "divides gradients"
    needs = "nothing"
    cites = "Phong et al. 2018"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            weight, bias = list(observation.release.tensors.values())[:2]
            row = int(bias.abs().argmax())
            drawn = (weight[row] / bias[row]).reshape(1, *public.prior.space.shape)
            return Reconstruction(drawn.clamp(0, 1))

        return reconstruct


def plan_of(**changes) -> ComparisonPlan:
    settings = {
        "servers": [ComparedServer("honest server", VICTIM, [FirstLayer()])],
        "defenses": [GradientPruning(0.5), GradientNoise(0.3)],
        "secrets": draws(60, 1000),
        "prior": Prior(draws(60, 2000)),
        "training": UtilityTraining(
            draws(60, 31), draws(60, 32), rounds=8, clients=2, batch_size=4, repeats=2
        ),
        "false_positive_rate": 0.1,
        "budget": 0.05,
    }
    return ComparisonPlan(**{**settings, **changes})


@dataclass(frozen=True)
class Stops:
    """Stops whenever the release is not altered, or always."""

    always: bool = False

    name = "Stops"
    summary = "stops"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        def reconstruct(observation, attacker):
            if public.simulator.alterations or self.always:
                raise RuntimeError("out of luck")
            return Reconstruction(torch.zeros(1, *public.prior.space.shape))

        return reconstruct


@dataclass(frozen=True)
class Fails:
    """Draws nothing finite in every second trial, and the secret's place in grey otherwise."""

    name = "Fails"
    summary = "fails"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        calls = []

        def reconstruct(observation, attacker):
            calls.append(1)
            value = float("nan") if len(calls) % 2 else 0.5
            return Reconstruction(torch.full((1, *public.prior.space.shape), value))

        return reconstruct


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> tuple[ComparisonPlan, Comparison, Path]:
    plan = plan_of(
        servers=[
            ComparedServer("honest server", VICTIM, [FirstLayer()]),
            ComparedServer(
                "malicious server",
                SharedGradient(imprinted_network(), mode="eval"),
                [ImprintReading()],
                MaliciousServer(),
            ),
        ],
        defenses=[
            GradientPruning(0.9),
            GradientPruning(0.5),
            GradientNoise(0.3),
            GradientNoise(1e4),
            LocalAggregation(3),
            BatchSize(2),
        ],
        static=True,
    )
    folder = tmp_path_factory.mktemp("comparison")
    return plan, compare(plan, trials=TRIALS, seed=3, directory=folder), folder


def test_the_document_is_whole(full):
    _, found, _ = full
    assert Comparison.model_validate_json(found.model_dump_json()) == found
    labels = [point.label for point in found.points]
    assert labels[:3] == ["No defence", "Pruning 0.5", "Pruning 0.9"]
    assert len(labels) == 7
    assert {server.name for server in found.servers} == {"honest server", "malicious server"}
    assert found.points[0].utility.accuracy_lost == Mean(value=0, lower=0, upper=0)
    assert len(found.matched) == 2 * 4 * 3
    assert not re.search(r"\bsafe\b", found.model_dump_json())
    assert len(found.secrets) == 4
    assert any(said.startswith("Local steps, Batch size: one strength") for said in found.limits)
    hidden = found.without_secrets()
    assert all(c.pictures == (None,) * len(c.pictures) for p in hidden.points for c in p.cells)


def test_a_cell_is_its_audit(full):
    plan, found, _ = full
    for defense, label in ((Undefended(), "No defence"), (GradientPruning(0.9), "Pruning 0.9")):
        record = run(plan.audit(plan.servers[0], defense), trials=TRIALS, seed=3)
        cell = found.cell(next(p for p in found.points if p.label == label), "honest server")
        for measure in cell.measures:
            attack = next(a for a in record.attacks if a.name == measure.attack)
            errors = [o.mse**0.5 for o in attack.outcomes if o.mse is not None]
            assert len(errors) == TRIALS
            assert measure.error.value == pytest.approx(float(np.mean(errors)))
            assert measure.rate.hits == attack.rate.hits
        assert cell.protection.value == min(m.error.value for m in cell.measures)
        assert cell.most_hits.hits == max(m.rate.hits for m in cell.measures)


def test_limits_are_joint_over_the_attacks_and_the_guess(full):
    plan, found, _ = full
    record = run(plan.audit(plan.servers[0], Undefended()), trials=TRIALS, seed=3)
    guess = next(m for m in found.points[0].cells[0].measures if m.attack == GUESS)
    errors = errors_of(record, [GUESS])[:, 0]
    assert guess.error == limited_mean(errors, 0.975, low=0.0)
    assert found.guess_error == limited_mean(errors, 0.95, low=0.0)


def test_cells_are_about_the_same_secrets(full):
    _, found, _ = full
    guesses = {
        cell.measures[-1].error.value
        for point in found.points
        if point.records == 1
        for cell in point.cells
        if cell.measures
    }
    assert len(guesses) == 1


def test_what_does_not_fit_and_what_diverged_is_said(full):
    _, found, _ = full
    local = next(p for p in found.points if p.defense == "Local steps")
    assert all("FederatedUpdate" in cell.problem for cell in local.cells)
    assert all(cell.protection is None and not cell.measures for cell in local.cells)
    assert "FederatedUpdate" in local.utility.problem
    wild = next(p for p in found.points if p.label == "Noise σ 10000")
    assert wild.utility.diverged == 2
    assert wild.utility.accuracy is None
    assert wild.utility.accuracy_lost is None
    assert all(wild.label not in front.labels for front in found.fronts)
    said = " ".join(found.recommendations[0].details)
    assert "Noise σ 10000: training diverged with 2 of 2 seeds" in said


def test_static_attackers_stand_beside_where_they_differ(full):
    _, found, _ = full
    for point in found.points:
        altered = point.defense in ("Pruning", "Noise")
        for cell in point.cells:
            for measure in cell.measures:
                assert (measure.static_error is not None) == altered, point.label


def test_fronts_are_of_the_points(full):
    _, found, _ = full
    for front in found.fronts:
        known = [
            p
            for p in found.points
            if p.utility.accuracy_lost and not p.utility.diverged and p.cells[0].protection
        ]
        costs = [p.utility.accuracy_lost.value for p in known]
        kept = [found.cell(p, front.server).protection.value for p in known]
        expected = {known[i].label for i in pareto_front(costs, kept)}
        assert set(front.labels) == expected


def test_the_same_call_again_redoes_nothing(full):
    plan, found, folder = full
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = compare(plan, trials=TRIALS, seed=3, directory=folder)
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert before == after
    without = {"cpu_seconds": 0.0}
    assert again.model_copy(update=without) == found.model_copy(update=without)


def test_local_processes_give_the_same_comparison():
    attacks = [vestige.InvertingGradients(20)]
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, attacks)])
    here, there = (compare(plan, trials=3, engine=e) for e in (None, LocalProcesses(2)))
    assert here.points == there.points
    assert here.recommendations == there.recommendations


def test_an_attack_that_stops_makes_a_cell_say_so():
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [Stops()])])
    found = compare(plan, trials=4)
    assert found.points[0].cells[0].problem == ""
    assert all("out of luck" in p.cells[0].problem for p in found.points[1:])
    assert all(p.cells[0].protection is None for p in found.points[1:])
    assert found.verdict.kind is VerdictKind.INVALID
    stopped = plan_of(servers=[ComparedServer("honest server", VICTIM, [Stops(always=True)])])
    with pytest.raises(BadInput, match="out of luck"):
        compare(stopped, trials=4)


def test_a_trial_without_a_candidate_counts_as_the_guess():
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [Fails()])])
    record = run(plan.audit(plan.servers[0], Undefended()), trials=6, seed=0)
    errors = errors_of(record, ["Fails", GUESS])
    lost = [outcome.mse is None for outcome in record.attacks[0].outcomes]
    assert lost == [True, False] * 3
    assert np.array_equal(errors[lost, 0], errors[lost, 1])
    assert not np.any(errors[~np.array(lost), 0] == errors[~np.array(lost), 1])


def test_training_that_diverges_without_a_defence_invalidates():
    wild = replace(plan_of().training, learning_rate=1e30)
    found = compare(plan_of(training=wild), trials=3)
    assert found.verdict.kind is VerdictKind.INVALID
    assert "diverged" in found.verdict.lede
    assert "learning rate" in found.recommendations[0].sentence
    assert all(m.protection is None for m in found.matched)


def test_attacks_that_recover_nothing_show_nothing():
    told = HonestServer(labels=True)
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [LabelOnly()], told)])
    found = compare(plan, trials=TRIALS)
    assert found.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert found.points[0].cells[0].strongest == GUESS


def test_strengths_go_from_weak_to_strong():
    given = [
        GradientClipping(1.0),
        GradientQuantization(4),
        GradientClipping(4.0),
        GradientNoise(0.1),
        GradientQuantization(8),
        GradientNoise(0.01),
    ]
    labels = [d.setting for d in plan_of(defenses=given).all_defenses]
    assert labels == ["", "norm 4", "norm 1", "8 bits", "4 bits", "σ 0.01", "σ 0.1"]


def offer(label: str, cost: float, errors, hits: int, *, diverged: int = 0) -> Offer:
    errors = np.array(errors, dtype=float)
    lower, upper = (0.6, 1.0) if hits == len(errors) else (0.0, 0.4)
    cell = Cell(
        server="s",
        strongest="Attack",
        protection=limited_mean(errors, 0.95),
        most_hits=Rate(hits=hits, trials=len(errors), lower=lower, upper=upper),
    )
    lost = Mean(value=cost, lower=cost - 0.001, upper=cost + 0.001)
    utility = Utility(
        repeats=3, diverged=diverged, accuracy=None, loss=None, accuracy_lost=lost, loss_added=None
    )
    point = DefendedPoint(
        defense=label,
        strength=1,
        setting="",
        mechanism="",
        guarantee=False,
        records=1,
        utility=utility,
        cells=(cell,),
    )
    return Offer(point, cell, errors)


def test_the_recommendation_weighs_cost_and_doubt():
    bare = offer("No defence", 0, [0.1, 0.11, 0.09, 0.1], 4)
    strong = offer("Strong", 0.01, [0.3, 0.31, 0.29, 0.3], 4)
    close = offer("Close", 0.02, [0.29, 0.33, 0.27, 0.29], 4)
    weak = offer("Weak", 0.01, [0.15, 0.16, 0.14, 0.15], 0)
    dear = offer("Dear", 0.2, [0.5, 0.51, 0.49, 0.5], 0)
    wild = offer("Wild", 0.0, [0.9, 0.9, 0.8, 0.9], 0, diverged=1)
    plan = plan_of(budget=0.05)
    found = recommend("s", [weak, close, strong, dear, wild], bare, plan)
    assert found.sentence.startswith("At a cost of at most 5 points of accuracy, Strong leaves")
    assert "Close leaves 0.29" in found.sentence
    assert "cannot tell the two apart" in found.sentence
    assert "Weak leaves a smaller error, but its hits cannot be told" in found.sentence
    assert any(said.startswith("Dear costs 20.0 points") for said in found.details)
    assert any(said.startswith("Wild: training diverged with 1 of 3") for said in found.details)
    exposed = recommend("s", [close, strong], bare, plan)
    assert "No defence here within the budget hides secrets" in exposed.sentence
    none = recommend("s", [dear, wild], bare, plan)
    assert none.sentence.startswith("No defence here costs at most 5 points")
    same = recommend("s", [offer("Nothing", 0, [0.1, 0.11, 0.09, 0.1], 4)], bare, plan)
    assert "cannot tell it from no defence" in same.sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"defenses": []}, "nothing to compare"),
        ({"defenses": [Undefended()]}, "nothing to compare"),
        ({"defenses": [GradientNoise]}, "is a class"),
        ({"defenses": ["noise"]}, "is no defence"),
        ({"defenses": [GradientNoise(0.1), GradientNoise(0.1)]}, "given twice"),
        ({"servers": []}, "needs a server"),
        ({"servers": [VICTIM]}, "is no server"),
        ({"servers": [ComparedServer("a", VICTIM, [])]}, "at least one attack"),
        ({"servers": [ComparedServer("a", VICTIM, [FirstLayer()])] * 2}, "one name"),
        ({"budget": 2}, "budget"),
        ({"training": None}, "UtilityTraining"),
    ],
)
def test_what_does_not_fit_is_said(change, said):
    with pytest.raises(BadInput, match=said):
        plan_of(**change)


def test_trials_that_cannot_be_are_refused(tmp_path):
    for trials in (1, 61):
        with pytest.raises(BadInput, match="2 … 60 trials"):
            compare(plan_of(), trials=trials, directory=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_private_gradients_before_a_client_in_train_mode_are_a_problem_of_the_cell():
    server = ComparedServer("honest server", SharedGradient(linear_network()), [FirstLayer()])
    plan = plan_of(servers=[server], defenses=[PrivateGradients(1.0, 1.0), GradientNoise(0.1)])
    found = compare(plan, trials=2)
    private = next(p for p in found.points if p.defense == "DP-SGD")
    assert "mode='eval'" in private.cells[0].problem
    assert private.guarantee


def test_the_example_can_be_audited_throughout():
    plan = load_comparison(Path(__file__).parent.parent / "examples" / "compare_defenses.py")
    assert len(plan.all_defenses) == 19
    for defense in plan.all_defenses:
        plan.audit(plan.servers[0], defense)


FILE = f"""
import sys
from contextlib import contextmanager
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_comparisons import plan_of
comparison = plan_of()
"""


def test_the_command_line_compares(tmp_path, monkeypatch, capsys):
    from vestige.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    file.write_text(FILE)

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["vestige", "compare", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    words = ["--trials", "4", "--out", "out", "--budget", "0.5", "--threads", "0"]
    assert call("mine.py", *words) == 0
    shown = capsys.readouterr().out
    assert "Pruning 0.5" in shown
    assert "At a cost of at most 50 points" in " ".join(shown.split())
    kept = Comparison.model_validate_json((tmp_path / "out" / "comparison.json").read_bytes())
    assert kept.budget == 0.5
    file.write_text(FILE.replace("plan_of()", "plan_of(title='Another')"))
    assert call("mine.py", *words) == 2
    assert "holds another comparison, 'Defences compared'" in capsys.readouterr().err
    file.write_text("comparison = 3\n")
    assert call("mine.py") == 2
    assert "ComparisonPlan" in capsys.readouterr().err
    file.write_text("\n")
    assert call("mine.py") == 2
    assert "defines no comparison" in capsys.readouterr().err


DRIVER = """
import json, os, signal, sys, time
from pathlib import Path

import torch

torch.set_num_threads(1)
from test_comparisons import plan_of
from vestige import compare

place, plan = Path(sys.argv[1]), plan_of()


def without_times(found):
    return found.model_copy(update={"cpu_seconds": 0.0}).model_dump_json()


def finished():
    done = [*place.rglob("utilities/*.json"), *place.rglob("trials/*.safetensors")]
    return {str(path): path.stat().st_mtime_ns for path in done}


whole = without_times(compare(plan, trials=6, seed=1))
kept, redone, before = [], [], {}
# Six trainings and eighteen trials: the kills come at the first, while training, and after.
for wanted in (1, 4, 7, 12, 19):
    child = os.fork()
    if child == 0:
        try:
            compare(plan, trials=6, seed=1, directory=place)
        finally:
            os._exit(0)
    while len(finished()) < wanted:
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    now = finished()
    redone += [path for path, moment in before.items() if now.get(path) != moment]
    kept.append(len(now))
    before = now
found = compare(plan, trials=6, seed=1, directory=place)
redone += [path for path, moment in before.items() if finished()[path] != moment]
print(json.dumps({"kept": kept, "redone": redone, "equal": without_times(found) == whole}))
"""


@pytest.mark.slow
def test_a_killed_comparison_goes_on(tmp_path):
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent / 'src'}",
        },
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len({number for number in said["kept"] if number < 24}) >= 3, said
    assert said["redone"] == []
    assert said["equal"]


def test_a_guarantee_is_stated_for_all_steps_of_the_victim():
    """Three private local steps are three steps of DP-SGD, whatever one release would be."""
    local = LocalTraining(steps=3, learning_rate=0.1)
    victim = FederatedUpdate(linear_network(), local, mode="eval")
    server = ComparedServer("honest server", victim, [InvertingGradients(iterations=2)])
    plan = plan_of(servers=[server], defenses=[PrivateGradients(1.0, 2.0)])
    bare, private = compare(plan, trials=2).points
    assert private.guarantee
    assert private.mechanism == in_words(DPSGD(2.0, 1.0, 3, clipping_norm=1.0))
    assert private.mechanism != in_words(PrivateGradients(1.0, 2.0).mechanism)
    assert not bare.guarantee


def test_the_cpu_time_of_workers_counts():
    class Slow(InProcess):
        """Says that other processes spent a thousand seconds on each unit."""

        here = False

        @contextmanager
        def employed(self, work):
            with super().employed(work) as workers:
                report = workers.report
                workers.report = lambda: replace(report(), cpu_seconds=1000.0)
                yield workers

    found = compare(plan_of(), trials=3, engine=Slow())
    # Three defences with two trainings and three trials each.
    assert 15_000 <= found.cpu_seconds < 15_100
