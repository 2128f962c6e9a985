"""What a diffusion prior sees through DP-SGD's noise on Fashion-MNIST, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/denoising.py``. Needs Fashion-MNIST and
the extra ``diffusion``; BM3D is measured where ``bm3d`` is installed. Exits with 1 if a figure
falls short of its goal. Setting: x_priv = x/λ + N(0, C²/μ²·I) with C = 1 and λ known, test images
that equal no training image of the prior, in an order fixed by a seed.

- ``posterior mean`` and ``DDIM`` (4 steps) use the prior trained on Fashion-MNIST's training part,
  ``shifted`` the posterior mean of the one trained on digits and letters. ``λ unknown`` and
  ``σ unknown`` are the posterior mean with the likeliest clipping factor or noise level put in;
  ``σ wavelet`` is the paper's estimate of the noise.
- ``matched`` is the prior-aware attack: the nearest of 256 clipped candidates, the secret among
  them. It maximises the chance to be exactly right; ``weighted`` is the candidates' mean weighted
  by their likelihood, the least squared error that knowing them allows. ``no prior`` is the
  expected error of the best unbiased attacker (``NoPriorReconstruction``), who has λ·x_priv;
  ``none`` is the same image brought into [0, 1]. ``other image`` is the distance between two test
  images: what an unrelated image scores.
- BM3D, random chains and ``λ unknown`` are measured on the first images only, because they cost
  most; where two are compared, both are measured on the same images.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor

from sheet import Sheet, stream
from vestige import datasets
from vestige.bounds import Gaussian
from vestige.bounds.errors.no_prior import NoPriorReconstruction
from vestige.distances import ssim
from vestige.priors import (
    DiffusionPrior,
    PrivateImages,
    agreement,
    clipping_factors,
    ddim,
    ddpm,
    likeliest_deviation,
    posterior_mean,
    privatize,
    try_factors,
    wavelet_deviation,
)
from vestige.priors import classical_denoisers as denoisers

LEVELS = (1000.0, 100.0, 50.0, 20.0, 10.0, 5.0)
CANDIDATES = 256
SAMPLES = 5
WITHOUT_PRIOR = {
    "none": denoisers.none,
    "wavelet": denoisers.wavelet,
    "non-local means": denoisers.non_local_means,
    "total variation": denoisers.total_variation,
}


@dataclass
class Level:
    """Everything measured at one μ: squared errors and SSIM by method, CPU seconds per image."""

    mu: float
    errors: dict[str, Tensor] = field(default_factory=dict)
    similarities: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    agreement: Tensor = field(default_factory=lambda: torch.zeros(0))
    sampled: Tensor = field(default_factory=lambda: torch.zeros(0))

    def measure(self, name: str, secrets: Tensor, method: Callable[[], Tensor]) -> Tensor:
        """Time a method that answers for the first secrets and keep how close it came."""
        start = time.process_time()
        found = method()
        self.seconds[name] = (time.process_time() - start) / len(found)
        secrets = secrets[: len(found)]
        self.errors[name] = (found - secrets).square().flatten(1).mean(1)
        self.similarities[name] = ssim(found, secrets)
        return found

    def mse(self, name: str, first: int | None = None) -> float:
        """Mean squared error of a method, over all images or the first ones."""
        return float(self.errors[name][:first].mean())


def matched(private: PrivateImages, pool: Tensor, *, weighted: bool = False) -> Tensor:
    """The nearest of 256 clipped candidates, or their mean weighted by likelihood.

    The secret of image i is candidate i of the pool.
    """
    clipped = pool / clipping_factors(pool, private.clipping_norm)[:, None, None, None]
    found = []
    for index, released in enumerate(private.released):
        # The secret stands at another place each time: of equal candidates the first one is taken.
        near = ((index + torch.arange(CANDIDATES)) % len(pool)).roll(index)
        distance = (clipped[near] - released).flatten(1).square().sum(1).double()
        likelihood = torch.softmax(-distance / (2 * private.noise_deviation**2), 0)
        weights = likelihood if weighted else torch.eye(CANDIDATES)[distance.argmin()]
        found.append(torch.einsum("k,kchw->chw", weights.to(pool.dtype), pool[near]))
    return torch.stack(found)


def no_prior_error(images: Tensor, mu: float) -> float:
    """Mean over images of the variance that an unbiased attacker cannot avoid."""
    norms = images.flatten(1).norm(dim=1).tolist()
    bounds = [NoPriorReconstruction(images[0].numel(), norm) for norm in norms]
    return sum(b.noise_variance(Gaussian(1 / mu)) for b in bounds) / len(bounds)


def measured(
    mu: float,
    pool: Tensor,
    images: int,
    few: int,
    sampled: int,
    own: DiffusionPrior,
    shifted: DiffusionPrior,
) -> Level:
    secrets, level = pool[:images], Level(mu)
    private = privatize(secrets, mu=mu, generator=stream(int(mu)))
    noisy, deviation = private.rescale(clipping_factors(secrets, 1.0))
    level.measure("posterior mean", secrets, lambda: posterior_mean(own, noisy, deviation))
    level.measure("DDIM", secrets, lambda: ddim(own, noisy, deviation))
    level.measure("shifted", secrets, lambda: posterior_mean(shifted, noisy, deviation))
    level.measure("DDIM, shifted", secrets, lambda: ddim(shifted, noisy, deviation))

    def noise_unknown() -> Tensor:
        found = likeliest_deviation(own, noisy, generator=stream(1))
        return posterior_mean(own, noisy, found)

    def factor_unknown() -> Tensor:
        first = PrivateImages(private.released[:sampled], 1.0, 1 / mu)
        rescaled = first.rescale(try_factors(own, first, generator=stream(2)).best)
        return posterior_mean(own, *rescaled)

    level.measure("σ unknown", secrets, noise_unknown)
    level.measure(
        "σ wavelet", secrets, lambda: posterior_mean(own, noisy, wavelet_deviation(noisy))
    )
    level.measure("λ unknown", secrets, factor_unknown)
    for name, denoiser in WITHOUT_PRIOR.items():
        level.measure(name, secrets, lambda denoiser=denoiser: denoiser(noisy, deviation))
    if importlib.util.find_spec("bm3d") is not None:
        level.measure(
            "BM3D", secrets, lambda: denoisers.block_matching(noisy[:few], deviation[:few])
        )
    level.measure("matched", secrets, lambda: matched(private, pool))
    level.measure("weighted", secrets, lambda: matched(private, pool, weighted=True))
    level.measure("other image", secrets, lambda: pool[images : 2 * images])
    drawn = ddpm(own, noisy[:sampled], deviation[:sampled], samples=SAMPLES, generator=stream(3))
    level.measure("DDPM", secrets, lambda: drawn[0])
    level.agreement = agreement(drawn)
    level.sampled = torch.stack([ssim(one, secrets[:sampled]) for one in drawn]).mean(0)
    return level


def tables(levels: list[Level], bounds: list[float]) -> None:
    head = "".join(f"{f'μ={level.mu:g}':>10}" for level in levels)
    print(f"{'mean squared error':<20}{head}")
    for name in levels[0].errors:
        print(f"{name:<20}" + "".join(f"{level.mse(name):10.5f}" for level in levels))
    print(f"{'no prior':<20}" + "".join(f"{bound:10.5f}" for bound in bounds))
    print(f"{'SSIM':<20}{head}")
    for name in levels[0].similarities:
        row = (float(level.similarities[name].mean()) for level in levels)
        print(f"{name:<20}" + "".join(f"{value:10.3f}" for value in row))
    print(f"{f'agreement of {SAMPLES}':<20}", end="")
    print("".join(f"{float(level.agreement.mean()):10.3f}" for level in levels))
    print("CPU milliseconds for each image, mean over μ")
    for name in levels[0].seconds:
        if name not in ("DDPM", "other image"):
            mean = sum(level.seconds[name] for level in levels) / len(levels)
            print(f"{name:<20}{1000 * mean:10.2f}")
    print(flush=True)


def goals(sheet: Sheet, levels: list[Level], bounds: list[float], few: int) -> None:
    private = [level for level in levels if level.mu <= 100]

    def worst(name: str, other: str, among: list[Level], first: int | None = None) -> float:
        return max(level.mse(name, first) / level.mse(other, first) for level in among)

    for name in ("posterior mean", "DDIM"):
        for other in ("wavelet", "non-local means"):
            words = f"{name}, error as a share of {other}'s, worst μ ≤ 100"
            sheet.figure(words, worst(name, other, private), 1, "", most=True)
        if "BM3D" in levels[0].errors:
            words = f"{name}, error as a share of BM3D's, worst μ ≤ 100"
            sheet.figure(words, worst(name, "BM3D", private, few), 1, "", most=True)
            spent = [sum(level.seconds[of] for level in levels) for of in ("BM3D", name)]
            sheet.figure(f"{name}, times less CPU than BM3D", spent[0] / spent[1], 5, "")
        else:
            sheet.missing(f"{name} against BM3D", "bm3d is not installed")
        for attack in ("matched", "weighted"):
            least = min(level.mse(name) - level.mse(attack) for level in levels)
            words = f"{name}, error beyond {attack} candidates', ×1000, least over μ"
            sheet.figure(words, 1000 * least, 0, "")
        most = max(level.mse(name) / bound for level, bound in zip(levels, bounds))
        words = f"{name}, error as a share of the no-prior bound, worst μ"
        sheet.figure(words, most, 1, "", most=True)
    for name, other in (("shifted", "posterior mean"), ("DDIM, shifted", "DDIM")):
        ratio = min(level.mse(name) / level.mse(other) for level in private)
        sheet.figure(f"{name} prior, error over the right one's, least μ ≤ 100", ratio, 1, "")
    for name, goal in (("σ unknown", 1.1), ("σ wavelet", None), ("λ unknown", None)):
        words = f"{name}, error over that with everything known, worst μ"
        first = len(levels[0].errors[name])
        sheet.figure(words, worst(name, "posterior mean", levels, first), goal, "", most=True)
    told = torch.cat([level.agreement for level in levels])
    true = torch.cat([level.sampled for level in levels])
    words = "agreement of samples and true SSIM over images and μ, Spearman"
    sheet.figure(words, float(spearmanr(told, true).statistic), 0.9, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200, help="test images")
    parser.add_argument("--few", type=int, default=24, help="images for BM3D")
    parser.add_argument("--sampled", type=int, default=48, help="images for DDPM and unknown λ")
    parser.add_argument("--prior", type=Path, help="another prior in place of the shipped one")
    parser.add_argument("--shifted", type=Path, help="another shifted prior")
    arguments = parser.parse_args()
    start = time.process_time()
    seen = set(datasets.load("fashion_mnist", part="train").fingerprints())
    test = datasets.load("fashion_mnist", part="test")
    unseen = [index for index, mark in enumerate(test.fingerprints()) if mark not in seen]
    order = torch.tensor(unseen)[torch.randperm(len(unseen), generator=stream(0))]
    pool = test.x[order[: max(2 * arguments.images, CANDIDATES)]]
    own = DiffusionPrior.load(arguments.prior) if arguments.prior else None
    other = DiffusionPrior.load(arguments.shifted) if arguments.shifted else None
    own = own or DiffusionPrior.shipped("clothes")
    other = other or DiffusionPrior.shipped("characters")
    levels = [
        measured(mu, pool, arguments.images, arguments.few, arguments.sampled, own, other)
        for mu in LEVELS
    ]
    bounds = [no_prior_error(pool[: arguments.images], mu) for mu in LEVELS]
    sheet = Sheet()
    tables(levels, bounds)
    goals(sheet, levels, bounds, arguments.few)
    print("denoising: " + sheet.summary((time.process_time() - start) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
