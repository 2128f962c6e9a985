"""kill −9 at random moments of every study: what is finished stays, and the end is the same."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from killed_runs import KILLS, STUDIES

from process_groups import run_in_group


@pytest.mark.slow
@pytest.mark.parametrize("kind", STUDIES)
def test_a_killed_run_ends_like_an_undisturbed_one(tmp_path, kind):
    done = run_in_group(
        [sys.executable, str(Path(__file__).parent / "killed_runs.py"), kind, str(tmp_path)],
        timeout=None,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [killed for killed, _ in seen["kills"]] == [True] * KILLS
    finished = {units for _, units in seen["kills"]}
    assert len(finished) >= 4, "the kills came at too few different moments"
    assert seen["strays"] == []
    assert seen["redone"] == []
    assert seen["equal"] == [True] * KILLS
