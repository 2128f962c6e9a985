"""Studies that were given no attacks: recommended ones run, and the report says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from captured_worlds import captured, one_by_one
from vestige import CapturedAudit, Inversion, Prior, run
from vestige.attacks import ExactInversion, HeadInversion, InvertingGradients, recommended
from vestige.errors import BadInput
from vestige.reports.parts import VerdictKind
from vestige.reports.redaction import redacted_findings
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import draws, model_audit, released_head_audit, small_audit


def names(attacks) -> list[str]:
    return [type(attack).__name__ for attack in attacks]


def test_an_audit_without_attacks_runs_those_that_are_recommended():
    audit = small_audit(None, trials=2)
    assert audit.attacks is None
    assert names(audit.chosen_attacks) == ["ExactInversion", "InvertingGradients"]
    report = run(audit, seed=1)
    assert report.verdict.kind is not VerdictKind.INVALID
    found = report.findings
    assert [a.name for a in found.attacks][:2] == ["Exact inversion", "Inverting Gradients"]
    said = found.settings["Attacks"]
    assert said.startswith("chosen by Vestige.")
    assert all(reason in said for reason in audit.chosen_attacks.reasons)
    assert "joint over 2 attacks" in found.settings["Confidence"]
    assert found.attacks[0].outcomes[0].rank == 1


def test_the_choice_is_what_the_threat_model_tells():
    untold = small_audit(None, threat=HonestServer(batch_size=False), batch_size=2)
    assert names(untold.chosen_attacks)[0] == "ExactInversion"
    assert model_audit(None).chosen_attacks[0].name == "Closed form"
    assert names(released_head_audit(None).chosen_attacks) == [HeadInversion.__name__]


def test_the_choice_follows_a_changed_audit():
    audit = small_audit(None, trials=2)
    assert len(audit.chosen_attacks) == 2
    larger = replace(audit, batch_size=20)
    assert names(larger.chosen_attacks) == ["InvertingGradients"]
    assert audit.identity() == replace(audit, trials=3).identity() != larger.identity()


def test_attacks_that_are_given_are_left_alone():
    audit = small_audit([InvertingGradients(iterations=2)])
    assert audit.chosen_attacks is audit.attacks
    assert "Attacks" not in audit.settings()
    public = audit.threat.public(audit.victim, audit.prior)
    passed = small_audit(recommended(public))
    assert passed.settings()["Attacks"].startswith("chosen by Vestige.")


def test_an_empty_list_is_not_taken_for_no_list():
    with pytest.raises(BadInput, match="leave attacks out to have them recommended"):
        small_audit([])
    with pytest.raises(BadInput, match="attacks is a list"):
        small_audit("ExactInversion")


def test_a_prior_smaller_than_the_batch_is_answered_by_a_sentence():
    audit = small_audit(None, prior=Prior(draws(3, 5)), batch_size=4)
    with pytest.raises(BadInput, match="too few to simulate a batch of 4"):
        run(audit)


@pytest.mark.parametrize("attacks", [None, [InvertingGradients(iterations=2)]])
def test_a_model_that_does_not_fit_is_refused_whoever_chooses(attacks):
    with torch.random.fork_rng():
        victim = SharedGradient(nn.Sequential(nn.Flatten(), nn.Linear(5, 3)))
    with pytest.raises(BadInput, match="does not accept records of shape"):
        run(small_audit(attacks, victim=victim))


def test_a_redacted_report_keeps_the_choice():
    found = redacted_findings(run(small_audit(None, trials=1), seed=1).findings)
    assert found.settings["Attacks"].startswith("chosen by Vestige.")


@pytest.mark.slow
def test_inversions_and_captured_audits_choose_too():
    batches = one_by_one(draws(4, 41))
    releases, others = captured(batches, draws(30, 1), real=True), draws(60, 42)
    first = releases[0]
    inversion = Inversion(first.observation, first.public, samples=1)
    assert ExactInversion() in inversion.chosen_attacks
    report = run(inversion)
    assert report.findings.settings["Attacks"].startswith("chosen by Vestige.")
    audit = CapturedAudit(releases, others, false_positive_rate=0.1)
    assert names(audit.chosen_attacks)[0] == "ExactInversion"
    assert run(audit).findings.settings["Attacks"].startswith("chosen by Vestige.")
    with pytest.raises(BadInput, match="at least one attack"):
        Inversion(first.observation, first.public, [])
    with pytest.raises(BadInput, match="one release and one attack"):
        CapturedAudit(releases, others, [])
