"""Studies of heads whose attacks do not read them: means of classes, grey, records of the prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from null_sections.rates import report_rate
from sheet import Sheet, stream
from vestige.interfaces import ModelRelease, Observation, Public, Reconstruction, Reconstructor
from vestige.networks import HeadedModel
from vestige.records import ImageSpace, Prior, Records
from vestige.reports.heads import HeadRates
from vestige.reports.parts import VerdictKind
from vestige.simulation.training_sets import TrainingSets
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.judge import judge_rates
from vestige.studies.heads.measure import DrawnHeads
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.heads.rates import nearest_neighbor_thresholds
from vestige.studies.run import run
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

REPLICATES = 1000
RUNS = 100
CLASSES = 3
ALPHA = 0.1
CONFIDENCE = 0.95
LEVEL = 0.025
"""Some statement of a study is false with at most this probability: half of what 95% leaves."""

PERMUTATIONS = 999
KINDS = ("class means", "grey", "prior draws", "sharp and blurred heads")


def space(classes: int) -> ImageSpace:
    return ImageSpace(1, 4, 4, tuple(f"class {c}" for c in range(classes)), noun="patch")


def records(
    labels: Tensor,
    generator: torch.Generator,
    *,
    classes: int = CLASSES,
    levels: int | None = None,
    popular: bool = False,
) -> Records:
    """Images around a mean for each class; with ``levels`` of grey their errors have ties.

    The first class is ``popular`` if its images are nearly alike.
    """
    shape = (1, 4, 4)
    means = torch.rand((classes, *shape), generator=stream(99))
    spread = 0.05 + 0.2 * torch.rand((len(labels), 1, 1, 1), generator=generator)
    if popular:
        spread[labels == 0] /= 20
    noise = torch.randn((len(labels), *shape), generator=generator)
    images = (means[labels] + spread * noise).clamp(0, 1)
    if levels is not None:
        images = (images * (levels - 1)).round() / (levels - 1)
    return Records(images, labels, space(classes))


def drawings(kind: str, heads: int, prior: Prior, generator: torch.Generator) -> Tensor:
    """What a blind attack draws for every head and class (heads, classes, *shape)."""
    labels = range(prior.records.classes)
    means = torch.stack([prior.mean(label) for label in labels])
    if kind == "class means":
        return means.expand(heads, -1, -1, -1, -1)
    if kind == "grey":
        return torch.full_like(means, 0.5).expand(heads, -1, -1, -1, -1)
    columns = []
    for label in labels:
        members = prior.members(label)
        places = torch.randint(len(members), (heads,), generator=generator)
        columns.append(prior.records.x[members[places]])
    drawn = torch.stack(columns, 1)
    if kind == "prior draws":
        return drawn
    # Images of one head share a fate: all are as sharp or as blurred as each other.
    sharp = torch.rand((heads, 1, 1, 1, 1), generator=generator)
    return means + sharp * (drawn - means)


def judged(
    kind: str,
    seed: int,
    *,
    heads: int = 40,
    counts: tuple[int, ...] = (1, 1, 1),
    levels: int | None = None,
    popular: bool = False,
) -> HeadRates:
    """The rates of one study whose sets hold so many images of each class."""
    generator, classes = stream(seed), len(counts)
    makeup = torch.arange(classes).repeat_interleave(torch.tensor(counts))
    settings = {"classes": classes, "levels": levels, "popular": popular}
    pool = records(makeup.repeat(heads), generator, **settings)
    prior = Prior(records(torch.arange(20 * classes) % classes, generator, **settings))
    members = torch.arange(len(pool)).reshape(heads, -1)
    drawn = DrawnHeads(
        pool,
        TrainingSets(members, pool.y[members]),
        torch.arange(classes),
        drawings(kind, heads, prior, generator),
        drawings("prior draws", heads, prior, generator),
        drawings("class means", heads, prior, generator),
    )
    thresholds = nearest_neighbor_thresholds(pool, prior.records)
    return rates_of(drawn, thresholds, ALPHA, CONFIDENCE, permutations=PERMUTATIONS)


@dataclass(frozen=True)
class Blind:
    """An attack that draws records of the prior and never looks at the head."""

    kind: str = "prior draws"

    name = "Blind"
    summary = "draws records of the prior"
    needs = "nothing"
    cites = "nobody"
    reads = (ModelRelease,)

    def prepare(self, public: Public, *, generator: torch.Generator) -> Reconstructor:
        """Keep the prior."""

        def reconstruct(seen: Observation, generator: torch.Generator) -> Reconstruction:
            images = drawings(self.kind, 1, public.prior, generator)[0]
            return Reconstruction(images, torch.arange(CLASSES))

        return reconstruct


def studied(seed: int) -> VerdictKind:
    """One whole study of 16 heads on three images each, at a false positive rate of 20%."""
    generator = stream(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = HeadedModel(nn.Flatten(), 16, CLASSES)
    training = HeadTraining(ClassCounts.balanced(CLASSES, CLASSES), epochs=1, learning_rate=0.1)
    return run(
        HeadStudy(
            Blind(KINDS[seed % len(KINDS)]),
            ReleasedHead(model, training),
            records(torch.arange(CLASSES * 16) % CLASSES, generator),
            Prior(records(torch.arange(60) % CLASSES, generator)),
            heads=16,
            false_positive_rate=0.2,
        ),
        seed=seed,
    ).verdict.kind


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "class means": ("class means", {}),
    "grey": ("grey", {}),
    "prior draws": ("prior draws", {}),
    "sharp and blurred heads": ("sharp and blurred heads", {}),
    "black and white, ties": ("grey", {"levels": 2}),
    "black and white prior draws": ("prior draws", {"levels": 2}),
    "six heads": ("prior draws", {"heads": 6}),
    "twelve heads, means": ("class means", {"heads": 12}),
    "thirty classes": ("prior draws", {"heads": 20, "counts": (1,) * 30}),
    "unbalanced classes": ("prior draws", {"counts": (1, 2, 7)}),
    "one popular class": ("sharp and blurred heads", {"popular": True}),
}
"""Studies in which drawings are independent of all secrets."""


def measure(sheet: Sheet) -> None:
    """Count false statements about heads that no attack reads."""
    for name, (kind, settings) in SHAPES.items():
        report(sheet, name, [judged(kind, seed, **settings) for seed in range(REPLICATES)])
    runs = [studied(20_000 + seed) for seed in range(RUNS)]
    shown = sum(kind is VerdictKind.DEMONSTRATED for kind in runs)
    report_rate(sheet, "whole head studies: DEMONSTRATED", shown, RUNS, LEVEL)


def report(sheet: Sheet, kind: str, rates: list[HeadRates]) -> None:
    """The share of studies with a false verdict, a false "redraw", and any false statement."""
    verdicts = [judge_rates(one) for one in rates]
    shown = sum(v.kind is VerdictKind.DEMONSTRATED for v in verdicts)
    report_rate(sheet, f"heads, {kind}: DEMONSTRATED", shown, len(rates), LEVEL)
    redrawn = sum("can redraw" in v.headline for v in verdicts)
    report_rate(sheet, f"heads, {kind}: redraw", redrawn, len(rates), LEVEL)
    anything = sum(
        v.kind is VerdictKind.DEMONSTRATED or any(c.shown for c in one.classes)
        for v, one in zip(verdicts, rates)
    )
    report_rate(sheet, f"heads, {kind}: verdict or some class", anything, len(rates), LEVEL)
    limits = sum((one.pooled.operating_point.lower or 0.0) > ALPHA for one in rates)
    report_rate(sheet, f"heads, {kind}: pooled limit without test", limits, len(rates), 2 * LEVEL)
