"""Pages of texts: which sentences came back, without colour too, and nothing where redacted."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from rendered_words import image_words
from vestige import Audit, datasets, networks, run
from vestige.attacks import EmbeddingReading, SpanInversion
from vestige.distances import TokenDistance, TokenSetDistance
from vestige.interfaces import Run
from vestige.networks import own_loss
from vestige.pages.audit.front import strongest
from vestige.pages.audit.page import render_audit
from vestige.pages.audit.texts import text_view
from vestige.pages.inversion.page import render_inversion
from vestige.reports.audit import AuditReport
from vestige.reports.files import load_report
from vestige.reports.parts import Picture
from vestige.streams import stream
from vestige.studies.inversion.plan import invert
from vestige.threats import HonestServer
from vestige.victims import SharedGradient


@cache
def world():
    parts = datasets.load("notes").split(seed=0)
    network = networks.transformer(parts.space, "language modelling", width=48, heads=2)
    return SharedGradient(network, mode="eval", loss=own_loss), parts


@cache
def report() -> AuditReport:
    victim, parts = world()
    attacks = [SpanInversion(), EmbeddingReading()]
    return run(Audit(victim, parts.train, parts.prior, attacks=attacks, trials=2), seed=0)


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


def test_sentences_stand_side_by_side_with_their_details():
    page = render_audit(report())
    words = plain(page)
    for exhibit in report().findings.exhibits:
        sentence = "".join(exhibit.secret.words)
        assert words.count(re.sub(r"\s+", " ", sentence)) >= 2  # the secret and its reconstruction
    assert "Word for word: all" in words
    assert "personal details recovered" in words
    assert "capitalised words that do not begin a sentence" in words
    assert "ROUGE-L" in words
    assert "<mark>" in page
    assert "What the attacker read" in words


def test_a_redacted_page_and_report_hold_no_word_of_a_text(tmp_path):
    redacted = report().without_secrets()
    page = render_audit(report(), redact=True)
    document = redacted.model_dump_json()
    for exhibit in report().findings.exhibits:
        for picture in (exhibit.secret, exhibit.decoy):
            for word in picture.words:
                if len(word.strip()) > 6:
                    assert word.strip() not in plain(page)
                    assert word.strip() not in document
        for picture in (exhibit.secret, exhibit.decoy, exhibit.reconstruction):
            words = [] if picture is None else picture.words
            for place in range(len(words) - 2):
                run_of_three = "".join(words[place : place + 3]).strip()
                assert run_of_three not in plain(page)
                assert run_of_three not in document
    assert "Texts are withheld." in page
    assert render_audit(redacted) == page
    (tmp_path / "report.json").write_text(report().model_dump_json())
    assert load_report(tmp_path / "report.json") == report()


def text(*words: str) -> Picture:
    return Picture.of_text(words)


def marks(pieces) -> list[tuple[str, str]]:
    return [(one.body, one.mark) for one in pieces]


def test_marks_say_what_is_right_wrong_and_personal():
    secret = text("We", " saw", " Ada", " on", " 12", " May", ".")
    drawn = text("We", " met", " Ada", " on", " 13", " 12", ".")
    view = text_view(secret, drawn, None, details=True, withheld=False)
    assert marks(view.reconstruction) == [
        ("We", "right"),
        ("met", "wrong"),
        ("Ada", "detail"),
        ("on", "right"),
        ("13", "wrong"),
        ("12", "detail"),
        (".", "right"),
    ]
    assert [one.mark for one in view.secret] == ["", "", "detail", "", "detail", "kept", ""]
    assert view.summary.replace("\N{NO-BREAK SPACE}", " ") == (
        "4 of 7 tokens right, 2 of 3 personal details recovered"
    )


def test_a_name_in_pieces_is_marked_as_a_whole():
    secret = text("Dear", " Mar", "ia", ",")
    view = text_view(secret, secret, None, details=True, withheld=False)
    assert [one.mark for one in view.reconstruction] == ["right", "detail", "detail", "right"]
    half = text_view(secret, text("Dear", " Mar", "co", ","), None, details=True, withheld=False)
    assert [one.mark for one in half.reconstruction] == ["right", "right", "wrong", "right"]


@pytest.mark.parametrize(("withheld", "said"), [(True, "withheld"), (False, "no text")])
def test_missing_texts_are_said_to_be_missing(withheld, said):
    secret = None if withheld else text("a")
    view = text_view(secret, None, None, details=True, withheld=withheld)
    assert said in view.summary
    assert view.reconstruction == ()


def test_markup_in_a_text_is_escaped():
    hostile = text("<script>", " <b>")
    found = report().findings
    exhibit = found.exhibits[0].model_copy(update={"secret": hostile, "reconstruction": hostile})
    findings = found.model_copy(update={"exhibits": (exhibit, *found.exhibits[1:])})
    page = render_audit(report().model_copy(update={"findings": findings}))
    assert "<script> " not in page
    assert "&lt;script&gt;" in page


def test_other_scripts_have_their_own_direction():
    """Browsers set a text from right to left by its first letter, where they are told to look."""
    other = text("المريضة", " ليلى", " 14")
    found = report().findings
    exhibit = found.exhibits[0].model_copy(update={"secret": other, "reconstruction": other})
    findings = found.model_copy(update={"exhibits": (exhibit, *found.exhibits[1:])})
    page = render_audit(report().model_copy(update={"findings": findings}))
    assert '<dd dir="auto">المريضة ليلى' in page


def test_candidates_of_a_captured_gradient_are_sentences():
    victim, parts = world()
    batch = parts.train[:1]
    threat = HonestServer()
    seen = threat.observe(Run(batch, victim.release(batch, generator=stream(0))))
    made = invert(seen, threat.public(victim, parts.prior), [SpanInversion()], samples=1)
    sentence = "".join(made.findings.candidates[0].picture.words)
    assert sentence in plain(render_inversion(made))
    assert sentence not in plain(render_inversion(made.without_secrets()))


@pytest.mark.slow
@pytest.mark.parametrize("redact", [False, True])
def test_no_page_of_texts_speaks_of_pictures(redact):
    """Audits with every verdict, captured ones, inversions, repeats and single records."""
    from vestige.defenses import GradientNoise
    from vestige.pages import render
    from vestige.studies.captured.plan import CapturedAudit
    from vestige.studies.captured.trials import KnownRelease
    from vestige.studies.repeated.plan import Repeated
    from vestige.studies.risk.plan import RecordRisk

    victim, parts = world()
    threat = HonestServer()
    public = threat.public(victim, parts.prior)
    settings = {"false_positive_rate": 0.05, "trials": 4}

    def audit(held=victim, **changes):
        chosen = {"attacks": [SpanInversion()], **settings, **changes}
        return Audit(held, parts.train, parts.prior, **chosen)

    def seen(batch):
        return threat.observe(Run(batch, victim.release(batch, generator=stream(0))))

    batches = [parts.train[[n]] for n in range(8)]
    known = [KnownRelease(seen(one), public, one) for one in batches]
    noisy = seen(batches[0])
    chance = torch.Generator().manual_seed(0)
    noise = {
        n: t + t.std() * torch.randn(t.shape, generator=chance)
        for n, t in noisy.release.tensors.items()
    }
    noisy = replace(noisy, release=replace(noisy.release, tensors=noise))
    reports = [
        run(audit(), seed=0),
        run(audit(trials=1), seed=0),
        run(audit(GradientNoise(1e-3)(victim)), seed=0),
        run(audit(distance=[TokenDistance(0), TokenSetDistance(0)], batch_size=2), seed=0),
        run(Repeated(audit(), 2), seed=0),
        run(RecordRisk(audit(batch_size=2), records=2, outliers=1, repeats=4), seed=0),
        run(CapturedAudit(known, parts.train[8:], false_positive_rate=0.05), seed=0),
        invert(seen(batches[0]), public, samples=1, rehearsals=2),
        invert(noisy, public, [EmbeddingReading()], samples=1),
        invert(noisy, public, [SpanInversion()], samples=1),
    ]
    assert [one for made in reports for one in image_words(render(made, redact=redact))] == []


def test_answers_for_the_decision_follow_the_first_text_and_count_personal_details():
    page = render_audit(report())
    first, second = (one.start() for one in re.finditer("What the attacker read", page))
    assert first < page.index('id="decision"') < second
    best = strongest(report())
    known = [one.details for one in best.outcomes if one.details is not None]
    found, total = sum(one[0] for one in known), sum(one[1] for one in known)
    said = f"Personal details that came back: {found} of {total}."
    assert total > 0
    assert said in plain(page)
