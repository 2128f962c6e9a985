"""Worlds of published heads, and what an attack makes of them: shared by several benchmarks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vestige import Prior, Records, datasets
from vestige.attacks.head_inversion.inverter import HeadInverter
from vestige.attacks.head_inversion.pools import ChannelPool
from vestige.attacks.head_inversion.reading import Heads, read_head
from vestige.interfaces import Attack, Reconstructor
from vestige.networks import HeadedModel
from vestige.priors.component_decoders import ridge_solution
from vestige.reports.heads import HeadRates
from vestige.simulation.backbone_features import cache_folder, features_of
from vestige.simulation.losses import logistic
from vestige.streams import stream
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.measure import DrawnHeads, reconstruct_heads
from vestige.studies.heads.rates import Thresholds, nearest_neighbor_thresholds
from vestige.studies.heads.reading import Decoder
from vestige.threats import WeakAdversary
from vestige.victims import HeadTraining, OneAgainstRest, ReleasedHead

COUNTS = ("pooled", "per class", "class-normalised")

PUBLIC_PEOPLE = 30
"""People of the Olivetti faces that backbone and attacker may know; heads are of the other ten."""

PENALTIES = (100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0)
"""Of ridge regression on standardised features, to choose from."""

PAPER_FACES = HeadTraining(
    OneAgainstRest(1, 9),
    epochs=100,
    learning_rate=0.02,
    weight_decay=1e-2,
    class_weights=(1.0, 10.0),
    initial_deviation=0.0002,
)
"""Training of the face recogniser of Maciazek and Allison 2025, Table 3."""


@dataclass(frozen=True)
class World:
    """Heads to attack: their victim, the images they are trained on, and the attacker's."""

    victim: ReleasedHead
    secrets: Records
    public: Records
    thresholds: Thresholds

    @classmethod
    def of(cls, victim: ReleasedHead, secrets: Records, public: Records) -> World:
        """The same, with the nearest-neighbour thresholds of these images."""
        return cls(victim, secrets, public, nearest_neighbor_thresholds(secrets, public))


@dataclass(frozen=True)
class Attacked:
    """What an attack drew, its rates and its CPU seconds."""

    drawn: DrawnHeads
    rates: HeadRates
    seconds: float
    reconstruct: Reconstructor

    def rate(self, way: str) -> float:
        """TPR at FPR = .01 in percent, in one way to count."""
        found = {counted.name: counted for counted in self.rates.counted}
        return 100 * found[way].operating_point.true_positive_rate

    def limits(self, way: str) -> str:
        """Its limits in words."""
        found = {counted.name: counted for counted in self.rates.counted}
        point = found[way].operating_point
        if point.lower is None or point.upper is None:
            return "too few heads for limits"
        return f"{100 * point.lower:.1f} to {100 * point.upper:.1f}"

    def confidence_area(self) -> float:
        """How often the attack is surer of a right drawing (within τ) than of a wrong one."""
        assert self.drawn.confidences is not None
        right = torch.tensor(self.drawn.errors(self.drawn.images) <= self.rates.threshold)
        sure = self.drawn.confidences
        return float((sure[right][:, None] > sure[~right][None]).double().mean())


def attacked(world: World, attack: Attack, heads: int, seed: int) -> Attacked:
    """Prepare an attack and let it read heads, no record in two of them."""
    threat = WeakAdversary()
    prior = Prior(world.public)
    public = threat.public(world.victim, prior)
    # Computed once and kept; the paper's costs leave them out too.
    features_of(public.simulator, world.public, cache_folder())
    before = time.process_time()
    reconstruct = attack.prepare(public, generator=stream(seed, "prepare"))
    drawn = reconstruct_heads(
        reconstruct,
        world.victim,
        world.secrets,
        heads,
        prior=prior,
        generator=stream(seed, "heads"),
    )
    seconds = time.process_time() - before
    return Attacked(drawn, rates_of(drawn, world.thresholds, 0.01, 0.95), seconds, reconstruct)


def face_parts() -> tuple[Records, Records]:
    """Olivetti faces of the people that the attacker knows, and of the ten others."""
    people = datasets.load("olivetti")
    return people[people.y < PUBLIC_PEOPLE], people[people.y >= PUBLIC_PEOPLE]


def face_world(
    backbone: nn.Module, width: int, training: HeadTraining, hidden: int | None = 4
) -> World:
    """Heads that know one face among nine others, by the head's training."""
    public, secrets = face_parts()
    victim = ReleasedHead(HeadedModel(backbone, width, 1, hidden=hidden), training)
    return World.of(victim, secrets, public)


def recognition(found: Attacked, world: World) -> tuple[float, float]:
    """Balanced accuracy of heads of one person against others, and their training loss.

    Accuracy is on pictures that the head was not trained on: the person's own other ones, and
    those of all others.
    """
    model, records = world.victim.model, world.secrets
    features, people = features_of(world.victim.simulator, records), records.y.cpu()
    right, losses = [], []
    sets = found.drawn.sets
    for release, members, targets in zip(found.drawn.releases, sets.members, sets.targets):
        with torch.no_grad():
            logits = model.head_outputs(release.tensors, features)
        unseen = torch.ones(len(people), dtype=torch.bool)
        unseen[members] = False
        own, said = people == people[members[0]], logits[:, 0] > 0
        shares = said[own & unseen].float().mean(), (~said[~own & unseen]).float().mean()
        right.append(float(sum(shares)) / 2)
        taught = nn.functional.one_hot(targets, 2).to(logits)
        losses.append(float(logistic(logits[members], taught).mean()))
    return sum(right) / len(right), sum(losses) / len(losses)


