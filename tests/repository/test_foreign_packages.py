"""Vestige works where other installed packages are broken; its SSIM agrees with theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vestige.distances import ssim

BROKEN = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
AUDIT = """
import dataclasses
import torch
import vestige
from vestige import Audit, Prior, networks
from vestige.attacks import InvertingGradients
from vestige.victims import SharedGradient
splits = vestige.datasets.load("digits").split(seed=0)
model = networks.mlp(splits.space, hidden=(8,))
audit = Audit(
    SharedGradient(model), splits.train[::4], Prior(splits.prior.records[::4]),
    [InvertingGradients(iterations=2)], false_positive_rate=0.1,
)
report = vestige.run(dataclasses.replace(audit, trials=2))
print(report.verdict.kind)
assert report.findings.attacks[0].outcomes[0].ssim is not None
for name in ("torchvision", "torchmetrics"):
    try:
        __import__(name)
    except (RuntimeError, ImportError):
        print(name, "is broken")
"""


@pytest.mark.slow
@pytest.mark.parametrize("problem", [BROKEN, 'raise ImportError("libjpeg is missing")\n'])
def test_an_audit_runs_beside_broken_packages(problem, tmp_path):
    for name in ("torchvision", "torchmetrics"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(problem)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{AUDIT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("\n")
    assert "DEMONSTRATED" in said[0]
    assert said[1:3] == ["torchvision is broken", "torchmetrics is broken"]


@pytest.mark.parametrize("shape", [(1, 25, 25), (3, 32, 20), (1, 8, 8), (1, 5, 9), (3, 3, 3)])
def test_ssim_agrees_with_torchmetrics(shape, generator):
    image = pytest.importorskip("torchmetrics.functional.image")
    first = torch.rand((4, *shape), generator=generator, dtype=torch.float64)
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float64)
    second = (first + torch.tensor([0.0, 0.01, 0.1, 1.0]).reshape(4, 1, 1, 1) * noise).clamp(0, 1)
    side = min(7, *shape[1:])
    expected = image.structural_similarity_index_measure(
        first,
        second,
        gaussian_kernel=False,
        kernel_size=side - 1 + side % 2,
        data_range=1.0,
        reduction="none",
    )
    assert torch.allclose(ssim(first, second), expected.double(), rtol=0, atol=1e-12)


def test_ssim_of_equal_pictures_is_one_and_outside_values_are_clipped(generator):
    images = torch.rand((3, 1, 9, 9), generator=generator)
    assert torch.allclose(ssim(images, images), torch.ones(3, dtype=torch.float64))
    assert torch.equal(ssim(images * 3 - 1, images), ssim((images * 3 - 1).clamp(0, 1), images))
