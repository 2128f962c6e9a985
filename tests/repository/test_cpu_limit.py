"""Tests that take much CPU time need the marker ``slow``; waiting costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
CASES = """
import time
import pytest

def burn():
    end = time.process_time() + 0.6
    while time.process_time() < end:
        pass

@pytest.fixture
def costly():
    burn()

def test_burns():
    burn()

def test_has_a_costly_fixture(costly):
    pass

@pytest.mark.slow
def test_is_marked():
    burn()

def test_waits():
    time.sleep(0.6)

def test_fails_for_another_reason():
    burn()
    assert 1 == 2
"""


@pytest.mark.slow
def test_unmarked_tests_with_much_cpu_time_fail(tmp_path):
    limit = "\nCPU_LIMIT = 0.4\n"
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text() + limit)
    (tmp_path / "profiles.py").write_text((HERE / "profiles.py").read_text())
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  slow\n  quick_form\npythonpath = .\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VESTIGE_PROFILE": "quick"},
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = {
        line.split("::")[1].split(" ")[0]: line
        for line in done.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR"))
    }
    assert {name for name, line in outcomes.items() if line.startswith("PASSED")} == {
        "test_is_marked",
        "test_waits",
    }
    assert "s of CPU" in outcomes["test_burns"]
    assert "s of CPU" in outcomes["test_has_a_costly_fixture"]
    assert "assert 1 == 2" in outcomes["test_fails_for_another_reason"]