@dataclass(frozen=True)
class TrueFeatures:
    """What a decoder draws of the records' true features: ``drawn.decoded``.

    ``rates`` are counted like those of the attack, as its ceiling. ``seen`` and ``unseen`` are mean
    squared errors on the attacker's records and on those of the heads, as shares of that of the
    attacker's mean picture.
    """

    rates: HeadRates
    drawn: DrawnHeads
    seen: float
    unseen: float


def from_true_features(found: Attacked, world: World, seed: int) -> TrueFeatures:
    """Train the attack's decoder again, on features without a head's errors, and let it draw."""
    attack, generator = found.reconstruct, stream(seed, "true features")
    assert isinstance(attack, HeadInverter)
    pool = ChannelPool(attack.knowledge, lambda rows, groups, _: rows)
    decoder = attack.recipe.made(pool, generator)
    return drawn_from_true_features(found, world, replace(attack, decoder=decoder).decode)


def drawn_from_true_features(found: Attacked, world: World, decode: Decoder) -> TrueFeatures:
    """What ``decode`` draws of features and labels, for the heads' records and the attacker's."""
    assert isinstance(found.reconstruct, HeadInverter)
    known, drawn = found.reconstruct.knowledge, found.drawn
    features = features_of(world.victim.simulator, world.secrets, cache_folder()).float()
    members = drawn.sets.members.gather(1, drawn.counted.float().argmax(2))
    labels = world.secrets.y.cpu()[members]
    images = decode(features[members.flatten()], labels.flatten()).clamp(0, 1)
    own = decode(known.features, known.labels).clamp(0, 1)
    drawn = replace(drawn, decoded=images.view(*members.shape, *images.shape[1:]))
    mean, records = known.pictures.mean(0), world.secrets.x.float()[members.flatten()]
    return TrueFeatures(
        rates_of(drawn, world.thresholds, 0.01, 0.95),
        drawn,
        float((own - known.pictures).square().mean() / (mean - known.pictures).square().mean()),
        float((images - records).square().mean() / (mean - records).square().mean()),
    )


def ridge_decoder(found: Attacked) -> tuple[Decoder, float]:
    """Pictures by ridge regression on true features, and its penalty.

    The penalty is the one of ``PENALTIES`` with the least error on the attacker's records that it
    was not fitted to, in three folds; of one class against the rest these are folds of classes.
    """
    assert isinstance(found.reconstruct, HeadInverter)
    known = found.reconstruct.knowledge
    features, labels = known.features.double(), known.labels
    pictures = known.pictures.flatten(1).double()
    apart = None in known.groups.classes
    classes = 1 if apart else int(labels.max()) + 1
    mean, deviation = features.mean(0), features.std(0).clamp_min(1e-6 + 1e-3 * features.std())

    def rows(features: Tensor, labels: Tensor) -> Tensor:
        taught = nn.functional.one_hot(labels * (not apart), classes)
        return torch.cat([(features.double() - mean) / deviation, taught.double()], 1)

    inputs, middle = rows(features, labels), pictures.mean(0)
    fold = (labels if apart else torch.arange(len(labels))) % 3
    errors = torch.zeros(len(PENALTIES), dtype=torch.float64)
    for held in range(3):
        kept, left = inputs[fold != held], inputs[fold == held]
        normal, right = kept.T @ kept, kept.T @ (pictures[fold != held] - middle)
        for place, penalty in enumerate(PENALTIES):
            drawn = left @ ridge_solution(normal, right, penalty) + middle
            errors[place] += (drawn - pictures[fold == held]).square().sum()
    penalty = PENALTIES[int(errors.argmin())]
    slopes = ridge_solution(inputs.T @ inputs, inputs.T @ (pictures - middle), penalty)

    def decode(features: Tensor, labels: Tensor) -> Tensor:
        drawn = rows(features, labels) @ slopes + middle
        return drawn.float().view(-1, *known.pictures.shape[1:])

    return decode, penalty


def explained_features(found: Attacked, world: World) -> float:
    """R² of the estimated features of what is drawn, around the prior's means."""
    features = features_of(world.victim.simulator, world.secrets, cache_folder()).float()
    attack, sets = found.reconstruct, found.drawn.sets
    assert isinstance(attack, HeadInverter)
    known = attack.knowledge
    heads = [read_head(release.tensors, known.public) for release in found.drawn.releases]
    wanted = list(known.groups.wanted)
    estimated = attack.estimator(Heads.joined(heads))[:, wanted]
    true = known.groups.means(features[sets.members])[:, wanted]
    away = (true - known.statistics.mean[wanted]).square().sum()
    return 1 - float((estimated - true).square().sum() / away)
