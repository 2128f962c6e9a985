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
from vestige.reports.parts import AttackDescription
from vestige.streams import stream
from vestige.studies.inversion.plan import Inversion
from vestige.threats import HonestServer
from vestige.victims import SharedGradient
from worlds import draws, linear_network, small_audit

PLAIN = InvertingGradients(5)
REHEARSED = RehearsedConfidence(PLAIN, rehearsals=6, decoys=5)
SAID = "such candidates hit in rehearsals"


@pytest.mark.parametrize(
    ("confidence", "said"),
    [
        (0.8, "rehearsed confidence 0.80: about 8 of 10 such candidates hit in rehearsals"),
        (0.14, "rehearsed confidence 0.14: about 1 of 10 such candidates hit in rehearsals"),
        (0.04, "rehearsed confidence 0.04: about 4 of 100 such candidates hit in rehearsals"),
        (0.97, "rehearsed confidence 0.97: about 97 of 100 such candidates hit in rehearsals"),
        (0.999, "rehearsed confidence 1.00: more than 99 of 100 such candidates hit in rehearsals"),
        (0.0, "rehearsed confidence 0.00: fewer than 1 of 100 such candidates hit in rehearsals"),
        (None, ""),
        (1.5, ""),
    ],
)
def test_words(confidence, said):
    rehearsed, plain = (
        AttackDescription(name=name, summary="", cites="", rehearsed=name == "A") for name in "AB"
    )
    assert rehearsed_words([plain, rehearsed], "A", confidence) == said
    assert rehearsed_words([plain, rehearsed], "B", confidence) == ""


@pytest.mark.parametrize("redact", [False, True])
def test_the_page_of_an_audit(redact):
    def page_of(attack):
        report = run(replace(small_audit([attack]), trials=1))
        return report, unescape(render(report, redact=redact))

    report, page = page_of(REHEARSED)
    (outcome,) = report.findings.attacks[0].outcomes
    assert outcome.confidence is not None
    assert page.count(SAID) == 1
    assert f"rehearsed confidence {outcome.confidence:.2f}: about" in page
    assert SAID not in page_of(PLAIN)[1]


def test_the_page_of_an_inversion():
    victim, threat, secret = SharedGradient(linear_network()), HonestServer(), draws(2, 8)
    release = victim.release(secret, generator=stream(0, "victim"))
    public, observation = threat.public(victim, Prior(draws(60, 7))), threat.observe
    for attack, times in ((REHEARSED, 2), (BestOfRestarts(REHEARSED, 2), 2), (PLAIN, 0)):
        plan = Inversion(observation(Run(secret, release)), public, [attack], samples=1)
        report = run(plan)
        page = unescape(render(report))
        assert page.count(SAID) == times
        for one in report.findings.candidates:
            assert (f"rehearsed confidence {one.confidence:.2f}: " in page) is bool(times)
