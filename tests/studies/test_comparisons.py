"""The comparison: cells are audits, pairs are pairs, problems are said, a kill loses nothing."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vestige
from pages.comparison_worlds import comparison
from vestige import Comparison, Prior, run
from vestige.attacks import ImprintReading, InvertingGradients
from vestige.bounds.description import in_words
from vestige.cli.user_code import load_plan
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
from vestige.errors import BadInput, Conflict, Interrupted
from vestige.interfaces import GradientRelease, Reconstruction
from vestige.mechanisms import DPSGD
from vestige.reports.comparison import (
    Cell,
    ComparisonFindings,
    ComparisonReport,
    DefendedPoint,
    Utility,
)
from vestige.reports.noise import Mean
from vestige.reports.parts import Rate, Times, VerdictKind
from vestige.statistics.tradeoff import mean_with_limits, pareto_front
from vestige.studies import ComparedServer, UtilityTraining
from vestige.studies.comparison.advice import Offer, recommend
from vestige.studies.comparison.cells import BASELINE, errors_of
from vestige.studies.comparison.judge import judge_offers
from vestige.studies.study import Header
from vestige.studies.unit_files import unit_in
from vestige.threats import HonestServer, MaliciousServer
from vestige.victims import FederatedUpdate, LocalTraining, SharedGradient
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


def plan_of(**changes) -> Comparison:
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
    return Comparison(**{**settings, **changes})


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
def full(tmp_path_factory) -> tuple[Comparison, ComparisonReport, Path]:
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
        trials=TRIALS,
    )
    folder = tmp_path_factory.mktemp("comparison")
    return plan, run(plan, seed=3, directory=folder), folder


@pytest.mark.slow
def test_the_document_is_whole(full):
    _, found, _ = full
    assert ComparisonReport.model_validate_json(found.model_dump_json()) == found
    labels = [point.label for point in found.findings.points]
    assert labels[:3] == ["No defence", "Pruning 0.5", "Pruning 0.9"]
    assert len(labels) == 7
    assert {server.name for server in found.findings.servers} == {
        "honest server",
        "malicious server",
    }
    assert found.findings.points[0].utility.accuracy_lost == Mean(value=0, lower=0, upper=0)
    assert len(found.findings.matched) == 2 * 4 * 3
    assert not re.search(r"\bsafe\b", found.model_dump_json())
    assert len(found.findings.secrets) == 4
    assert any(
        said.startswith("Local steps, Batch size: one strength") for said in found.findings.limits
    )
    hidden = found.without_secrets()
    assert all(
        c.pictures == (None,) * len(c.pictures) for p in hidden.findings.points for c in p.cells
    )


@pytest.mark.slow
def test_a_cell_is_its_audit(full):
    plan, found, _ = full
    for defense, label in ((Undefended(), "No defence"), (GradientPruning(0.9), "Pruning 0.9")):
        report = run(plan.audit(plan.servers[0], defense), seed=3)
        cell = found.findings.cell(
            next(p for p in found.findings.points if p.label == label), "honest server"
        )
        for measure in cell.measures:
            attack = next(a for a in report.findings.attacks if a.name == measure.attack)
            errors = [o.mse**0.5 for o in attack.outcomes if o.mse is not None]
            assert len(errors) == TRIALS
            assert measure.error.value == pytest.approx(float(np.mean(errors)))
            assert measure.rate.hits == report.judgement.rates_of(attack).rate.hits
        assert cell.protection.value == min(m.error.value for m in cell.measures)
        assert cell.most_hits.hits == max(m.rate.hits for m in cell.measures)


@pytest.mark.slow
def test_limits_are_joint_over_the_attacks_and_the_guess(full):
    plan, found, _ = full
    report = run(plan.audit(plan.servers[0], Undefended()), seed=3)
    guess = next(m for m in found.findings.points[0].cells[0].measures if m.guess)
    errors = errors_of(report.findings, [BASELINE.name])[:, 0]
    assert guess.error == mean_with_limits(errors, 0.975, low=0.0)
    # One figure has the same limits wherever a page shows it.
    assert found.findings.guess_error == guess.error


@pytest.mark.slow
def test_cells_are_about_the_same_secrets(full):
    _, found, _ = full
    guesses = {
        cell.measures[-1].error.value
        for point in found.findings.points
        if point.records == 1
        for cell in point.cells
        if cell.measures
    }
    assert len(guesses) == 1


@pytest.mark.slow
def test_what_does_not_fit_and_what_diverged_is_said(full):
    _, found, _ = full
    local = next(p for p in found.findings.points if p.defense == "Local steps")
    assert all("FederatedUpdate" in cell.problem for cell in local.cells)
    assert all(cell.protection is None and not cell.measures for cell in local.cells)
    assert "FederatedUpdate" in local.utility.problem
    wild = next(p for p in found.findings.points if p.label == "Noise σ 10000")
    assert wild.utility.diverged == 2
    assert wild.utility.accuracy is None
    assert wild.utility.accuracy_lost is None
    assert all(wild.label not in front.labels for front in found.judgement.fronts)
    said = " ".join(found.judgement.recommendations[0].details)
    assert "Noise σ 10000: training diverged with 2 of 2 seeds" in said


@pytest.mark.slow
def test_static_attackers_stand_beside_where_they_differ(full):
    _, found, _ = full
    for point in found.findings.points:
        altered = point.defense in ("Pruning", "Noise")
        for cell in point.cells:
            for measure in cell.measures:
                assert (measure.static_error is not None) == altered, point.label


@pytest.mark.slow
def test_fronts_are_of_the_points(full):
    _, found, _ = full
    for front in found.judgement.fronts:
        known = [
            p
            for p in found.findings.points
            if p.utility.accuracy_lost and not p.utility.diverged and p.cells[0].protection
        ]
        costs = [p.utility.accuracy_lost.value for p in known]
        kept = [found.findings.cell(p, front.server).protection.value for p in known]
        expected = {known[i].label for i in pareto_front(costs, kept)}
        assert set(front.labels) == expected


@pytest.mark.slow
def test_the_same_call_again_redoes_nothing(full):
    plan, found, folder = full
    before = {path: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    again = run(plan, seed=3, directory=folder)
    after = {path: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}
    assert before == after
    times = {"times": Times()}
    assert again.findings.model_copy(update=times) == found.findings.model_copy(update=times)
    assert again.judgement == found.judgement


@pytest.mark.slow
def test_local_processes_give_the_same_comparison():
    attacks = [vestige.attacks.InvertingGradients(20)]
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, attacks)], trials=3)
    here, there = (run(plan, engine=e) for e in (None, LocalProcesses(2)))
    assert here.findings.points == there.findings.points
    assert here.judgement.recommendations == there.judgement.recommendations


@pytest.mark.slow
def test_an_attack_that_stops_makes_a_cell_say_so():
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [Stops()])], trials=4)
    found = run(plan)
    assert found.findings.points[0].cells[0].problem == ""
    assert all("out of luck" in p.cells[0].problem for p in found.findings.points[1:])
    assert all(p.cells[0].protection is None for p in found.findings.points[1:])
    assert found.verdict.kind is VerdictKind.INVALID
    stopped = plan_of(servers=[ComparedServer("honest server", VICTIM, [Stops(always=True)])])
    with pytest.raises(BadInput, match="out of luck"):
        run(stopped)


def test_a_trial_without_a_candidate_counts_as_the_guess():
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [Fails()])], trials=6)
    report = run(plan.audit(plan.servers[0], Undefended()), seed=0)
    errors = errors_of(report.findings, ["Fails", BASELINE.name])
    lost = [outcome.mse is None for outcome in report.findings.attacks[0].outcomes]
    assert lost == [True, False] * 3
    assert np.array_equal(errors[lost, 0], errors[lost, 1])
    assert not np.any(errors[~np.array(lost), 0] == errors[~np.array(lost), 1])


def test_training_that_diverges_without_a_defence_invalidates():
    wild = replace(plan_of().training, learning_rate=1e30)
    found = run(plan_of(training=wild, trials=3))
    assert found.verdict.kind is VerdictKind.INVALID
    assert "diverged" in found.verdict.lede
    assert "learning rate" in found.judgement.recommendations[0].sentence
    assert all(m.protection is None for m in found.findings.matched)


def test_attacks_that_recover_nothing_show_nothing():
    told = HonestServer(labels=True)
    plan = plan_of(servers=[ComparedServer("honest server", VICTIM, [LabelOnly()], told)])
    found = run(replace(plan, trials=TRIALS))
    assert found.verdict.kind is VerdictKind.NOT_DEMONSTRATED
    assert found.findings.points[0].cells[0].strongest == BASELINE.name


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


def offer(label: str, cost: float, error: float, hits: int, *, diverged: int = 0) -> Offer:
    lower, upper = (0.6, 1.0) if hits == TRIALS else (0.0, 0.4)
    cell = Cell(
        server="s",
        strongest="Attack",
        protection=Mean(value=error, lower=error - 0.02, upper=error + 0.02),
        most_hits=Rate(hits=hits, trials=TRIALS, lower=lower, upper=upper),
    )
    lost = Mean(value=cost, lower=cost - 0.001, upper=cost + 0.001)
    utility = Utility(
        repeats=3, diverged=diverged, accuracy=None, loss=None, accuracy_lost=lost, loss_added=None
    )
    point = DefendedPoint(
        defense=label,
        undefended=label == "No defence",
        strength=1,
        setting="",
        mechanism="",
        guarantee=False,
        records=1,
        utility=utility,
        cells=(cell,),
    )
    return Offer(point, cell, lost)


BARE = offer("No defence", 0, 0.1, TRIALS)
STRONG = offer("Strong", 0.01, 0.3, TRIALS)
CLOSE = offer("Close", 0.02, 0.29, TRIALS)
WEAK = offer("Weak", 0.01, 0.15, 0)
DEAR = offer("Dear", 0.2, 0.5, 0)
WILD = offer("Wild", 0.0, 0.9, 0, diverged=1)


def asked(budget: float) -> ComparisonFindings:
    """Findings with the question that this module's plan asks, and another budget."""
    plan = plan_of(budget=budget)
    update = {"budget": budget, "confidence": plan.confidence, "trials": TRIALS, "refuted": ()}
    update["false_positive_rate"] = plan.false_positive_rate
    return comparison().findings.model_copy(update=update)


