"""The studies of Maciazek and Allison 2025 on a small machine, one table each.

    python examples/weak_adversary_study.py --heads 150 --examples 80000 --minutes 20
    python examples/weak_adversary_study.py --study privacy --page FOLDER
    python examples/weak_adversary_study.py --study size optimizer --heads 800 --examples 700000

"Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction Attacks in Small-Data
Regime": Table 1, the factors of Section 3.2, and DP-SGD of Section 4, attacked by ``HeadInversion``
(``HeadReconstructor``, the paper's own attack, where that does not apply). Which images backbone,
attacker and heads have is said by ``weak_adversary_worlds.py`` and printed above each table.

Rates are those of heads that share no image. TPR* and FPR* count at the mean nearest-neighbour
distance; FPR* by Definition 1 (another head's drawing), FPR*G with Gaussian weights as the paper
does. TPR@.01 with 95% limits: one threshold for all classes (pooled), one for each, and one for
errors divided by their class's nearest-neighbour distance (normalised).
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import brentq

from vestige.bounds import DPSGD
from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.pages.heads.page import render_heads
from vestige.pages.saving import write_page
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.streams import stream
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.run import run
from vestige.victims import ClassCounts
from weak_adversary_measures import Bench, Table
from weak_adversary_worlds import World, cifar_world, digit_world, face_world, foreign_prior

CLIPPING_NORM = 4.0
"""The paper's for MNIST."""

DEFENDED = 0.015
"""TPR at FPR = .01 below which the paper calls an attack defended against."""

EPSILONS = (100.0, 30.0, 10.0, 5.0, 2.0)


def table_one(bench: Bench, world: World) -> Table:
    """Table 1: one row for each kind of data and size of training set."""
    table = Table(bench, "Table 1", world.words)
    published = {10: ".636 / .018 / .431", 40: ".374 / .098 / .052"}
    for records, figures in published.items():
        table.row(
            f"{world.name} N={records}",
            lambda records=records: bench.measured(world.of_size(records), gaussian=True),
            figures if world.name == "MNIST" else "",
        )
    print(
        "Fashion-MNIST                      left out: the backbone was trained on it, and there is "
        "no other of its kind."
    )
    table.row(
        "faces, 1 against 9",
        lambda: bench.measured(face_world(), gaussian=True),
        ".441 / .012 / .385 (CelebA)",
    )
    table.row(
        "CIFAR-10 N=10",
        lambda: bench.measured(cifar_world(bench.public), gaussian=True),
        ".388 / .063 / .217",
    )
    return table


