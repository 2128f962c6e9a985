"""What an engine brings and what it survives, each figure beside its goal.

Run on a machine with two cores and nothing else to do: ``python benchmarks/engine.py``, less than
15 minutes. Exits with 1 if a figure falls short of its goal.

- Speed: shadow heads by Ray workers. What is claimed is time on the wall, so this is measured on
  the wall; one worker and two take turns on the same shards, and the median of the rounds counts.
  The load of the machine stands beside it: with other work on the cores the figure says little.
- Lost machines: an audit on a cluster of a head without CPUs and two nodes. At a random moment,
  counted in finished trials, one node's processes are killed (SIGKILL); a new one joins before the
  next run. The report must be that of an undisturbed run in this process, byte by byte but for its
  times.
- Lost driver: the process that runs the audit, with workers of its own, is killed at random moments
  until an attempt ends by itself; the same comparison.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from sheet import Sheet, stream
from vestige import Audit, datasets, networks, run
from vestige.attacks import InvertingGradients
from vestige.content import document_bytes
from vestige.engines import LocalProcesses, RayCluster
from vestige.networks import HeadedModel
from vestige.progress import Progress
from vestige.reports.audit import AuditReport
from vestige.reports.files import load_report
from vestige.reports.parts import Times
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.studies.store import RunFolder
from vestige.threats import HonestServer
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead, SharedGradient

TRIALS, SEED = 24, 3


def shadow_shards(heads: int) -> HeadShards:
    training = HeadTraining(ClassCounts.balanced(10, 40), 32, 0.01, 1e-5)
    victim = ReleasedHead(HeadedModel(nn.Flatten(), 256, 10), training)
    features = torch.randn((20_000, 256), generator=stream(0)).relu_()
    factory = HeadFactory(victim.simulator, features, torch.arange(20_000) % 10)
    return HeadShards(factory, SEED, heads=heads)


def digits_audit(iterations: int) -> Audit:
    """Gradients of two digits each: a trial takes about a tenth of a second on a free core."""
    digits = datasets.load("digits")
    parts = digits.split(seed=0, train=0.5, held_out=0.1, prior=0.4)
    model = networks.mlp(digits.space, hidden=(64,), generator=stream(1))
    return Audit(
        SharedGradient(model),
        parts.train,
        parts.prior,
        [InvertingGradients(iterations=iterations)],
        HonestServer(labels=True),
        batch_size=2,
        false_positive_rate=0.1,
    )


def without_times(report: AuditReport) -> bytes:
    findings = report.findings.model_copy(update={"times": Times()})
    return document_bytes(report.model_copy(update={"findings": findings}))


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def speed(sheet: Sheet, rounds: int, shards: int, heads: int) -> None:
    import ray

    made = shadow_shards(heads)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        # Both sides on one cluster: a unit of two CPUs leaves room for one worker.
        sides = {1: RayCluster(cpus_per_unit=2), 2: RayCluster(cpus_per_unit=1)}
        for side in sides.values():  # processes start, and fetch the work
            list(made.stream(4 * heads, engine=side))
        for turn in range(rounds):
            for workers in (1, 2) if turn % 2 else (2, 1):
                begun = time.monotonic()
                drawn = sum(map(len, made.stream(shards * heads, engine=sides[workers])))
                seconds[workers].append(time.monotonic() - begun)
                assert drawn == shards * heads
    finally:
        ray.shutdown()
    one, two = (statistics.median(seconds[workers]) for workers in (1, 2))
    ratios = [a / b for a, b in zip(seconds[1], seconds[2])]
    note = f"{one:.1f} s and {two:.1f} s; rounds {min(ratios):.2f} … {max(ratios):.2f}; {load()}"
    words = "shadow heads per second, two Ray workers over one"
    sheet.figure(words, one / two, 1.6, "×", note=note)


class KilledNode:
    """A cluster of two nodes, the older of which dies at a random moment."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.finished_before = 0

    def kill_after(self, counted: CountedWrites, trials: int, delay: float) -> None:
        """Kill the oldest node's processes some seconds after so many trials are finished."""
        while counted.latest < trials:
            time.sleep(0.005)
        time.sleep(delay)
        self.finished_before = counted.latest
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)

    def fill_up(self) -> None:
        """Let a new node join; Ray allows it to no other thread than the first."""
        self.nodes.append(self.cluster.add_node(num_cpus=1))