def with_trials(findings: ComparisonFindings, trials: int) -> ComparisonFindings:
    return findings.model_copy(update={"trials": trials})


def test_the_recommendation_weighs_cost_and_doubt():
    plan = asked(0.05)
    told = {("Strong", "Weak"), ("Close", "Weak"), ("Strong", "No defence")}
    some = [WEAK, CLOSE, STRONG, DEAR, WILD]
    found = recommend("s", some, BARE, told, plan)
    assert found.sentence.startswith("At a cost of at most 5 points of accuracy, Strong leaves")
    assert "the largest mean at this cost" in found.sentence
    assert "Close leaves 0.29 (0.27–0.31): these trials cannot tell" in found.sentence
    assert "Weak leaves 0.15" not in found.sentence
    assert "This is more than without a defence." in found.sentence
    assert "Weak leaves a smaller error, but its hits cannot be told" in found.sentence
    assert "reach beyond the budget" not in found.sentence
    assert any(said.startswith("Dear costs 20.0 points (19.9–20.1)") for said in found.details)
    assert any(said.startswith("Wild: training diverged with 1 of 3") for said in found.details)
    exposed = recommend("s", [CLOSE, STRONG], BARE, told, plan)
    assert "No defence here within the budget hides secrets" in exposed.sentence
    none = recommend("s", [DEAR, WILD], BARE, told, plan)
    assert none.sentence.startswith("No defence here costs at most 5 points")


