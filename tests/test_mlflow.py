"""Records in a local MLflow store: what was measured, cut where it must be, redacted by default."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from report.states import STATES
from vestige.errors import BadInput, NotFound
from vestige.integrations.mlflow import LONGEST_VALUE, attack_key, log_record
from vestige.record import Record, VerdictKind
from vestige.report import render

mlflow = pytest.importorskip("mlflow")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A tracking store of files in a folder of this test; MLflow's own settings are put back."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield tmp_path / "runs"
    mlflow.set_tracking_uri(before)


def logged(record: Record, **settings):
    with mlflow.start_run() as active:
        assert log_record(record, **settings) == active.info.run_id
    run = mlflow.MlflowClient().get_run(active.info.run_id)
    folder = mlflow.artifacts.download_artifacts(run_id=active.info.run_id)
    return run, {path.name: path.read_text() for path in Path(folder).rglob("*") if path.is_file()}


def test_figures_settings_page_and_json(store):
    record = STATES["demonstrated"]()
    run, files = logged(record, redact=False)
    for attack in record.attacks:
        key = f"vestige.{attack_key(attack.name)}"
        assert run.data.metrics[f"{key}.rate"] == attack.rate.value
        assert run.data.metrics[f"{key}.rate_lower"] == attack.rate.lower
        assert run.data.metrics[f"{key}.rate_upper"] == attack.rate.upper
    assert run.data.metrics["vestige.trials"] == record.trials_finished
    best = max(
        (a for a in record.attacks if not a.guess), key=lambda a: (a.rate.lower, a.rate.value)
    )
    assert run.data.metrics["vestige.strongest.rate"] == best.rate.value
    assert run.data.tags["vestige.verdict"] == "DEMONSTRATED"
    assert run.data.params["vestige.seed"] == str(record.seed)
    assert Record.model_validate_json(files["record.json"]) == record
    assert files["page.html"] == render(record)


def test_secrets_stay_at_home_unless_asked_for(store):
    record = STATES["demonstrated"]()
    _, files = logged(record)
    assert json.loads(files["record.json"])["redacted"] is True
    pixels = [e.secret.pixels for e in record.exhibits] + [
        e.reconstruction.pixels for e in record.exhibits if e.reconstruction
    ]
    assert pixels
    assert not any(p in text for p in pixels for text in files.values())
    assert "<img" not in files["page.html"]


def test_without_the_page(store):
    _, files = logged(STATES["demonstrated"](), page=False, prefix="privacy")
    assert set(files) == {"record.json"}


def test_long_and_strange_settings_are_cut(store):
    record = STATES["demonstrated"]().model_copy(
        update={"title": "x" * 9_000, "settings": {"Net (ωork): a/b": "y" * 9_000, "–": "z"}}
    )
    run, _ = logged(record, page=False)
    assert len(run.data.params["vestige.title"]) == LONGEST_VALUE
    assert run.data.params["vestige.setting.net_ork_a_b"].endswith("y…")
    assert run.data.params["vestige.setting.unnamed"] == "z"


def test_a_failed_audit_has_no_figures(store):
    record = STATES["invalid"]()
    assert record.verdict.kind is VerdictKind.INVALID
    run, _ = logged(record, page=False)
    assert not any("rate" in name for name in run.data.metrics)
    assert run.data.metrics["vestige.checks.failed"] == 1
    assert run.data.tags["vestige.verdict"] == "INVALID"


def test_without_a_run_or_without_mlflow_one_sentence(store, monkeypatch):
    with pytest.raises(BadInput, match="No MLflow run is active"):
        log_record(STATES["demonstrated"]())
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(NotFound, match="extra `mlflow`"):
        log_record(STATES["demonstrated"]())
