"""The page states a confidence only where it is a rate, and then what it says."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

from vestige import Prior, run
from vestige.attacks import BestOfRestarts, InvertingGradients, RehearsedConfidence
from vestige.interfaces import Run
from vestige.pages import render
from vestige.pages.confidence import rehearsed_words
from vestige.reports.parts import AttackDescription, RehearsedHits
from vestige.streams import stream
from vestige.studies.inversion.plan import Inversion
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import draws, linear_network, small_audit

PLAIN = InvertingGradients(5)
REHEARSED = RehearsedConfidence(PLAIN, rehearsals=6, decoys=5)
SAID = "such candidates hit in rehearsals"


HIT = "; a rehearsed hit is closer to its record than 49\N{NO-BREAK SPACE}decoys"


@pytest.mark.parametrize(
    ("confidence", "counts", "said"),
    [
        (1.0, (5, 5), f"0.99: 5 of 5 {SAID}: at least 54 in 100 (95% confidence){HIT}"),
        (0.83, (16, 20), f"0.83: 16 of 20 {SAID}: at least 59 in 100 (95% confidence){HIT}"),
        (0.02, (0, 20), f"0.02: 0 of 20 {SAID}: too few to show a rate above zero{HIT}"),
    ],
)
def test_words(confidence, counts, said):
    rehearsed, plain = (
        AttackDescription(name=name, summary="", cites="", rehearsed=name == "A") for name in "AB"
    )
    hits = RehearsedHits.of((*counts, 49))
    words = rehearsed_words([plain, rehearsed], "A", confidence, hits, 0.95)
    assert words == f"rehearsed confidence {said}"
    assert rehearsed_words([plain, rehearsed], "B", confidence, hits, 0.95) == ""
    for no_rate in (None, 1.5):
        assert rehearsed_words([rehearsed], "A", no_rate, hits, 0.95) == ""


def test_too_few_or_unknown_rehearsals_give_no_rate():
    attack = AttackDescription(name="A", summary="", cites="", rehearsed=True)
    few = rehearsed_words([attack], "A", 0.9, RehearsedHits.of((2, 2, 49)), 0.95)
    assert few == (
        "no rehearsed confidence: two rehearsed candidates at most as sure, too few for a rate"
    )
    unknown = rehearsed_words([attack], "A", 0.9, None, 0.95)
    assert unknown == "rehearsed confidence 0.90, from an unknown number of rehearsals"


@pytest.mark.parametrize("redact", [False, True])
def test_the_page_of_an_audit(redact):
    def page_of(attack):
        report = run(replace(small_audit([attack]), trials=1))
        return report, unescape(render(report, redact=redact))

    report, page = page_of(REHEARSED)
    (outcome,) = report.findings.attacks[0].outcomes
    assert outcome.confidence is not None
    assert outcome.rehearsed is not None
    assert outcome.rehearsed.decoys == 5
    assert "rehearsed confidence" in page
    assert SAID not in page_of(PLAIN)[1]


def test_the_page_of_an_inversion():
    victim, threat, secret = SharedGradient(linear_network()), HonestServer(), draws(2, 8)
    release = victim.release(secret, generator=stream(0, "victim"))
    public, observation = threat.public(victim, Prior(draws(60, 7))), threat.observe
    for attack, times in ((REHEARSED, 2), (BestOfRestarts(REHEARSED, 2), 2), (PLAIN, 0)):
        plan = Inversion(observation(Run(secret, release)), public, [attack], samples=1)
        report = run(plan)
        page = unescape(render(report))
        assert page.count("rehearsed confidence") == times
        for one in report.findings.candidates:
            assert (one.rehearsed is not None) is bool(times)