def test_no_order_is_said_that_was_not_told():
    """Means far apart and limits that do not overlap are no contrast: only the pairs count."""
    plan = asked(0.05)
    found = recommend("s", [WEAK, STRONG], BARE, set(), plan)
    assert "Weak leaves 0.15 (0.13–0.17): these trials cannot tell the two apart" in found.sentence
    assert "These trials cannot tell it from no defence" in found.sentence
    assert "Weak leaves an error that may be as large" in found.sentence
    assert "more than" not in found.sentence
    few = recommend("s", [WEAK, STRONG], BARE, set(), with_trials(plan, 5))
    assert (
        "With 5\u00a0trials nothing can be told apart at 95%: more trials are needed."
        in few.sentence
    )
    alone = {("Strong", "Weak"), ("No defence", "Weak"), ("No defence", "Strong")}
    worse = recommend("s", [WEAK, STRONG], BARE, alone, plan)
    assert "more than every other at this cost" in worse.sentence
    assert "This is less than without a defence." in worse.sentence
    assert "Less than without a defence is left with Weak and Strong." in worse.details


def test_a_cost_that_was_chosen_among_many_has_joint_limits():
    plan = asked(0.011)
    assert (
        "reach beyond the budget"
        not in recommend("s", [STRONG], BARE, set(), with_trials(plan, 8)).sentence
    )
    wide = Mean(value=0.01, lower=0.0, upper=0.02)
    one = recommend("s", [replace(STRONG, joint_cost=wide)], BARE, set(), with_trials(plan, 8))
    assert "limits for all costs together reach beyond the budget" in one.sentence


