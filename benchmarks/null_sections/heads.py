"""Studies of heads whose attacks do not read them: means of classes, grey, records of the prior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from null_sections.rates import report_rate
from sheet import Sheet, stream
from vestige.interfaces import ModelRelease, Observation, Public, Reconstruction, Reconstructor
from vestige.networks import HeadedModel
from vestige.records import ImageSpace, Prior, Records
from vestige.reports.heads import CountedRates, HeadRates
from vestige.reports.parts import VerdictKind
from vestige.simulation.training_sets import TrainingSets
from vestige.statistics.head_rates import clustered_rate, operating_point, redrawn_rate
from vestige.studies.heads.judge import judge_rates
from vestige.studies.heads.measure import DrawnHeads, _class_rates
from vestige.studies.heads.plan import HeadStudy
from vestige.studies.run import run
from vestige.victims import ClassCounts, HeadTraining, ReleasedHead

REPLICATES = 1000
RUNS = 100
CLASSES = 3
SPACE = ImageSpace(1, 4, 4, ("a", "b", "c"), noun="patch")
ALPHA = 0.1
LEVEL = 0.05
"""A lower limit is wrong with probability 5%: half for its threshold, half for what passes it."""

KINDS = ("class means", "grey", "prior draws", "sharp and blurred heads")


def records(count: int, generator: torch.Generator, *, levels: int | None = None) -> Records:
    """Images around a mean for each class; with ``levels`` of grey their errors have ties."""
    means = torch.rand((CLASSES, *SPACE.shape), generator=stream(99))
    labels = torch.arange(count) % CLASSES
    spread = 0.05 + 0.2 * torch.rand((count, 1, 1, 1), generator=generator)
    noise = torch.randn((count, *SPACE.shape), generator=generator)
    images = (means[labels] + spread * noise).clamp(0, 1)
    if levels is not None:
        images = (images * (levels - 1)).round() / (levels - 1)
    return Records(images, labels, SPACE)


def drawings(kind: str, heads: int, prior: Prior, generator: torch.Generator) -> Tensor:
    """What a blind attack draws for every head and class (heads, classes, *shape)."""
    means = torch.stack([prior.mean(label) for label in range(CLASSES)])
    if kind == "class means":
        return means.expand(heads, -1, -1, -1, -1)
    if kind == "grey":
        return torch.full_like(means, 0.5).expand(heads, -1, -1, -1, -1)
    rows = len(prior.records) // CLASSES
    if kind == "prior draws":
        places = torch.randint(rows, (heads, CLASSES), generator=generator)
        return prior.records.x[CLASSES * places + torch.arange(CLASSES)]
    # Images of one head share a fate: all are as sharp or as blurred as each other.
    places = torch.randint(rows, (heads, CLASSES), generator=generator)
    sharp = torch.rand((heads, 1, 1, 1, 1), generator=generator)
    drawn = prior.records.x[CLASSES * places + torch.arange(CLASSES)]
    return means + sharp * (drawn - means)


def judged(kind: str, seed: int, *, heads: int = 40, levels: int | None = None) -> HeadRates:
    """The rates of one study that its verdict is made from."""
    generator = stream(seed)
    pool = records(CLASSES * heads, generator, levels=levels)
    prior = Prior(records(60, generator, levels=levels))
    members = torch.arange(CLASSES * heads).reshape(heads, CLASSES)
    drawn = DrawnHeads(
        pool,
        TrainingSets(members, pool.y[members]),
        torch.arange(CLASSES),
        drawings(kind, heads, prior, generator),
        drawings("prior draws", heads, prior, generator),
        drawings("class means", heads, prior, generator),
    )
    own, other = drawn.errors(drawn.images), drawn.errors(drawn.images, of_others=True)
    guessed, limit = drawn.errors(drawn.guesses), 0.02
    pooled = CountedRates(
        name="pooled",
        true_positives=clustered_rate(own <= limit, LEVEL / 2),
        false_positives=clustered_rate(other <= limit, LEVEL / 2),
        operating_point=operating_point(own, other, ALPHA, 1 - LEVEL),
    )
    limits = np.full(CLASSES, limit)
    return HeadRates(
        heads=heads,
        set_size=CLASSES,
        conditional=True,
        threshold=limit,
        confidence=1 - LEVEL,
        false_positive_rate=ALPHA,
        missing=0,
        counted=(pooled,),
        nulls=(),
        classes=_class_rates(drawn, own, other, guessed, limits, ALPHA, 1 - LEVEL),
        curves=(),
        redrawn=redrawn_rate(own, other, guessed, ALPHA, 1 - LEVEL),
    )


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
            records(CLASSES * 16, generator),
            Prior(records(60, generator)),
            heads=16,
            false_positive_rate=0.2,
        ),
        seed=seed,
    ).verdict.kind


def measure(sheet: Sheet) -> None:
    """Count false statements about heads that no attack reads."""
    constant = [judged(KINDS[seed % 2], seed) for seed in range(REPLICATES)]
    report(sheet, "class means, grey", constant)
    for kind in KINDS[2:]:
        report(sheet, kind, [judged(kind, seed) for seed in range(REPLICATES)])
    ties = [judged("grey", seed, levels=2) for seed in range(REPLICATES)]
    report(sheet, "black and white images", ties)
    runs = [studied(20_000 + seed) for seed in range(RUNS)]
    shown = sum(kind is VerdictKind.DEMONSTRATED for kind in runs)
    report_rate(sheet, "whole head studies: DEMONSTRATED", shown, RUNS, LEVEL)


def report(sheet: Sheet, kind: str, rates: list[HeadRates]) -> None:
    """The share of studies with a false verdict, a false "redraw", and a false class."""
    verdicts = [judge_rates(one) for one in rates]
    shown = sum(v.kind is VerdictKind.DEMONSTRATED for v in verdicts)
    report_rate(sheet, f"heads, {kind}: DEMONSTRATED", shown, len(rates), LEVEL)
    redrawn = sum("can redraw" in v.headline for v in verdicts)
    report_rate(sheet, f"heads, {kind}: redraw", redrawn, len(rates), LEVEL)
    classes = sum(any(c.shown for c in one.classes) for one in rates)
    report_rate(sheet, f"heads, {kind}: some class", classes, len(rates), LEVEL)
