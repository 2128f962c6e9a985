"""Photographs: the default attack beside breaching's best preset on the same gradients.

Run ``python benchmarks/natural_images.py`` with ``VESTIGE_DATA`` naming the folder that holds
``cifar10_subset.npz``. Two processes share the cells; costs are CPU time of the process that does
the work. Exits with 1 if a figure falls short of its goal. breaching 0.1.2 must be importable, from
a folder of its own on ``PYTHONPATH``: ``pip install --no-deps --target peers breaching==0.1.2
hydra-core omegaconf antlr4-python3-runtime==4.9.3 lpips``; without it only our side is measured.

Secrets are CIFAR-10 test images, of which no setting was chosen on any; the prior is 300 training
images. Patches of scikit-learn's two photographs are a kind of data that nothing was chosen on.
Networks are randomly initialised; labels are told to both sides. Both run their defaults, breaching
its presets "invertinggradients" and "modern", of which the better counts in each cell. Table 1 has
both sides at the same CPU time, table 2 the same number of iterations. Networks without batch norm
compute the same in train mode as in eval mode: their cells are run once and count for both. Batch
16 counts among the cells too. Costs per iteration divide by the iterations asked for; ours saves up
to 15% of them where polishing does not pay.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification  # before breaching's stand-ins

import breaching_peer
from sheet import Sheet, decibels, stream
from vestige import datasets
from vestige.attacks import InvertingGradients, RehearsedConfidence
from vestige.defenses import GradientNoise
from vestige.distances import mean_squared_error
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.networks import convnet, lenet5, resnet18
from vestige.records import ImageSpace, Prior, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot

SPACE = ImageSpace(3, 32, 32, tuple("0123456789"))
PRIOR = 300
PRESETS = ("invertinggradients", "modern")
FIRST_SEED = 9_500
# Fewer iterations than the default of 600 where one takes long, so that all cells fit 20 minutes.
ITERATIONS = {"convnet": 600, "lenet5": 600, "resnet18": 300, "vit-tiny": 120}
BATCHES = (1, 4, 8)
NORMALIZED = ("resnet18",)
CALIBRATED = (("lenet5", 4), ("convnet", 8), ("convnet", 1))
FORMER = InvertingGradients(
    signed=True,
    learning_rate=0.2,
    smoothness=0,
    tensor_share=0,
    total_variation=1e-6,
    polish=0.15,
    patience=0,
)
"""The default that was tuned on digits and faces."""
FORMER_CELLS = (("digits", 32, 8), ("digits", 16, 4), ("faces", 32, 1), ("faces", 32, 4))
FORMER_SEED = 9_700
SOLVED = 60.0
"""Decibels above which nobody sees a difference: images count no more than that."""
NOISY_CELLS = (("convnet", 4, 0.01), ("lenet5", 1, 0.01), ("convnet", 4, 0.1))


class Logits(nn.Module):
    """A model of transformers that returns its logits, as breaching expects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.model(x).logits


def vit_tiny(space: ImageSpace, *, generator: torch.Generator) -> nn.Module:
    """Build ViT-Ti of Touvron et al. 2021 (12 blocks of width 192) with patches of 4 × 4."""
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3}
    config = ViTConfig(**sizes, intermediate_size=768, image_size=32, patch_size=4, num_labels=10)
    config._attn_implementation = "eager"  # breaching cannot differentiate fused attention twice
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        return Logits(ViTForImageClassification(config)).eval()


def small_resnet18(space: ImageSpace, *, generator: torch.Generator) -> nn.Module:
    return resnet18(space, width=16, generator=generator)


NETWORKS = {
    "convnet": convnet,
    "lenet5": lenet5,
    "resnet18": small_resnet18,
    "vit-tiny": vit_tiny,
}


@dataclass(frozen=True)
class Cell:
    """One network, batch size and mode, attacked on a few batches."""

    network: str
    batch: int
    mode: str = "eval"
    data: str = "CIFAR-10"
    seeds: int = 3
    equal_iterations: bool = False

    @property
    def words(self) -> str:
        """What the sheet calls it."""
        return f"{self.data}, {self.network}, batch {self.batch}, {self.mode}"


@dataclass(frozen=True)
class Scores:
    """Medians over the batches of a cell."""

    ours: float
    theirs: float | None
    guess: float
    cost_ratio: float | None
    preset: str = ""


