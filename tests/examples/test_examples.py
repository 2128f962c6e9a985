"""Every example that defines an audit runs."""

from __future__ import annotations

import dataclasses
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vestige import run
from vestige.reports.parts import VerdictKind

FILES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
EXAMPLES = [path for path in FILES if "\naudit = " in path.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_example_runs(path):
    for package in ("transformers", "datasets"):
        if f"\nfrom {package} import" in path.read_text():
            pytest.importorskip(package)
    with torch.random.fork_rng():
        audit = runpy.run_path(str(path))["audit"]
    quick = [
        dataclasses.replace(a, iterations=5, restarts=1) if hasattr(a, "iterations") else a
        for a in audit.attacks
    ]
    report = run(replace(dataclasses.replace(audit, attacks=quick), trials=2), seed=0)
    assert report.findings.trials_finished == 2
    assert report.verdict.kind is not VerdictKind.INVALID, report.verdict
