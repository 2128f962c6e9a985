"""Running an attack over many heads that share no training image, and what came of it.

The validation of Maciazek and Allison 2025 (Algorithms 2 and 3). Heads are drawn without
replacement: an image that two heads share would count as a false positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vestige import progress
from vestige.errors import BadInput
from vestige.features import features_of
from vestige.head_study import ClassRates, CountedRates, HeadRates, NullRates
from vestige.heads import HeadedModel
from vestige.observations import (
    ModelRelease,
    Observation,
    ReadsTogether,
    Reconstruction,
    Reconstructor,
    Run,
)
from vestige.reconstruction_rates import (
    Thresholds,
    clustered_rate,
    counted_rates,
    members_of_classes,
    minimum_errors,
    nearest_neighbor_thresholds,
    operating_point,
    other_heads,
    positive_members,
)
from vestige.reconstruction_roc import histogram, normal_fit, roc_curves, transformed
from vestige.records import ImageSpace, Prior, Records
from vestige.shadows.heads import HeadFactory
from vestige.simulation import Simulator
from vestige.threats import WeakAdversary
from vestige.training_sets import OneAgainstRest, TrainingSets
from vestige.victims import ReleasedHead

Decoder = Callable[[Tensor, Tensor], Tensor]
"""Draws images (n, *shape) from features (n, width) and classes (n,)."""


@dataclass(frozen=True)
class DrawnHeads:
    """Heads, each on a training set of its own, and what an attack drew of them.

    ``images`` (heads, c, *shape) are its reconstructions, one for each of ``classes`` (c,), or a
    single one (``classes`` is None). Other images are drawn alike: ``surrogates`` from Gaussian
    weights, ``decoded`` by a decoder from the true features, ``prior_draws`` by nobody, at random.
    """

    records: Records
    sets: TrainingSets
    classes: Tensor | None
    images: Tensor
    prior_draws: Tensor
    surrogates: Tensor | None = None
    decoded: Tensor | None = None
    releases: tuple[ModelRelease, ...] = ()

    @cached_property
    def counted(self) -> Tensor:
        """Which members of each set (heads, c, n) a reconstruction is held against."""
        if self.classes is None:
            return positive_members(self.sets)
        return members_of_classes(self.sets, self.records.y.cpu(), self.classes)

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
    if not isinstance(records.space, ImageSpace):
        raise BadInput("Rates of heads compare images in [0, 1]: give records of images.")
    if heads < 2:
        raise BadInput("False positives need the training set of another head: ask for two heads.")
    simulator, makeup = victim.simulator, victim.training.makeup
    sets = makeup.draw(records.y, heads, disjoint=True, generator=generator)
    single = isinstance(makeup, OneAgainstRest)
    classes = None if single else records.y.cpu()[sets.members[0]].unique()
    secrets = [_secret(records, sets, head, single) for head in range(heads)]
    if factory is not None:
        rows = factory.trained(sets, generator=generator).weights
        releases = tuple(release_of(simulator, row) for row in rows)
    else:
        releases = tuple(victim.release(one, generator=generator) for one in secrets)
    fakes = None if shadows is None else gaussian_surrogates(shadows, heads, generator=generator)
    seen = [
        WeakAdversary().observe(Run(secret, release)) for secret, release in zip(secrets, releases)
    ]
    images = _read(reconstruct, seen, classes, records, generator)
    surrogates = None
    if fakes is not None:
        others = [
            replace(one, release=release_of(simulator, fake)) for one, fake in zip(seen, fakes)
        ]
        surrogates = _read(reconstruct, others, classes, records, generator)
    drawn = DrawnHeads(
        records,
        sets,
        classes,
        images,
        _prior_draws(prior, heads, classes, generator),
        surrogates,
        releases=releases,
    )
    if decoder is None:
        return drawn
    return replace(drawn, decoded=_decoded(drawn, features_of(simulator, records), decoder))


def rates_of(
    drawn: DrawnHeads, thresholds: Thresholds, false_positive_rate: float, confidence: float
) -> HeadRates:
    """Count what an attack redrew, in every way; a pure function of what was drawn."""
    own, other = drawn.errors(drawn.images), drawn.errors(drawn.images, of_others=True)
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
                fit=normal_fit(transformed(errors)),
            )
            for name, errors in nulls.items()
        ),
        classes=_class_rates(drawn, own, other, by_class, alpha, confidence),
        curves=roc_curves(own, other),
        fit=normal_fit(transformed(own)),
        histogram=histogram(own, *nulls.values()),
        ceiling=() if drawn.decoded is None else counted(drawn.decoded),
    )


def gaussian_surrogates(shadows: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Weights (count, size) of a normal law with mean and covariance of simulated heads' weights.

    Algorithms 2 and 3 draw normalised weights from N(0, Cov); undone, that is this law. The
    covariance is never formed: a random combination of centred weights has it.
    """
    if len(shadows) < 2:
        raise BadInput("Gaussian surrogates need the weights of at least two simulated heads.")
    mean = shadows.mean(0)
    mixing = torch.randn((count, len(shadows)), generator=generator).to(shadows)
    return mean + mixing @ (shadows - mean) / (len(shadows) - 1) ** 0.5


