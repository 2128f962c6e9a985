"""Backbones: what comes with the package, what is written and read again, what is refused."""

from __future__ import annotations

import pytest
import torch

from vestige import datasets
from vestige.errors import BadInput
from vestige.networks.backbones import SHIPPED, BackboneForm, load_backbone, save_backbone

FORM = BackboneForm(1, 8, 8, ((4,), (6,)), 5)


def test_a_backbone_is_read_as_it_was_written(tmp_path):
    backbone = FORM.build(seed=3)
    path = tmp_path / "own.safetensors"
    save_backbone(path, FORM, backbone)
    again, form = load_backbone(path)
    x = torch.rand((2, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    assert form == FORM
    assert torch.equal(again(x), backbone(x))
    assert again(x).shape == (2, 5)


def test_the_shipped_backbone_tells_digits_apart():
    """Nearest class means of 256 features, of digits it never saw: chance is 10%."""
    digits = datasets.load("digits")
    backbone, form = load_backbone("digits")
    with torch.no_grad():
        features = backbone(digits.x.float())
    assert features.shape == (len(digits), form.features)
    known = torch.arange(len(digits)) % 2 == 0
    means = torch.stack([features[known & (digits.y == c)].mean(0) for c in range(10)])
    named = torch.cdist(features[~known], means).argmin(1)
    assert float((named == digits.y[~known]).float().mean()) > 0.7


def test_what_is_shipped_is_small():
    for path in SHIPPED.glob("*.safetensors"):
        assert path.stat().st_size < 300_000, path.name


def test_what_is_no_backbone_is_refused(tmp_path):
    with pytest.raises(BadInput, match="digits"):
        load_backbone("no such one")
    path = tmp_path / "other.safetensors"
    from vestige.files import tensor_bytes

    path.write_bytes(tensor_bytes({"weight": torch.zeros(2)}, {}))
    with pytest.raises(BadInput, match="train it again"):
        load_backbone(path)
    with pytest.raises(BadInput, match="take fewer"):
        BackboneForm(1, 2, 2, ((1,), (1,)), 3).build()
