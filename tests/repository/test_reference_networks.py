"""benchmarks/networks.py: its networks have the published sizes, and its rows say what happened."""

from __future__ import annotations

import importlib
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Trainable parameters with 1000 classes, by the authors' or torchvision's definitions, and the
# width of the last layer.
PUBLISHED = {
    "ResNet-18": (11_689_512, 512),
    "ResNet-50": (25_557_032, 2048),
    "ViT-tiny": (5_717_416, 192),
    "ConvNeXt-atto": (3_695_520, 320),
    "MobileNetV2": (3_504_872, 1280),
    "MobileNetV3-small": (2_542_856, 1024),
    "EfficientNet-B0": (5_288_548, 1280),
    "RegNetY-200MF": (3_162_996, 368),
    "Swin-tiny": (28_288_354, 768),
    "DenseNet-121": (7_978_856, 1024),
}


@pytest.fixture
def networks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield importlib.import_module("networks")
    for name in ("networks", "reference_networks", "sheet"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_reference_networks_have_the_published_sizes(networks):
    assert set(networks.REFERENCES) == set(PUBLISHED)
    for name, (published, width) in PUBLISHED.items():
        model = networks.REFERENCES[name](224)
        counted = sum(parameter.numel() for parameter in model.parameters())
        assert counted == published - 990 * (width + 1), name


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_row_of_a_network_defined_here(networks, mode):
    facts = networks.measured(networks.Row("MobileNetV3-small", 64, 1, mode))
    assert facts["restarts"] == "as one batch"
    assert facts["difference"] < networks.DIFFERENCE
    assert math.isfinite(facts["seconds"])  # a difference of two timings: its sign is not tested


def test_rows_say_what_happened(networks, monkeypatch, capsys):
    rows = {
        networks.Row("ResNet-18", 64, 1, "eval"): RuntimeError("shapes do not fit"),
        networks.Row("ResNet-18", 64, 1, "train"): RuntimeError(
            "derivative for aten::segment_reduce_backward is not implemented"
        ),
    }

    def failed(row):
        raise rows[row]

    monkeypatch.setattr(networks, "measured", failed)
    sheet = networks.Sheet()
    found = {row: networks.run_row(row) for row in rows}
    for row, facts in found.items():
        networks.report(sheet, row, facts)
    networks.report(sheet, networks.Row("ViT-tiny", 64, 1, "eval"), {"stopped": "stopped"})
    assert sheet.met == 1
    assert sheet.short == ["ResNet-18, 64 px, batch 1, eval: refuses in a sentence"]
    assert sheet.unmeasured == ["ViT-tiny, 64 px, batch 1, eval"]
    assert "There is no second derivative" in capsys.readouterr().out
    assert "RuntimeError: shapes do not fit; There is no second" in networks.table(found)


def test_reference_networks_leave_the_random_state(networks):
    before = torch.get_rng_state()
    first, second = (networks.REFERENCES["MobileNetV3-small"](64) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
