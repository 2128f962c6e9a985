"""Which common networks gradient inversion can audit, and what an iteration costs.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/networks.py``. Every row is one network,
picture size, batch and mode, measured in a process of its own, because the peak of a process's
memory never falls. A row reaches its goal if the attack runs, alone and with four restarts, or if
it refuses in one sentence; where restarts run as one batch, their slopes must be those of a single
run. A row that uses more CPU time than its budget is stopped and counts as not measured. Exits
with 1 if a row misses its goal. ``--only NAME`` measures the networks whose name contains NAME.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor

from reference_networks import CLASSES, REFERENCES
from sheet import Sheet, stream
from vestige.attacks import InvertingGradients
from vestige.errors import VestigeError
from vestige.interfaces import Hints, Observation, Public
from vestige.records import ImageSpace, Prior, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.refusals import refusal
from vestige.victims import SharedGradient

SETTINGS = ((64, 1), (64, 2), (224, 1))  # pixels and records of a batch
MODES = ("eval", "train")
RESTARTS = 4
ITERATIONS = 4
BUDGET = 90  # CPU seconds of one row
DIFFERENCE = 1e-8  # largest relative difference of slopes, a stack's and a single run's, in float64
LARGEST_COMPARED = 64  # pixels, to bound the cost

Facts = Mapping[str, str | float]


@dataclass(frozen=True)
class Row:
    """One network in one setting."""

    network: str
    side: int
    batch: int
    mode: str

    def __str__(self) -> str:
        return f"{self.network}, {self.side} px, batch {self.batch}, {self.mode}"


def measured(row: Row) -> Facts:
    """CPU seconds per iteration, peak memory in GB, and how restarts run."""
    space = ImageSpace(3, row.side, row.side, tuple(str(label) for label in range(CLASSES)))
    x = torch.rand((row.batch + CLASSES, *space.shape), generator=stream(1))
    records = Records(x, torch.arange(len(x)) % CLASSES, space)
    model = REFERENCES[row.network](row.side)
    victim = SharedGradient(model, mode=row.mode)
    secret = records[: row.batch]
    observation = Observation(
        victim.release(secret, generator=stream(2)), Hints(row.batch, secret.y)
    )
    public = Public(victim.simulator, Prior(records[row.batch :]))

    def attack(iterations: int, restarts: int = 1) -> tuple[float, Mapping[str, object]]:
        settings = InvertingGradients(iterations=iterations, restarts=restarts, polish=0.0)
        reconstruct = settings.prepare(public, generator=stream(3))
        before = time.process_time()
        found = reconstruct(observation, stream(4))
        if not bool(found.candidates.isfinite().all()):
            raise ArithmeticError("the candidates are not finite")
        return time.process_time() - before, found.info

    attack(1)  # kernels prepare themselves at the first call
    short, _ = attack(1)
    long, _ = attack(1 + ITERATIONS)
    facts: dict[str, str | float] = {
        "parameters": sum(p.numel() for p in model.parameters()) / 1e6,
        "seconds": (long - short) / ITERATIONS,
        "memory": _peak(),
    }
    attack(1, RESTARTS)
    seconds, info = attack(1, RESTARTS)
    facts["stacked seconds"] = seconds / 2
    facts["stacked memory"] = _peak()
    facts["restarts"] = "one by one" if "restarts run" in info else "as one batch"
    if facts["restarts"] == "as one batch" and row.side <= LARGEST_COMPARED:
        simulator = GradientSimulator(model.double(), mode=row.mode)
        facts["difference"] = slope_difference(simulator, *simulator.batch(secret))
    return facts


def slope_difference(simulator: GradientSimulator, x: Tensor, targets: Tensor) -> float:
    """Relative difference of slopes of the simulated gradient in records: under vmap, and alone.

    In float64, because a wrong derivative of normalisations changes slopes by 1e-5 to 3e-3 on these
    networks, and rounding in float32 by more where batch norm sees few values. NaN where slopes
    vanish.
    """
    generator = stream(5)
    weights = {
        name: torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in simulator.parameters.items()
    }

    def reading(x: Tensor, *, functional: bool) -> Tensor:
        gradient = simulator(x, targets, functional=functional)
        return torch.stack([(gradient[n] * w).sum() for n, w in weights.items()]).sum()

    leaves = torch.stack([x, x.flip(-1)]).requires_grad_()
    stacked = torch.func.vmap(lambda x: reading(x, functional=True))(leaves)
    (slopes,) = torch.autograd.grad(stacked.sum(), leaves)
    leaf = x.clone().requires_grad_()
    (alone,) = torch.autograd.grad(reading(leaf, functional=False), leaf)
    return float((slopes[0] - alone).norm() / alone.norm())


def _peak() -> float:
    """Largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _child(row: Row, sender: Connection) -> None:
    """Measure a row and send its facts, its refusal, or what went wrong."""
    resource.setrlimit(resource.RLIMIT_CPU, (BUDGET, BUDGET + 5))
    try:
        sender.send(measured(row))
    except VestigeError as error:
        sender.send({"refusal": str(error)})
    except Exception as error:
        said = refusal(error)
        raw = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        sender.send({"error": raw} if said is None else {"refusal": said})