def records_of(data: str) -> tuple[Records, Records]:
    """Secrets and prior records of a kind of images."""
    if data == "CIFAR-10":
        folder = Path(os.environ.get("VESTIGE_DATA", "."))
        loaded = np.load(folder / "cifar10_subset.npz")
        pairs = [(loaded[f"x_{part}"], loaded[f"y_{part}"]) for part in ("test", "train")]
        return _records(*pairs[0]), _records(*pairs[1])
    windows = [
        image[top : top + 128 : 4, left : left + 128 : 4]
        for image in load_sample_images().images
        for top in range(0, image.shape[0] - 128, 64)
        for left in range(0, image.shape[1] - 128, 64)
    ]
    order = torch.randperm(len(windows), generator=stream(1)).tolist()
    x, y = np.stack([windows[i] for i in order]), np.arange(len(windows)) % 10
    return _records(x[: len(x) // 2], y[: len(x) // 2]), _records(
        x[len(x) // 2 :], y[len(x) // 2 :]
    )


def _records(x: np.ndarray, y: np.ndarray) -> Records:
    values = torch.tensor(x, dtype=torch.float32).permute(0, 3, 1, 2).contiguous() / 255
    return Records(values, torch.tensor(y.astype(np.int64)), SPACE)


def psnr(candidates: Tensor, secret: Records) -> float:
    """PSNR of a batch after the best assignment of candidates to records."""
    errors = (candidates[:, None] - secret.x[None]).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return decibels(float(errors[rows, columns].mean()))


def release(cell: Cell, seed: int) -> tuple[Public, Observation, Records]:
    """One batch and its gradient, with what the attacker knows."""
    generator = stream(FIRST_SEED + seed)
    model = NETWORKS[cell.network](SPACE, generator=generator)
    simulator = GradientSimulator(model, mode=cell.mode)  # pyright: ignore[reportArgumentType]
    secrets, public = records_of(cell.data)
    secret = secrets[torch.randperm(len(secrets), generator=generator)[: cell.batch]]
    prior = Prior(public[torch.randperm(len(public), generator=generator)[:PRIOR]])
    gradient = simulator(secret.x, one_hot(secret.y, 10))
    released = GradientRelease({name: tensor.detach() for name, tensor in gradient.items()})
    return Public(simulator, prior), Observation(released, Hints(cell.batch, secret.y)), secret


def measured(cell: Cell) -> Scores:
    """Both sides on every batch of a cell."""
    torch.set_num_threads(1)
    iterations = ITERATIONS[cell.network]
    ours, guesses, ratios = [], [], []
    theirs: dict[str, list[float]] = {preset: [] for preset in PRESETS}
    for seed in range(cell.seeds):
        public, observation, secret = release(cell, seed)
        attack = InvertingGradients(iterations=iterations).prepare(public, generator=stream(0))
        begun = time.process_time()
        found = attack(observation, stream(seed)).candidates
        seconds = time.process_time() - begun
        ours.append(psnr(found, secret))
        mean = public.prior.records.x.mean(0)
        guesses.append(psnr(mean.expand(cell.batch, *mean.shape), secret))
        if not breaching_peer.available():
            continue
        pace = _peer(PRESETS[0], cell, public, observation, 10, seed)[1] / 10
        ratios.append(pace / (seconds / iterations))
        steps = iterations if cell.equal_iterations else max(10, round(seconds / pace))
        for preset in PRESETS:
            found, _ = _peer(preset, cell, public, observation, steps, seed)
            theirs[preset].append(psnr(found, secret))
    middles = {name: statistics.median(values) for name, values in theirs.items() if values}
    best = max(middles, key=lambda name: middles[name]) if middles else ""
    return Scores(
        statistics.median(ours),
        middles.get(best),
        statistics.median(guesses),
        statistics.median(ratios) if ratios else None,
        best,
    )


def _peer(
    preset: str, cell: Cell, public: Public, observation: Observation, steps: int, seed: int
) -> tuple[Tensor, float]:
    found, seconds, _ = breaching_peer.reconstruct(
        preset,
        public.simulator.model,
        observation.release.tensors,
        observation.hints.labels,
        shape=SPACE.shape,
        batch_size=cell.batch,
        classes=10,
        iterations=steps,
        seed=seed,
        total_variation=True,
        train_mode=cell.mode == "train",
    )
    return found, seconds


def restarts(network: str) -> float:
    """CPU of eight single runs, divided by that of one run of eight restarts."""
    torch.set_num_threads(1)
    public, observation, _ = release(Cell(network, 1), 0)
    costs = []
    for count in (1, 8):
        attack = InvertingGradients(iterations=40, restarts=count)
        reconstruct = attack.prepare(public, generator=stream(0))
        times = []
        for _ in range(3):
            begun = time.process_time()
            reconstruct(observation, stream(0))
            times.append(time.process_time() - begun)
        costs.append(min(times))
    return 8 * costs[0] / costs[1]


def calibration_error(network: str, batch: int, releases: int = 40) -> tuple[float, float]:
    """Expected calibration error of rehearsed confidence on fresh releases, and their hit rate.

    Five bins of equal width. A hit is what the rehearsals call one: closer to its record than to
    any decoy, here other test images of the same label.
    """
    torch.set_num_threads(1)
    attack = RehearsedConfidence(InvertingGradients(iterations=150), rehearsals=35, decoys=20)
    cell = Cell(network, batch)
    public, _, _ = release(cell, 0)
    secrets, _ = records_of(cell.data)
    reconstruct = attack.prepare(public, generator=stream(0))
    order = torch.randperm(len(secrets), generator=stream(FIRST_SEED))
    decoys = secrets[order[releases * batch :]]
    said, hits = [], []
    for number in range(releases):
        secret = secrets[order[number * batch : (number + 1) * batch]]
        gradient = public.simulator(secret.x, one_hot(secret.y, 10))
        released = GradientRelease({name: tensor.detach() for name, tensor in gradient.items()})
        found = reconstruct(Observation(released, Hints(batch, secret.y)), stream(number))
        errors = mean_squared_error(found.candidates, secret.x)
        for row, column in zip(*linear_sum_assignment(errors.numpy())):
            alike = decoys.x[decoys.y == secret.y[column]][: attack.decoys]
            nearest = mean_squared_error(found.candidates[row][None], alike).min()
            said.append(float(found.confidence[row]))  # pyright: ignore[reportOptionalSubscript]
            hits.append(bool(errors[row, column] < nearest))
    places = np.digitize(said, [0.2, 0.4, 0.6, 0.8])
    error = sum(
        abs(np.mean(np.array(said)[places == place]) - np.mean(np.array(hits)[places == place]))
        * np.mean(places == place)
        for place in set(places.tolist())
    )
    return float(error), float(np.mean(hits))


def against_former(data: str, width: int, batch: int, seeds: int = 10) -> tuple[float, float]:
    """Mean PSNR of the default and of the former one on the same batches, no image above SOLVED."""
    torch.set_num_threads(1)
    split = datasets.load(data).split(seed=FORMER_SEED)
    found: list[list[float]] = [[], []]
    for seed in range(seeds):
        generator = stream(FORMER_SEED + seed)
        simulator = GradientSimulator(convnet(split.space, width=width, generator=generator))
        secret = split.train[torch.randperm(len(split.train), generator=generator)[:batch]]
        gradient = simulator(secret.x, one_hot(secret.y, len(split.space.class_names)))
        released = GradientRelease({name: tensor.detach() for name, tensor in gradient.items()})
        observation = Observation(released, Hints(batch, secret.y))
        for scores, attack in zip(found, (InvertingGradients(), FORMER)):
            reconstruct = attack.prepare(Public(simulator, split.prior), generator=stream(0))
            scores.append(
                min(SOLVED, psnr(reconstruct(observation, stream(seed)).candidates, secret))
            )
    return statistics.mean(found[0]), statistics.mean(found[1])


def under_noise(network: str, batch: int, noise: float, seeds: int = 4) -> tuple[float, float]:
    """Mean PSNR of the default under noise that it is told the size of, and that it is not."""
    torch.set_num_threads(1)
    found: list[list[float]] = [[], []]
    for seed in range(seeds):
        public, observation, secret = release(Cell(network, batch), seed)
        flat = torch.cat([tensor.flatten() for tensor in observation.release.tensors.values()])
        defense = GradientNoise(noise * float(flat.norm()) / len(flat) ** 0.5)
        generator = stream(FIRST_SEED + seed)
        altered = {
            name: tensor + defense.deviation * torch.randn(tensor.shape, generator=generator)
            for name, tensor in observation.release.tensors.items()
        }
        simulator = replace(public.simulator, alterations=(defense,))
        noisy = replace(observation, release=GradientRelease(altered))
        for scores, known in zip(found, (Public(simulator, public.prior), public)):
            reconstruct = InvertingGradients().prepare(known, generator=stream(0))
            scores.append(psnr(reconstruct(noisy, stream(seed)).candidates, secret))
    return statistics.mean(found[0]), statistics.mean(found[1])


def cells(quick: bool) -> list[Cell]:
    chosen = []
    for network in NETWORKS:
        for batch in BATCHES:
            modes = ("eval", "train") if network in NORMALIZED else ("eval",)
            seeds = 3 if network in ("convnet", "lenet5") else 1 if network == "vit-tiny" else 2
            chosen += [Cell(network, batch, mode, seeds=seeds) for mode in modes]
    chosen.append(Cell("convnet", 16, seeds=2))
    chosen += [Cell("convnet", batch, data="photo patches") for batch in (1, 4)]
    chosen.append(Cell("resnet18", 1, data="photo patches", seeds=2))
    return (
        [replace(cell, seeds=1) for cell in chosen if cell.network != "vit-tiny"]
        if quick
        else chosen
    )


def weight(cell: Cell) -> int:
    """How many of the asked cells one measurement stands for."""
    return 1 if cell.network in NORMALIZED or cell.data != "CIFAR-10" else 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one batch per cell, no ViT")
    quick = parser.parse_args().quick
    sheet, begun = Sheet(), time.time()
    chosen = cells(quick)
    equal = [
        replace(c, equal_iterations=True) for c in chosen if c.network in ("convnet", "lenet5")
    ]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        first, second = pool.map(measured, chosen[::-1]), pool.map(measured, equal)
        stacked = pool.map(restarts, ("convnet", "lenet5"))
        calibrations = pool.map(calibration_error, *zip(*CALIBRATED))
        former = pool.map(against_former, *zip(*FORMER_CELLS))
        noisy = pool.map(under_noise, *zip(*NOISY_CELLS))
        print("Table 1: the same CPU time; dB, median over batches")
        report(sheet, chosen, list(first)[::-1])
        print("\nTable 2: the same number of iterations")
        for cell, scores in zip(equal, second):
            if scores.theirs is not None:
                gain = scores.ours - scores.theirs
                sheet.figure(f"{cell.words}: ours − breaching", gain, -1, "dB")
        print("\nRestarts: CPU of a loop over 8, divided by that of one batch of 8")
        for network, ratio in zip(("convnet", "lenet5"), stacked):
            sheet.figure(f"{network}, 32 × 32, batch 1", ratio, 1.5, "×")
        print("\nConfidence from rehearsals, 40 fresh releases: expected calibration error")
        for (network, batch), (error, rate) in zip(CALIBRATED, calibrations):
            words = f"{network}, batch {batch}"
            sheet.figure(words, error, 0.1, "", most=True, note=f"{rate:.0%} of candidates hit")
        print(f"\nThe default less the one before; mean of 10 batches, at most {SOLVED:g} dB each")
        for (data, width, batch), (ours, old) in zip(FORMER_CELLS, former):
            words = f"{data}, convnet of width {width}, batch {batch}"
            sheet.figure(words, ours - old, -1, "dB", note=f"{ours:.1f}, before {old:.1f}")
        print("\nNoise whose size is told, less the same noise untold; mean of 4 batches")
        for (network, batch, noise), (told, untold) in zip(NOISY_CELLS, noisy):
            words = f"{network}, batch {batch}, noise of {noise:g} of the gradient's norm"
            sheet.figure(words, told - untold, -1, "dB", note=f"{told:.1f}, untold {untold:.1f}")
    minutes = (time.time() - begun) / 60
    print(f"\n{sheet.summary(minutes).replace('minutes of CPU', 'minutes on two cores')}")
    return 1 if sheet.short else 0


def report(sheet: Sheet, chosen: list[Cell], found: list[Scores]) -> None:
    """Print table 1 and the figures that sum it up."""
    gains: list[float] = []
    for cell, scores in zip(chosen, found):
        note = f"prior mean {scores.guess:.1f}"
        if scores.theirs is not None:
            note += f", breaching {scores.theirs:.1f} ({scores.preset})"
            gains += [scores.ours - scores.theirs] * weight(cell)
        sheet.figure(
            f"{cell.words}: above the prior mean",
            scores.ours - scores.guess,
            0,
            "dB",
            note=f"ours {scores.ours:.1f}, {note}",
        )
    if not gains:
        sheet.missing("Cells beside breaching", breaching_peer.ABSENT)
        return
    total = len(gains)
    sheet.figure("share of cells ahead of breaching", sum(g > 0 for g in gains) / total, 0.8, "")
    sheet.figure("share of cells ahead by 3 dB", sum(g >= 3 for g in gains) / total, 0.5, "")
    sheet.figure("worst cell, ours − breaching", min(gains), -1, "dB")
    for cell, scores in zip(chosen, found):
        if scores.cost_ratio is not None:
            words = f"{cell.words}: CPU per iteration, theirs / ours"
            sheet.figure(words, scores.cost_ratio, 1, "×")


if __name__ == "__main__":
    sys.exit(main())
