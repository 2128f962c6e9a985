"""Running an attack over many heads that share no training image: rates, and what to look at.

The validation of Maciazek and Allison 2025 (Algorithms 2 and 3). Heads are drawn without
replacement: an image that two heads share would count as a false positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vestige.errors import BadInput
from vestige.interfaces import ModelRelease, Reconstructor
from vestige.records import ImageSpace, Prior, Records
from vestige.reports.heads import (
    ClassExhibit,
    ClassRates,
    CountedRates,
    HeadExhibit,
    HeadRates,
    NullRates,
)
from vestige.reports.parts import Picture
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.training_sets import TrainingSets
from vestige.statistics.head_rates import (
    clustered_rate,
    counted_rates,
    operating_point,
    redrawn_rate,
)
from vestige.statistics.head_roc import histogram, normal_fit, roc_curves, transform_errors
from vestige.studies.heads.rates import (
    Thresholds,
    minimum_errors,
    nearest_neighbor_thresholds,
    other_heads,
)
from vestige.studies.heads.reading import (
    Decoder,
    HeadReadings,
    counted_members,
    read_classes,
    read_heads,
    release_of,
)
from vestige.victims import ReleasedHead


@dataclass(frozen=True)
class DrawnHeads:
    """Heads, each on a training set of its own, and what an attack drew of them.

    ``images`` (heads, c, *shape) are its reconstructions, one for each of ``classes`` (c,), or a
    single one (``classes`` is None). Other images are drawn alike: ``surrogates`` from Gaussian
    weights, ``decoded`` by a decoder from the true features, ``prior_draws`` at random;
    ``guesses`` are means of the prior's images. ``confidences`` (heads, c) are the attack's own.
    """

    records: Records
    sets: TrainingSets
    classes: Tensor | None
    images: Tensor
    prior_draws: Tensor
    guesses: Tensor
    surrogates: Tensor | None = None
    decoded: Tensor | None = None
    confidences: Tensor | None = None
    releases: tuple[ModelRelease, ...] = ()

    @cached_property
    def counted(self) -> Tensor:
        """Which members of each set (heads, c, n) a reconstruction is compared with."""
        return counted_members(self.sets, self.records, self.classes)

    @cached_property
    def others(self) -> Tensor:
        """For each head another one whose training set is its decoy."""
        return other_heads(self.sets.members)

    def errors(self, images: Tensor, *, of_others: bool = False) -> np.ndarray:
        """Errors (heads, c) of images to each head's own set, or to the set of another one."""
        order = self.others if of_others else torch.arange(len(self.sets))
        members, counted = self.sets.members[order], self.counted[order]
        return minimum_errors(images, members, counted, self.records.x).numpy()


def measure_heads(
    reconstruct: Reconstructor,
    victim: ReleasedHead,
    records: Records,
    heads: int,
    *,
    prior: Prior,
    generator: torch.Generator,
    factory: HeadFactory | None = None,
    shadows: Tensor | None = None,
    decoder: Decoder | None = None,
    false_positive_rate: float = 0.01,
    confidence: float = 0.95,
) -> HeadRates:
    """Run a prepared attack over ``heads`` disjoint validation heads and count what it redrew.

    ``records`` are images that the attack never saw, ``prior`` those it had: τ is the mean error
    from the first to the second. ``factory`` trains the heads in one batch, on the features of the
    same records, in place of ``victim.release``. ``shadows`` (n, size) are weights of simulated
    heads, for the Gaussian surrogates of the paper; ``decoder`` draws the ceiling from true
    features.
    """
    drawn = reconstruct_heads(
        reconstruct,
        victim,
        records,
        heads,
        prior=prior,
        generator=generator,
        factory=factory,
        shadows=shadows,
        decoder=decoder,
    )
    thresholds = nearest_neighbor_thresholds(records, prior.records)
    return rates_of(drawn, thresholds, false_positive_rate, confidence)


