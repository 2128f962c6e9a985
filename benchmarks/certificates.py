"""Whether certificates of exact inversion are right, in odd worlds; each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/certificates.py``; needs no data. Costs
are CPU time of this process. Exits with 1 if a figure falls short of its goal. ``--worlds 100``
makes a quick round.

1,200 worlds are drawn (``certificate_worlds``): first layers of 8 to 300 neurons, one to three
hidden layers, 6 to 100 features, 2 to 10 classes, batches of 1 to 9 with any or one label, of which
the size, the labels or nothing is told; equal, collinear, zero and nearly equal records; no biases;
float16 and bfloat16; told and untold noise of 1e-5 to 1e-1 of the gradient's size; pruning; up to
200 steps of training; tables, smooth images, digits, sparse binary rows and counts, and spectra,
which nothing was chosen on; records a thousand times smaller under half precision and noise; small
records of one label, which the network hardly tells apart; dark records that are normalised, whose
errors count relative to the record and not to its normalised input; records of 1e-100 to 1e100
times the usual size.

A certificate is wrong if its record is more than 1% from every record of the batch, if two claim
one record, or if a batch is certified whole with a wrong number of records. A recovered record is a
candidate within 1% of a record. The rank limit is the largest batch b with
b(b + 1)/2 + b·min(b, d₂) − b ≤ live neurons of the first layer, d₂ the width of the next: what the
lift can separate. The goal for certified records holds for batches of told size, of at most half of
that limit (at least one record), whose gradient is as float32 or float64 computed it; batches of
equal, collinear or zero records, two classes without biases, where a length has two solutions, and
records of another size that no normalisation brings back, are not among them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

import torch

from certificate_worlds import Case, Outcome, attacked, case, drawn, judged
from sheet import Sheet

FIRST_SEED = 2_300_000
WORLDS = 1200
UNTUNED = "spectra"
KINDS = ("gaussian table", "smooth images", "sparse binary", "digits", "counts", UNTUNED)
CERTIFIED = 0.9


def group(one: Case) -> str:
    """Which figure a world belongs to."""
    world = one.world
    if not world.told:
        return "batch size untold"
    if world.clean and not one.general:
        return "equal, collinear or zero by chance"
    if world.clean:
        half = len(one.inputs) <= max(one.feasible_batch // 2, min(one.feasible_batch, 1))
        return "clean, half the rank limit" if half else "clean, larger batches"
    if world.noise:
        return "told noise" if world.told_noise else "untold noise"
    if world.pruned:
        return "pruned"
    if world.odd:
        return world.odd
    if world.normalized:
        return f"normalised, {world.precision}"
    if world.scale < 0.1 or world.scale > 1:
        return "small records" if world.scale < 1 else "large records"
    if world.precision in ("float16", "bfloat16"):
        return world.precision
    return "two classes, no biases"


def _progress(outcomes: dict[str, list[tuple[Case, Outcome]]]) -> str:
    """How far it is, in one line."""
    everything = [outcome for pairs in outcomes.values() for _, outcome in pairs]
    half = [outcome for _, outcome in outcomes["clean, half the rank limit"]]
    return (
        f"{sum(o.certified for o in everything)} certified, {sum(o.wrong for o in everything)} "
        f"wrong, {sum(o.miscounted for o in everything)} miscounted; half the rank limit "
        f"{sum(o.recovered_certified for o in half)} of {sum(o.recovered for o in half)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    outcomes: dict[str, list[tuple[Case, Outcome]]] = defaultdict(list)
    first = arguments.first_seed
    for seed in range(first, first + arguments.worlds):
        one = case(drawn(seed, KINDS))
        found = attacked(one)
        assert found.confidence is not None
        certified = found.confidence > CERTIFIED
        assert int(certified.sum()) == found.info["certified"]
        outcome = judged(one, found, certified)
        outcomes[group(one)].append((one, outcome))
        if outcome.wrong or outcome.miscounted:
            print(f"  wrong: {one.world.title}, {found.info['method']}, {outcome}")
        done = seed - first + 1
        if done % 100 == 0:
            print(f"  {done} worlds: {_progress(outcomes)}", flush=True)
    everything = [pair for pairs in outcomes.values() for pair in pairs]

    def total(name: str, pairs: list[tuple[Case, Outcome]]) -> int:
        return sum(int(getattr(outcome, name)) for _, outcome in pairs)

    def shared(pairs: list[tuple[Case, Outcome]]) -> float:
        right = total("recovered", pairs)
        return total("recovered_certified", pairs) / right if right else float("nan")

    count = total("certified", everything)
    sheet.figure("worlds", len(everything), min(1000, arguments.worlds), "")
    sheet.figure("certified records", count, None, "")
    sheet.figure("wrong certificates", total("wrong", everything), 0, "", most=True)
    wrong = total("miscounted", everything)
    sheet.figure("batches certified with a wrong number", wrong, 0, "", most=True)
    highest = max(outcome.highest_uncertified for _, outcome in everything)
    sheet.figure("highest confidence without a certificate", highest, 0.5, "", most=True)
    worst = max(100 * outcome.worst for _, outcome in everything)
    sheet.figure("largest error of a certified record", worst, 1, "%", most=True)
    for name, pairs in sorted(outcomes.items(), key=lambda item: -len(item[1])):
        right = total("recovered", pairs)
        there = sum(len(one.inputs) for one, _ in pairs)
        goal = 0.9 if name == "clean, half the rank limit" else None
        note = f"of {right} recovered, {there} there, {len(pairs)} worlds"
        sheet.figure(f"recovered records certified, {name}", shared(pairs), goal, "", note=note)
    untuned = [pair for pair in everything if pair[0].world.kind == UNTUNED]
    note = f"{total('certified', untuned)} certified"
    sheet.figure(f"wrong, {UNTUNED}", total("wrong", untuned), 0, "", most=True, note=note)
    half = [
        (one, o) for one, o in outcomes["clean, half the rank limit"] if one.world.kind == UNTUNED
    ]
    words = f"recovered records certified, {UNTUNED}, half the rank limit"
    sheet.figure(words, shared(half), 0.9, "", note=f"of {total('recovered', half)}")
    print("\n" + sheet.summary((time.process_time() - before) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
