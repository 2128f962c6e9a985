"""What shadow heads cost and how exact they are, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/shadow_factory.py``. Costs are CPU time
of this process, the median of rounds in which every side has its turn, so that a busy machine slows
all of them; drawing training sets and initial weights is part of every side. Heads are linear, 10
classes, 32 epochs of full batch, on 256 features unless said otherwise; the features are simulated,
which costs do not depend on. In the span, heads are made as many at a time as a shard has. Exits
with 1 if a figure falls short of its goal.

- Compiled: in the span of the features by numba's kernels, where it is installed. Compiling is not
  part of any figure; its seconds are printed, those of loading the cache where one is there.
- Torch: in the span of the features by batched products, the way without numba.
- One by one: a torch module, its loss and its optimiser for each head, as published scripts do.
- Weight space: batched products of all heads' weights, the way that Adam goes here.
- Count: what the operations of a head would take at the rates that torch shows on this machine for
  each alone: normal numbers, exponentials, and products in matrices of 512.
- Law: heads that Opacus trains against heads from the sampler, by Kolmogorov and Smirnov's test
  along coordinates and random directions.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import nn

from sheet import Sheet, stream
from vestige import ImageSpace, Records
from vestige.bounds import DPSGD
from vestige.networks import HeadedModel
from vestige.shadows.heads.acceleration import compile_now, compiled_kernels, trained_by
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.simulation.training_sets import TrainingSets
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

POOL = 20_000
EPOCHS = 32
SHARD = 2048
MECHANISM = DPSGD(1.0, 0.5, EPOCHS, clipping_norm=1.0)


class WeightSpaceFactory(HeadFactory):
    """The same heads, every one of them trained in the space of its weights."""

    _in_span = False  # pyright: ignore


def factory(
    records: int, width: int = 256, classes: int = 10, private: DPSGD | None = None
) -> HeadFactory:
    training = HeadTraining(
        ClassCounts.balanced(classes, records), EPOCHS, 0.01, 1e-5, private=private
    )
    victim = ReleasedHead(HeadedModel(nn.Flatten(), width, classes), training)
    features = torch.randn((POOL, width), generator=stream(0)).relu_()
    return HeadFactory(victim.simulator, features, torch.arange(POOL) % classes)


def in_weight_space(made: HeadFactory) -> HeadFactory:
    return WeightSpaceFactory(made.simulator, made.features, made.labels)


def one_by_one(made: HeadFactory, count: int, generator: torch.Generator) -> None:
    """Train heads as a script would: a module, an optimiser and a loop for each."""
    training, model = made.training, made.model
    for _ in range(count):
        sets = training.makeup.draw(made.labels, 1, generator=generator)
        x, y = made.features[sets.members[0]], sets.targets[0]
        head = nn.Linear(model.width, model.outputs)
        nn.init.normal_(head.weight, 0, training.initial_deviation, generator=generator)
        nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(
            head.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
        )
        for _ in range(training.epochs):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(x), y).backward()
            optimizer.step()


def rates(sides: dict[str, tuple[Callable[[int], object], int]], rounds: int) -> dict[str, float]:
    """Heads for a second of CPU: median over rounds in which each side trains its count."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for work, count in sides.values():
        work(max(1, count // 8))
    for _ in range(rounds):
        for name, (work, count) in sides.items():
            start = time.process_time()
            work(count)
            spent[name].append((time.process_time() - start) / count)
    return {name: 1 / statistics.median(found) for name, found in spent.items()}


def drawing(made: HeadFactory) -> Callable[[int], object]:
    generator = stream(1)
    return lambda count: made.draw(count, generator=generator)


def by_torch(made: HeadFactory) -> HeadFactory:
    return replace(made, compiled=False)


def speed_rows(sheet: Sheet, rounds: int) -> None:
    # Without numba, what the way of torch reached when it was written is the goal.
    compiled = compiled_kernels() is not None
    for records, goal in ((10, 600 if compiled else 250), (40, 180 if compiled else 75)):
        made = factory(records)
        generator = stream(2)
        found = rates(
            {
                "span": (drawing(made), SHARD),
                "few": (drawing(made), SHARD // 4),
                "torch": (drawing(by_torch(made)), SHARD),
                "weights": (drawing(in_weight_space(made)), 5_120 // records),
                "loop": (lambda count, m=made, g=generator: one_by_one(m, count, g), 16),
            },
            rounds,
        )
        where = f"N={records}"
        sheet.figure(f"{where}, one by one, heads/s", found["loop"], None, "")
        sheet.figure(f"{where}, batched in weight space, heads/s", found["weights"], None, "")
        sheet.figure(f"{where}, in the span by torch, heads/s", found["torch"], None, "")
        sheet.figure(f"{where}, in the span, heads/s", found["span"], None, "")
        ratio = found["span"] / found["loop"]
        sheet.figure(f"{where}, span over one by one", ratio, goal, "×")
        ratio = found["few"] / found["loop"]
        words = f"{where}, the same for {SHARD // 4} heads at a time"
        sheet.figure(words, ratio, None, "×", note="fewer share what drawing sets costs at least")
        ratio = found["torch"] / found["weights"]
        sheet.figure(f"{where}, span by torch over weight space", ratio, 2.5, "×")


def private_rows(sheet: Sheet, rounds: int) -> None:
    for records in (10, 40):
        made = factory(records, private=MECHANISM)
        found = rates(
            {
                "span": (drawing(made), 10_240 // records),
                "torch": (drawing(by_torch(made)), 10_240 // records),
                "weights": (drawing(in_weight_space(made)), 1_280 // records),
            },
            rounds,
        )
        sheet.figure(f"N={records}, DP-SGD in weight space, heads/s", found["weights"], None, "")
        sheet.figure(f"N={records}, DP-SGD in the span by torch, heads/s", found["torch"], None, "")
        sheet.figure(f"N={records}, DP-SGD in the span, heads/s", found["span"], None, "")
        ratio = found["span"] / found["weights"]
        sheet.figure(f"N={records}, DP-SGD, span over weight space", ratio, 4, "×")


def seconds_each(work: Callable[[], object], count: int) -> float:
    work()
    times = []
    for _ in range(7):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times) / count


def operation_limit() -> Callable[[int, int, int], float]:
    """Heads for a second if every operation ran at the rate that it shows alone."""
    numbers, generator = torch.empty(1 << 18), stream(3)
    normal = seconds_each(lambda: numbers.normal_(generator=generator), numbers.numel())
    exponential = seconds_each(lambda: torch.exp(numbers, out=torch.empty_like(numbers)), 1 << 18)
    matrix = torch.ones(512, 512)
    product = seconds_each(lambda: matrix @ matrix, 512**3)
    print(
        f"Alone: normal number {normal * 1e9:.2f} ns, exponential {exponential * 1e9:.2f} ns, "
        f"multiply and add {product * 1e9:.3f} ns",
        flush=True,
    )

    def limit(records: int, width: int, classes: int) -> float:
        products = width * (records**2 + 2 * records * classes) + EPOCHS * records**2 * classes
        chances = EPOCHS * records * classes
        return 1 / (width * classes * normal + chances * exponential + products * product)

    return limit


def table(rounds: int) -> None:
    limit = operation_limit()
    print(f"\n{'N':>4} {'D':>6} {'classes':>8} {'heads/s':>10} {'count allows':>13} {'share':>6}")
    for records, width, classes in (
        (10, 64, 10),
        (10, 256, 10),
        (10, 1024, 10),
        (40, 256, 10),
        (100, 256, 10),
        (200, 1024, 10),
        (2, 256, 2),
        (40, 256, 2),
        (100, 256, 100),
    ):
        made = factory(records, width, classes)
        count = max(32, 1_500_000 // (width * classes + 40 * records * classes))
        found = rates({"": (drawing(made), count)}, rounds)[""]
        allowed = limit(records, width, classes)
        print(
            f"{records:4} {width:6} {classes:8} {found:10,.0f} {allowed:13,.0f} "
            f"{found / allowed:6.0%}",
            flush=True,
        )
    print()


def stream_rows(sheet: Sheet, count: int) -> None:
    """Peak memory does not depend on how many heads are streamed, so a fraction is enough."""
    made = factory(10)
    shards = HeadShards(made, seed=0)
    start = time.process_time()
    for shard in shards.stream(count):
        assert shard.weights.shape[1] == 2570
    seconds = (time.process_time() - start) / count
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    note = f"{count:,} streamed; all of this process, torch and pool included"
    sheet.figure("memory for a million heads in a stream", peak, 2, "GB", most=True, note=note)
    sheet.figure("a million heads, extrapolated", seconds * 1e6 / 60, None, "min")
    sheet.figure("2.56 million heads, extrapolated", seconds * 2.56e6 / 60, None, "min")


def law_rows(sheet: Sheet, runs: int) -> None:
    try:
        import opacus
    except ImportError:
        sheet.missing("law of DP-SGD heads against Opacus", "Opacus is not installed")
        return
    print(f"Opacus {opacus.__version__}, {runs} heads, against 20,000 from the sampler", flush=True)
    x = torch.rand((6, 1, 2, 3), generator=stream(4))
    y = torch.arange(6) % 3
    secret = Records(x, y, ImageSpace(1, 2, 3, tuple("abc")))
    training = HeadTraining(
        ClassCounts.balanced(3, 6), 1, 0.5, 0.2, private=DPSGD(0.6, 0.5, 5, 0.8)
    )
    training = replace(training, initial_deviation=0.3)
    for hidden in (None, 3):
        model = HeadedModel(nn.Flatten(), 6, 3, hidden)
        victim = ReleasedHead(model, training, private_by="opacus")
        theirs = np.stack(
            [
                np.concatenate([t.flatten().numpy() for t in release.tensors.values()])
                for release in (victim.release(secret, generator=stream(s)) for s in range(runs))
            ]
        )
        sets = TrainingSets(torch.arange(6).expand(20_000, -1), y.expand(20_000, -1))
        made = HeadFactory(victim.simulator, x.flatten(1), y)
        ours = made.trained(sets, generator=stream(5)).weights.numpy()
        directions = [*np.eye(ours.shape[1])]
        directions += [*np.random.default_rng(0).standard_normal((40, ours.shape[1]))]
        values = np.array([stats.ks_2samp(ours @ d, theirs @ d).pvalue for d in directions])
        head = "linear" if hidden is None else "hidden"
        note = f"{len(values)} tests, median p {np.median(values):.2f}, least {values.min():.1e}"
        least = values.min() * len(values)
        sheet.figure(f"law, {head} heads: least p-value times tests", least, 1e-3, "", note=note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of every measurement")
    parser.add_argument("--streamed", type=int, default=100_000, help="heads in the stream")
    parser.add_argument("--opacus", type=int, default=400, help="heads that Opacus trains")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seconds = compile_now()
    print(f"Trained by {trained_by()}; kernels compiled or loaded in {seconds:.1f} s", flush=True)
    start, sheet = time.process_time(), Sheet()
    stream_rows(sheet, arguments.streamed)
    speed_rows(sheet, arguments.rounds)
    private_rows(sheet, arguments.rounds)
    table(min(3, arguments.rounds))
    law_rows(sheet, arguments.opacus)
    print(f"shadow factory: {sheet.summary((time.process_time() - start) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