def reconstruct_heads(
    reconstruct: Reconstructor,
    victim: ReleasedHead,
    records: Records,
    heads: int,
    *,
    prior: Prior,
    generator: torch.Generator,
    factory: HeadFactory | None = None,
    shadows: Tensor | None = None,
    decoder: Decoder | None = None,
) -> DrawnHeads:
    """Draw disjoint training sets, train a head on each, and let the attack read it."""
    check_heads(records, heads)
    sets = victim.training.makeup.draw(records.y, heads, disjoint=True, generator=generator)
    releases = None
    if factory is not None:
        rows = factory.trained(sets, generator=generator).weights
        releases = [release_of(victim.simulator, row) for row in rows]
    readings = read_heads(
        reconstruct,
        victim,
        records,
        sets,
        range(heads),
        streams=[generator] * heads,
        generator=generator,
        shadows=shadows,
        decoder=decoder,
        releases=releases,
    )
    return drawn_heads(readings, records, sets, victim, prior, generator=generator)


def check_heads(records: Records, heads: int) -> None:
    """Raise BadInput if so many heads on these records give no rates."""
    if not isinstance(records.space, ImageSpace):
        raise BadInput("Rates of heads compare images in [0, 1]: give records of images.")
    if heads < 2:
        raise BadInput("False positives need the training set of another head: ask for two heads.")


def drawn_heads(
    readings: HeadReadings,
    records: Records,
    sets: TrainingSets,
    victim: ReleasedHead,
    prior: Prior,
    *,
    generator: torch.Generator,
) -> DrawnHeads:
    """Readings of all heads beside draws from the prior and guesses."""
    classes = read_classes(victim, records, sets)
    wanted = [None] if classes is None else classes.tolist()
    heads = len(readings.images)
    return DrawnHeads(
        records,
        sets,
        classes,
        readings.images,
        _prior_draws(prior, heads, classes, generator),
        torch.stack([prior.mean(label).cpu() for label in wanted]).expand(heads, -1, -1, -1, -1),
        readings.surrogates,
        readings.decoded,
        readings.confidences,
        readings.releases,
    )


def rates_of(
    drawn: DrawnHeads, thresholds: Thresholds, false_positive_rate: float, confidence: float
) -> HeadRates:
    """Count what an attack redrew, in every way; a pure function of what was drawn."""
    own, other = drawn.errors(drawn.images), drawn.errors(drawn.images, of_others=True)
    guessed = drawn.errors(drawn.guesses)
    nulls = {"another head": other, "prior draw": drawn.errors(drawn.prior_draws)}
    if drawn.surrogates is not None:
        nulls["Gaussian weights"] = drawn.errors(drawn.surrogates)
    by_class = np.array([thresholds.pooled])
    if drawn.classes is not None:
        by_class = np.asarray(thresholds.by_class)[drawn.classes.numpy()]
    alpha, doubt = false_positive_rate, (1 - confidence) / 2

    def counted(images: Tensor) -> tuple[CountedRates, ...]:
        return counted_rates(
            drawn.errors(images),
            drawn.errors(images, of_others=True),
            thresholds.pooled,
            by_class,
            alpha,
            confidence,
        )

    return HeadRates(
        heads=len(drawn.sets),
        set_size=drawn.sets.members.shape[1],
        conditional=drawn.classes is not None,
        threshold=thresholds.pooled,
        confidence=confidence,
        false_positive_rate=alpha,
        missing=int((~np.isfinite(own)).sum()),
        counted=counted(drawn.images),
        nulls=tuple(
            NullRates(
                name=name,
                false_positives=clustered_rate(errors <= thresholds.pooled, doubt),
                operating_point=operating_point(own, errors, alpha, confidence),
                fit=normal_fit(transform_errors(errors)),
            )
            for name, errors in nulls.items()
        ),
        classes=_class_rates(drawn, own, other, guessed, by_class, alpha, confidence),
        curves=roc_curves(own, other),
        fit=normal_fit(transform_errors(own)),
        histogram=histogram(own, *nulls.values()),
        ceiling=() if drawn.decoded is None else counted(drawn.decoded),
        redrawn=redrawn_rate(own, other, guessed, alpha, confidence),
    )


