"""Measuring attacks on the heads of a world: many heads at once, a printed row for each attack."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vestige import Prior
from vestige.attacks import HeadInversion, HeadReconstructor
from vestige.errors import BadInput, NotFound
from vestige.interfaces import Attack
from vestige.priors.feature_decoders import FullyConnectedDecoder
from vestige.reports.heads import HeadRates, OperatingPoint
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.simulation.training_sets import OneAgainstRest
from vestige.streams import stream
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.measure import reconstruct_heads
from vestige.studies.heads.rates import Thresholds, nearest_neighbor_thresholds
from vestige.studies.heads.reading import head_accuracies
from vestige.threats import WeakAdversary
from vestige.victims import ReleasedHead
from weak_adversary_worlds import World

FALSE_POSITIVE_RATE, CONFIDENCE = 0.01, 0.95
COLUMNS = ("heads", "accuracy", "TPR*", "FPR*", "FPR*G")
POINTS = ("TPR@.01 pooled", "per class", "normalised")


@dataclass(frozen=True)
class Measured:
    """What came of one attack: rates, accuracy of the heads, CPU seconds."""

    rates: HeadRates
    accuracy: float | None
    seconds: float

    @property
    def pooled(self) -> float:
        """TPR at FPR = .01, one threshold for all classes."""
        return self.rates.pooled.operating_point.true_positive_rate


@dataclass
class Bench:
    """How large the studies are, and what worlds share: their thresholds and features."""

    heads: int
    examples: int
    ends: float = math.inf
    public: int = 20_000
    width: int = 512
    shadows: int = 60
    polish_steps: int = 80
    seed: int = 0
    folder: Path | None = None
    thresholds: dict[str, Thresholds] = field(default_factory=dict)
    known: dict[str, Measured] = field(default_factory=dict)

    @property
    def attack(self) -> HeadInversion:
        """Head inversion at this size."""
        decoder = FullyConnectedDecoder((self.width, self.width))
        return HeadInversion(
            decoder,
            examples=self.examples,
            shadows=self.shadows,
            polish_steps=self.polish_steps,
            features_folder=self.folder,
        )

    @property
    def reconstructor(self) -> HeadReconstructor:
        """The paper's attack at this size."""
        steps = max(1, self.examples // 250)
        return HeadReconstructor(
            size=16,
            steps=steps,
            statistics=min(4096, 40 * steps),
            validation_interval=max(1, steps // 4),
        )

    def measured(
        self,
        world: World,
        attack: Attack | None = None,
        *,
        heads: int | None = None,
        believed: ReleasedHead | None = None,
        prior: Prior | None = None,
        gaussian: bool = False,
    ) -> Measured:
        """Attack heads of a world, by what the attacker believes of them and has collected."""
        start, victim, secrets = time.process_time(), world.victim, world.secrets
        attack, heads = attack or self.attack, heads or self.heads
        # Several tables begin with the same row.
        key = f"{world.name} {victim.training} {victim.model.head} {attack} {heads} {gaussian}"
        plain = believed is None and prior is None
        if plain and key in self.known:
            return self.known[key]
        public = WeakAdversary().public(believed or victim, prior or world.prior)
        reconstruct = attack.prepare(public, generator=stream(self.seed, "prepare"))
        surrogates = None
        if gaussian:
            known = world.prior.records[:2000]
            shadows = HeadFactory(victim.simulator, features_of(victim.simulator, known), known.y)
            surrogates = shadows.draw(500, generator=stream(self.seed, "shadows")).weights
        drawn = reconstruct_heads(
            reconstruct,
            victim,
            secrets,
            world.most_heads(heads),
            prior=world.prior,
            generator=stream(self.seed, "heads"),
            factory=HeadFactory(
                victim.simulator, features_of(victim.simulator, secrets, self.folder), secrets.y
            ),
            shadows=surrogates,
        )
        if world.name not in self.thresholds:
            self.thresholds[world.name] = nearest_neighbor_thresholds(secrets, world.prior.records)
        rates = rates_of(drawn, self.thresholds[world.name], FALSE_POSITIVE_RATE, CONFIDENCE)
        accuracy = None
        if not isinstance(victim.training.makeup, OneAgainstRest):
            # The attacker's records: no head was trained on them.
            held_out = world.prior.records[:1000]
            accuracy = float(head_accuracies(drawn.releases, victim, held_out).mean())
        found = Measured(rates, accuracy, time.process_time() - start)
        if plain:
            self.known[key] = found
        return found


@dataclass
class Table:
    """Prints rows as they come, and leaves out those for which no time is left."""

    bench: Bench
    title: str
    words: str
    rows: dict[str, Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        print(f"\n{self.title}\n{self.words}", flush=True)
        cells = [f"{'':34}", *(f"{name:>8}" for name in COLUMNS)]
        print(" ".join([*cells, *(f"{name:>21}" for name in POINTS), "   CPU s  published"]))

    def row(self, name: str, measure: Callable[[], Measured], published: str = "") -> None:
        """Measure and print one row; what an attack refuses is said in its place."""
        if time.process_time() > self.bench.ends:
            print(f"{name:34} left out: the minutes are over.", flush=True)
            return
        try:
            found = measure()
        except (BadInput, NotFound) as refused:
            print(f"{name:34} {refused}", flush=True)
            return
        self.rows[name] = found
        rates = found.rates
        gaussian = [n.false_positives.value for n in rates.nulls if n.name == "Gaussian weights"]
        numbers = [
            found.accuracy,
            rates.pooled.true_positives.value,
            rates.pooled.false_positives.value,
            gaussian[0] if gaussian else None,
        ]
        cells = [f"{name:34}", f"{rates.heads:8}"]
        cells += [f"{'–' if number is None else f'{number:.3f}':>8}" for number in numbers]
        cells += [f"{with_limits(one.operating_point):>21}" for one in rates.counted]
        print(" ".join(cells), f"{found.seconds:8.0f}  {published}", flush=True)


def with_limits(point: OperatingPoint) -> str:
    """A rate with its limits, where the heads are enough for any."""
    value = f"{point.true_positive_rate:.3f}"
    if point.lower is None or point.upper is None:
        return value
    return f"{value} [{point.lower:.3f}, {point.upper:.3f}]"
