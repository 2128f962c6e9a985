"""What the attacker makes of its prior before it sees a head: features, statistics, examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from vestige.attacks.head_inversion.affine_copies import AffineCopies
from vestige.attacks.head_inversion.channels import Channel
from vestige.attacks.head_inversion.groups import Groups, GroupStatistics
from vestige.attacks.head_inversion.linear_training import LinearTraining
from vestige.attacks.head_inversion.reading import SimulatedHeads, check_training
from vestige.interfaces import Public
from vestige.records import Records
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of
from vestige.simulation.kinds import head_simulator

POOL_BYTES = 512 << 20
"""Most that the pictures of a pool of copies take."""

POOL_RECORDS = 100_000
"""Copies are made up to so many records: their features cost more than they bring after that."""


@dataclass(frozen=True)
class PriorKnowledge:
    """What the attacker makes of its prior before it sees a head."""

    public: Public
    factory: HeadFactory
    groups: Groups
    statistics: GroupStatistics
    records: GroupStatistics
    pictures: Tensor
    places: Tensor
    device: torch.device

    @classmethod
    def of(cls, public: Public, rank: int, folder: Path | None) -> PriorKnowledge:
        """Find the features of the prior's records and their statistics."""
        simulator = head_simulator(public.simulator)
        model, training = simulator.model, simulator.training
        check_training(training, model.hidden)
        groups, own = Groups.of(training.makeup), public.prior.records
        features, labels = features_of(simulator, own, folder).float(), own.y.cpu()
        # Records of classes that no training set holds are left out.
        wanted = {groups.classes[group] for group in groups.wanted}
        present = torch.tensor([None in wanted or int(label) in wanted for label in labels])
        spanned = model.hidden is not None and training.optimizer == "sgd"
        return cls(
            public,
            HeadFactory(simulator, features, labels, coefficients=spanned),
            groups,
            GroupStatistics.of(groups, features, labels, rank),
            GroupStatistics.of(groups.apart(), features, labels, rank),
            own.x.float().cpu(),
            torch.nonzero(present).flatten(),
            next(model.head.parameters()).device,
        )

    @property
    def features(self) -> Tensor:
        """Features (n, d) of the prior's records."""
        return self.factory.features

    @property
    def hidden(self) -> int | None:
        """Hidden units of the head; None if it is linear."""
        return self.factory.model.hidden

    @property
    def by_adam(self) -> bool:
        """Whether Adam trains the heads: they have no coefficients."""
        return self.factory.training.adaptive

    @property
    def linear(self) -> LinearTraining:
        """Training of a linear head, or the first layer's noise."""
        outputs = self.hidden or self.factory.model.outputs
        return LinearTraining(self.factory.training, self.groups, outputs)

    def simulated(self, count: int, generator: torch.Generator) -> SimulatedHeads:
        """Heads trained on sets of the prior's records; with coefficients for a hidden layer."""
        return SimulatedHeads.drawn(self.factory, count, generator)

    @property
    def labels(self) -> Tensor:
        """Classes (n,) of the prior's records."""
        return self.factory.labels

    @cached_property
    def record_operations(self) -> int:
        """Floating-point operations of the backbone on one record, as torch counts them."""
        simulator, model = self.public.simulator, self.factory.model
        like = next(model.head.parameters())
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.features(simulator.inputs(self.pictures[:1].to(like)))
        return counter.get_total_flops()

    def with_copies(self, copies: AffineCopies, generator: torch.Generator) -> PriorKnowledge:
        """The same with copies of the pictures as further records; statistics stay.

        Pictures are kept in half precision, and sets of copies left out that do not fit.
        """
        space, count = self.public.space, len(self.pictures)
        fitting = POOL_BYTES // max(1, 2 * self.pictures.numel())
        affordable = min(fitting, max(2, POOL_RECORDS // max(1, count))) - 1
        pictures, features = [self.pictures.half()], [self.features]
        for place in range(min(copies.sets, affordable)):
            altered = copies(self.pictures.float(), place, generator).clamp(0, 1)
            records = Records(altered, self.labels, space)
            features.append(features_of(self.public.simulator, records).float())
            pictures.append(altered.half())
        sets = len(pictures)
        offsets = count * torch.arange(sets)[:, None]
        factory = replace(
            self.factory, features=torch.cat(features), labels=self.labels.repeat(sets)
        )
        return replace(
            self,
            factory=factory,
            pictures=torch.cat(pictures),
            places=(self.places + offsets).flatten(),
        )

    def examples(
        self, batch: Tensor, channel: Channel, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Estimated features, groups and the groups' records, for places of the prior's records."""
        first = self.places[batch]
        labels = self.labels[first]
        index = {label: group for group, label in enumerate(self.groups.classes)}
        if None in index:
            groups = torch.zeros_like(labels)
        else:
            groups = torch.tensor([index[int(label)] for label in labels])
        most = max(self.groups.counts[group] for group in self.groups.wanted)
        members = first[:, None].expand(-1, most).clone()
        if most > 1:
            members[:, 1:] = self._companions(labels, groups, members[:, 1:], generator)
        blurred = channel(self.features[members].mean(1), groups, generator)
        device = self.device
        return blurred.to(device), groups.to(device), self.pictures[members].float().to(device)

    def _companions(
        self, labels: Tensor, groups: Tensor, members: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Other records of the same class, as many as a group holds."""
        classes = self.labels[self.places]
        counts, companions = torch.tensor(self.groups.counts), members.clone()
        for group, label in enumerate(self.groups.classes):
            rows = torch.nonzero(groups == group).flatten()
            pool = self.places if label is None else self.places[classes == label]
            size = (len(rows), int(counts[group]) - 1)
            chosen = pool[torch.randint(len(pool), size, generator=generator)]
            companions[rows[:, None], torch.arange(size[1])] = chosen
        return companions

    def drawn_features(self, drawings: Tensor) -> Tensor:
        """Features of drawings (n, *shape)."""
        space = self.public.space
        if space.bounds is not None:
            drawings = drawings.clamp(*space.bounds)
        labels = torch.zeros(len(drawings), dtype=torch.long)
        return features_of(self.public.simulator, Records(drawings.cpu(), labels, space)).float()