def _prior_draws(
    prior: Prior, heads: int, classes: Tensor | None, generator: torch.Generator
) -> Tensor:
    """Images drawn from the prior for each head, of the class that is asked for (H₁*)."""
    wanted: list[int | None] = [None] if classes is None else classes.tolist()
    columns = []
    for label in wanted:
        members = prior.members(label)
        if len(members) == 0:
            raise BadInput(f"The prior holds no record of class {label}: give some.")
        places = torch.randint(len(members), (heads,), generator=generator)
        columns.append(prior.records.x[members[places]].cpu())
    return torch.stack(columns, 1)


def _class_rates(
    drawn: DrawnHeads,
    own: np.ndarray,
    other: np.ndarray,
    guessed: np.ndarray,
    by_class: np.ndarray,
    alpha: float,
    confidence: float,
) -> tuple[ClassRates, ...]:
    if drawn.classes is None:
        return ()
    doubt = (1 - confidence) / 2
    joint = 1 - (1 - confidence) / own.shape[1]  # for all classes together (Bonferroni)
    found = []
    for place, label in enumerate(drawn.classes.tolist()):
        mine, theirs = own[:, place : place + 1], other[:, place : place + 1]
        point = operating_point(mine, theirs, alpha, joint)
        redrawn = redrawn_rate(mine, theirs, guessed[:, place : place + 1], alpha, joint)
        found.append(
            ClassRates(
                label=drawn.records.space.class_names[label],
                threshold=float(by_class[place]),
                true_positives=clustered_rate(mine <= by_class[place], doubt),
                false_positives=clustered_rate(theirs <= by_class[place], doubt),
                operating_point=point,
                shown=point.lower is not None and point.lower > alpha,
                redrawn=redrawn is not None and redrawn.lower > alpha,
            )
        )
    return tuple(found)


def middle_head(drawn: DrawnHeads) -> int:
    """The head of the median mean error: what a reader looks at is not chosen by eye."""
    order = np.argsort(drawn.errors(drawn.images).mean(1), kind="stable")
    return int(order[(len(order) - 1) // 2])


def middle_class(drawn: DrawnHeads, head: int) -> int:
    """The class of a head with the median error."""
    order = np.argsort(drawn.errors(drawn.images)[head], kind="stable")
    return int(order[(len(order) - 1) // 2])


def nearest_member(
    drawn: DrawnHeads, images: Tensor, head: int, place: int, *, own: bool
) -> Tensor:
    """The counted member that lies nearest to what was drawn, of the own set or of another."""
    which = head if own else int(drawn.others[head])
    members = drawn.sets.members[which][drawn.counted[which, place]]
    pool = drawn.records.x[members].cpu()
    gaps = (pool - images[head, place]).double().square().flatten(1).mean(1)
    return pool[int(gaps.nan_to_num(posinf=1e30, nan=1e30).argmin())]


def head_exhibit(drawn: DrawnHeads, head: int, thresholds: Thresholds) -> HeadExhibit:
    """Every class of one head: original, reconstruction, and an image of another head."""
    own = drawn.errors(drawn.images)
    other = drawn.errors(drawn.images, of_others=True)
    names = drawn.records.space.class_names
    place = int((own.mean(1) < own.mean(1)[head]).sum()) + 1
    shown = []
    for slot in range(own.shape[1]):
        secret = nearest_member(drawn, drawn.images, head, slot, own=True)
        decoy = nearest_member(drawn, drawn.images, head, slot, own=False)
        image = drawn.images[head, slot]
        finite = bool(torch.isfinite(image).all())
        shown.append(
            ClassExhibit(
                label="" if drawn.classes is None else names[int(drawn.classes[slot])],
                threshold=thresholds.pooled,
                error=float(own[head, slot]) if finite else None,
                decoy_error=float(other[head, slot]) if finite else None,
                secret=Picture.of(secret.numpy()),
                reconstruction=Picture.of(image.numpy()) if finite else None,
                decoy=Picture.of(decoy.numpy()),
            )
        )
    return HeadExhibit(place=place, of=len(own), classes=tuple(shown))
