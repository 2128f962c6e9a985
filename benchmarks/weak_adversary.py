"""What a released head gives away of its training set, each figure beside its goal.

Run with one thread: ``OMP_NUM_THREADS=1 python benchmarks/weak_adversary.py``, with MNIST, CIFAR-10
and Olivetti faces in the folder that VESTIGE_DATA names. Seeds run in two processes of one thread;
costs are CPU time of the process that attacks, after features. Figures are means over three seeds,
each seed's rate and limits behind them. Exits with 1 if a figure falls short of its goal.

The setting is that of Maciazek and Allison 2025, Table 1: linear heads with ten outputs on 256
features, one record of each class (N = 10) or four (N = 40), full-batch SGD. Who saw which images:

- backbone: rendered letters, Fashion-MNIST, the first 10,000 training images of MNIST
  (``scripts/train_backbone.py``; trained here, in minutes, if ``--backbone`` does not exist);
- attacker: the other 50,000 training images;
- heads under attack: the 10,000 test images, no image in two heads.

Rates are those of ``vestige.studies.heads.measure``: false positives by the paper's Definition 1,
at a false positive rate of 1%; one threshold for all classes (pooled), one for each class, or one
for errors divided by the class's own nearest-neighbour threshold (class-normalised).

The attack is ``HeadInversion()`` as it comes, which chooses its decoder and fine-tuning on heads
that it simulates on the attacker's images. With four records of a class there is one more row:
drawings that a record of the class would match by chance are withheld, by a rule chosen on
simulated heads. It stands beside the plain figure, which counts every drawing.

CIFAR-10 and faces have backbones that are trained here within a minute on images that are not
attacked: theirs are far from the paper's EfficientNet and WideResNet, and so are these rows.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

from head_rows import (
    Run,
    beside_the_papers,
    colour_images,
    faces,
    four_records_of_each_class,
    one_record_of_each_class,
)
from head_worlds import PAPER_FACES, Attacked, World, attacked, face_parts, face_world
from sheet import Sheet
from vestige import Records, datasets
from vestige.attacks import HeadInversion, HeadReconstructor
from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.inverter import HeadInverter
from vestige.networks import HeadedModel
from vestige.networks.backbones import BackboneForm, load_backbone
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.simulation.backbone_features import cache_folder
from vestige.streams import stream
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.rates import Thresholds
from vestige.studies.heads.reading import head_accuracies
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

PRETRAINING_DIGITS = 10_000
RECIPE = Path(__file__).parent.parent / "scripts" / "train_backbone.py"
BACKBONE = cache_folder().parent / "backbones" / "mnist.safetensors"


def without_withheld(found: Attacked, thresholds: Thresholds) -> tuple[Attacked, float]:
    """The same without drawings that the attack withholds, and the share of these."""
    drawn, attack = found.drawn, found.reconstruct
    assert isinstance(attack, HeadInverter)
    assert drawn.classes is not None
    images, labels = drawn.images.flatten(0, 1), drawn.classes.repeat(len(drawn.images))
    withheld = attack.withheld(images, labels)
    left = images.clone()
    left[withheld] = float("nan")
    rest = replace(drawn, images=left.view_as(drawn.images))
    rates = rates_of(rest, thresholds, 0.01, 0.95)
    return replace(found, drawn=rest, rates=rates), float(withheld.double().mean())


def run_of(found: Attacked, world: World, seed: int) -> Run:
    """Everything that the sheet says of an attack."""
    attack, left, share, area, words = found.reconstruct, None, 0.0, float("nan"), ""
    if isinstance(attack, HeadInverter):
        tuned = "" if attack.recipe.fine_tuning is None else ", fine-tuned"
        words = type(attack.recipe.decoder).__name__ + tuned
        if attack.withholding is not None:
            rest, share = without_withheld(found, world.thresholds)
            left = rest.rates
        area = found.confidence_area()
    right = float("nan")
    if isinstance(world.victim.training.makeup, ClassCounts):
        right = float(head_accuracies(found.drawn.releases, world.victim, world.secrets).mean())
    return Run(seed, found.rates, left, share, area, right, found.seconds, words)


def mnist_victim(backbone: nn.Module, records: int) -> ReleasedHead:
    training = HeadTraining(
        ClassCounts.balanced(10, records),
        epochs=26 + 3 * records // 5,
        learning_rate=0.01,
        weight_decay=1e-5,
        initial_deviation=0.002,
    )
    return ReleasedHead(HeadedModel(backbone, 256, 10), training)


def trained_backbone(path: Path) -> nn.Module:
    """The backbone of digits, trained first if it is not there."""
    if not path.is_file():
        print("training the backbone", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(RECIPE), "mnist", str(path)], check=True)
    return load_backbone(path)[0]


def mnist_world(path: Path, records: int) -> World:
    public = datasets.load("mnist", part="train")[PRETRAINING_DIGITS:]
    secrets = datasets.load("mnist", part="test")
    return World.of(mnist_victim(trained_backbone(path), records), secrets, public)


def papers_reconstructor(world: World, heads: int, seed: int, seconds: float) -> tuple[Run, str]:
    """The paper's reconstructor in so many CPU seconds, and its settings in words."""
    short = HeadReconstructor(
        steps=40,
        sketch=False,
        validation_interval=40,
        validation_heads=20,
        features_folder=cache_folder(),
    )
    step = attacked(world, short, 20, seed).seconds / 40
    steps = max(40, round(0.9 * seconds / step))
    paper = replace(short, steps=steps, validation_interval=max(20, steps // 4))
    theirs = run_of(attacked(world, paper, heads, seed), world, seed)
    return theirs, f"size {paper.size}, {steps} steps of 32 new heads, {theirs.seconds:.0f} s"


def pretrained(form: BackboneForm, records: Records, epochs: int) -> nn.Module:
    """A backbone trained on some records' own labels, by Adam, in seconds."""
    backbone = form.build()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = nn.Linear(form.features, int(records.y.max()) + 1)
    model = nn.Sequential(backbone, head).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    order = stream(0, "pretraining")
    for _ in range(epochs):
        for batch in torch.randperm(len(records), generator=order).split(64):
            x = records.x[batch]
            if float(torch.rand((), generator=order)) < 0.5:
                x = x.flip(-1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), records.y[batch]).backward()
            optimizer.step()
    return backbone.eval()


def colour_world() -> World:
    cifar = datasets.load("cifar10", part="train")
    secrets = datasets.load("cifar10", part="test")
    seen = torch.arange(len(cifar)) < 2000
    # Half of the classes together: heads must learn what the backbone was not told.
    merged = replace(cifar[seen], y=cifar[seen].y // 2)
    backbone = pretrained(BackboneForm(3, 32, 32, ((32,), (64,), (64,)), 256), merged, 12)
    training = HeadTraining(
        ClassCounts.balanced(10, 10), epochs=48, learning_rate=0.01, weight_decay=1e-4
    )
    victim = ReleasedHead(HeadedModel(backbone, 256, 10), training)
    return World.of(victim, secrets, cifar[~seen])


def small_face_world() -> World:
    form = BackboneForm(1, 64, 64, ((8,), (16,), (32,), (32,)), 256)
    return face_world(pretrained(form, face_parts()[0], 20), 256, PAPER_FACES)


@dataclass(frozen=True)
class Job:
    """One seed of a row, for a worker: a row's name, not its world, because a worker makes that."""

    row: str
    seed: int
    heads: int
    backbone: Path
    seconds: float = 0.0

    def __call__(self) -> tuple[Run, str]:
        """Attack; the words are settings that the sheet names."""
        world, attack = self._world(), HeadInversion(features_folder=cache_folder())
        if self.row == "paper":
            return papers_reconstructor(world, self.heads, self.seed, self.seconds)
        if self.row == "plain":
            attack = replace(attack, decoder=FullyConnectedDecoder(), examples=400_000, shadows=0)
        if self.row == "faces":
            copied = AffineCopies(linear=0.06, shift=0.03)
            decoder = FullyConnectedDecoder()
            attack = replace(attack, decoder=decoder, examples=60_000, copies=copied)
        return run_of(attacked(world, attack, self.heads, self.seed), world, self.seed), ""

    def _world(self) -> World:
        match self.row:
            case "colours":
                return colour_world()
            case "faces":
                return small_face_world()
            case row:
                return mnist_world(self.backbone, 40 if row == "four" else 10)


def one_thread() -> None:
    torch.set_num_threads(1)


def work(job: Job) -> tuple[Run, str]:
    """A job's figures, in a worker."""
    return job()


class Rows:
    """Rows whose seeds run in worker processes, longest first."""

    def __init__(self, pool: ProcessPoolExecutor, args: argparse.Namespace) -> None:
        self.pool, self.args = pool, args

    def begun(self, row: str, heads: int) -> list[Future[tuple[Run, str]]]:
        """Every seed of a row."""
        seeds = range(self.args.first_seed, self.args.first_seed + self.args.seeds)
        jobs = [Job(row, seed, heads, self.args.backbone) for seed in seeds]
        return [self.pool.submit(work, job) for job in jobs]

    def papers(self, seconds: float) -> Future[tuple[Run, str]]:
        """The paper's reconstructor in so many CPU seconds, one seed."""
        args = self.args
        return self.pool.submit(
            work, Job("paper", args.first_seed, args.heads, args.backbone, seconds)
        )


def of(futures: list[Future[tuple[Run, str]]]) -> list[Run]:
    return [future.result()[0] for future in futures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each row")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--heads", type=int, default=400, help="under attack, at most 892")
    parser.add_argument("--backbone", type=Path, default=BACKBONE)
    args = parser.parse_args()
    sheet, before = Sheet(), time.perf_counter()
    trained_backbone(args.backbone)  # once, before workers need it
    with ProcessPoolExecutor(args.workers, get_context("spawn"), one_thread) as pool:
        rows = Rows(pool, args)
        one, plain = rows.begun("one", args.heads), rows.begun("plain", args.heads)
        four = rows.begun("four", 200)
        print("MNIST, one record of each class (N = 10)", flush=True)
        runs = of(one)
        theirs = rows.papers(max(run.seconds for run in runs))
        colours, people = rows.begun("colours", 70), rows.begun("faces", 100)
        one_record_of_each_class(sheet, runs)
        beside_the_papers(sheet, of(plain), *theirs.result())
        print("\nMNIST, four records of each class (N = 40)", flush=True)
        four_records_of_each_class(sheet, of(four))
        print("\nOther images, small backbones", flush=True)
        colour_images(sheet, of(colours))
        faces(sheet, of(people))
    minutes = (time.perf_counter() - before) / 60
    total = sheet.met + len(sheet.short)
    short = f" Short: {', '.join(sheet.short)}." if sheet.short else ""
    print(
        f"\nweak adversary: {sheet.met} of {total} figures reach their goal, {minutes:.1f} minutes "
        f"in {args.workers} processes.{short}"
    )
    return 1 if sheet.short else 0


if __name__ == "__main__":
    sys.exit(main())
