"""Defences of texts compared, and every other study of texts: it works, or says why not."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from rendered_words import image_words
from text_worlds import model, text_audit, texts, victim
from vestige import Comparison, NoiseStudy, Prior, datasets, defenses, networks, run
from vestige.attacks import BestOfRestarts, EmbeddingReading, RehearsedConfidence, SpanInversion
from vestige.distances import (
    ShiftTolerant,
    SignTolerant,
    TokenDistance,
    TokenSetDistance,
    structural_dissimilarity,
)
from vestige.errors import BadInput
from vestige.networks import own_loss
from vestige.pages import render
from vestige.reports.parts import VerdictKind
from vestige.studies.comparison.plan import ComparedServer
from vestige.studies.comparison.utility_training import UtilityTraining, evaluated
from vestige.studies.repeated.plan import Repeated
from vestige.studies.risk.plan import RecordRisk
from vestige.victims import SharedGradient

DEFENSES = [
    defenses.GradientNoise(1.0),
    defenses.GradientPruning(0.5),
    defenses.GradientClipping(1.0),
    defenses.GradientQuantization(8),
    defenses.BatchSize(2),
    defenses.PrivateGradients(1.0, 0.5),
]


@cache
def compared(task):
    parts = datasets.load("notes").split(seed=0)
    network = networks.transformer(parts.space, task, width=48, heads=2)
    loss = {"loss": own_loss} if task == "language modelling" else {}
    server = ComparedServer(
        "server",
        SharedGradient(network, mode="eval", **loss),
        [SpanInversion(), EmbeddingReading()],
    )
    training = UtilityTraining(parts.train[:40], parts.held_out[:40], rounds=2, repeats=2)
    plan = Comparison(
        [server],
        DEFENSES,
        parts.train,
        parts.prior,
        training,
        trials=2,
        false_positive_rate=0.05,
    )
    return run(plan, seed=0)


def plain(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "language modelling"])
def test_every_defence_is_measured_in_wrong_tokens(task):
    found = compared(task).findings
    cells = {point.label: point.cells[0] for point in found.points}
    assert len(cells) == 1 + len(DEFENSES)
    assert all(cell.problem == "" for cell in cells.values())
    assert all(0 <= m.error.value <= 1 for cell in cells.values() for m in cell.measures)
    assert cells["No defence"].protection.value == 0.0
    assert cells["No defence"].strongest == "Span inversion"
    assert cells["Noise σ 1"].protection.value > 0.3
    assert all("squared errors" in cell.floor.reason for cell in cells.values())
    assert found.guess_error.value > 0.3


@pytest.mark.slow
def test_the_page_of_a_comparison_shows_texts():
    report = compared("classification")
    page = render(report)
    words = plain(page)
    secret = re.sub(r"\s+", " ", "".join(report.findings.secrets[0].words))
    assert words.count(secret) >= 4  # the secret and what is read without a defence, twice
    assert "What does each defence leave to read?" in words
    assert "shares of tokens that differ" in words
    assert "<img" not in page
    assert image_words(page) == []
    redacted = render(report, redact=True)
    assert image_words(redacted) == []
    for one in report.findings.secrets:
        for token in one.words:
            if len(token.strip()) > 6:
                assert token.strip() not in plain(redacted)


def test_accuracy_of_a_language_model_is_that_of_its_next_tokens():
    records, network = texts(20, 3), model()
    simulator = SharedGradient(network, mode="eval", loss=own_loss).simulator
    accuracy, loss = evaluated(simulator, network, records, 20)
    right = total = 0
    with torch.no_grad():
        for row in records.x.long():
            tokens = records.space.tokens(row.float())
            logits = network.model(row[None])[0]
            for place in range(1, len(tokens)):
                right += int(logits[place - 1].argmax()) == tokens[place]
                total += 1
    assert accuracy == pytest.approx(right / total)
    assert loss > 0


@pytest.mark.parametrize(
    "distance",
    [structural_dissimilarity, ShiftTolerant(), SignTolerant()],
    ids=["structural", "shift", "sign"],
)
def test_distances_of_numbers_are_refused(distance):
    with pytest.raises(BadInput, match="numbers of tokens: use TokenDistance"):
        text_audit([SpanInversion()], distance=distance)


def test_several_distances_of_texts_are_joint():
    audit = text_audit([SpanInversion()], distance=[TokenDistance(), TokenSetDistance()], trials=4)
    report = run(audit, seed=0)
    assert len(report.findings.further_distances) == 1
    assert report.verdict.kind is VerdictKind.DEMONSTRATED


@pytest.mark.parametrize(
    "attack", [BestOfRestarts(SpanInversion(), 2), RehearsedConfidence(SpanInversion(), 8)]
)
def test_attacks_around_another_say_that_they_read_no_texts(attack):
    with pytest.raises(BadInput, match=r"around Span inversion, does not read texts"):
        text_audit([attack])


def test_noise_studies_of_texts_are_refused():
    with pytest.raises(BadInput, match="looks at images, and these records are texts"):
        NoiseStudy(texts(10, 0), None, (1.0,))  # pyright: ignore


@pytest.mark.slow
def test_repeated_audits_single_records_and_notebooks_of_texts():
    audit = text_audit([SpanInversion()], trials=3)
    repeated = run(Repeated(audit, 2), seed=0)
    assert "2 of 2" in repeated.verdict.headline
    held = defenses.GradientNoise(1e-6)(victim())
    prior = Prior(texts(60, 2000))
    noisy = text_audit([SpanInversion()], victim=held, secrets=texts(80, 7), prior=prior)
    risk = run(RecordRisk(noisy, records=2, outliers=1, repeats=4), seed=0)
    assert risk.verdict.kind is not None
    for report in (repeated, risk, run(audit, seed=0)):
        assert "<img" not in render(report)
        assert "<img" not in report._repr_html_()
    with pytest.raises(BadInput, match="looks at images"):
        NoiseStudy(texts(10, 0), None, (1.0,))  # pyright: ignore
