"""What exact inversion of dense layers recovers and costs, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 VESTIGE_DATA=… python benchmarks/exact_inversion.py``;
needs MNIST and Location-30 (see ``vestige.datasets.load``), and Fashion-MNIST for one row. Costs
are CPU time of this process. Exits with 1 if a figure falls short of its goal. ``--batches 2``
makes a quick round, ``--only noise`` runs what has that in its title.

First the lift alone: 40 batches, 12 where the gradient is pruned and must be filled first. Then the
lift beside other methods on the same gradients, with the number of batches in each row: Inverting
Gradients, sampled silent neurons, breaching's analytic attack where it is installed (see
gradient_inversion.py), and exclusive neurons on batches that meet their condition. Last the
certificates of these records, right meaning above 30 dB; rows with noise that nobody tells or with
pruned entries, of which nothing is ever certified, count for wrong certificates alone. Odd worlds
are in certificates.py, LeNet in feature_inversion.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import exact_inversion_peers as peers
from exact_worlds import Tally, World, cases, noisy, pruned, rounded, tallied
from sheet import Sheet

Part = Callable[[Sheet, int], list[Tally]]

UNIT = (0.0, 1.0)
PARTS: dict[str, Part] = {
    "Against Inverting Gradients, labels told, relative noise": peers.against_inverting_gradients,
    "Pruned gradients beside Inverting Gradients, labels told": peers.pruning,
    "Against sampled silent neurons (SPEAR)": peers.against_sampling,
    "Against breaching 0.1.2": peers.against_breaching,
    "Exclusive neurons (Pan et al. 2020, Table 2), no biases": peers.exclusive_neurons,
}


@dataclass(frozen=True)
class Goal:
    """A figure of a tally and its goal; one-sided."""

    figure: str
    least: float | None = None
    most: float | None = None

    def of(self, tally: Tally) -> tuple[float, str]:
        """Read the figure and its unit."""
        if self.figure == "exact batches":
            return tally.exact_share, ""
        if self.figure == "median CPU":
            return statistics.median(tally.seconds), "s"
        if self.figure == "mean PSNR":
            return statistics.mean(tally.psnr), "dB"
        return tally.above(float(self.figure.split()[1])), ""


EXACT = Goal("exact batches", least=0.95)
F30, F60 = "above 30 dB", "above 60 dB"
TWO, FIVE = Goal("median CPU", most=2), Goal("median CPU", most=5)


def rows() -> list[tuple[World, tuple[Goal, ...]]]:
    listed: list[tuple[World, tuple[Goal, ...]]] = [
        (World("784-1000-10, float32", 32), (EXACT, TWO)),
        (World("784-1000-10, float64", 32, dtype=torch.float64), (EXACT, TWO)),
        (World("784-2000-10, float32", 50, hidden=(2000,)), (EXACT, FIVE)),
        (World("784-500-200-10, float32", 16, hidden=(500, 200)), (EXACT,)),
        (World("Fashion-MNIST, 784-1000-10", 32, name="fashion_mnist"), (EXACT,)),
        (World("784-1000-10 without bias", 16, bias=False), (EXACT,)),
        (
            World("446-200-100, random labels", 10, (200,), name="location30", classes=100),
            (EXACT,),
        ),
        (
            World("446-200-30, 300 steps", 4, (200,), 300, "location30", binary=True),
            (Goal(F60, least=0.9),),
        ),
        (
            World("446-200-30, 300 steps", 8, (200,), 300, "location30", binary=True),
            (Goal(F60),),
        ),
        (
            World("446-200-30, 300 steps, lift alone", 4, (200,), 300, "location30"),
            (Goal(F60),),
        ),
    ]
    listed += [
        (World(f"float32, {steps} steps", size, steps=steps), (Goal(F30, least=0.95), Goal(F60)))
        for steps in (350, 2000)
        for size in (8, 16)
    ]
    listed += [
        (
            World(f"{kind}, {steps} steps", 4, steps=steps, change=rounded(dtype), bounds=UNIT),
            (Goal(F30, least=0.9), Goal(F60)),
        )
        for kind, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16))
        for steps in (350, 2000)
    ]
    listed += [
        (
            World(f"relative noise {level:g}", size, change=noisy(level), bounds=UNIT),
            (Goal("mean PSNR", least=60 if (level, size) == (0.01, 4) else None),),
        )
        for level in (0.01, 0.1)
        for size in (4, 16)
    ]
    listed += [
        (
            World(
                f"pruned {share:.0%}", size, change=pruned(share), bounds=UNIT, told=True, most=12
            ),
            (Goal("mean PSNR"),),
        )
        for share in (0.5, 0.9, 0.99)
        for size in (4, 16)
    ]
    return listed


def lift_alone(sheet: Sheet, batches: int, only: str) -> list[Tally]:
    tallies = []
    for world, goals in rows():
        if only not in world.title:
            continue
        seeds = range(min(batches, world.most or batches))
        tally = tallied(str(world), world.lift, cases(world, seeds))
        note = (
            f"{statistics.median(tally.seconds):.2f} s, certified {tally.right_certified} of "
            f"{tally.right} right, {len(tally.wrong_certified)} wrong"
        )
        for goal in goals:
            value, unit = goal.of(tally)
            limit = goal.least if goal.most is None else goal.most
            most = goal.most is not None
            sheet.figure(f"{world}: {goal.figure}", value, limit, unit, most=most, note=note)
            note = ""
        tallies.append(tally)
    return tallies


def certificates(sheet: Sheet, tallies: list[Tally]) -> None:
    """Print how many right records were certified, and every kind of wrong one that was."""
    open_ = [t for t in tallies if "noise" not in t.title and "pruned" not in t.title]
    right = sum(tally.right for tally in open_)
    if not right:
        print("no records that could be certified")
    else:
        share = sum(tally.right_certified for tally in open_) / right
        sheet.figure("right records certified", share, 0.95, "", note=f"of {right}")
    for tally in sorted(open_, key=lambda t: t.right_certified - t.right)[:5]:
        if tally.right_certified < tally.right:
            missed = tally.right - tally.right_certified
            print(f"  not certified: {missed:4} of {tally.right} right, {tally.title}")
    wrong = sorted((psnr, tally.title) for tally in tallies for psnr in tally.wrong_certified)
    sheet.figure("wrong records certified", len(wrong), 0, "", most=True)
    far = sum(psnr < 20 for psnr, _ in wrong)
    if wrong:
        print(f"  of these {far} below 20 dB; the worst:")
    for psnr, title in wrong[:8]:
        print(f"  {psnr:7.1f} dB, {title}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--only", default="", help="cases and parts whose title holds this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    print("The lift alone")
    tallies = lift_alone(sheet, arguments.batches, arguments.only)
    for title, part in PARTS.items():
        if arguments.only in title:
            print(f"\n{title}")
            tallies += part(sheet, arguments.batches)
    print("\nCertificates, made without the secret")
    certificates(sheet, tallies)
    print("\n" + sheet.summary((time.process_time() - before) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
