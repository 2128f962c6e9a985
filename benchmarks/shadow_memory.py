"""What 2.56 million shadow heads take of memory when they are streamed, beside the goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/shadow_memory.py``. Maciazek and Allison
2025 train 2.56 million heads (10 records, 256 features, 10 classes); kept in a list their weights
alone are 26 GB. Here every shard is trained, standardised and folded into running sums, as a reader
of weights would take it, and then forgotten. All of them are streamed unless ``--minutes`` of CPU
run out first; what is left is then extrapolated, in time only. The peak that counts is the one of
the whole process, torch and the pool of features included. That it does not grow is measured: the
peak after a tenth of the heads stands beside the last one. Exits with 1 if a figure falls short of
its goal.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch
from torch import nn

from sheet import Sheet, stream
from vestige.networks import HeadedModel
from vestige.shadows.heads.factory import HeadFactory
from vestige.shadows.heads.shards import HeadShards
from vestige.shadows.standardization import Standardization
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

RECORDS, WIDTH, CLASSES, EPOCHS = 10, 256, 10, 32
POOL = 20_000
PUBLISHED = 2_560_000
MOST_GIGABYTES = 2.0
MOST_GROWTH = 0.05
"""Gigabytes that the peak may rise by between a tenth of the heads and all of them."""


def shards() -> HeadShards:
    training = HeadTraining(ClassCounts.balanced(CLASSES, RECORDS), EPOCHS, 0.01, 1e-5)
    victim = ReleasedHead(HeadedModel(nn.Flatten(), WIDTH, CLASSES), training)
    features = torch.randn((POOL, WIDTH), generator=stream(0)).relu_()
    made = HeadFactory(victim.simulator, features, torch.arange(POOL) % CLASSES)
    return HeadShards(made, seed=0)


def peak_gigabytes() -> float:
    """Largest resident memory of this process so far; Linux counts it in kibibytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=int, default=PUBLISHED, help="heads to stream at most")
    parser.add_argument("--minutes", type=float, default=8.0, help="CPU minutes to stream at most")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source, sheet = shards(), Sheet()
    standardization = Standardization.fitted(source.shard(0).weights)
    total = torch.zeros(standardization.size, dtype=torch.float64)
    start, streamed, early = time.process_time(), 0, 0.0
    for shard in source.stream(arguments.heads):
        total += standardization(shard.weights).sum(0, dtype=torch.float64)
        streamed += len(shard)
        if streamed <= max(arguments.heads // 10, source.heads):
            early = peak_gigabytes()
        if time.process_time() - start > 60 * arguments.minutes:
            break
    seconds, peak = time.process_time() - start, peak_gigabytes()
    # A mean over all heads that is far from zero would say that shards were not all seen.
    farthest = float((total / streamed).abs().max())
    note = f"{streamed:,} heads streamed in {seconds / 60:.1f} minutes of CPU"
    sheet.figure(
        f"peak memory, N={RECORDS}, D={WIDTH}", peak, MOST_GIGABYTES, "GB", most=True, note=note
    )
    sheet.figure(
        "growth after the first tenth", peak - early, MOST_GROWTH, "GB", most=True,
        note=f"{early:.2f} GB after a tenth",
    )  # fmt: skip
    sheet.figure("largest mean of a standardised weight", farthest, 0.25, "", most=True)
    sheet.figure("heads for a second of CPU", streamed / seconds, None, "")
    sheet.figure(
        "2.56 million heads at this rate", PUBLISHED * seconds / streamed / 60, None, "min"
    )
    kept = PUBLISHED * 4 * (WIDTH * CLASSES + CLASSES) / 1e9
    sheet.figure("the same heads kept in memory, weights alone", kept, None, "GB")
    print(f"shadow memory: {sheet.summary((time.process_time() - start) / 60)}")
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
