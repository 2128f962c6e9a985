"""Records in a local MLflow store: what was measured, cut where it must be, redacted by default."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pages.audits import changed
from pages.noise_studies import noise
from pages.states import STATES
from pages.studies import heads
from vestige.errors import BadInput, NotFound
from vestige.integrations.mlflow import LONGEST_VALUE, attack_key, log_report
from vestige.pages import render
from vestige.reports.audit import AuditReport
from vestige.reports.parts import VerdictKind

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A tracking store of files in a folder of this test; MLflow's own settings are put back."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield tmp_path / "runs"
    mlflow.set_tracking_uri(before)


def logged(report: AuditReport, **settings):
    with mlflow.start_run() as active:
        assert log_report(report, **settings) == active.info.run_id
    run = mlflow.MlflowClient().get_run(active.info.run_id)
    folder = mlflow.artifacts.download_artifacts(run_id=active.info.run_id)
    return run, {path.name: path.read_text() for path in Path(folder).rglob("*") if path.is_file()}


def test_figures_settings_page_and_json(store):
    report = STATES["demonstrated"]()
    run, files = logged(report, redact=False)
    for attack in report.findings.attacks:
        key = f"vestige.{attack_key(attack.name)}"
        rate = report.judgement.rates_of(attack).rate
        assert run.data.metrics[f"{key}.rate"] == rate.value
        assert run.data.metrics[f"{key}.rate_lower"] == rate.lower
        assert run.data.metrics[f"{key}.rate_upper"] == rate.upper
    assert run.data.metrics["vestige.trials"] == report.findings.trials_finished
    best = max(
        (report.judgement.rates_of(a).rate for a in report.findings.attacks if not a.guess),
        key=lambda rate: (rate.lower, rate.value),
    )
    assert run.data.metrics["vestige.strongest.rate"] == best.value
    assert run.data.tags["vestige.verdict"] == "DEMONSTRATED"
    assert run.data.params["vestige.seed"] == str(report.findings.seed)
    assert AuditReport.model_validate_json(files["report.json"]) == report
    assert files["page.html"] == render(report)


def test_secrets_stay_at_home_unless_asked_for(store):
    report = STATES["demonstrated"]()
    _, files = logged(report)
    assert json.loads(files["report.json"])["findings"]["redacted"] is True
    pixels = [e.secret.pixels for e in report.findings.exhibits] + [
        e.reconstruction.pixels for e in report.findings.exhibits if e.reconstruction
    ]
    pixels += [f.picture.pixels for e in report.findings.exhibits if e.film for f in e.film.frames]
    assert len(pixels) == 3 + 3 + 5
    assert not any(p in text for p in pixels for text in files.values())
    assert "<img" not in files["page.html"]


def test_without_the_page(store):
    _, files = logged(STATES["demonstrated"](), page=False, prefix="privacy")
    assert set(files) == {"report.json"}


def test_long_and_strange_settings_are_cut(store):
    settings = {"Net (ωork): a/b": "y" * 9_000, "–": "z"}
    report = changed(STATES["demonstrated"](), title="x" * 9_000, settings=settings)
    run, _ = logged(report, page=False, redact=False)
    assert len(run.data.params["vestige.title"]) == LONGEST_VALUE
    assert run.data.params["vestige.setting.net_ork_a_b"].endswith("y…")
    assert run.data.params["vestige.setting.unnamed"] == "z"


@pytest.mark.parametrize("build", [STATES["captured"], heads, noise])
def test_reports_of_other_kinds_are_logged(store, build):
    report = build()
    run, files = logged(report, redact=False)
    assert run.data.tags["vestige.verdict"] == report.verdict.kind.value
    assert run.data.params["vestige.title"] == report.findings.title
    assert type(report).model_validate_json(files["report.json"]) == report
    assert files["page.html"] == render(report)


def test_a_failed_audit_has_no_figures(store):
    report = STATES["invalid"]()
    assert report.verdict.kind is VerdictKind.INVALID
    run, _ = logged(report, page=False)
    assert not any("rate" in name for name in run.data.metrics)
    assert run.data.metrics["vestige.checks.failed"] == 1
    assert run.data.tags["vestige.verdict"] == "INVALID"


def test_without_a_run_or_without_mlflow_one_sentence(store, monkeypatch):
    with pytest.raises(BadInput, match="No MLflow run is active"):
        log_report(STATES["demonstrated"]())
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(NotFound, match="extra `mlflow`"):
        log_report(STATES["demonstrated"]())