def run_row(row: Row) -> Facts:
    """The facts of a row, from a child process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(row, sender))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGXCPU:
            return {"stopped": f"stopped after {BUDGET} s of CPU"}
        return {"error": f"the process ended with code {child.exitcode}"}
    finally:
        child.join()


def report(sheet: Sheet, row: Row, facts: Facts) -> None:
    """Print a row beside its goal."""
    if "stopped" in facts:
        sheet.missing(str(row), str(facts["stopped"]))
        return
    if "error" in facts or "refusal" in facts:
        refused = "refusal" in facts
        note = str(facts["refusal"] if refused else facts["error"])
        sheet.figure(f"{row}: refuses in a sentence", float(refused), 1, "", note=note)
        return
    difference = float(facts.get("difference", 0.0))
    note = (
        f"{facts['parameters']:.1f} M parameters, {facts['seconds']:.2f} s an iteration, "
        f"{facts['memory']:.2f} GB; {RESTARTS} restarts {facts['restarts']}, "
        f"{facts['stacked seconds']:.2f} s, {facts['stacked memory']:.2f} GB"
    )
    if "difference" in facts:
        note += f", slopes differ by {difference:.0e}"
    sheet.figure(f"{row}: runs", float(difference <= DIFFERENCE), 1, "", note=note)


def table(rows: Mapping[Row, Facts]) -> str:
    """The rows as a table in Markdown, eval and train mode side by side."""
    lines = [
        "| network | parameters | pixels, batch | seconds per iteration, eval / train | "
        f"{RESTARTS} restarts: seconds per iteration, eval / train | restarts run | "
        f"memory, 1 / {RESTARTS} restarts |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.mode != MODES[0]:
            continue
        both = [rows[Row(row.network, row.side, row.batch, mode)] for mode in MODES]
        place = f"{row.side} × {row.side}, {row.batch}"
        words = [facts.get(key) for facts in both for key in ("refusal", "error", "stopped")]
        if any(words):
            said = "; ".join(dict.fromkeys(str(word) for word in words if word))
            lines.append(f"| {row.network} | | {place} | {said} | | | |")
            continue
        alone, stacked = (
            " / ".join(f"{facts[key]:.2f}" for facts in both)
            for key in ("seconds", "stacked seconds")
        )
        ways = " / ".join(dict.fromkeys(str(facts["restarts"]) for facts in both))
        memory = " / ".join(
            f"{max(float(facts[key]) for facts in both):.1f} GB"
            for key in ("memory", "stacked memory")
        )
        size = f"{both[0]['parameters']:.1f} M"
        lines.append(
            f"| {row.network} | {size} | {place} | {alone} | {stacked} | {ways} | {memory} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="Part of the names of networks to measure.")
    only = parser.parse_args().only.lower()
    torch.set_num_threads(1)
    sheet, rows = Sheet(), {}
    for name, reference in REFERENCES.items():
        if only not in name.lower():
            continue
        print(f"{name}, as defined by {reference.definition}", flush=True)
        for side, batch in SETTINGS:
            for mode in MODES:
                row = Row(name, side, batch, mode)
                rows[row] = run_row(row)
                report(sheet, row, rows[row])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime + time.process_time()
    refused = sum("refusal" in facts for facts in rows.values())
    runs = sum("seconds" in facts for facts in rows.values())
    print(f"\n{table(rows)}\n\n{runs} of {len(rows)} rows run, {refused} refuse in a sentence.")
    print(sheet.summary(math.ceil(spent / 6) / 10))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