def shadow_heads(bench: Bench, world: World) -> Table:
    """Factor 1: how many heads the attacker simulates, and examples its decoder learns from."""
    table = Table(bench, "Simulated heads and decoder examples", world.words)
    for shadows in (0, 50, 300):
        attack = replace(bench.attack, shadows=shadows)
        table.row(f"{shadows} simulated heads", lambda a=attack: bench.measured(world, a))
    for share in (8, 2):
        attack = replace(bench.attack, examples=max(1, bench.examples // share))
        table.row(f"{attack.examples:,} examples", lambda a=attack: bench.measured(world, a))
    return table


def set_size(bench: Bench, world: World) -> Table:
    """Factor 2: records in the training set."""
    table = Table(bench, "Size of the training set", world.words)
    for records in (10, 20, 40):
        own = world.of_size(records)
        # As many heads for every N, so that limits are equally wide.
        heads = world.of_size(40).most_heads(bench.heads)
        table.row(f"N={records}", lambda own=own, heads=heads: bench.measured(own, heads=heads))
    return table


def label_mismatch(bench: Bench, world: World) -> Table:
    """Factor 4: heads that are taught other labels than the classes the attacker draws."""
    table = Table(bench, "Labels of the head and classes of the drawings", world.words)
    training = world.victim.training
    makeup = training.makeup
    assert isinstance(makeup, ClassCounts)
    moved = replace(makeup, label_map=tuple((c + 3) % 10 for c in range(10)))
    parity = replace(makeup, label_map=(0, 1) * 5)
    permuted = world.with_training(replace(training, makeup=moved))
    table.row("its own classes", lambda: bench.measured(world))
    table.row("permuted, attacker knows", lambda: bench.measured(permuted))
    table.row(
        "permuted, attacker does not know",
        lambda: bench.measured(permuted, believed=world.victim),
    )
    linear = world.with_training(replace(training, makeup=parity))
    table.row("even or odd, linear", lambda: bench.measured(linear))
    # Table 6 of the paper.
    binary = replace(training, makeup=parity, learning_rate=0.1, weight_decay=1e-4)
    hidden = world.with_training(binary, hidden=8)
    table.row("even or odd, 8 hidden units", lambda: bench.measured(hidden), ".461 / .018")
    table.row("the same, by HeadReconstructor", lambda: bench.measured(hidden, bench.reconstructor))
    slower = world.with_training(replace(binary, learning_rate=0.01), hidden=8)
    table.row("the same at rate .01", lambda: bench.measured(slower, bench.reconstructor))
    return table


def optimizers(bench: Bench, world: World) -> Table:
    """Factor 5: SGD by full batches, mini-batches, momentum; Adam."""
    table = Table(bench, "Optimiser", world.words)
    training = world.victim.training
    half = training.makeup.size // 2
    adam = world.with_training(replace(training, optimizer="adam", learning_rate=0.001))
    table.row("SGD", lambda: bench.measured(world))
    batches = world.with_training(replace(training, batch_size=half))
    table.row(f"SGD, batches of {half}", lambda: bench.measured(batches))
    pushed = world.with_training(replace(training, momentum=0.9, learning_rate=0.001))
    table.row("SGD, momentum .9, rate .001", lambda: bench.measured(pushed))
    table.row("Adam, rate .001", lambda: bench.measured(adam))
    table.row("SGD, by HeadReconstructor", lambda: bench.measured(world, bench.reconstructor))
    table.row(
        "Adam, by HeadReconstructor",
        lambda: bench.measured(adam, bench.reconstructor),
        ".443 / .022",
    )
    return table


def initial_weights(bench: Bench, world: World) -> Table:
    """Factor 6: deviation of the initial weights."""
    table = Table(bench, "Deviation of initial weights", world.words)
    for deviation in (0.0002, 0.002, 0.02, 0.2):
        own = world.with_training(replace(world.victim.training, initial_deviation=deviation))
        table.row(f"σ_init = {deviation:g}", lambda own=own: bench.measured(own))
    return table


def training_length(bench: Bench, world: World) -> Table:
    """Factor 7: epochs. The polish follows every step, so long trainings cost the attacker."""
    table = Table(bench, "Epochs", world.words)
    for epochs in (1, 8, 32, 128, 512):
        own = world.with_training(replace(world.victim.training, epochs=epochs))
        attack, heads = bench.attack, bench.heads
        if epochs > 100:
            attack = replace(attack, shadows=min(attack.shadows, 20))
            heads = min(heads, 60)
        table.row(
            f"{epochs} epochs", lambda o=own, a=attack, h=heads: bench.measured(o, a, heads=h)
        )
    return table


def foreign_records(bench: Bench, world: World) -> Table:
    """Factor 8: the attacker has collected records of another kind."""
    table = Table(bench, "Attacker's records", world.words)
    table.row("of the same kind", lambda: bench.measured(world))
    for kind, words in (
        ("letters", "rendered letters A to J"),
        ("fashion", "Fashion-MNIST, labels at random"),
    ):
        prior = foreign_prior(world, kind, bench.public)
        if prior is None:
            print(f"{words:34} left out: there are none of this shape here.")
            continue
        table.row(words, lambda prior=prior: bench.measured(world, prior=prior))
    return table


@dataclass(frozen=True)
class Sampling:
    """How DP-SGD of the paper samples: rate, and steps in each epoch."""

    words: str
    rate: float
    steps_per_epoch: int

    def mechanism(self, noise: float, epochs: int) -> DPSGD:
        """DP-SGD with so much noise."""
        return DPSGD(noise, self.rate, self.steps_per_epoch * epochs, CLIPPING_NORM)

    def noise(self, epsilon: float, epochs: int, delta: float) -> float:
        """The noise multiplier for about this ε, to three digits."""

        def excess(log_noise: float) -> float:
            mechanism = self.mechanism(math.exp(log_noise), epochs)
            return math.log(max(epsilon_by_privacy_loss(mechanism, delta), 1e-9) / epsilon)

        found = math.exp(float(brentq(excess, math.log(0.2), math.log(50), xtol=5e-3)))  # pyright: ignore[reportArgumentType]
        return float(f"{found:.3g}")


def samplings(records: int) -> tuple[Sampling, Sampling]:
    """As the paper ran it, and as it describes it."""
    return (
        Sampling("as run", 0.5, 2),
        Sampling("as described", (records - 1) / records, 1),
    )


def privacy(bench: Bench, world: World) -> Mapping[str, Table]:
    """Section 4: DP-SGD by both samplings, ε by either accounting, and where it defends."""
    epochs, delta = world.victim.training.epochs, world.size**-1.1
    ways, tables = samplings(world.size), {}
    for way in ways:
        words = f"q = {way.rate:g}, {way.steps_per_epoch} steps an epoch, clipping norm "
        words += f"{CLIPPING_NORM:g}, δ = {delta:.3f}; ε as run / as described. {world.words}"
        table = Table(bench, f"DP-SGD {way.words}, N={world.size}", words)
        table.row("no noise, no clipping", lambda: bench.measured(world))
        spent: dict[str, float] = {}
        for wanted in EPSILONS:
            noise = way.noise(wanted, epochs, delta)
            budgets = [epsilon_by_privacy_loss(one.mechanism(noise, epochs), delta) for one in ways]
            name = f"σ = {noise:g}: ε = {budgets[0]:.3g} / {budgets[1]:.3g}"
            spent[name] = budgets[ways.index(way)]
            training = replace(world.victim.training, private=way.mechanism(noise, epochs))
            table.row(name, lambda t=training: bench.measured(world.with_training(t)))
        print(defended(table, spent))
        tables[way.words] = table
    return tables


def defended(table: Table, spent: Mapping[str, float]) -> str:
    """At which ε the pooled rate falls to γ = .015, between neighbours on a log scale."""
    points = [(spent[n], m) for n, m in table.rows.items() if n in spent]
    plain = next((m for n, m in table.rows.items() if n not in spent), None)
    points.sort(key=lambda point: -point[0])
    for (above, left), (below, right) in itertools.pairwise(points):
        if left.pooled > DEFENDED >= right.pooled:
            share = (left.pooled - DEFENDED) / (left.pooled - right.pooled)
            epsilon = math.exp(math.log(above) + share * math.log(below / above))
            said = f"TPR@.01 falls to {DEFENDED} at ε ≈ {epsilon:.2g}"
            if plain is not None and None not in (plain.accuracy, left.accuracy, right.accuracy):
                ends = np.array([left.accuracy, right.accuracy], dtype=float)
                lost = float(plain.accuracy or 0) - float(ends @ [1 - share, share])
                said += f", where {lost:.2f} of accuracy is lost"
            return f"{said}."
    if points and points[0][1].pooled <= DEFENDED:
        return f"TPR@.01 is below {DEFENDED} at every ε that was measured."
    return f"TPR@.01 does not fall to {DEFENDED} at any ε that was measured."


def write_study(bench: Bench, world: World, folder: Path) -> Path:
    """The page: rates, pictures, and what DP-SGD as the paper ran it changes."""
    epochs, delta = world.victim.training.epochs, world.size**-1.1
    way = samplings(world.size)[0]
    known = world.prior.records[:2000]
    simulator = world.victim.simulator
    factory = HeadFactory(simulator, features_of(simulator, known), known.y)
    study = run(
        HeadStudy(
            bench.attack,
            world.victim,
            world.secrets,
            world.prior,
            heads=world.most_heads(bench.heads),
            title=f"{world.name}: heads of {world.size} images",
            held_out=known,
            mechanisms=[way.mechanism(way.noise(e, epochs, delta), epochs) for e in EPSILONS],
            shadows=factory.draw(500, generator=stream(bench.seed, "shadows")).weights,
        ),
        seed=bench.seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "weak_adversary.html"
    write_page(path, render_heads(study))
    write_page(folder / "weak_adversary.json", study.model_dump_json())
    print(f"\nThe page is {path}.")
    return path


STUDIES: dict[str, Callable[[Bench, World], object]] = {
    "table": table_one,
    "shadows": shadow_heads,
    "size": set_size,
    "labels": label_mismatch,
    "optimizer": optimizers,
    "initial": initial_weights,
    "epochs": training_length,
    "foreign": foreign_records,
    "privacy": privacy,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--study", nargs="*", choices=tuple(STUDIES), default=list(STUDIES))
    parser.add_argument("--heads", type=int, default=150, help="heads under attack")
    parser.add_argument("--examples", type=int, default=80_000, help="the decoder learns from")
    parser.add_argument("--minutes", type=float, default=30.0, help="of CPU time, for all tables")
    parser.add_argument("--public", type=int, default=20_000, help="records of the attacker")
    parser.add_argument("--width", type=int, default=512, help="of the decoder's layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="folder to write a page of the DP-SGD study to")
    asked = parser.parse_args(arguments)
    bench = Bench(
        asked.heads,
        asked.examples,
        time.process_time() + 60 * asked.minutes,
        asked.public,
        asked.width,
        seed=asked.seed,
    )
    world = digit_world(asked.public)
    with tempfile.TemporaryDirectory() as folder:
        bench.folder = Path(folder)
        for name in asked.study:
            STUDIES[name](bench, world)
        if asked.page is not None:
            write_study(bench, world, asked.page)


if __name__ == "__main__":
    main()