def lost_machines(sheet: Sheet, audit: Audit, runs: int, folder: Path) -> None:
    import ray

    wanted = without_times(run(replace(audit, trials=TRIALS), seed=SEED))
    moments, equal, early = random.Random(11), 0, 0
    world = KilledNode()
    ray.init(world.cluster.address, log_to_driver=False, logging_level="error")
    try:
        run(replace(audit, trials=4), seed=SEED, engine=RayCluster())  # processes start
        for number in range(runs):
            place, counted = folder / f"node-{number}", CountedWrites()
            moment = (counted, moments.randint(0, TRIALS - 6), moments.uniform(0, 0.3))
            killer = threading.Thread(target=world.kill_after, args=moment)
            killer.start()
            report = run(
                replace(audit, trials=TRIALS),
                seed=SEED,
                directory=place,
                engine=RayCluster(),
                watch=counted,
            )
            killer.join()
            early += world.finished_before < TRIALS
            world.fill_up()
            files = RunFolder.existing(place).finished()
            whole = files == list(range(TRIALS)) and counted.finished == list(range(TRIALS + 1))
            equal += whole and without_times(report) == wanted
    finally:
        ray.shutdown()
        world.cluster.shutdown()
    sheet.figure("runs in which a node was killed before the end", early, runs, "")
    sheet.figure("such runs with every trial once and the same report", equal, runs, "")


class CountedWrites:
    """Numbers of finished trials as a run tells them: each result counts once."""

    def __init__(self) -> None:
        self.finished: list[int] = []

    @property
    def latest(self) -> int:
        """How many are finished by now."""
        return self.finished[-1] if self.finished else 0

    def __call__(self, where: Progress) -> None:
        """Note how many are finished."""
        self.finished.append(where.done)


def lost_driver(sheet: Sheet, iterations: int, audit: Audit, folder: Path) -> None:
    wanted = without_times(run(replace(audit, trials=TRIALS), seed=SEED))
    moments, kills = random.Random(5), 0
    place = folder / "driver"
    while True:
        command = [sys.executable, __file__, "--drive", str(place), "--iterations", str(iterations)]
        child = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        before = len(list(place.glob("units/*.safetensors")))
        # Killed once it has got a little further; after five times it may end.
        goal = before + moments.randint(1, 5)
        while child.poll() is None and kills < 5:
            if len(list(place.glob("units/*.safetensors"))) >= goal:
                time.sleep(moments.uniform(0, 0.1))
                child.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        if child.wait() == 0:
            break
        if kills == 0 or child.returncode > 0:
            raise SystemExit("the driver ended by itself, and not well")
    same = without_times(load_report(place / "report.json")) == wanted
    words = "driver killed and resumed: the same report"
    sheet.figure(words, float(same), 1, "", note=f"{kills} kills")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--heads", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--parts", default="speed,machines,driver", help="which figures")
    parser.add_argument("--drive", type=Path, help="run the audit here, as a driver to be killed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    audit = digits_audit(asked.iterations)
    if asked.drive is not None:
        engine = LocalProcesses(2)
        run(replace(audit, trials=TRIALS), seed=SEED, directory=asked.drive, engine=engine)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sheet, begun = Sheet(), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        try:
            import ray  # noqa: F401
        except ImportError:
            sheet.missing("shadow heads per second, two Ray workers over one", "Ray is missing")
            sheet.missing("Records after a killed node", "Ray is missing")
        else:
            if "speed" in asked.parts:
                speed(sheet, asked.rounds, asked.shards, asked.heads)
            if "machines" in asked.parts:
                lost_machines(sheet, audit, asked.runs, Path(name))
        if "driver" in asked.parts:
            lost_driver(sheet, asked.iterations, audit, Path(name))
    minutes = (time.monotonic() - begun) / 60
    print(sheet.summary(minutes).replace("minutes of CPU", "minutes on the wall"))
    sys.exit(bool(sheet.short))


if __name__ == "__main__":
    main()
