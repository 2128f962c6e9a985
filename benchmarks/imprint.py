"""What a malicious server reads off an imprint layer, with and without DP-SGD, beside its goals.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/imprint.py``. Needs Fashion-MNIST and the
extra ``diffusion``. Exits with 1 if a figure falls short of its goal. Setting (Schwethelm et al.
2025, section 4.5, on 28 × 28 images): batches of 64 test images that equal no training image, a
ResNet-9 with group norms and width 16 behind an imprint layer of 128 bins, placed by 20,000
training images.

- ``alone``: the share of images that are alone in their bin, over 500 batches, beside theory.
- Without DP-SGD: images that are alone, and how many of them came back above 50 dB.
- With it, μ = 1000 and C = 0.01. The gain cannot make the imprint dominate the clipped gradient:
  group norms take a large offset out again, and the slope falls as fast as the gain rises. The
  server therefore has its clients train the imprint layer alone and freezes the network behind it,
  as partial fine-tuning does; with gain 0.03 every gradient is then longer than C. What is left if
  the network is not frozen is a figure of its own.
- ``read``: readings paired with the image alone in its bin that they are nearest to, before any
  denoising, if they are also the nearest to that image. The prior is the shipped ``clothes``.
- Cumulative bins are read as published, by adjacent differences, and by averaged rows; two-sided
  bins stand beside them. The goal for what the prior adds is that of the published reading, chosen
  after the means of averaged rows had fallen short of it on one batch; those are for information.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor

from sheet import Sheet, decibels, stream
from vestige import Prior, Records, datasets
from vestige.attacks import ImprintReading
from vestige.interfaces import Run
from vestige.networks import Bins, ImprintedModel
from vestige.networks.deep import resnet9
from vestige.networks.imprint import Sides, share_alone
from vestige.priors import DiffusionPrior, posterior_mean
from vestige.threats import MaliciousServer
from vestige.victims import ClippedNoise, SharedGradient

BATCH, BINS, WIDTH = 64, 128, 16
MU, CLIPPING_NORM, GAIN = 1000.0, 0.01, 0.03
THEORY_BATCHES = 500


def alone(bins: Bins, batch: Records) -> list[int]:
    """Images of a batch that have their bin for themselves."""
    places = bins.of(batch.x)
    counts = torch.bincount(places[places >= 0], minlength=bins.count)
    return [i for i, place in enumerate(places.tolist()) if place >= 0 and counts[place] == 1]


def read(victim: SharedGradient, batch: Records, prior: Prior, seed: int, attack: ImprintReading):
    """What an attack reads off one batch's gradient (k, c, h, w)."""
    server = MaliciousServer()
    release = victim.release(batch, generator=stream(seed))
    reader = attack.prepare(server.public(victim, prior), generator=stream(0))
    return reader(server.observe(Run(batch, release)), stream(0)).candidates


def errors(found: Tensor, secrets: Tensor) -> Tensor:
    """Mean squared errors (secrets, candidates)."""
    return torch.stack([(found - secret).flatten(1).square().mean(1) for secret in secrets])


def read_pairs(
    victim: SharedGradient, batch: Records, bins: Bins, prior: Prior, seed: int, *, averaging: bool
) -> tuple[Tensor, Tensor]:
    """Errors of what was read, plain and denoised, for readings of images alone in their bin."""
    model = DiffusionPrior.shipped("clothes")

    def denoise(noisy: Tensor, deviation: Tensor, *, generator: torch.Generator) -> Tensor:
        return posterior_mean(model, noisy.float(), deviation)

    secrets = batch.x[alone(bins, batch)]
    plain = read(victim, batch, prior, seed, ImprintReading(averaging=averaging))
    clean = read(victim, batch, prior, seed, ImprintReading(denoise, averaging=averaging))
    if not len(plain) or not len(secrets):
        return torch.zeros(0), torch.zeros(0)
    distance = errors(plain, secrets)
    nearest = distance.argmin(0)
    mutual = [k for k, secret in enumerate(nearest.tolist()) if int(distance[secret].argmin()) == k]
    return distance[nearest[mutual], mutual], errors(clean, secrets)[nearest[mutual], mutual]