def release_of(simulator: Simulator, row: Tensor) -> ModelRelease:
    """A head as it would be published, from its weights in one row."""
    like = simulator.parameters
    parts = row.split([value.numel() for value in like.values()])
    return ModelRelease({n: p.reshape(like[n].shape).clone() for n, p in zip(like, parts)})


def head_accuracies(drawn: DrawnHeads, victim: ReleasedHead, held_out: Records) -> np.ndarray:
    """Accuracy (heads,) of each head on records that none was trained on."""
    model, training = victim.simulator.network, victim.training
    assert isinstance(model, HeadedModel)
    if isinstance(training.makeup, OneAgainstRest):
        raise BadInput(
            "Every head of one class against the rest has another task: measure its accuracy "
            "class by class."
        )
    features = features_of(victim.simulator, held_out)
    wanted = training.makeup.taught(held_out.y.cpu())
    found = []
    with torch.no_grad():
        for release in drawn.releases:
            logits = model.head_outputs(release.tensors, features)
            said = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
            found.append(float((said == wanted).double().mean()))
    return np.array(found)


def _secret(records: Records, sets: TrainingSets, head: int, single: bool) -> Records:
    """A training set as its head is taught it: one class against the rest has labels of its own."""
    secret = records[sets.members[head]]
    if not single:
        return secret
    space = replace(secret.space, class_names=("another", "this one"))
    return replace(secret, y=sets.targets[head].to(secret.y.device), space=space)


def _read(
    reconstruct: Reconstructor,
    seen: Sequence[Observation],
    classes: Tensor | None,
    records: Records,
    generator: torch.Generator,
) -> Tensor:
    """Drawings (heads, c, *shape) of observed heads; together where the attack can."""
    if isinstance(reconstruct, ReadsTogether):
        found = reconstruct.together(seen, generator)
    else:
        found = []
        for one in seen:
            found.append(reconstruct(one, generator))
            progress.report(len(found), len(seen))
    return torch.stack([_drawn(one, classes, records) for one in found])


def _drawn(found: Reconstruction, classes: Tensor | None, records: Records) -> Tensor:
    """Candidates (c, *shape) in the order of the classes, the surest of each; NaN where none is."""
    found = found.checked(records.space)
    # Nobody who draws images leaves their range, and clipping only brings a candidate closer.
    candidates = found.candidates.detach().cpu().float().clamp(0, 1)
    order = torch.arange(len(candidates))
    if found.confidence is not None:
        order = found.confidence.detach().cpu().argsort(descending=True, stable=True)
    labels = None if found.labels is None else found.labels.detach().cpu()
    wanted = [1] if classes is None else classes.tolist()
    nothing = torch.full(records.space.shape, float("nan"))
    rows = []
    for place, label in enumerate(wanted):
        if labels is not None and (classes is not None or bool((labels == 1).any())):
            fitting = order[labels[order] == label]
        else:
            fitting = order if classes is None else torch.arange(len(candidates))[place : place + 1]
        rows.append(candidates[fitting[0]] if len(fitting) else nothing)
    return torch.stack(rows)


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


def _decoded(drawn: DrawnHeads, features: Tensor, decoder: Decoder) -> Tensor:
    """What a decoder draws from the true features of the first counted member of each class."""
    first = drawn.counted.float().argmax(2)
    members = drawn.sets.members.gather(1, first)
    classes = drawn.records.y.cpu()[members]
    images = decoder(features[members.flatten()], classes.flatten()).detach().cpu()
    return images.reshape(*members.shape, *images.shape[1:]).clamp(0, 1)


def _class_rates(
    drawn: DrawnHeads,
    own: np.ndarray,
    other: np.ndarray,
    by_class: np.ndarray,
    alpha: float,
    confidence: float,
) -> tuple[ClassRates, ...]:
    if drawn.classes is None:
        return ()
    doubt = (1 - confidence) / 2
    # Jointly for all classes (Bonferroni).
    joint = 1 - (1 - confidence) / own.shape[1]
    found = []
    for place, label in enumerate(drawn.classes.tolist()):
        mine, theirs = own[:, place : place + 1], other[:, place : place + 1]
        point = operating_point(mine, theirs, alpha, joint)
        found.append(
            ClassRates(
                label=drawn.records.space.class_names[label],
                threshold=float(by_class[place]),
                true_positives=clustered_rate(mine <= by_class[place], doubt),
                false_positives=clustered_rate(theirs <= by_class[place], doubt),
                operating_point=point,
                shown=point.lower is not None and point.lower > alpha,
            )
        )
    return tuple(found)
