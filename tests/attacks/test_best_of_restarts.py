"""Restarts by an engine: the best of those run by hand, the same wherever they run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from pages.audits import changed
from vestige import Prior, run
from vestige.attacks import (
    BestOfRestarts,
    DeepLeakage,
    InvertingGradients,
    PriorMatching,
    RehearsedConfidence,
)
from vestige.engines import InProcess, LocalProcesses
from vestige.errors import BadInput
from vestige.interfaces import Attack, GradientRelease, Reconstruction, Run
from vestige.reports.parts import Times, VerdictKind
from vestige.streams import stream
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import NullVictim, draws, linear_network, small_audit


def seen():
    victim, threat, secret = SharedGradient(linear_network()), HonestServer(), draws(2, 8)
    release = victim.release(secret, generator=stream(0, "victim"))
    return threat.public(victim, Prior(draws(60, 7))), threat.observe(Run(secret, release))


@pytest.mark.parametrize(
    "engine",
    [InProcess(), pytest.param(LocalProcesses(2), marks=pytest.mark.slow)],
    ids=["here", "processes"],
)
def test_the_lowest_objective_of_restarts_run_by_hand(engine):
    public, observation = seen()
    attack = InvertingGradients(iterations=6)
    best = BestOfRestarts(attack, restarts=4, engine=engine)
    found = best.prepare(public, generator=stream(1))(observation, stream(2))
    seed = int(torch.randint(2**62, (), generator=stream(2)))
    alone = attack.prepare(public, generator=stream(1))
    runs = [alone(observation, stream(seed, "restart", number)) for number in range(4)]
    objectives = [float(one.objective or 0.0) for one in runs]
    wanted = runs[objectives.index(min(objectives))]
    assert len(set(objectives)) == 4
    assert torch.equal(found.candidates, wanted.candidates)
    assert found.objective == wanted.objective
    assert found.info["best restart"] == objectives.index(min(objectives)) + 1


@pytest.mark.parametrize("around", [BestOfRestarts, RehearsedConfidence])
@pytest.mark.parametrize("attack", [DeepLeakage(), InvertingGradients(), PriorMatching()])
def test_an_attack_around_another_needs_cites_and_reads_what_that_one_does(around, attack):
    made = around(attack)
    assert (made.needs, made.cites, made.reads) == (attack.needs, attack.cites, attack.reads)
    assert isinstance(made, Attack)


@pytest.mark.slow
def test_an_audit_is_the_same_on_every_engine():
    attack = InvertingGradients(iterations=3)
    here, there = (
        run(replace(small_audit([BestOfRestarts(attack, 2, engine)]), trials=2), seed=3)
        for engine in (InProcess(), LocalProcesses(2))
    )
    assert changed(here, times=Times()) == changed(there, times=Times())


@pytest.mark.slow
def test_recovers_the_secret_in_a_solvable_world():
    attack = BestOfRestarts(InvertingGradients(iterations=100), 2)
    report = run(replace(small_audit([attack]), trials=12), seed=3)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED, report.verdict


@pytest.mark.slow
def test_is_calibrated_in_the_null_world(monkeypatch):
    """Of 40 audits at a limit of 2.5%, five or more verdicts have probability below .4%."""
    monkeypatch.setattr("vestige.studies.audit.plan.preflight_checks", lambda *_: ())
    attack, raised = BestOfRestarts(InvertingGradients(iterations=3), 2), 0
    for seed in range(40):
        audit = small_audit([attack], seed=seed, victim=NullVictim(seed))
        raised += run(replace(audit, trials=12), seed=seed).verdict.kind is VerdictKind.DEMONSTRATED
    assert raised < 5


@dataclass(frozen=True)
class Fated:
    """An attack whose restarts end as they are told to, one after another."""

    fates: tuple[tuple[float | None, bool], ...]
    name = "Fated"
    summary = needs = cites = "none"
    reads = (GradientRelease,)

    def prepare(self, public, *, generator):
        ends = iter(self.fates)

        def reconstruct(observation, generator):
            objective, diverged = next(ends)
            x = torch.full((1, *public.space.shape), 0.0 if objective is None else objective)
            return Reconstruction(x, objective=objective, diverged=diverged)

        return reconstruct


@pytest.mark.parametrize(
    ("fates", "best"),
    [
        (((0.1, True), (0.5, False), (0.3, False)), 3),
        (((None, False), (float("nan"), False), (0.9, False)), 3),
        (((None, False), (0.2, True)), 1),
    ],
)
def test_restarts_without_an_objective_are_the_last_choice(fates, best):
    public, observation = seen()
    attack = BestOfRestarts(Fated(fates), len(fates))
    found = attack.prepare(public, generator=stream(1))(observation, stream(2))
    assert found.info["best restart"] == best


def test_no_restart_is_refused():
    with pytest.raises(BadInput, match="restarts of BestOfRestarts must be at least 1"):
        BestOfRestarts(InvertingGradients(), restarts=0)
