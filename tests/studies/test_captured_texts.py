"""Captured releases of texts: decoys of the class and of a similar length, end to end."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from text_worlds import SPACE, model, texts, victim
from vestige import Prior, Records, run
from vestige.attacks import EmbeddingReading, SpanInversion
from vestige.errors import BadInput
from vestige.interfaces import Hints, Observation
from vestige.networks import own_loss
from vestige.reports.parts import VerdictKind
from vestige.streams import stream
from vestige.studies.audit.texts import length_bands
from vestige.studies.captured.plan import CapturedAudit
from vestige.studies.captured.trials import KnownRelease, draw_trials
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining


def of_lengths(records: Records, lengths) -> Records:
    x = records.x.clone()
    for row, length in enumerate(lengths):
        x[row, length:] = SPACE.padding
    return Records(x, records.y, records.space)


def known(batches, held=None, prior=None) -> list[KnownRelease]:
    held = held or victim()
    public = HonestServer().public(held, prior or Prior(texts(60, 9)))
    return [
        KnownRelease(
            Observation(held.release(batch, generator=stream(n)), Hints(len(batch))),
            public,
            batch,
            f"round {n + 1}",
        )
        for n, batch in enumerate(batches)
    ]


def length(row) -> int:
    return len(SPACE.tokens(row))


def test_decoys_have_the_label_and_a_length_of_the_band():
    lengths = [2 + (n // 2) % 6 for n in range(240)]
    records = of_lengths(texts(240, 3), lengths)
    batches = [records[[2 * n, 2 * n + 1]] for n in range(6)]
    plan = draw_trials(known(batches), records[12:], 19, 0)
    assert len(plan.trials) == 6
    assert sorted(n for numbers in plan.classes.values() for n in numbers) == list(range(6))
    for key, numbers in plan.classes.items():
        label = key % len(SPACE.class_names)
        for place, number in enumerate(numbers):
            trial = plan.trials[number]
            secret = trial.release.secret.x[trial.slot]
            assert torch.equal(trial.pool.x[place], secret)
            assert (
                set(trial.pool.y.tolist()) == {label} == {int(trial.release.secret.y[trial.slot])}
            )
            held = [length(row) for row in trial.pool.x]
            assert length(secret) in held
            # 20 texts of each length and class: a band of 20 has at most two lengths.
            assert max(held) - min(held) <= 1
            assert len(trial.decoys) == 19
            assert secret.tolist() not in trial.decoys.x.tolist()
    assert plan.smallest_pool >= 20


def test_every_text_of_a_band_has_the_same_pool():
    """Which text of a pool is audited decides nothing about the pool: they are exchangeable."""
    records = of_lengths(texts(200, 4), [1 + (n // 2) % 7 for n in range(200)])
    of_class = records[records.y == 0]
    for least in (5, 10, 60):
        bands = length_bands(of_class, least).tolist()
        counts = Counter(bands)
        assert sorted(counts) == list(range(len(counts)))
        assert min(counts.values()) >= min(least, len(of_class))
        lengths = [length(row) for row in of_class.x]
        spans = {band: [n for n, own in zip(lengths, bands) if own == band] for band in counts}
        for band in range(1, len(counts)):
            assert max(spans[band - 1]) < min(spans[band])


def test_too_few_texts_are_refused_in_one_sentence():
    records = texts(24, 3)
    with pytest.raises(BadInput, match="to compare with"):
        draw_trials(known([records[[n]] for n in range(4)]), records[4:], 19, 0)


@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_captured_releases_of_texts_are_audited(kind):
    held = victim()
    if kind == "update":
        local = LocalTraining(1, learning_rate=0.5)
        held = FederatedUpdate(model(), local, loss=own_loss, mode="eval")
    records = texts(100, 3)
    batches = [records[[2 * n, 2 * n + 1]] for n in range(8)]
    audit = CapturedAudit(
        known(batches, held),
        records[16:],
        [SpanInversion(), EmbeddingReading()],
        false_positive_rate=0.1,
    )
    report = run(audit, seed=0)
    assert report.verdict.kind is VerdictKind.DEMONSTRATED, report.verdict.lede
    found = report.findings
    assert found.space.kind == "text"
    assert all(one.exact_match for one in found.attacks[0].outcomes)
    assert any("similar length" in check.sentence for check in found.preflight)
