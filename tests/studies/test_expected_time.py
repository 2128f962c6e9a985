"""Predicted times: said where they are long, kept apart from everything that is compared."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, replace

import pytest
import torch

from vestige import progress, run
from vestige.attacks import CombinedInversion, ExactInversion, InvertingGradients
from vestige.attacks.best_of_restarts import BestOfRestarts
from vestige.attacks.rehearsed_confidence import RehearsedConfidence
from vestige.content import document_bytes
from vestige.interfaces import GradientRelease, Reconstruction
from vestige.progress import Display, Progress
from vestige.studies import expected_time as module
from vestige.studies.attack_choice import simulated_trial
from vestige.studies.expected_time import RunTime, duration, expected_time, run_time
from worlds import model_audit, small_audit


class Clock:
    """Time that passes only where an attack spends it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@dataclass(frozen=True)
class Search:
    """An attack of stated cost: seconds to prepare, for a run, and for an iteration."""

    iterations: int = 100
    step: float = 0.5
    once: float = 0.0
    preparation: float = 0.0
    problem: bool = False

    name = "Search"
    summary = "takes its time"
    needs = "nothing"
    cites = "nobody"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        CLOCK.now += self.preparation

        def reconstruct(observation, attacker):
            if self.problem:
                raise RuntimeError("broken")
            CLOCK.now += self.once + self.step * self.iterations
            size = observation.hints.batch_size or 1
            return Reconstruction(torch.zeros((size, *public.space.shape)))

        return reconstruct


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    CLOCK.now = 0.0
    monkeypatch.setattr(module, "time", CLOCK)


def setting():
    audit = small_audit([Search()])
    public = audit.threat.public(audit.victim, audit.prior)
    observation = simulated_trial(audit, public)
    assert observation is not None
    return public, observation


def test_the_time_of_a_run_is_told_from_few_iterations():
    attack = Search(iterations=300, step=2.0, once=5.0, preparation=7.0)
    found = run_time(attack, *setting(), releases=40)
    assert found is not None
    assert found.each == pytest.approx(605)
    assert found.first == pytest.approx(612)
    assert found.total(40) == pytest.approx(7 + 40 * 605)
    assert CLOCK.now < 100  # a fraction of what is predicted


def test_a_short_study_is_found_short_with_one_iteration():
    found = expected_time([Search(iterations=10, step=0.1)], *setting(), 40)
    assert found == ""
    assert pytest.approx(0.2) == CLOCK.now


@dataclass(frozen=True)
class Uneven(Search):
    """Half of a run's time is spent before its first iteration; it may end early."""

    ends: int = 10**6
    uneven = True

    def prepare(self, public, *, generator):
        CLOCK.now += self.preparation

        def reconstruct(observation, attacker):
            CLOCK.now += self.once
            for number in range(min(self.iterations, self.ends)):
                CLOCK.now += self.step
                if progress.report(number + 1, self.iterations, 0.5):
                    break
            return Reconstruction(torch.zeros((1, *public.space.shape)))

        return reconstruct


def test_an_uneven_search_that_ends_early_is_timed_to_its_end():
    found = run_time(Uneven(iterations=90, step=2.0, once=4.0, ends=3), *setting(), releases=3)
    assert found is not None
    assert found.each == pytest.approx(10)
    assert expected_time([Uneven(90, 2.0, 4.0, ends=3)], *setting(), 3) == ""


def test_a_long_uneven_search_is_timed_for_a_share_of_its_iterations():
    attack = Uneven(iterations=90, step=2.0, once=30.0, preparation=1.0)
    found = run_time(attack, *setting(), releases=3)
    assert found is not None
    assert CLOCK.now == pytest.approx(1 + 30 + 27 * 2)  # not all 90 iterations
    assert 210 / 2 < found.each < 210 * 2
    assert found.first == pytest.approx(found.each + 1)


def test_the_sentence():
    said = expected_time([Search(iterations=600, step=1.2)], *setting(), 40)
    assert said.replace("\u202f", " ").replace("\u00a0", " ") == (
        "One trial of Search takes about 12 minutes on this machine, 40 trials about 8 hours: use "
        "fewer iterations, a smaller batch or network, or several workers."
    )
    alone = expected_time([Search(iterations=600, step=1.2)], *setting(), 1, noun="run")
    assert alone.startswith("One run of Search takes about 12")
    assert "runs" not in alone
    several = expected_time([Search(600, 1.2), Search(600, 0.1)], *setting(), 40)
    assert "trials of 2 attacks about" in several.replace("\u00a0", " ")


