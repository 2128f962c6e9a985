"""Training heads on given sets and letting a prepared attack read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vestige import progress
from vestige.errors import BadInput, VestigeError, first_line
from vestige.interfaces import ModelRelease, Observation, Reconstruction, Reconstructor, Run
from vestige.networks.headed_model import HeadedModel
from vestige.records import Records, Space
from vestige.simulation.alterations import split_like
from vestige.simulation.backbone_features import features_of
from vestige.simulation.simulator import Simulator
from vestige.simulation.training_sets import OneAgainstRest, TrainingSets
from vestige.studies.heads.rates import members_of_classes, positive_members
from vestige.threats import WeakAdversary
from vestige.victims import ReleasedHead

Decoder = Callable[[Tensor, Tensor], Tensor]
"""Draws images (n, *shape) from features (n, width) and classes (n,)."""


@runtime_checkable
class ReadsMany(Protocol):
    """A prepared attack that reads many heads at once."""

    def many(self, observations: Sequence[Observation]) -> list[Reconstruction]:
        """What it draws of each."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A prepared attack whose decoder can be given features."""

    def decode(self, features: Tensor, labels: Tensor) -> Tensor:
        """What it draws of features (n, width) of records of these labels."""
        ...


@dataclass(frozen=True)
class HeadReadings:
    """What an attack drew of some heads, before it is compared with anything.

    ``images``, ``surrogates`` and ``decoded`` (heads, c, *shape) as in :class:`DrawnHeads`;
    ``confidences`` (heads, c) are the attack's own, ``accuracies`` (heads,) those of the heads.
    """

    images: Tensor
    confidences: Tensor | None = None
    surrogates: Tensor | None = None
    decoded: Tensor | None = None
    accuracies: Tensor | None = None
    releases: tuple[ModelRelease, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """What there is of tensors, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @classmethod
    def joined(cls, parts: Sequence[HeadReadings]) -> HeadReadings:
        """Readings of several blocks of heads as one; what one block lacks is left out."""
        shared = set.intersection(*(set(part.tensors()) for part in parts))
        return cls.of({n: torch.cat([part.tensors()[n] for part in parts]) for n in shared})

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> HeadReadings:
        """The readings that :meth:`tensors` gave."""
        return cls(
            tensors["images"],
            tensors.get("confidences"),
            tensors.get("surrogates"),
            tensors.get("decoded"),
            tensors.get("accuracies"),
        )


def read_heads(
    reconstruct: Reconstructor,
    victim: ReleasedHead,
    records: Records,
    sets: TrainingSets,
    heads: range,
    *,
    streams: Sequence[torch.Generator],
    generator: torch.Generator,
    shadows: Tensor | None = None,
    decoder: Decoder | None = None,
    held_out: Records | None = None,
    releases: Sequence[ModelRelease] | None = None,
) -> HeadReadings:
    """Train some of the heads, each with its own stream, and let the attack read them.

    ``releases`` are heads that are trained already. ``held_out`` records measure accuracy.
    """
    simulator = victim.simulator
    classes = read_classes(victim, records, sets)
    secrets = [_secret(records, sets, head, classes is None) for head in heads]
    if releases is None:
        releases = [victim.release(one, generator=own) for one, own in zip(secrets, streams)]
    fakes = None
    if shadows is not None:
        fakes = gaussian_surrogates(shadows, len(heads), generator=generator)
    seen = [WeakAdversary().observe(Run(*pair)) for pair in zip(secrets, releases)]
    found = _read(reconstruct, seen, generator)
    stated = [c for c in (_confidences(one, classes) for one in found) if c is not None]
    surrogates = None
    if fakes is not None:
        others = [
            Observation(release_of(simulator, fake), one.hints) for fake, one in zip(fakes, seen)
        ]
        read = _read(reconstruct, others, generator)
        surrogates = torch.stack([_drawn(one, classes, records) for one in read])
    if decoder is None and isinstance(reconstruct, Decodes):
        decoder = reconstruct.decode
    decoded = None
    if decoder is not None:
        decoded = _decoded(records, sets, heads, classes, features_of(simulator, records), decoder)
    return HeadReadings(
        torch.stack([_drawn(one, classes, records) for one in found]),
        torch.stack(stated) if len(stated) == len(heads) else None,
        surrogates,
        decoded,
        None if held_out is None else head_accuracies(releases, victim, held_out),
        tuple(releases),
    )


def read_classes(victim: ReleasedHead, records: Records, sets: TrainingSets) -> Tensor | None:
    """The classes that an attack draws one image of each, or None if it draws a single one."""
    if isinstance(victim.training.makeup, OneAgainstRest):
        return None
    return records.y.cpu()[sets.members[0]].unique()


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
    parts = split_like(row, simulator.parameters)
    return ModelRelease({name: part.clone() for name, part in parts.items()})


def head_accuracies(
    releases: Sequence[ModelRelease], victim: ReleasedHead, held_out: Records
) -> Tensor:
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
        for release in releases:
            logits = model.head_outputs(release.tensors, features)
            said = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
            found.append(float((said == wanted).double().mean()))
    return torch.tensor(found, dtype=torch.float64)


def _secret(records: Records, sets: TrainingSets, head: int, single: bool) -> Records:
    """A training set as its head is taught it: one class against the rest has labels of its own."""
    secret = records[sets.members[head]]
    if not single:
        return secret
    space = replace(secret.space, class_names=("another", "this one"))
    return replace(secret, y=sets.targets[head].to(secret.y.device), space=space)


def _read(
    reconstruct: Reconstructor, seen: Sequence[Observation], generator: torch.Generator
) -> list[Reconstruction]:
    """What an attack draws of each head, all at once where it can."""
    if isinstance(reconstruct, ReadsMany):
        return reconstruct.many(seen)
    found = []
    for head, observation in enumerate(seen):
        found.append(reconstruct(observation, generator))
        progress.report(head + 1, len(seen))
    return found


def _confidences(found: Reconstruction, classes: Tensor | None) -> Tensor | None:
    """An attack's confidence (c,) in each drawing, where it has one for each class in order."""
    wanted = 1 if classes is None else len(classes)
    if found.confidence is None or len(found.confidence) != wanted:
        return None
    if classes is not None and found.labels is not None:
        return found.confidence[found.labels.argsort()].detach().cpu().double()
    return found.confidence.detach().cpu().double()


def _drawn(found: Reconstruction, classes: Tensor | None, records: Records) -> Tensor:
    """Candidates (c, *shape) in the order of the classes, the surest of each; NaN where none is."""
    found = found.checked(records.space)
    # Images stay in their range, and clipping only brings a candidate closer.
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


def _decoded(
    records: Records,
    sets: TrainingSets,
    heads: range,
    classes: Tensor | None,
    features: Tensor,
    decoder: Decoder,
) -> Tensor:
    """What a decoder draws from the true features of the first counted member of each class."""
    some = TrainingSets(
        sets.members[heads.start : heads.stop], sets.targets[heads.start : heads.stop]
    )
    first = counted_members(some, records, classes).float().argmax(2)
    members = some.members.gather(1, first)
    labels = records.y.cpu()[members]
    images = drawings_of(decoder, features[members.flatten()], labels.flatten(), records.space)
    return images.reshape(*members.shape, *images.shape[1:]).clamp(0, 1)


def drawings_of(decoder: Decoder, features: Tensor, labels: Tensor, space: Space) -> Tensor:
    """What a decoder draws (n, *shape) from features (n, width), checked."""
    try:
        images = decoder(features, labels)
    except VestigeError:
        raise
    except Exception as error:
        raise BadInput(
            f"The decoder failed on features of shape {tuple(features.shape)} "
            f"({type(error).__name__}: {first_line(error)}): give one that draws an image of each."
        ) from error
    wanted = (len(features), *space.shape)
    if not isinstance(images, Tensor) or images.shape != wanted:
        shape = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise BadInput(f"The decoder returned {shape}: it must return images of shape {wanted}.")
    return images.detach().cpu()


def counted_members(sets: TrainingSets, records: Records, classes: Tensor | None) -> Tensor:
    """Which members of each set (heads, c, n) a reconstruction is compared with."""
    if classes is None:
        return positive_members(sets)
    return members_of_classes(sets, records.y.cpu(), classes)
