"""Kill runs of a study at chosen moments, resume them, and compare with an undisturbed one.

A moment is a count of events in the run: progress steps, and every file that is opened, renamed
or removed. Counting makes the moments the same on an idle and on a loaded machine.

    python killed_runs.py KIND FOLDER    prints what was seen as JSON
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import test_comparisons
import test_inversion
import test_noise_studies
import torch

import captured_worlds
import head_worlds
from vestige import CapturedAudit, HeadStudy, Inversion, NoiseStudy, run
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.content import document_bytes
from vestige.reports.files import load_report
from vestige.studies.store import RunFolder
from vestige.studies.study import Study
from vestige.threats import HonestServer
from worlds import LabelOnly, draws, small_audit

KILLS, SEED = 10, 3

FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove")


def audit() -> Study[Any]:
    attacks = [InvertingGradients(iterations=8), DeepLeakage(iterations=4), LabelOnly()]
    whole = small_audit(attacks, batch_size=2, threat=HonestServer(labels=True))
    return replace(whole, trials=16)


def captured_audit() -> Study[Any]:
    records = draws(42, 40_000)
    batches = captured_worlds.one_by_one(records[:12])
    releases = captured_worlds.captured(batches, draws(30, 1), real=True)
    attacks = [InvertingGradients(iterations=6)]
    return CapturedAudit(releases, records[12:], attacks, false_positive_rate=0.1)


def head_study() -> Study[Any]:
    parts, victim = head_worlds.digits(), head_worlds.victim()
    victim = replace(victim, training=replace(victim.training, epochs=2))
    return HeadStudy(head_worlds.LeastSquares(30), victim, parts.train, parts.prior, heads=76)


def noise_study() -> Study[Any]:
    images, prior = test_noise_studies.images(30), test_noise_studies.PRIOR
    mus = (500.0, 100.0, 50.0, 10.0, 5.0, 0.5)
    return NoiseStudy(images, prior, mus, clipping_norm=10.0, candidates=8, sampled=2, shown=1)


def comparison() -> Study[Any]:
    return test_comparisons.plan_of(trials=4)


def inversion() -> Study[Any]:
    observation, public = test_inversion.captured(draws(1, 8))
    attacks = [InvertingGradients(iterations=8), DeepLeakage(iterations=4)]
    return Inversion(observation, public, attacks, samples=3, rehearsals=2)


STUDIES: dict[str, Callable[[], Study[Any]]] = {
    "audit": audit,
    "captured audit": captured_audit,
    "head study": head_study,
    "noise study": noise_study,
    "comparison": comparison,
    "inversion": inversion,
}


class Moments:
    """Counts the events of this process and kills it at one of them, if asked to."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.count = last, 0
        sys.addaudithook(self._audited)

    def __call__(self, *_: object) -> None:
        self.count += 1
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def _audited(self, event: str, _: object) -> None:
        if event in FILE_EVENTS:
            self()


def in_child(work: Callable[[Moments], object], last: int | None = None) -> tuple[bool, int]:
    """Run work in a forked process; whether it was killed, and how many events it saw if not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            moments = Moments(last)
            work(moments)
            os.write(writing, str(moments.count).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), int(said or 0)


def without_times(document: Any) -> bytes:
    """The bytes of a report, but for its times."""
    held = json.loads(document_bytes(document))
    held.pop("digest")
    held["findings"].pop("times")
    return json.dumps(held, sort_keys=True).encode()


def stored(folder: Path, study: Study[Any]) -> tuple[dict[str, int], list[str]]:
    """Finished units by name with the time of their writing, all whole; names that are none."""
    units = folder / "units"
    names = os.listdir(units) if units.is_dir() else []
    strays = [n for n in names if not re.fullmatch(r"[0-9]{6}.safetensors|.*\.part", n)]
    directory = RunFolder(folder)
    for number in directory.finished():
        result = directory.read(number)
        study.check(result)
        assert all(len(tensor.shape) == 0 or len(tensor) for tensor in result.tensors.values())
    kept = {n: (units / n).stat().st_mtime_ns for n in names if not n.endswith(".part")}
    assert len(kept) == len(directory.finished())
    return kept, strays


def main(kind: str, place: Path) -> None:
    torch.set_num_threads(1)
    study = STUDIES[kind]()
    whole = without_times(run(study, seed=SEED))
    chosen = random.Random(7)
    _, events = in_child(lambda watch: run(study, seed=SEED, directory=place / "all", watch=watch))
    seen = {"units": len(study.units()), "events": events}
    seen |= {"kills": [], "equal": [], "strays": [], "redone": []}
    for number in range(KILLS):
        # One moment in each tenth of the run: the first comes while the folder is made.
        last = chosen.randint(number * events // KILLS + 1, (number + 1) * events // KILLS)
        folder = place / str(number)
        killed, _ = in_child(
            lambda watch, at=folder: run(study, seed=SEED, directory=at, watch=watch), last
        )
        before, strays = stored(folder, study)
        report = without_times(run(study, seed=SEED, directory=folder))
        written = without_times(load_report(folder / "report.json"))
        after, more = stored(folder, study)
        seen["kills"].append([killed, len(before)])
        seen["strays"] += [*strays, *more, *(str(part) for part in folder.rglob("*.part"))]
        seen["redone"] += [name for name, moment in before.items() if after.get(name) != moment]
        seen["equal"].append(report == written == whole)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
