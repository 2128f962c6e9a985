"""The studies of "Visual Privacy Auditing with Diffusion Models", each a function and its rows.

``python examples/noise_studies.py`` runs all in about a minute of CPU; name some to run these
alone: ``python examples/noise_studies.py shifted_prior agreement``. Needs Fashion-MNIST and the
extra ``diffusion``. Schwethelm et al. 2025; sections in the docstrings. Every row gives the mean
squared error at μ = 100, 20 and 5 unless it says something else; C = 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vestige import Prior, Records, datasets
from vestige.attacks import ImprintReading
from vestige.distances import ssim
from vestige.interfaces import Run
from vestige.networks import Bins, ImprintedModel
from vestige.networks.deep import resnet9
from vestige.networks.imprint import Sides, share_alone
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
from vestige.threats import MaliciousServer
from vestige.victims import ClippedNoise, SharedGradient

STRENGTHS = (100.0, 20.0, 5.0)
IMAGES = 64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Noisy:
    """The same images at one μ: released, rescaled by the true λ, and the noise on them."""

    secrets: Tensor
    private: PrivateImages
    images: Tensor
    deviation: Tensor

    @classmethod
    def at(cls, secrets: Tensor, mu: float) -> Noisy:
        """Release images with noise of this strength."""
        private = privatize(secrets, mu=mu, generator=generator(int(mu)))
        return cls(secrets, private, *private.rescale(clipping_factors(secrets, 1.0)))


@dataclass(frozen=True)
class World:
    """Test images that the prior was not trained on, and the records that were."""

    test: Records
    train: Records

    @property
    def levels(self) -> list[Noisy]:
        """The images that are measured, at every μ."""
        return [Noisy.at(self.test.x[:IMAGES], mu) for mu in STRENGTHS]


def row(name: str, world: World, denoise: Callable[[Noisy], Tensor]) -> None:
    """Print the mean squared errors of a method at every μ."""
    found = [(denoise(level) - level.secrets).square().mean() for level in world.levels]
    print(f"  {name:<44}" + "".join(f"{float(error):10.4f}" for error in found), flush=True)


def in_distribution(world: World) -> None:
    """Section 4.2: a prior trained on other images of the same kind."""
    prior = DiffusionPrior.shipped("clothes")
    row("posterior mean", world, lambda n: posterior_mean(prior, n.images, n.deviation))
    row("another image", world, lambda n: n.secrets.roll(1, 0))


def shifted_prior(world: World) -> None:
    """Section 4.3: a prior trained on digits and letters."""
    prior = DiffusionPrior.shipped("characters")
    row("prior of characters", world, lambda n: posterior_mean(prior, n.images, n.deviation))


def unknown_noise(world: World) -> None:
    """Appendix D: the attacker estimates the noise level."""
    prior = DiffusionPrior.shipped("clothes")

    def likeliest(noisy: Noisy) -> Tensor:
        found = likeliest_deviation(prior, noisy.images, generator=generator(1))
        return posterior_mean(prior, noisy.images, found)

    row("noise by likelihood", world, likeliest)
    row(
        "noise by wavelet, as published",
        world,
        lambda n: posterior_mean(prior, n.images, wavelet_deviation(n.images)),
    )


def ddim_against_ddpm(world: World) -> None:
    """Appendix D, Figure 11: deterministic steps against random ones."""
    prior = DiffusionPrior.shipped("clothes")
    row("DDIM, 4 steps", world, lambda n: ddim(prior, n.images, n.deviation))
    row("DDIM, 20 steps", world, lambda n: ddim(prior, n.images, n.deviation, steps=20))
    row(
        "DDPM, 20 steps, one sample",
        world,
        lambda n: ddpm(prior, n.images, n.deviation, samples=1, generator=generator(2))[0],
    )


def classical_denoisers(world: World) -> None:
    """Appendix D: denoisers that know nothing of the data."""
    for denoise in (denoisers.wavelet, denoisers.non_local_means, denoisers.total_variation):
        name = denoise.__name__.replace("_", " ")
        row(name, world, lambda n, denoise=denoise: denoise(n.images, n.deviation))


def samples_agreement(world: World) -> None:
    """Section 4.4: what is stable across samples is leaked; SSIM at every μ."""
    prior = DiffusionPrior.shipped("clothes")
    told, true = [], []
    for noisy in world.levels:
        few = slice(0, 24)
        drawn = ddpm(
            prior, noisy.images[few], noisy.deviation[few], samples=5, generator=generator(3)
        )
        told.append(float(agreement(drawn).mean()))
        true.append(float(torch.stack([ssim(one, noisy.secrets[few]) for one in drawn]).mean()))
    print("  SSIM among five samples                     " + "".join(f"{v:10.2f}" for v in told))
    print("  SSIM of the samples to the secret           " + "".join(f"{v:10.2f}" for v in true))


def unknown_factor(world: World) -> None:
    """Appendix A: clipping factors are tried, here judged by likelihood instead of by eye."""
    prior = DiffusionPrior.shipped("clothes")

    def tried(noisy: Noisy) -> Tensor:
        found = try_factors(prior, noisy.private, generator=generator(4)).best
        return posterior_mean(prior, *noisy.private.rescale(found))

    row("clipping factor by trial", world, tried)


def imprint(world: World) -> None:
    """Section 4.5: a batch of 64, 128 bins, a ResNet-9; readings, then μ = 1000 with the prior.

    The server freezes the network behind the layer, so that clipping cuts nothing but the imprint;
    ``benchmarks/imprint.py`` measures this over many batches and says why.
    """
    prior, model = Prior(world.train[:20_000]), DiffusionPrior.shipped("clothes")
    batch, server = world.test[:64], MaliciousServer()
    sides: tuple[Sides, ...] = ("cumulative", "two-sided")

    def denoise(noisy: Tensor, deviation: Tensor, *, generator: torch.Generator) -> Tensor:
        return posterior_mean(model, noisy.float(), deviation)

    for side in sides:
        bins = Bins.from_prior(prior.records, 128, side)
        network = resnet9(batch.space, width=16).requires_grad_(False)
        layered = ImprintedModel(network, batch.space, bins, gain=0.03)
        said = []
        for private, attack in (
            (None, ImprintReading()),
            (ClippedNoise(0.01, 1 / 1000), ImprintReading(averaging=False)),
            (ClippedNoise(0.01, 1 / 1000), ImprintReading(denoise, averaging=False)),
        ):
            victim = SharedGradient(layered, mode="eval", private=private)
            release = victim.release(batch, generator=generator(5))
            reader = attack.prepare(server.public(victim, prior), generator=generator(6))
            found = reader(server.observe(Run(batch, release)), generator(7)).candidates
            nearest = torch.stack(
                [(batch.x - one).square().flatten(1).mean(1).min() for one in found]
            )
            said.append(f"{len(found)} readings, median error {float(nearest.median()):.2g}")
        alone = torch.bincount(bins.of(batch.x).clamp_min(0), minlength=128).eq(1).sum() / 64
        print(
            f"  {side}: {float(alone):.0%} alone (expected {share_alone(64, 128):.0%}); "
            f"no noise: {said[0]}; μ = 1000: {said[1]}; with the prior: {said[2]}",
            flush=True,
        )


STUDIES = (
    in_distribution,
    shifted_prior,
    unknown_noise,
    ddim_against_ddpm,
    classical_denoisers,
    samples_agreement,
    unknown_factor,
    imprint,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    named = {study.__name__: study for study in STUDIES}
    parser.add_argument("studies", nargs="*", choices=[[], *named], help="default: all")
    chosen = parser.parse_args().studies or list(named)
    train = datasets.load("fashion_mnist", part="train")
    test = datasets.load("fashion_mnist", part="test")
    seen = set(train.fingerprints())
    unseen = [i for i, mark in enumerate(test.fingerprints()) if mark not in seen]
    order = torch.tensor(unseen)[torch.randperm(len(unseen), generator=generator(0))]
    world = World(test[order[:256]], train)
    print(f"  {IMAGES} images{'':<34}" + "".join(f"{f'μ={mu:g}':>10}" for mu in STRENGTHS))
    for name in chosen:
        print(str(named[name].__doc__).splitlines()[0])
        named[name](world)


if __name__ == "__main__":
    main()
