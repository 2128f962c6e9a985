"""No defence makes a leak of nothing: releases of other records than the audited ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from defended_worlds import DEFENSES, client_of, gradient_client

from vestige import run
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.reports.parts import VerdictKind
from vestige.threats import HonestServer
from worlds import NullModel, small_audit

ATTACKS = [InvertingGradients(iterations=2), DeepLeakage(iterations=2)]


def null_audit(name, attacks, seed, **changes):
    defense = DEFENSES[name]
    victim = NullModel(seed, defense(client_of(defense)))
    return small_audit(attacks, seed=seed, victim=victim, batch_size=defense.records(1), **changes)


@pytest.fixture(autouse=True)
def _no_preflight(monkeypatch):
    """A null victim's release is not of its records, and the preflight would say so."""
    monkeypatch.setattr("vestige.studies.audit.plan.preflight_checks", lambda *_: ())


@pytest.mark.parametrize("name", DEFENSES)
def test_no_verdict_in_a_null_world(name):
    """12 trials: of an honest limit at most 2.5% of seeds would raise a verdict by chance."""
    report = run(replace(null_audit(name, ATTACKS, 3), trials=12), seed=3)
    assert report.verdict.kind is VerdictKind.NOT_DEMONSTRATED, report.verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise", "dropout", "pruning", "sign", "sum", "DP-SGD"])
def test_ranks_are_uniform_in_a_null_world(name):
    """360 trials over six worlds: ranks among 9 decoys by χ² with 9 degrees of freedom.

    The limit 27.9 is passed once in a thousand by chance, for one of six defences once in 170.
    """
    counts = torch.zeros(10)
    for seed in range(6):
        audit = null_audit(name, [InvertingGradients(iterations=2, polish=0)], seed)
        report = run(replace(audit, trials=60 // audit.batch_size), seed=seed)
        for outcome in report.findings.attacks[0].outcomes:
            counts[outcome.rank - 1] += 1
    expected = counts.sum() / 10
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.9, counts.tolist()


@pytest.mark.slow
def test_the_null_world_hides_nothing_else():
    """The same attacks and defences, with the audited records in the release, do leak."""
    audit = small_audit(
        [InvertingGradients(iterations=80)],
        victim=DEFENSES["pruning by tensor"](gradient_client()),
        threat=HonestServer(labels=True),
    )
    assert run(replace(audit, trials=12), seed=3).verdict.kind is VerdictKind.DEMONSTRATED
