"""What gradient inversion costs and how well it does, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/gradient_inversion.py``. Costs are CPU
time of this process. Exits with 1 if a figure falls short of its goal. Rows that compare with
breaching are not measured where it is not installed (``pip install --no-deps breaching==0.1.2
hydra-core omegaconf antlr4-python3-runtime==4.9.3 lpips tqdm``).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from skimage.data import lfw_subset
from sklearn.datasets import load_digits
from torch import Tensor, nn

import breaching_peer
from sheet import Sheet, decibels, stream
from vestige.attacks import DeepLeakage, InvertingGradients
from vestige.interfaces import GradientRelease, Hints, Observation, Public
from vestige.networks import convnet, lenet
from vestige.records import ImageSpace, Prior, Records
from vestige.simulation.gradient import GradientSimulator
from vestige.simulation.losses import one_hot

Attack = DeepLeakage | InvertingGradients
Network = Callable[..., nn.Module]


def small_cnn(
    space: ImageSpace, *, width: int = 16, generator: torch.Generator | None = None
) -> nn.Module:
    """Two 3×3 ReLU convolutions, strides 1 and 2, and a linear layer: a shallower convnet."""
    deeper = convnet(space, width=width, generator=generator)
    classes = len(space.class_names)
    features = 2 * width * (-(-space.height // 2)) * (-(-space.width // 2))
    with torch.device("meta"):
        head = nn.Linear(features, classes)
    head.to_empty(device="cpu")
    for parameter in head.parameters():
        parameter.data.uniform_(-(features**-0.5), features**-0.5, generator=generator)
    return nn.Sequential(*list(deeper)[:4], nn.Flatten(), head)


def digits() -> Records:
    loaded = load_digits()
    space = ImageSpace(1, 8, 8, tuple("0123456789"))
    x = torch.tensor(loaded.images, dtype=torch.float32)[:, None] / 16
    return Records(x, torch.tensor(loaded.target), space)


def faces() -> Records:
    images = torch.tensor(np.asarray(lfw_subset()), dtype=torch.float32)[:, None]
    labels = torch.tensor([1] * 100 + [0] * 100)
    return Records(images, labels, ImageSpace(1, 25, 25, ("something else", "face")))


@dataclass(frozen=True)
class Case:
    """One secret batch, its gradient and the network."""

    public: Public
    observation: Observation
    secret: Records

    @classmethod
    def drawn(
        cls, records: Records, network: Network, batch: int, seed: int, *, labels: bool = True
    ) -> Case:
        """Draw a network and a batch, and take its gradient."""
        generator = stream(seed)
        simulator = GradientSimulator(network(records.space, generator=generator))
        order = torch.randperm(len(records), generator=generator)
        secret = records[order[:batch]]
        gradient = simulator(secret.x, one_hot(secret.y, records.classes))
        release = GradientRelease({name: tensor.detach() for name, tensor in gradient.items()})
        public = Public(simulator, Prior(records[order[batch:]]))
        return cls(public, Observation(release, Hints(batch, secret.y if labels else None)), secret)

    def ours(self, attack: Attack, seed: int = 0) -> tuple[float, float]:
        """PSNR and CPU seconds."""
        reconstruct = attack.prepare(self.public, generator=stream(0))
        before = time.process_time()
        found = reconstruct(self.observation, stream(seed))
        return self.psnr(found.candidates), time.process_time() - before

    def theirs(
        self, attack: str, iterations: int, restarts: int = 1, seed: int = 0
    ) -> tuple[float, float, int]:
        """PSNR, CPU seconds and evaluations of breaching."""
        images, seconds, evaluations = breaching_peer.reconstruct(
            attack,
            self.public.simulator.model,
            self.observation.release.tensors,
            self.observation.hints.labels,
            shape=self.public.space.shape,
            batch_size=len(self.secret),
            classes=self.public.classes,
            iterations=iterations,
            restarts=restarts,
            seed=seed,
        )
        return self.psnr(images), seconds, evaluations

    def psnr(self, candidates: Tensor) -> float:
        """PSNR of the batch after the best assignment of candidates to records."""
        errors = (candidates[:, None] - self.secret.x[None]).square().flatten(2).mean(2)
        rows, columns = linear_sum_assignment(errors.numpy())
        return decibels(float(errors[rows, columns].mean()))


def quality(sheet: Sheet) -> None:
    print("Quality: PSNR, median over seeds, one restart, 600 iterations unless said otherwise")
    records = digits()
    found = [
        Case.drawn(records, lenet, 1, seed, labels=False).ours(DeepLeakage(), seed)[0]
        for seed in range(10)
    ]
    above = sum(value >= 30 for value in found)
    sheet.figure("Deep Leakage, sigmoid LeNet, batch 1: seeds of 10 at ≥ 30 dB", above, 9, "")
    # Batches of 8 end either exact or caught in a wrong basin; how often depends on the width.
    for network, width, batch, goal in (
        (small_cnn, 16, 1, 60),
        (small_cnn, 16, 8, 35),
        (convnet, 32, 1, 60),
        (convnet, 32, 8, 35),
        (convnet, 16, 8, None),
    ):
        values = [
            Case.drawn(records, partial(network, width=width), batch, seed).ours(
                InvertingGradients(), seed
            )[0]
            for seed in range(7)
        ]
        words = f"Inverting Gradients, {network.__name__} of width {width}, batch {batch}, 7 seeds"
        sheet.figure(words, statistics.median(values), goal, "dB")


def restarts_as_one_batch(sheet: Sheet) -> None:
    print("\nCPU of a loop over restarts, divided by that of one batch of 32")
    iterations = 40
    for batch in (1, 4):
        case = Case.drawn(digits(), small_cnn, batch, 0)
        attack = InvertingGradients(iterations=iterations)
        case.ours(attack)
        alone = min(case.ours(attack)[1] for _ in range(8))
        together = InvertingGradients(iterations=iterations, restarts=32)
        stacked = min(case.ours(together)[1] for _ in range(2)) / 32
        sheet.figure(f"digits, small_cnn, batch {batch}", alone / stacked, 3, "×")


def against_breaching(sheet: Sheet) -> None:
    print("\nAgainst breaching 0.1.2: same gradients, same iterations, labels told, no TV")
    if not breaching_peer.available():
        sheet.missing("CPU and PSNR beside breaching", breaching_peer.ABSENT)
        return
    for words, records, seeds, iterations in (
        ("digits", digits(), 5, 300),
        ("faces", faces(), 3, 200),
    ):
        for batch in (1, 4, 8):
            name = f"{words}, small_cnn, batch {batch}"
            cases = [Case.drawn(records, small_cnn, batch, seed) for seed in range(seeds)]
            attack = InvertingGradients(iterations=iterations, total_variation=0.0)
            pairs = [
                (case.ours(attack, seed), case.theirs("invertinggradients", iterations, seed=seed))
                for seed, case in enumerate(cases)
            ]
            ours, theirs = (min(pair[side][1] for pair in pairs) for side in (0, 1))
            sheet.figure(f"{name}: CPU per iteration, theirs / ours", theirs / ours, 1.5, "×")
            sheet.figure(f"{name}: PSNR, ours − theirs", _gain(pairs), -1, "dB")
            few = InvertingGradients(iterations=40, restarts=8, total_variation=0.0)
            stacked = min(cases[0].ours(few)[1] for _ in range(2))
            looped = min(cases[0].theirs("invertinggradients", 40, 8)[1] for _ in range(2))
            sheet.figure(f"{name}: CPU of 8 restarts, theirs / ours", looped / stacked, 3, "×")
    deep_leakage_against_breaching(sheet)


def deep_leakage_against_breaching(sheet: Sheet) -> None:
    """Labels unknown to both; as many evaluations of the gradient as breaching makes."""
    pairs, costs = [], []
    for seed in range(5):
        case = Case.drawn(digits(), lenet, 1, seed, labels=False)
        theirs = case.theirs("deepleakage", 60, seed=seed)
        ours = case.ours(DeepLeakage(iterations=theirs[2], exact_label=False), seed)
        pairs.append((ours, theirs))
        costs.append((ours[1] / theirs[2], theirs[1] / theirs[2]))
    name = "digits, sigmoid LeNet, Deep Leakage, batch 1"
    ratio = min(cost[1] for cost in costs) / min(cost[0] for cost in costs)
    sheet.figure(f"{name}: CPU per evaluation, theirs / ours", ratio, 1.5, "×")
    sheet.figure(f"{name}: PSNR, ours − theirs", _gain(pairs), -1, "dB")


def _gain(pairs: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> float:
    """Median PSNR of ours less that of theirs, each over all seeds."""
    ours, theirs = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
    return ours - theirs


def main() -> int:
    torch.set_num_threads(1)
    sheet, before = Sheet(), time.process_time()
    for part in (quality, restarts_as_one_batch, against_breaching):
        part(sheet)
    print("\n" + sheet.summary((time.process_time() - before) / 60))
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
