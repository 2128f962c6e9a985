"""How many shadow heads does the reconstructor of Maciazek and Allison 2025 need?

    python examples/head_reconstructor_study.py --minutes 8
    python examples/head_reconstructor_study.py --minutes 600 --size 64 --shadows 10000 100000 0

Figure 3a of "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction Attacks in
Small-Data Regime", on a small machine: a head for MNIST is trained on one picture of each class, on
a small network that was trained on Fashion-MNIST; where MNIST is missing, on the bundled digits and
a random layer. Every row is a reconstructor that learned from so many shadow heads (0: new ones in
every batch), for an equal share of the minutes of CPU time. Shadows and steps are those of the best
validation; step 0 is the linear sketch, before any training. ``--published`` goes without it.

Rates are measured on heads trained on test pictures, no two heads on the same one. τ is the mean
MSE between a test picture and its nearest neighbour in the prior; pictures lie in [−1, 1] and keep
their size, where the paper enlarges them to 32×32. False positives are counted twice: by
Definition 1, the drawing of one head against the pictures of another, and by Algorithm 3, with a
Gaussian in place of trained heads. The published figures for N = 10, with 2.56 million shadows, a
million steps and size 256: TPR .636 and FPR .018 at τ, TPR .431 at FPR .01.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vestige import Prior, Records, progress
from vestige.attacks import HeadReconstructor
from vestige.attacks.head_reconstructor.drawing_goals import DrawingGoals
from vestige.attacks.head_reconstructor.head_reader import HeadReader, to_network
from vestige.attacks.head_reconstructor.head_validation import HeldBackHeads
from vestige.datasets import load
from vestige.errors import NotFound
from vestige.networks import HeadedModel
from vestige.shadows.heads.factory import HeadFactory, ShadowHeads
from vestige.simulation.backbone_features import features_of
from vestige.statistics.head_roc import counted_rate
from vestige.streams import stream
from vestige.threats import WeakAdversary
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

WIDTH = 256
"""Features that the head reads, as many as the paper's VGG-11 has for MNIST."""


@dataclass(frozen=True)
class World:
    """A victim, what the attacker has collected, and pictures that it never saw."""

    victim: ReleasedHead
    prior: Prior
    test: Records
    words: str


def world(records: int) -> World:
    """MNIST on a network that was trained on Fashion-MNIST, or else the bundled digits."""
    per_class, classes = 1, 10
    makeup = ClassCounts.balanced(classes, classes * per_class)
    # Appendix D of the paper: 26 + 3N/5 epochs.
    training = HeadTraining(makeup, epochs=32, learning_rate=0.01, weight_decay=1e-5)
    try:
        train, test = load("mnist", part="train"), load("mnist", part="test")
        backbone = trained_backbone(load("fashion_mnist", part="train"))
        words = "MNIST, features of a network trained on Fashion-MNIST"
    except NotFound as missing:
        print(f"{missing} Going on with the bundled digits.")
        parts = load("digits").split(seed=0, train=0.0, held_out=0.2, prior=0.8)
        train, test = parts.prior.records, parts.held_out
        backbone = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU()))
        words = "bundled digits, features of a random layer"
    victim = ReleasedHead(HeadedModel(backbone.eval(), WIDTH, classes), training)
    chosen = torch.randperm(len(train), generator=stream(0, "prior"))[:records]
    return World(victim, Prior(train[chosen]), test, words)


