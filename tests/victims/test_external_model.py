"""Models from elsewhere go through the audit unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from vestige import Audit, run
from vestige.attacks import InvertingGradients
from vestige.datasets import load
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.victims import Normalization, SharedGradient


def digits_audit(model: nn.Module, **changes) -> Audit:
    splits = load("digits").split(seed=0)
    settings = {
        "victim": SharedGradient(model, normalization=Normalization((0.3,), (0.35,))),
        "secrets": splits.train,
        "prior": splits.prior,
        "attacks": [InvertingGradients(iterations=60)],
    }
    return Audit(**{**settings, **changes})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformers_image_classifier():
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                image_size=8,
                patch_size=2,
                num_channels=1,
                num_labels=10,
            )
        )
    report = run(replace(digits_audit(model), trials=4), seed=0)
    assert report.verdict.kind is not VerdictKind.INVALID, report.verdict
    assert report.findings.trials_finished == 4
    replay = report.judgement.checks[0]
    assert replay.outcome is CheckOutcome.PASSED, replay
    assert "ViTForImageClassification" in report.findings.settings["Network"]
    objectives = [outcome.objective for outcome in report.findings.attacks[0].outcomes]
    assert all(objective is not None and 0 <= objective < 1 for objective in objectives)


class TwoHeads(nn.Module):
    """A model in the manner of many repositories: its own class, a tuple for output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten())
        self.classes = nn.Linear(8 * 36, 10)
        self.unused = nn.Linear(4, 4)

    def forward(self, images):
        features = self.body(images)
        return self.classes(features), features


def test_own_class_with_a_tuple_and_an_unused_layer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoHeads()
    report = run(replace(digits_audit(model), trials=3), seed=0)
    assert report.findings.trials_finished == 3
    assert report.judgement.checks[0].outcome is CheckOutcome.REMARK
    assert "unused" in report.judgement.checks[0].sentence
    assert report.judgement.rates_of(report.findings.attacks[0]).rate.hits >= 2


def test_model_on_the_meta_device_is_refused_in_a_sentence():
    from vestige.errors import VestigeError

    with torch.device("meta"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(VestigeError, match="meta"):
        run(replace(digits_audit(model), trials=1))