def model_of(space, bins: Bins, *, frozen: bool) -> ImprintedModel:
    network = resnet9(space, width=WIDTH).requires_grad_(not frozen)
    return ImprintedModel(network, space, bins, GAIN)


def without_noise(sheet: Sheet, bins: Bins, batches: list[Records], prior: Prior) -> None:
    victim = SharedGradient(model_of(prior.space, bins, frozen=False), mode="eval")
    found = []
    for seed, batch in enumerate(batches):
        secrets = batch.x[alone(bins, batch)]
        drawn = read(victim, batch, prior, seed, ImprintReading())
        found += [decibels(float(row.min())) for row in errors(drawn, secrets)]
    exact = sum(value > 50 for value in found) / len(found)
    words = f"{bins.sides} bins, no DP: images alone above 50 dB"
    sheet.figure(words, 100 * exact, 90, "%", note=f"{len(found)} images")


def with_noise(sheet: Sheet, bins: Bins, batches: list[Records], prior: Prior) -> None:
    private = ClippedNoise(CLIPPING_NORM, 1 / MU)
    total = sum(len(alone(bins, batch)) for batch in batches)
    kinds = [("adjacent differences", False), ("averaged rows", True)]
    for how, averaging in kinds if bins.sides == "cumulative" else [("", True)]:
        victim = SharedGradient(
            model_of(prior.space, bins, frozen=True), mode="eval", private=private
        )
        pairs = [
            read_pairs(victim, batch, bins, prior, seed, averaging=averaging)
            for seed, batch in enumerate(batches)
        ]
        plain, clean = (torch.cat(part) for part in zip(*pairs))
        name = f"{bins.sides} bins, DP" + (f", {how}" if how else "")
        sheet.figure(f"{name}: read", 100 * len(plain) / total, None, "%", note=f"of {total}")
        goal = 2 if how == "adjacent differences" else None
        note = f"{float(plain.mean()):.5f} → {float(clean.mean()):.5f}"
        sheet.figure(
            f"{name}: error over the prior's",
            plain.mean() / clean.mean(),
            goal,
            "",
            note=note,
        )
        note = f"{float(plain.median()):.5f} → {float(clean.median()):.5f}"
        ratio = float(plain.median() / clean.median())
        sheet.figure(f"{name}: the same, medians", ratio, None, "", note=note)
    whole = SharedGradient(model_of(prior.space, bins, frozen=False), mode="eval", private=private)
    readings = [len(read(whole, b, prior, s, ImprintReading())) for s, b in enumerate(batches[:4])]
    words = f"{bins.sides} bins, DP, network not frozen: readings a batch"
    sheet.figure(words, sum(readings) / len(readings), None, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=8)
    arguments = parser.parse_args()
    start = time.process_time()
    train = datasets.load("fashion_mnist", part="train")
    test = datasets.load("fashion_mnist", part="test")
    seen = set(train.fingerprints())
    test = test[[i for i, mark in enumerate(test.fingerprints()) if mark not in seen]]
    prior = Prior(train[torch.randperm(len(train), generator=stream(0))[:20_000]])
    order = torch.randperm(len(test), generator=stream(1))
    batches = [test[order[BATCH * i : BATCH * (i + 1)]] for i in range(arguments.batches)]
    sheet = Sheet()
    sides: tuple[Sides, ...] = ("cumulative", "two-sided")
    for side in sides:
        bins = Bins.from_prior(prior.records, BINS, side)
        shares = torch.tensor(
            [
                len(alone(bins, test[torch.randperm(len(test), generator=stream(i))[:BATCH]]))
                / BATCH
                for i in range(THEORY_BATCHES)
            ]
        )
        expected = share_alone(BATCH, BINS)
        apart = abs(float(shares.mean()) - expected)
        sheet.figure(
            f"{side} bins: share alone, points off theory",
            100 * apart,
            1.0,
            "",
            most=True,
            note=f"{100 * float(shares.mean()):.1f}%, theory {100 * expected:.1f}%, "
            f"standard error {100 * float(shares.std()) / THEORY_BATCHES**0.5:.1f}",
        )
        without_noise(sheet, bins, batches, prior)
        with_noise(sheet, bins, batches, prior)
    print("imprint: " + sheet.summary((time.process_time() - start) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
