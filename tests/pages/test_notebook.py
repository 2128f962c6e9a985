"""Records, verdicts and comparisons in a notebook, by IPython's own formatter: shut in."""

from __future__ import annotations

import base64
import re
from html import unescape

import numpy as np
import pytest

from pages.audits import changed
from pages.states import STATES
from vestige.pages.pictures import data_uri
from vestige.reports.comparison import (
    AttackMeasure,
    Cell,
    ComparisonFindings,
    ComparisonJudgement,
    ComparisonReport,
    DefendedPoint,
    Recommendation,
    Server,
    Utility,
)
from vestige.reports.noise import Mean
from vestige.reports.parts import Picture, Rate, Verdict, VerdictKind

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"


@pytest.fixture(scope="module")
def formatted():
    formatters = pytest.importorskip("IPython.core.formatters")
    formatter = formatters.DisplayFormatter()

    def show(thing: object) -> dict[str, str]:
        return formatter.format(thing)[0]

    return show


def inside(html: str) -> str:
    """The document inside the frame, after a look at the frame itself."""
    frame = re.fullmatch(
        r'<iframe sandbox="" srcdoc="([^"]*)" title="[^"]*" style="[^"]*"></iframe>', html
    )
    assert frame is not None
    document = unescape(frame[1])
    assert "default-src 'none'" in unescape(document)
    assert "<script" not in document
    assert not re.search(r"https?://|@import", document)
    return document


@pytest.mark.parametrize("name", STATES)
def test_a_record_shows_itself_and_keeps_to_itself(formatted, name):
    report = STATES[name]()
    shown = formatted(report)
    document = inside(shown["text/html"])
    assert report.verdict.headline in unescape(document)
    assert len(shown["text/plain"]) < 300
    assert len(shown["text/html"]) < 400_000
    assert report.verdict.kind.value in shown["text/plain"]
    if report.verdict.kind is VerdictKind.INVALID:
        assert "<table" not in document
        assert "<img" not in document


def test_rates_and_pictures_are_those_of_the_report(formatted):
    report = STATES["demonstrated"]()
    document = inside(formatted(report)["text/html"])
    for attack in report.findings.attacks:
        rate = report.judgement.rates_of(attack).rate
        assert rate is not None
        assert f"<td>{rate.hits} of {rate.trials}</td>" in document
    assert report.findings.exhibits[0].secret is not None
    assert data_uri(report.findings.exhibits[0].secret) in document
    assert document.count("<img") == 9


def test_a_redacted_report_shows_no_secret(formatted):
    report = STATES["demonstrated"]()
    for redacted in (report.without_secrets(), changed(report, redacted=True)):
        document = inside(formatted(redacted)["text/html"])
        assert "<img" not in document
        assert "redacted" in document


def test_candidates_of_a_capture_are_shown(formatted):
    assert "<img" in inside(formatted(STATES["captured"]())["text/html"])


def test_a_verdict_alone(formatted):
    verdict = Verdict(kind=VerdictKind.DEMONSTRATED, headline="A face.", lede="All of them.")
    document = inside(formatted(verdict)["text/html"])
    assert "DEMONSTRATED" in document
    assert "A face." in document
    assert "All of them." in document


def test_hostile_words_stay_words(formatted):
    report = STATES["demonstrated"]()
    verdict = report.verdict.model_copy(update={"headline": HOSTILE, "lede": HOSTILE})
    html = formatted(changed(report, title=HOSTILE, verdict=verdict))["text/html"]
    assert html.count("<") == 2, "the frame and its end"
    assert "<img src=x" not in inside(html)


def comparison(points: int = 2) -> ComparisonReport:
    base = STATES["demonstrated"]()
    picture = Picture.of(np.linspace(0, 1, 64).reshape(1, 8, 8))
    mean = Mean(value=0.25, lower=0.2, upper=0.3)
    rate = Rate(hits=3, trials=10, lower=0.06, upper=0.66)
    cell = Cell(
        server="curious",
        measures=(AttackMeasure(attack="A", error=mean, rate=rate),),
        strongest="A",
        protection=mean,
        most_hits=rate,
        pictures=(picture,),
        verdict="worse than before",
    )
    lost = Mean(value=0.125, lower=0.1, upper=0.15)
    utility = Utility(
        repeats=2, diverged=0, accuracy=mean, loss=mean, accuracy_lost=lost, loss_added=None
    )
    findings = ComparisonFindings(
        title="Which defence?",
        space=base.findings.space,
        servers=(Server(name="curious", threat=base.findings.threat),),
        attacks={"A": "an attack"},
        points=tuple(
            DefendedPoint(
                defense="Noise",
                strength=float(i),
                setting=f"{i}",
                mechanism="none",
                guarantee=False,
                records=1,
                utility=utility,
                cells=(cell,),
            )
            for i in range(points)
        ),
        budget=0.05,
        secrets=(picture,),
        guess_error=mean,
        trials=10,
        seed=0,
        batch_size=1,
        false_positive_rate=0.01,
        confidence=0.95,
    )
    judgement = ComparisonJudgement(
        recommendations=(Recommendation(server="curious", sentence="Noise 1 costs least."),),
        verdict=base.verdict,
    )
    return ComparisonReport(findings=findings, judgement=judgement)


def test_a_comparison_shows_cost_and_what_is_left(formatted):
    shown = formatted(comparison())
    document = inside(shown["text/html"])
    for words in (
        "Noise 0",
        "Noise 1",
        "12.5 (10.0–15.0)",
        "0.25 (0.20–0.30)",
        "30% (6",
        "Noise 1 costs least.",
    ):
        assert words in document, words
    assert document.count("data:image/png;base64,") == 2
    pixels = base64.b64encode(bytes(64)).decode()[:8]
    assert pixels not in shown["text/plain"]
    assert len(shown["text/plain"]) < 300
    redacted = inside(formatted(comparison().without_secrets())["text/html"])
    assert "<img" not in redacted


def test_a_long_comparison_is_cut_and_says_so(formatted):
    document = inside(formatted(comparison(30))["text/html"])
    assert "6\N{NO-BREAK SPACE}more rows in the comparison." in unescape(document)