def test_guessing_is_said_of_a_defence_only_if_it_is_told_from_none():
    """No hit of 8 among one defence is at most 31%; of 60, at most 5%."""
    plan = asked(0.05)
    cells = tuple(c.model_copy(update={"server": "s"}) for c in BARE.point.cells)
    bare = BARE.point.model_copy(update={"cells": cells})
    none = Rate(hits=0, trials=60, lower=0.0, upper=0.06)
    weak = replace(WEAK, cell=WEAK.cell.model_copy(update={"most_hits": none}))
    told = {"s": {("Weak", "No defence")}}
    for offer_, larger, known in ((weak, told, True), (weak, {"s": set()}, False)):
        verdict = judge_offers(plan.model_copy(update={"points": (bare,)}), {"s": [offer_]}, larger)
        assert ("left these attacks guessing" in verdict.headline) == known
        assert ("needs more trials" in verdict.headline) == (not known)
    few = judge_offers(plan.model_copy(update={"points": (bare,)}), {"s": [WEAK]}, told)
    assert "needs more trials" in few.headline


@pytest.mark.slow
def test_what_is_told_apart_is_in_the_document_and_in_its_sentences(full):
    """A defence that hides everything is told from none at eight trials; equal ones never are."""
    _, found, _ = full
    pairs = {(t.server, t.larger, t.smaller) for t in found.findings.told_apart}
    assert ("honest server", "Noise σ 10000", "No defence") in pairs
    assert not any((server, b, a) in pairs for server, a, b in pairs)
    for advice in found.judgement.recommendations:
        better = "This is more than without a defence" in advice.sentence
        named = re.search(r"of accuracy, (.+?) leaves an error", advice.sentence)
        if named:
            assert ((advice.server, named.group(1), "No defence") in pairs) == better
    for point in found.findings.points:
        for cell in point.cells:
            asked = any(m.static_error is not None for m in cell.measures)
            assert (cell.static_larger is not None) == asked


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


def test_trials_that_cannot_be_are_refused():
    for trials in (1, 61):
        with pytest.raises(BadInput, match="2 … 60 trials"):
            plan_of(trials=trials)


def test_private_gradients_before_a_client_in_train_mode_are_a_problem_of_the_cell():
    server = ComparedServer("honest server", SharedGradient(linear_network()), [FirstLayer()])
    plan = plan_of(servers=[server], defenses=[PrivateGradients(1.0, 1.0), GradientNoise(0.1)])
    found = run(replace(plan, trials=2))
    private = next(p for p in found.findings.points if p.defense == "DP-SGD")
    assert "mode='eval'" in private.cells[0].problem
    assert private.guarantee


def test_the_example_can_be_audited_throughout():
    plan = load_plan(Path(__file__).parents[2] / "examples" / "compare_defenses.py")
    assert len(plan.all_defenses) == 19
    for defense in plan.all_defenses:
        plan.audit(plan.servers[0], defense)


FILE = f"""
import sys
from contextlib import contextmanager
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from test_comparisons import plan_of
comparison = plan_of()
"""


def test_the_command_line_compares(tmp_path, monkeypatch, capsys):
    from vestige.cli.app import main

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
    kept = ComparisonReport.model_validate_json((tmp_path / "out" / "report.json").read_bytes())
    assert kept.findings.budget == 0.5
    file.write_text(FILE.replace("plan_of()", "plan_of(title='Another')"))
    assert call("mine.py", *words) == 2
    assert "holds a study with another title, 'Defences compared'" in capsys.readouterr().err
    file.write_text("comparison = 3\n")
    assert call("mine.py") == 2
    assert "make it a vestige.Comparison(...)" in capsys.readouterr().err
    file.write_text("\n")
    assert call("mine.py") == 2
    assert "defines no comparison" in capsys.readouterr().err


