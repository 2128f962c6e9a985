"""The part for an impact assessment: the same headings everywhere, nothing that was not found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vestige.defenses import (
    ClientAggregation,
    Combined,
    GradientClipping,
    GradientNoise,
    PrivateGradients,
)
from vestige.pages import render
from vestige.pages.audit.assessment import HEADINGS, assess_audit, assess_inversion
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.studies.defense_words import defense_words
from vestige.victims import SharedGradient
from worlds import linear_network

from .audits import changed
from .states import STATES
from .test_render import FORBIDDEN, HOSTILE, Reader

ROOT = Path(__file__).parent.parent.parent


def assessment(report) -> tuple:
    return (assess_audit if isinstance(report, AuditReport) else assess_inversion)(report)


def words(name: str) -> str:
    found = assessment(STATES[name]())
    return " ".join(text for part in found for text in (*part.sentences, *part.items))


@pytest.mark.parametrize("name", STATES)
def test_every_state_has_every_heading_and_says_no_forbidden_word(name):
    report = STATES[name]()
    assert tuple(part.heading for part in assessment(report)) == HEADINGS
    said = words(name)
    for word in FORBIDDEN:
        assert not re.search(word, said, re.IGNORECASE), word
    assert "None" not in said
    assert all(part.sentences for part in assessment(report))


def test_rates_stand_with_both_limits_and_every_attack():
    report = STATES["demonstrated"]()
    said = words("demonstrated")
    for attack in report.findings.attacks:
        if attack.guess:
            continue
        rate = report.judgement.rates_of(attack).rate
        assert rate is not None
        limits = f"at least {numbers.at_least(rate.lower)}, at most {numbers.at_most(rate.upper)}."
        assert f"{attack.name}: {numbers.hits_of(rate)}; {limits}" in said
    assert report.findings.threat.not_told in said
    assert all(limit in said for limit in report.findings.limits)


def test_a_defence_is_named_at_the_top_and_in_what_follows():
    report = STATES["demonstrated"]()
    assert "audit the release with that measure in place" in words("demonstrated")
    defended = changed(report, defense="noise σ 0.1")
    parts = {part.heading: " ".join(part.sentences) for part in assess_audit(defended)}
    assert f"{report.findings.release} with noise σ 0.1." in parts["What is released"].lower()
    assert "with a defence in place (noise σ 0.1)" in parts["What follows"]
    assert "with that measure in place" not in parts["What follows"]
    page = render(defended)
    assert "<dt>Defence</dt><dd>Noise σ 0.1.</dd>" in page
    assert "<dt>Defence</dt>" not in render(report)


@pytest.mark.parametrize(
    ("defense", "said"),
    [
        (GradientNoise(0.1), "noise σ 0.1"),
        (
            PrivateGradients(1.0, 0.5),
            "each record's gradient clipped to norm 1, noise multiplier 0.5",
        ),
        (ClientAggregation(3), "only the mean of 3 clients sent"),
        (
            Combined((GradientClipping(2.0), GradientNoise(0.1))),
            "clipping norm 2, then noise σ 0.1",
        ),
    ],
)
def test_defences_in_words(defense, said):
    victim = SharedGradient(linear_network(), mode="eval")
    assert defense_words(defense(victim).simulator) == said
    assert defense_words(victim.simulator) == ""


def test_a_failed_audit_is_cited_for_nothing():
    report = STATES["invalid"]()
    assert report.verdict.kind is VerdictKind.INVALID
    said = words("invalid")
    assert "no figure of this audit can be cited" in said
    assert "at most" not in said.replace("Not told", "")
    failed = [c.sentence for c in report.judgement.checks if c.outcome is CheckOutcome.FAILED]
    assert all(sentence in said for sentence in failed)


def test_a_capture_without_secrets_has_no_rate():
    assert "they were not compared" in words("captured")


def test_no_hit_is_no_evidence_of_protection():
    assert "not evidence that it cannot be done" in words("not_demonstrated")


def test_a_refuted_claim_is_named():
    assert "does not hold for this release" in words("claim_refuted")


def test_the_page_holds_it_and_escapes_it():
    report = STATES["demonstrated"]().model_copy(update={"limits": (HOSTILE,)})
    page = render(report)
    text = Reader(page).text
    assert all(heading in text for heading in HEADINGS)
    assert 'href="#assessment"' in page
    assert "<img src=x" not in page


def test_the_template_has_the_same_headings():
    template = (ROOT / "docs" / "dpia-template.md").read_text()
    found = re.findall(r"^## \d+\. (.+)$", template, re.MULTILINE)
    assert tuple(found) == HEADINGS
