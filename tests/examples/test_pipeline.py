"""The example of a build: its file is read, and its command line runs and fails as it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vestige.cli.app import app
from vestige.cli.verdict import ABOVE, INVALID

WORKFLOW = Path(__file__).parents[2] / "examples" / "github-actions" / "vestige.yml"

AUDIT = """
from vestige.attacks import InvertingGradients
from worlds import small_audit
audit = small_audit([InvertingGradients(iterations={iterations}, restarts=1)])
"""

STOPS = """
from vestige.attacks import InvertingGradients
from worlds import small_audit

class Stops(InvertingGradients):
    def prepare(self, public, *, generator):
        raise RuntimeError("no more")

audit = small_audit([Stops()])
"""


@pytest.fixture
def job() -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]["audit"]


@pytest.fixture
def command(job) -> list[str]:
    (found,) = [step["run"] for step in job["steps"] if "vestige audit" in step.get("run", "")]
    words = shlex.split(found)
    assert words[:3] == ["vestige", "audit", "audits/release.py"]
    return words[1:]


def run_in(folder, monkeypatch, command, audit, *, trials="6"):
    monkeypatch.chdir(folder)
    Path("audits").mkdir()
    Path("audits/release.py").write_text(audit)
    command[command.index("--trials") + 1] = trials
    return CliRunner().invoke(app, command)


@pytest.mark.slow
def test_a_leak_fails_the_build(tmp_path, monkeypatch, command):
    audit = AUDIT.format(iterations=150)
    done = run_in(tmp_path, monkeypatch, command, audit)
    assert done.exit_code == ABOVE, (done.output, done.exception)
    assert "Above the limit" in done.output
    assert "5.0% allowed" in done.output


def test_an_audit_that_says_nothing_fails_the_build_otherwise(tmp_path, monkeypatch, command):
    done = run_in(tmp_path, monkeypatch, command, STOPS)
    assert done.exit_code == INVALID, done.output


def test_only_the_redacted_page_is_kept(tmp_path, monkeypatch, job, command):
    kept = [s for s in job["steps"] if "upload-artifact" in s.get("uses", "")]
    assert [s["with"]["path"] for s in kept] == ["vestige-run/page.html"]
    assert kept[0]["if"] == "always()"
    assert "--redact" in command
    run_in(tmp_path, monkeypatch, command, AUDIT.format(iterations=30))
    page = Path(kept[0]["with"]["path"]).read_text()
    assert "withheld" in page
    assert "<img" not in page


def test_a_limit_that_nothing_exceeds_passes(tmp_path, monkeypatch, command):
    command[command.index("--fail-above") + 1] = "1.0"
    done = run_in(tmp_path, monkeypatch, command, AUDIT.format(iterations=30))
    assert done.exit_code == 0, (done.output, done.exception)


def test_the_help_says_which_figure_counts():
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "200"}).output
    assert "measured rate (not its limits)" in " ".join(shown.split())
