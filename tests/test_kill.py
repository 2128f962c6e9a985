"""kill −9 at random moments: what is finished stays, and the end is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = """
import json, os, random, re, signal, sys, time
from pathlib import Path

import torch

torch.set_num_threads(1)
from worlds import LabelOnly, small_audit

from vestige import DeepLeakage, HonestServer, InvertingGradients, run
from vestige.store import RunDirectory, record_bytes

TRIALS, KILLS, FOLDERS = 30, 24, 4
place, moments = Path(sys.argv[1]), random.Random(7)
attacks = [InvertingGradients(iterations=8), DeepLeakage(iterations=4), LabelOnly()]
audit = small_audit(attacks, batch_size=2, threat=HonestServer(labels=True))


def without_times(record):
    return record_bytes(record.model_copy(update={"times": type(record.times)()}))


run(audit, trials=1)
begun = time.monotonic()
whole = without_times(run(audit, trials=TRIALS, seed=3))
length = time.monotonic() - begun
said = {"kills": [], "equal": [], "strays": []}
for number in range(FOLDERS):
    folder = place / str(number)
    # Rounds cover about two thirds of the run; the first kill comes while the folder is made.
    for kill in range(KILLS // FOLDERS):
        delay = moments.uniform(0, 0.22 * length) if kill else moments.uniform(0, 0.01)
        child = os.fork()
        if child == 0:
            try:
                run(audit, trials=TRIALS, seed=3, directory=folder)
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        held = folder / "trials"
        names = os.listdir(held) if held.is_dir() else []
        trials = [n for n in names if not n.endswith(".part")]
        said["strays"] += [n for n in trials if not re.fullmatch(r"[0-9]{6}.safetensors", n)]
        directory = RunDirectory(folder)
        finished = directory.finished()
        assert len(finished) == len(trials)
        for trial in finished:
            result = directory.read(trial)
            assert set(result.outcomes) == set(audit.all_attacks)
            assert all(len(t) for t in result.tensors.values())
        killed = os.WIFSIGNALED(status) and not (folder / "record.json").exists()
        said["kills"].append([killed, len(finished), len(names) - len(trials)])
    record = run(audit, trials=TRIALS, seed=3, directory=folder)
    again = without_times(directory.record())
    parts = [str(p) for p in folder.rglob("*.part")]
    said["equal"].append(without_times(record) == whole == again and not parts)
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_killed_run_ends_like_an_undisturbed_one(tmp_path):
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent / 'src'}",
        },
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    interrupted = [trials for killed, trials, _ in said["kills"] if killed and trials < 30]
    assert len(interrupted) >= 20, said
    assert len(set(interrupted)) >= 5, "the kills came at too few different moments"
    assert said["strays"] == []
    assert said["equal"] == [True] * 4