def seeded(build) -> nn.Module:
    """A module whose weights do not depend on torch's global stream, nor change it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def trained_backbone(records: Records, steps: int = 400) -> nn.Module:
    """Three convolutions and a layer of features, trained for a minute on another task."""
    backbone = seeded(
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(32 * 49, WIDTH), nn.ReLU()),
        )
    )
    model = nn.Sequential(backbone, seeded(lambda: nn.Linear(WIDTH, records.classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator, correct = stream(0, "backbone"), 0.0
    for _ in range(steps):
        batch = records[torch.randint(len(records), (128,), generator=generator)]
        outputs = model(batch.x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, batch.y).backward()
        optimizer.step()
        correct = 0.95 * correct + 0.05 * float((outputs.argmax(1) == batch.y).float().mean())
    print(f"Backbone: {steps} steps on Fashion-MNIST, training accuracy about {correct:.2f}.")
    return backbone


def threshold(world: World, pictures: int = 1000) -> float:
    """τ: mean MSE from test pictures to their nearest neighbours in the prior, in [−1, 1]."""
    some = to_network(world.test.x[:pictures]).flatten(1)
    others = to_network(world.prior.records.x).flatten(1)
    nearest = torch.cat([torch.cdist(part, others).amin(1) for part in some.split(200)])
    return float(nearest.square().mean() / some.shape[1])


@dataclass(frozen=True)
class Bench:
    """Heads trained on test pictures, against which every reconstructor is measured."""

    held: HeldBackHeads
    tau: float

    @classmethod
    def made(cls, world: World, heads: int) -> Bench:
        """Train heads on test pictures, and say how good they are."""
        simulator = world.victim.simulator
        features = features_of(simulator, world.test)
        factory = HeadFactory(simulator, features, world.test.y)
        goals = DrawingGoals(world.victim.training.makeup, conditional=True)
        held = HeldBackHeads.drawn(
            factory, to_network(world.test.x), goals, heads, generator=stream(0, "test heads")
        )
        some = factory.draw(50, generator=stream(0, "accuracy"))
        share = accuracy(world, some, features)
        print(f"{len(held.weights)} heads to attack; heads are right on {share:.2f} of test.")
        return cls(held, threshold(world))

    def row(self, reader: HeadReader) -> list[str]:
        """TPR and both FPRs at τ, and TPR at FPR .01 by both."""
        true, false = self.held.true_and_false(to_network(reader(self.held.weights)))
        surrogates = reader.surrogates(len(self.held.weights), generator=stream(0, "surrogates"))
        # Each Gaussian head is held against every set: no set is its own.
        gaussian = self.held.distances(to_network(reader.drawn(surrogates))).flatten()
        at_tau = [float((distances <= self.tau).float().mean()) for distances in (true, false)]
        at_tau.append(float((gaussian <= self.tau).float().mean()))
        rates = [float(counted_rate(true, wrong, 0.01)) for wrong in (false, gaussian)]
        return [f"{value:.3f}" for value in (*at_tau, *rates, float(true.mean()))]


def accuracy(world: World, heads: ShadowHeads, features: Tensor) -> float:
    """Share of test pictures that heads label right; a few are their training pictures."""
    classes = world.test.classes
    weight, bias = heads.weights.split([classes * WIDTH, classes], 1)
    logits = features @ weight.reshape(-1, classes, WIDTH).mT + bias[:, None]
    return float((logits.argmax(2) == world.test.y).float().mean())


def main() -> None:
    """Print a row for each number of shadow heads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="of CPU time, all rows together")
    parser.add_argument("--shadows", type=int, nargs="+", default=[300, 3000, 0])
    parser.add_argument("--size", type=int, default=16, help="S of the generator")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--published", action="store_true", help="no linear sketch to start from")
    parser.add_argument("--records", type=int, default=20_000, help="pictures of the prior")
    parser.add_argument("--heads", type=int, default=200, help="heads to attack")
    asked = parser.parse_args()

    here = world(asked.records)
    bench = Bench.made(here, asked.heads)
    print(f"{here.words}; N = 10, {len(here.prior.records)} records in the prior.")
    print(f"τ = {bench.tau:.4f}; size {asked.size}, learning rate {asked.learning_rate:g}.")
    heads = ("shadows", "best step", "TPR@τ", "FPR@τ", "FPR@τ G", "TPR@.01", "TPR@.01 G", "MSE")
    print("  ".join(f"{head:>9}" for head in heads), "  (G: Gaussian surrogate)", flush=True)
    public = WeakAdversary().public(here.victim, here.prior)
    for shadows in asked.shadows:
        attack = HeadReconstructor(
            size=asked.size,
            steps=10**6,
            shadows=shadows or None,
            learning_rate=asked.learning_rate,
            average=0.99,
            sketch=not asked.published,
        )
        ends = time.process_time() + 60 * asked.minutes / len(asked.shadows)
        with progress.listening(lambda step, ends=ends: time.process_time() > ends):
            reader = attack.fitted(public, generator=stream(0, "reconstructor"))
        cells = [str(reader.shadows), f"{reader.step}/{reader.steps}", *bench.row(reader)]
        print("  ".join(f"{cell:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