def test_attacks_without_iterations_are_left_out():
    assert run_time(ExactInversion(), *setting(), releases=10**6) is None
    assert expected_time([ExactInversion()], *setting(), 10**6) == ""


def test_wrapped_attacks_take_as_many_runs():
    inner = Search(iterations=100, step=2.0)
    best = run_time(BestOfRestarts(inner, 8), *setting(), releases=2)
    rehearsed = run_time(RehearsedConfidence(inner, rehearsals=10), *setting(), releases=2)
    assert best is not None
    assert rehearsed is not None
    assert best.each == pytest.approx(1600)
    assert (rehearsed.first, rehearsed.each) == (pytest.approx(2200), pytest.approx(200))


def test_an_attack_that_chooses_its_recipe_first_takes_longer_the_first_time():
    attack = CombinedInversion(iterations=50)
    assert attack.most_iterations == 1000
    assert attack.longest_run == 200


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 second"), (45, "45 seconds"), (700, "12 minutes"), (28_800, "8 hours"),
     (5_300, "88 minutes"), (90_000, "25 hours"), (260_000, "3 days")],
)  # fmt: skip
def test_durations(seconds, words):
    assert duration(seconds).replace("\u202f", " ").replace("\u00a0", " ") == words


def test_a_long_audit_says_so_before_its_first_trial_and_keeps_it_in_its_times():
    audit = small_audit([Search(iterations=600, step=1.2)], trials=2)
    seen: list[Progress] = []
    report = run(audit, watch=seen.append)
    assert "takes about" in seen[0].note
    assert (seen[0].done, seen[0].total) == (0, 2)
    assert all(not one.note for one in seen[1:])
    assert report.findings.times.expected == seen[0].note
    assert not any("takes about" in check.sentence for check in report.findings.preflight)


def test_reports_are_equal_but_for_times_whatever_was_predicted(monkeypatch):
    audit = small_audit([Search(iterations=600, step=1.2)], trials=2)
    long = run(audit)
    monkeypatch.setattr(module, "LONG", 1e9)
    short = run(audit)
    assert long.findings.times.expected
    assert not short.findings.times.expected
    plain = {"times": short.findings.times}
    assert document_bytes(long.findings.model_copy(update=plain)) == document_bytes(short.findings)


def test_without_a_watch_the_log_says_it(caplog):
    with caplog.at_level(logging.WARNING, "vestige"):
        run(small_audit([Search(iterations=600, step=1.2)], trials=1))
    assert "takes about" in caplog.text


def test_the_display_prints_the_note():
    file = io.StringIO()
    Display(file)(Progress(0, 4, note="It takes long."))
    assert file.getvalue().startswith("It takes long.\n")


def test_a_resumed_audit_predicts_what_is_left(tmp_path):
    audit = small_audit([Search(iterations=600, step=0.4)], trials=3)
    first = run(audit, directory=tmp_path)
    assert "3" in first.findings.times.expected
    (tmp_path / "units" / "000001.safetensors").unlink()
    assert run(audit, directory=tmp_path).findings.times.expected == ""
    assert run(audit, directory=tmp_path).findings.times.expected == ""


def test_a_prediction_that_fails_stops_nothing():
    report = run(small_audit([Search(problem=True)], trials=1))
    assert report.findings.failure is not None  # from the trial, with its attack
    assert report.findings.failure.attack == "Search"
    small = small_audit([InvertingGradients(iterations=2)], trials=1, batch_size=2)
    few = replace(small, prior=replace(small.prior, records=small.prior.records[:1]))
    assert run(few).findings.times.expected == ""


def test_trained_models_are_not_timed():
    assert model_audit([replace_reads()]).expected_time(0, 100) == ""


def replace_reads():
    """The search as an attack on trained models."""

    class OnModels(Search):
        reads = (model_audit(None).victim.releases,)

    return OnModels()


def test_seconds_of_no_release_are_none():
    assert RunTime("any", 5.0, 3.0).total(0) == 0
