"""Limits of TPR at FPR = α in worlds of heads whose true rates are known.

Log errors are sums of normal effects of the drawing, of the record and of the pair; a record that
leaks lowers the error of its own drawing. A limit misses if the true rate lies beyond it. Each
limit aims at 2.5% and may miss in 5% of studies: quantiles of few heads are known badly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from null_sections.rates import report_rate
from sheet import Sheet
from vestige.statistics.head_counts import HeadCounts
from vestige.statistics.head_pairs import PairErrors

REPLICATES = 200
LEVEL = 0.05


@dataclass(frozen=True)
class World:
    """Deviations of the effects, how much leaks, and how far apart the classes lie."""

    heads: int
    classes: int
    alpha: float
    drawing: float = 0.2
    record: float = 0.2
    pair: float = 0.3
    leak: float = 1.0
    apart: float = 0.1

    def errors(self, random: np.random.Generator) -> PairErrors:
        """One study: half of the drawing's effect and of the leak is common to all classes."""
        heads, classes = self.heads, self.classes
        drawing = random.normal(size=(classes, heads, 1)) + random.normal(size=(1, heads, 1))
        logs = self.drawing * drawing + self.apart * np.arange(classes)[:, None, None]
        logs = logs + self.record * random.normal(size=(classes, 1, heads))
        logs += self.pair * random.normal(size=(classes, heads, heads))
        common, single = random.normal(size=(1, heads)), random.normal(size=(classes, heads))
        places = np.arange(heads)
        logs[:, places, places] -= np.maximum(self.leak + 0.5 * (common + single), 0)
        return PairErrors(np.exp(logs).astype(np.float32))

    def truth(self, draws: int = 1_000_000) -> tuple[float, float]:
        """TPR at FPR = α, pooled and in the mean of the classes."""
        random = np.random.default_rng(5)
        spread = np.sqrt(2 * self.drawing**2 + self.record**2 + self.pair**2)
        shape, offsets = (draws // self.classes, self.classes), self.apart * np.arange(self.classes)
        nulls = offsets + spread * random.normal(size=shape)
        leaks = np.maximum(self.leak + np.sqrt(0.5) * random.normal(size=shape), 0)
        own = offsets + spread * random.normal(size=shape) - leaks
        by_class = own < np.quantile(nulls, self.alpha, axis=0)
        return float((own < np.quantile(nulls, self.alpha)).mean()), float(by_class.mean())


WORLDS = {
    "70 heads": World(70, 10, 0.01),
    "25 heads": World(25, 10, 0.01),
    "12 heads, 10% FPR": World(12, 10, 0.1),
    "popular records": World(70, 10, 0.01, drawing=0.1, record=0.6, pair=0.1, apart=0.5),
    "blurred heads": World(70, 5, 0.01, drawing=0.6, record=0.1, pair=0.1, apart=0.3),
    "200 blurred heads": World(200, 5, 0.01, drawing=0.6, record=0.1, pair=0.1, apart=0.3),
    "one class": World(100, 1, 0.01, leak=1.5),
    "almost all leaked": World(70, 10, 0.01, leak=3.0),
    "nothing leaked": World(70, 10, 0.01, leak=-9.0),
    "two popular classes": World(250, 2, 0.05, drawing=0.1, record=0.6, pair=0.1, apart=0.5),
}


def measure(sheet: Sheet) -> None:
    """Count how often limits miss the truth, for each count and for all classes together."""
    for name, world in WORLDS.items():
        pooled, by_class = world.truth()
        random = np.random.default_rng(1)
        lower, upper, jointly, classes, lowers = [0, 0], [0, 0], 0, 0, []
        for _ in range(REPLICATES):
            errors = world.errors(random)
            units = np.ones(world.classes)
            counts = HeadCounts.of(errors, units, world.alpha, 0.95)
            rates = counts.counted_rates(0.1)
            for place, truth in enumerate((pooled, by_class)):
                point = rates[place].operating_point
                lower[place] += (point.lower or 0.0) > truth
                upper[place] += (1.0 if point.upper is None else point.upper) < truth
            lowers.append([one.operating_point.lower or 0.0 for one in rates[:2]])
            jointly += any((r.joint_lower or 0.0) > t for r, t in zip(rates, (pooled, by_class)))
            limits = [one.passed.limits(0.025 / world.classes) for one in counts.classes]
            classes += any(one is not None and one[0] > by_class for one in limits)
        means = np.mean(lowers, axis=0)
        print(f"{name}: TPR {pooled:.3f}, {by_class:.3f}; lower limits {means.round(3)} on average")
        for place, count in enumerate(("pooled", "per class")):
            report_rate(sheet, f"{name}: {count}, lower", lower[place], REPLICATES, LEVEL)
            report_rate(sheet, f"{name}: {count}, upper", upper[place], REPLICATES, LEVEL)
        report_rate(sheet, f"{name}: some count, jointly", jointly, REPLICATES, LEVEL)
        report_rate(sheet, f"{name}: some class, jointly", classes, REPLICATES, LEVEL)
