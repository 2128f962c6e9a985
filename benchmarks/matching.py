"""How much of the bound on DP-SGD the matching attack reaches, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/matching.py``. In the matching game one
of n candidates was trained on and the attacker, who knows them all, says which; no attack may win
more often than γ(1/n). In the worst case all candidates' gradients are clipped and orthogonal.

- Tightness: the likelihood ratio's lower limit (97.5%) as a share of the bound, beside the
  published sum of inner products on the same draws.
- Soundness: over a grid of n, q, σ and T, with both scores, no lower limit may exceed the bound.
  The doubt is shared among the cells (Bonferroni), so that a sound bound fails with probability
  1e-3 at most. That the check can fail is shown by the bounds of one quarter more noise.
- Real gradients: DP-SGD trains a small network on bundled digits; candidates are digits. Their
  gradients are neither orthogonal nor always as long as the clipping norm, so less is reached.

Exits with 1 if a figure falls short of its goal. ``--effort 0.1`` makes a quick round,
whose wider limits miss the goals on tightness.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import replace

import torch

from sheet import Sheet, stream
from vestige import networks
from vestige.attacks import PriorMatching
from vestige.bounds import DPSGD, tightest
from vestige.datasets import load
from vestige.experimental.matching_game import MatchingResult, matching_game, worst_case_game
from vestige.victims import PrivateTraining

RATIO, PUBLISHED = PriorMatching(), PriorMatching("dot_product")

# n, q, σ, T; trials; the least share of the bound, in percent, or None.
TIGHTNESS = [
    ((10, 0.1, 1.0, 10), 400_000, 90.0),
    ((100, 0.01, 0.6, 100), 60_000, None),
    ((10, 0.02, 0.5, 200), 40_000, 85.0),
]

CELLS = list(
    itertools.product((2, 10, 100), (0.01, 0.1, 0.5, 1.0), (0.5, 1.0, 2.0, 4.0), (1, 10, 100))
)
GRID_TRIALS, GRID_ERROR = 4000, 1e-3

KNOWN, CANDIDATES, REAL_TRIALS = 100, 10, 400
REAL = DPSGD(noise_multiplier=0.5, sampling_rate=0.1, steps=20, clipping_norm=0.5)


def tightness(sheet: Sheet, effort: float) -> None:
    for (n, q, sigma, steps), trials, goal in TIGHTNESS:
        mechanism, count = DPSGD(sigma, q, steps), int(trials * effort)
        words = f"n {n}, q {q:g}, σ {sigma:g}, T {steps}"
        found = worst_case_game(mechanism, n, count, stream(0), attack=RATIO)
        published = worst_case_game(mechanism, n, count, stream(0), attack=PUBLISHED)
        note = f"{found.rate:.4f} of {found.bound:.4f}, {count:,} trials"
        sheet.figure(
            f"{words}: likelihood ratio, lower limit of its share",
            100 * found.limits[0] / found.bound,
            goal,
            "%",
            note=note,
        )
        sheet.figure(
            f"{words}: published dot product, share of the bound",
            100 * published.share,
            None,
            "%",
            note=f"{published.rate:.4f}",
        )


def soundness(sheet: Sheet, effort: float) -> None:
    """Every cell with both scores; how many lower limits exceed the true bound and a false one."""
    broken, refuted, closest = 0, 0, 0.0
    doubt = GRID_ERROR / (2 * len(CELLS))
    for place, (n, q, sigma, steps) in enumerate(CELLS):
        mechanism = DPSGD(sigma, q, steps)
        false = tightest(replace(mechanism, noise_multiplier=1.25 * sigma), 1 / n).success[0]
        for attack in (RATIO, PUBLISHED):
            result = worst_case_game(
                mechanism, n, int(GRID_TRIALS * effort), stream(place), attack=attack, doubt=doubt
            )
            broken += not result.sound
            refuted += result.limits[0] > false
            closest = max(closest, result.limits[0] / result.bound)
    words = f"soundness: limits above the bound, of {2 * len(CELLS)} cells and scores"
    sheet.figure(words, broken, 0, "", most=True, note=f"error {GRID_ERROR:g} over the grid")
    sheet.figure("soundness: limits above the bound for σ a quarter larger", refuted, 1, "")
    sheet.figure("soundness: largest lower limit as a share of its bound", 100 * closest, None, "%")


def real_gradients(sheet: Sheet, effort: float) -> None:
    digits = load("digits").distinct()
    order = torch.randperm(len(digits), generator=stream(0))
    known, candidates = digits[order[:KNOWN]], digits[order[KNOWN : KNOWN + CANDIDATES]]
    model = networks.mlp(digits.space, hidden=(16,), generator=stream(1))
    victim = PrivateTraining(model, known, REAL, learning_rate=0.5)
    words = f"digits, n {CANDIDATES}, q {REAL.sampling_rate:g}, σ {REAL.noise_multiplier:g}, "
    words += f"T {REAL.steps}"
    trials = max(10, int(REAL_TRIALS * effort))

    def played(attack: PriorMatching) -> MatchingResult:
        return matching_game(victim, candidates, trials, stream(2), attack=attack, doubt=1e-3)

    found, published = played(RATIO), played(PUBLISHED)
    worst = worst_case_game(REAL, CANDIDATES, int(40_000 * effort), stream(3))
    sheet.figure(
        f"{words}: lower limit of the success over a guess's",
        found.limits[0] * CANDIDATES,
        1.0,
        "x",
        note=f"{found.rate:.3f} in {trials} trainings",
    )
    sheet.figure(
        f"{words}: lower limit as a share of the bound",
        100 * found.limits[0] / found.bound,
        100,
        "%",
        most=True,
        note=f"bound {found.bound:.3f}",
    )
    sheet.figure(f"{words}: likelihood ratio, share of the bound", 100 * found.share, None, "%")
    sheet.figure(
        f"{words}: published dot product, share",
        100 * published.share,
        None,
        "%",
        note=f"{published.rate:.3f}",
    )
    sheet.figure(
        f"{words}: worst case, share of the bound",
        100 * worst.share,
        None,
        "%",
        note=f"{worst.rate:.3f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=float, default=1.0, help="share of the trials")
    effort = parser.parse_args().effort
    sheet, started = Sheet(), time.process_time()
    tightness(sheet, effort)
    soundness(sheet, effort)
    real_gradients(sheet, effort)
    print(sheet.summary((time.process_time() - started) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
