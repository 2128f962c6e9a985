"""Six defences at three strengths under three attacks: the whole comparison, and its resumption.

Bundled digits, a small convolutional network, batches of two records, labels told. Counted: the CPU
time of the comparison; how often the strongest attack leaves a smaller mean error than Inverting
Gradients alone; and whether a killed comparison goes on without doing anything twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sheet import Sheet
from vestige import Comparison, networks, run
from vestige.attacks import CombinedInversion, DeepLeakage, InvertingGradients
from vestige.datasets import load
from vestige.defenses import (
    Defense,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    LocalAggregation,
    PrivateGradients,
)
from vestige.reports.comparison import ComparisonFindings, DefendedPoint
from vestige.reports.parts import Times
from vestige.reports.report import Report
from vestige.studies import ComparedServer, UtilityTraining
from vestige.threats import HonestServer
from vestige.victims import FederatedUpdate, LocalTraining

ITERATIONS = 200
TRAININGS = 9
"""Trainings of the small comparison, which come before its trials."""
DEFENSES: tuple[Defense, ...] = (
    *(GradientPruning(rate) for rate in (0.7, 0.9, 0.99)),
    *(GradientNoise(deviation) for deviation in (0.001, 0.01, 0.05)),
    *(GradientDropout(rate) for rate in (0.5, 0.9, 0.99)),
    *(LocalAggregation(steps) for steps in (2, 3, 5)),
    *(GradientQuantization(bits) for bits in (8, 4, 2)),
    *(PrivateGradients(1.0, noise) for noise in (0.003, 0.01, 0.05)),
)


def plan(defenses: tuple[Defense, ...], iterations: int, rounds: int, trials: int) -> Comparison:
    digits = load("digits").split(seed=0)
    client = FederatedUpdate(
        networks.convnet(digits.space), LocalTraining(steps=1, learning_rate=0.3), mode="eval"
    )
    attacks = [
        InvertingGradients(iterations=iterations),
        CombinedInversion(iterations=iterations),
        DeepLeakage(iterations=iterations // 2),
    ]
    return Comparison(
        [ComparedServer("honest server", client, attacks, HonestServer(labels=True))],
        defenses,
        digits.train,
        digits.prior,
        UtilityTraining(
            digits.train, digits.held_out, rounds=rounds, clients=4, batch_size=8, repeats=3
        ),
        title="Six defences at three strengths",
        trials=trials,
        batch_size=2,
        false_positive_rate=0.05,
        static=False,
    )


def small_plan(trials: int) -> Comparison:
    return plan((GradientPruning(0.9), GradientNoise(0.01)), 20, 5, trials)


def improved(point: DefendedPoint) -> bool:
    """Whether an attack, not a guess, leaves a smaller mean error than Inverting Gradients does."""
    (cell,) = point.cells
    assert not cell.problem, cell.problem
    errors = {measure.attack: measure.error.value for measure in cell.measures}
    others = [errors["Combined inversion"], errors["Deep Leakage"]]
    return min(others) < errors["Inverting Gradients"]


def unit_files(directory: Path) -> dict[str, int]:
    """Finished trainings and trials by path, with the time of their last writing."""
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("units/*.safetensors")}


def without_times(comparison: Report[ComparisonFindings, Any]) -> Report[ComparisonFindings, Any]:
    findings = comparison.findings.model_copy(update={"times": Times()})
    return comparison.model_copy(update={"findings": findings})


def resumption(sheet: Sheet) -> None:
    """Kill a comparison in the middle of its cells, go on, and compare with one left alone."""
    trials = 6
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "killed"
        child = subprocess.Popen(
            [sys.executable, __file__, "--small", str(directory), "--trials", str(trials)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        while child.poll() is None and len(unit_files(directory)) < TRAININGS + trials + 2:
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
        before = unit_files(directory)
        resumed = run(small_plan(trials), directory=directory)
        after = unit_files(directory)
        redone = sum(after.get(path) != moment for path, moment in before.items())
        whole = run(small_plan(trials), directory=Path(folder) / "whole")
    sheet.figure("units finished before the kill", len(before), TRAININGS + trials + 2, "")
    sheet.figure("of them done again", redone, 0, "", most=True, note=f"{len(after)} in all")
    differ = float(without_times(resumed) != without_times(whole))
    sheet.figure("difference to a comparison that nobody killed", differ, 0, "", most=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--small", type=Path, help="run the small comparison in this folder")
    parser.add_argument("--out", type=Path, help="keep the comparison and its page here")
    given = parser.parse_args()
    if given.small is not None:
        run(small_plan(given.trials), directory=given.small)
        return
    sheet, begun = Sheet(), time.process_time()
    found = run(plan(DEFENSES, ITERATIONS, 200, given.trials), directory=given.out)
    minutes = (time.process_time() - begun) / 60
    for point in found.findings.points:
        (cell,) = point.cells
        errors = "  ".join(f"{m.attack} {m.error.value:.3f}" for m in cell.measures)
        lost = point.utility.accuracy_lost
        cost = "diverged" if lost is None else f"{100 * lost.value:5.1f} points"
        print(f"{point.label:<28} {cost}  {errors}  strongest {cell.strongest}", flush=True)
    for said in found.judgement.recommendations:
        print(said.sentence, *said.details, sep="\n  ", flush=True)
    defended = found.findings.points[1:]
    sheet.figure("cells of defences and strengths", len(defended), 18, "")
    sheet.figure("CPU time of the comparison", minutes, 30, "min", most=True)
    share = 100 * sum(map(improved, defended)) / len(defended)
    sheet.figure("cells in which Inverting Gradients is beaten", share, 80, "%")
    resumption(sheet)
    print(sheet.summary((time.process_time() - begun) / 60))
    raise SystemExit(1 if sheet.short else 0)


if __name__ == "__main__":
    main()
