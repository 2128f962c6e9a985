"""Running an attack over many heads that share no training image, and what to look at.

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
from vestige.reports.heads import ClassExhibit, HeadExhibit
from vestige.reports.parts import Picture
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.training_sets import TrainingSets
from vestige.statistics.head_pairs import PairErrors
from vestige.studies.heads.pairs import pair_errors
from vestige.studies.heads.rates import Thresholds, minimum_errors, other_heads
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
        """For each head another one whose training set is its decoy in pictures."""
        return other_heads(self.sets.members)

    def pairs(self, images: Tensor) -> PairErrors:
        """Errors of images to the sets of all heads."""
        return pair_errors(images, self.sets.members, self.counted, self.records.x)

    def errors(self, images: Tensor, *, of_others: bool = False) -> np.ndarray:
        """Errors (heads, c) of images to each head's own set, or to the set of another one."""
        order = self.others if of_others else torch.arange(len(self.sets))
        members, counted = self.sets.members[order], self.counted[order]
        return minimum_errors(images, members, counted, self.records.x).numpy()


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