def test_a_guarantee_is_stated_for_all_steps_of_the_victim():
    """Three private local steps are three steps of DP-SGD, whatever one release would be."""
    local = LocalTraining(steps=3, learning_rate=0.1)
    victim = FederatedUpdate(linear_network(), local, mode="eval")
    server = ComparedServer("honest server", victim, [InvertingGradients(iterations=2)])
    plan = plan_of(servers=[server], defenses=[PrivateGradients(1.0, 2.0)])
    bare, private = run(replace(plan, trials=2)).findings.points
    assert private.guarantee
    assert private.mechanism == in_words(DPSGD(2.0, 1.0, 3, clipping_norm=1.0))
    assert private.mechanism != in_words(PrivateGradients(1.0, 2.0).mechanism)
    assert not bare.guarantee


def test_the_cpu_time_of_workers_counts():
    class Slow(InProcess):
        """Says that other processes spent a thousand seconds on each unit."""

        here = False

        @contextmanager
        def worker_pool(self, work):
            with super().worker_pool(work) as workers:
                report = workers.report
                workers.report = lambda: replace(report(), cpu_seconds=1000.0)
                yield workers

    found = run(plan_of(trials=3), engine=Slow())
    # Three defences with two trainings and three trials each.
    assert 15_000 <= found.findings.times.cpu_seconds < 15_100


def unit_times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "units").iterdir()}


@pytest.mark.slow
def test_a_stopped_comparison_resumes(tmp_path):
    plan = plan_of(trials=3)
    whole = run(plan)
    for done in (2, 9):  # a training, a trial
        with pytest.raises(Interrupted, match="Rerun the same command to resume"):
            run(plan, directory=tmp_path, watch=lambda where, at=done: where.done == at)
        kept = unit_times(tmp_path)
        assert len(kept) == done
        assert not (tmp_path / "report.json").exists()
    assert run(plan, directory=tmp_path).findings.points == whole.findings.points
    assert unit_times(tmp_path).items() >= kept.items()


@dataclass(frozen=True)
class StopsBeside(Stops):
    """Stops as long as a file exists."""

    file: str = ""

    def prepare(self, public, *, generator):
        given = super().prepare(public, generator=generator)

        def reconstruct(observation, attacker):
            if Path(self.file).exists():
                return given(observation, attacker)
            return Reconstruction(torch.zeros(1, *public.prior.space.shape))

        return reconstruct


@pytest.mark.slow
def test_a_problem_is_tried_again_and_another_budget_judged(tmp_path):
    flag, folder = tmp_path / "flag", tmp_path / "run"
    flag.write_text("")
    server = ComparedServer("honest server", VICTIM, [StopsBeside(file=str(flag))])
    plan = plan_of(servers=[server], trials=3)
    found = run(plan, directory=folder)
    said = [point.cells[0].problem for point in found.findings.points]
    assert said == ["", *["Stops stopped in trial 1 of 3: RuntimeError: out of luck."] * 2]
    kept = unit_times(folder)
    assert len(kept) == 6 + 3, "a unit with a problem is not stored"
    flag.unlink()
    again = run(plan, directory=folder)
    assert [point.cells[0].problem for point in again.findings.points] == ["", "", ""]
    assert unit_times(folder).items() >= kept.items()
    kept = unit_times(folder)
    other = run(replace(plan, budget=0.5), directory=folder)
    assert (other.findings.budget, other.findings.points) == (0.5, again.findings.points)
    assert unit_times(folder) == kept
    with pytest.raises(Conflict, match="another study"):
        run(replace(plan, training=replace(plan.training, rounds=9)), directory=folder)


def test_units_run_in_any_order():
    plan = plan_of(trials=3)
    number = len(plan.units())
    contents = {}
    for unit in reversed(range(number)):
        contents[unit] = plan.prepare(0)(unit)
    results = [unit_in(unit, contents[unit]) for unit in range(number)]
    backwards = plan.findings(results, Header(0, (), None, Times()))
    assert backwards.points == run(plan).findings.points
