"""The study of published heads: rates, pictures, a verdict, and what DP-SGD changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from vestige import progress
from vestige.choices import check_fields, check_object, check_whole
from vestige.content import code_digest, combined_digest, tensors_digest
from vestige.errors import BadInput, Interrupted
from vestige.interfaces import Attack, Reconstructor
from vestige.mechanisms import DPSGD
from vestige.networks.backbone_change import UNCHECKED
from vestige.records import Prior, Records
from vestige.reports.heads import HeadFindings, PrivacyPoint
from vestige.reports.numbers import count
from vestige.reports.parts import AttackDescription, Check, Picture
from vestige.simulation.backbone_features import features_of
from vestige.simulation.training_sets import ClassCounts, OneAgainstRest, TrainingSets
from vestige.streams import stream
from vestige.studies.declared import Declared
from vestige.studies.heads.accuracy import accuracy_facts, tested_records
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.judge import head_limits
from vestige.studies.heads.measure import (
    check_heads,
    drawn_heads,
    head_exhibit,
    middle_class,
    middle_head,
    nearest_member,
)
from vestige.studies.heads.preflight import check_features, check_parts, check_sets
from vestige.studies.heads.privacy_points import StudiedHeads, privacy_point
from vestige.studies.heads.rates import nearest_neighbor_thresholds
from vestige.studies.heads.reading import Decoder, HeadReadings, read_heads
from vestige.studies.report_parts import (
    attack_facts,
    attack_settings,
    describe_space,
    describe_threat,
    environment,
)
from vestige.studies.study import Header
from vestige.studies.unit_files import UnitResult, damaged_unit, unit_bytes
from vestige.threats import WeakAdversary
from vestige.victims import ReleasedHead

BLOCK = 25
"""Heads of one unit: attacks that read many heads at once are faster in blocks."""


@dataclass(frozen=True)
class HeadStudy(Declared):
    """Attack ``heads`` heads that share no image of ``records``, counted as the paper does.

    ``mechanisms`` repeat it with heads that DP-SGD trained on the same sets, the attack prepared
    for each; δ is n^(−1.1) for n training images, as in the paper. The accuracy of heads is
    measured on ``held_out``, or on the prior's records where none are given and no mechanism asks
    for them. ``shadows`` (n, size) are weights of simulated heads, for the Gaussian surrogates of
    the paper; ``decoder`` draws the ceiling from true features. A unit of work is a
    block of heads under one mechanism. More ``heads`` in the same folder are added to those that
    are there; the kth addition leaves limits and tests 1/(k(k + 1)) of the error that
    ``confidence`` allows, so that all additions together stay within it.
    """

    attack: Attack
    victim: ReleasedHead
    records: Records
    prior: Prior
    heads: int
    title: str = ""
    held_out: Records | None = None
    mechanisms: Sequence[DPSGD] = ()
    shadows: Tensor | None = field(default=None, repr=False)
    decoder: Decoder | None = None
    false_positive_rate: float = 0.01
    confidence: float = 0.95

    kind = "head study"

    def __post_init__(self) -> None:
        check_fields(self)
        check_object("victim of HeadStudy", self.victim, ReleasedHead)
        check_object("attack of HeadStudy", self.attack, Attack)
        check_object("records of HeadStudy", self.records, Records)
        check_object("prior of HeadStudy", self.prior, Prior)
        check_whole("heads of HeadStudy", self.heads)
        if not 0 < self.false_positive_rate < 1 or not 0 < self.confidence < 1:
            raise BadInput("false_positive_rate and confidence lie strictly between 0 and 1.")
        self._check_parts()
        self._check_classes()

    def _check_parts(self) -> None:
        shared = set(self.records.fingerprints()) & set(self.prior.records.fingerprints())
        if shared:
            raise BadInput(
                f"{len(shared)} images are in both the records and the prior: split one dataset "
                "with Records.split, which keeps the parts disjoint."
            )
        untold = isinstance(self.victim.training.makeup, OneAgainstRest)
        if self.mechanisms and (self.held_out is None or untold):
            raise BadInput(
                "What noise costs is measured as accuracy: give held_out records, and a head that "
                "tells the records' classes apart."
            )
        check_parts(self.victim, self.records, self.held_out, self.shadows)

    def _check_classes(self) -> None:
        """Say before any preparation which class holds too few images for the heads asked for."""
        records, makeup = self.records, self.victim.training.makeup
        check_heads(records, self.heads)
        if records.space != self.prior.space:
            raise BadInput(
                "Records and prior describe different spaces: load them from one dataset."
            )
        if not isinstance(makeup, ClassCounts):
            return
        if len(makeup.counts) != records.classes:
            raise BadInput(
                f"The makeup names {len(makeup.counts)} classes and the records have "
                f"{records.classes}: give one count for each class."
            )
        for label, wanted in enumerate(makeup.counts):
            if wanted and not len(self.prior.members(label)):
                raise BadInput(
                    f"The prior holds no image of class {records.space.class_names[label]!r}: give "
                    "a prior with images of every class of the heads."
                )

    @property
    def heading(self) -> str:
        """The title of the report."""
        return self.title or "Published heads"

    @cached_property
    def victims(self) -> tuple[ReleasedHead, ...]:
        """The victim, and the same victim trained under each mechanism."""
        training = self.victim.training
        private = (
            replace(training, private=one, momentum=0.0, batch_size=None) for one in self.mechanisms
        )
        return (self.victim, *(replace(self.victim, training=one) for one in private))

    @cached_property
    def tested(self) -> Records | None:
        """Records on which the accuracy of heads is measured, if it can be."""
        return tested_records(self.victim.training.makeup, self.prior, self.held_out)

    @property
    def blocks(self) -> int:
        """Units under one mechanism."""
        return -(-self.heads // BLOCK)

    @property
    def size(self) -> int:
        """How many heads; more can be added later."""
        return self.heads

    def resized(self, size: int) -> HeadStudy:
        """The same study with another number of heads."""
        return replace(self, heads=size)

    def block(self, number: int) -> tuple[int, range]:
        """The mechanism of a unit, and its heads."""
        block, which = divmod(number, len(self.victims))
        return which, range(block * BLOCK, min((block + 1) * BLOCK, self.heads))

    def identity(self) -> str:
        """Digest of records, model, attack and settings, but for the number of heads."""
        facts = [self.heading, self.false_positive_rate, self.confidence]
        facts += [self.attack.name, attack_settings(self.attack), self.victim.describe()]
        facts += [repr(self.victim.training), repr(self.victim.model), *map(repr, self.mechanisms)]
        facts += [self._given(), BLOCK]
        parts = [self.records, self.prior.records]
        parts += [] if self.held_out is None else [self.held_out]
        tensors = {f"model/{n}": t for n, t in self.victim.model.state_dict().items()}
        tensors |= {f"labels/{n}": one.y for n, one in enumerate(parts)}
        if self.shadows is not None:
            tensors["shadows"] = self.shadows
        marks = ["".join(one.fingerprints()) for one in parts]
        return combined_digest(self.kind, json.dumps(facts), *marks, tensors_digest(tensors))

    def _given(self) -> list[str]:
        """What backbone and decoder give for two images: their code is in no repr."""
        some, found = self.records[:2], []
        with suppress(Exception):  # the preflight says what is wrong with them
            found.append(features_of(self.victim.simulator, some).cpu())
            if self.decoder is not None:
                found.append(self.decoder(found[0], some.y.cpu()).cpu())
        spread = [one.flatten()[:: max(1, one.numel() // 50)] for one in found]
        return [f"{value:.4g}" for one in spread for value in one.tolist()]

    def code(self) -> dict[str, str]:
        """Digest of the attack's code."""
        return {self.attack.name: code_digest(self.attack)}

    def preflight(self, seed: int) -> tuple[Check, ...]:
        """Check training sets, backbone and decoder before anything is prepared."""
        check_sets(self.sets(seed))
        parts = (self.records, self.prior.records, self.held_out)
        check_features(self.victim, parts, self.decoder)
        return ()

    def sets(self, seed: int) -> TrainingSets:
        """The training sets, which share no image; the same under every mechanism."""
        makeup = self.victim.training.makeup
        return makeup.draw(
            self.records.y, self.heads, disjoint=True, generator=stream(seed, "heads")
        )

    def units(self) -> list[str]:
        """Blocks of heads, each without and with each mechanism."""
        names = []
        for number in range(self.blocks * len(self.victims)):
            which, heads = self.block(number)
            under = "" if which == 0 else f", mechanism {which} of {len(self.mechanisms)}"
            names.append(f"heads {heads.start + 1} to {heads.stop}{under}")
        return names

    def prepare(self, seed: int) -> HeadWork:
        """Prepare the attack for every mechanism."""
        prepared = []
        for number, victim in enumerate(self.victims):
            public = WeakAdversary().public(victim, self.prior)
            # A model of its own, so that the attack cannot change the victim's.
            own = public.simulator.copied()
            with progress.part(self.attack.name):
                prepared.append(
                    self.attack.prepare(
                        replace(public, simulator=own),
                        generator=stream(seed, "prepare", self.attack.name, number),
                    )
                )
        return HeadWork(self, tuple(prepared), self.sets(seed), seed)

    def check(self, result: UnitResult) -> None:
        """Raise BadInput if a stored block does not hold the images of its heads."""
        _, heads = self.block(result.number)
        if "images" not in result.tensors or len(result.tensors["images"]) != len(heads):
            raise BadInput(damaged_unit(result.number))

    def findings(self, results: Sequence[UnitResult], about: Header) -> HeadFindings:
        """Rates and pictures of the heads that were read."""
        sets, confidence = self.sets(about.seed), self._confidence(about.earlier_sizes)
        studied = []
        for number in range(len(self.victims)):
            own = [one for one in results if self.block(one.number)[0] == number]
            if len(own) == self.blocks:
                studied.append(self._studied(own, sets, about.seed, number, confidence))
        if not studied:
            if about.failure is not None and about.failure.attack is None:
                done = f"{len(results)} of {self.blocks} blocks of heads, which are kept"
                raise Interrupted(f"Stopped after {done}. Rerun the same command to resume.")
            raise BadInput("Too few heads are finished to report on any: rerun the same command.")
        thresholds = nearest_neighbor_thresholds(self.records, self.prior.records)
        main = studied[0]
        shown = middle_head(main.drawn)
        privacy: tuple[PrivacyPoint, ...] = ()
        secret = None
        if self.mechanisms and len(studied) == len(self.victims):
            place = middle_class(main.drawn, shown)
            known = [one.training.private for one in self.victims]
            privacy = tuple(privacy_point(m, s, shown, place) for m, s in zip(known, studied))
            privacy = tuple(sorted(privacy, key=lambda p: (p.epsilon is None, p.epsilon or 0.0)))
            nearest = nearest_member(main.drawn, main.drawn.images, shown, place, own=True)
            secret = Picture.of(nearest.numpy())
        briefing = WeakAdversary().briefing(self.victim, self.victim.training.makeup.size)
        return HeadFindings(
            title=self.heading,
            space=describe_space(self.records.space),
            threat=describe_threat(
                briefing,
                f"{count(len(self.prior.records))} other records of the same kind; no training "
                "image is among them.",
            ),
            attack=AttackDescription(**attack_facts(self.attack.name, self.attack)),
            rates=main.rates,
            exhibit=head_exhibit(main.drawn, shown, thresholds),
            privacy=privacy,
            privacy_secret=secret,
            **accuracy_facts(
                main.accuracies,
                self.victim.training.makeup,
                self.tested,
                held_out=self.held_out is not None,
            ),
            seed=about.seed,
            limits=head_limits(main.rates, about.earlier_sizes, self.confidence)
            + tuple(one for one in self.victim.model.remarks if one == UNCHECKED),
            settings={
                **self.victim.describe(),
                "Heads": _heads_in_words(self.heads, about.earlier_sizes),
                "Images to train on, prior": f"{count(len(self.records))}, "
                f"{count(len(self.prior.records))}",
                "Seed": str(about.seed),
            },
            environment=environment(next(iter(self.victim.model.parameters())).device),
            failure=about.failure,
            preflight=about.preflight,
            times=about.times,
            blocks_planned=self.blocks * len(self.victims),
            blocks_finished=len(results),
        )

    def _confidence(self, earlier_sizes: Sequence[int]) -> float:
        """The confidence of a report after so many additions; their errors sum to that planned."""
        additions = len(earlier_sizes)
        return 1 - (1 - self.confidence) / max(1, additions * (additions + 1))

    def _studied(
        self,
        results: Sequence[UnitResult],
        sets: TrainingSets,
        seed: int,
        number: int,
        confidence: float,
    ) -> StudiedHeads:
        readings = HeadReadings.joined([HeadReadings.of(one.tensors) for one in results])
        drawn = drawn_heads(
            readings,
            self.records,
            sets,
            self.victims[number],
            self.prior,
            generator=stream(seed, "prior draws", number),
        )
        thresholds = nearest_neighbor_thresholds(self.records, self.prior.records)
        rates = rates_of(drawn, thresholds, self.false_positive_rate, confidence)
        accuracies = readings.accuracies
        return StudiedHeads(drawn, rates, None if accuracies is None else accuracies.numpy())


@dataclass(frozen=True)
class HeadWork:
    """Trains a block of heads and lets the prepared attack read them."""

    study: HeadStudy
    prepared: tuple[Reconstructor, ...]
    sets: TrainingSets
    seed: int

    def __call__(self, number: int) -> bytes:
        """Train and read one block; every head has its own stream of randomness."""
        study = self.study
        which, heads = study.block(number)
        victim, block = study.victims[which], heads.start // BLOCK
        readings = read_heads(
            self.prepared[which],
            victim,
            study.records,
            self.sets,
            heads,
            streams=[stream(self.seed, "head", which, head) for head in heads],
            generator=stream(self.seed, "attacker", which, block),
            shadows=study.shadows if which == 0 else None,
            decoder=study.decoder if which == 0 else None,
            held_out=study.tested,
        )
        return unit_bytes("{}", readings.tensors())


def _heads_in_words(heads: int, earlier_sizes: Sequence[int]) -> str:
    """How many heads, and from how many they were extended."""
    if not earlier_sizes:
        return count(heads)
    return f"{count(heads)}, extended from {', '.join(map(count, earlier_sizes))}"
