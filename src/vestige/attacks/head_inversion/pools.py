"""Pools of examples that decoders learn from: what is estimated of records, and the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from vestige import progress
from vestige.attacks.head_inversion.reading import Heads

if TYPE_CHECKING:
    from vestige.attacks.head_inversion.channels import Channel
    from vestige.attacks.head_inversion.estimators import Estimator
    from vestige.attacks.head_inversion.knowledge import PriorKnowledge
    from vestige.attacks.head_inversion.regression import HeadRegression

Batch = tuple[Tensor, Tensor, Tensor]
"""Decoder's inputs (b, d), groups (b,), the groups' records (b, k, *shape)."""

HEADS_AT_A_TIME = 500
"""Heads that are simulated for the next batches of a pool."""


class Pool(Protocol):
    """Examples without end, from the prior's records and copies of them."""

    @property
    def knowledge(self) -> PriorKnowledge:
        """The records, and what is known of heads."""
        ...

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Examples in random order, for ever."""
        ...

    def learned_from(self, knowledge: PriorKnowledge) -> Pool:
        """The same from other records: some of them, or copies as well."""
        ...


@dataclass(frozen=True)
class ChannelPool:
    """Features of the prior's records through the noise that estimates have."""

    knowledge: PriorKnowledge
    channel: Channel

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Every record once, then every record again."""
        count = len(self.knowledge.places)
        while True:
            order = torch.randperm(count, generator=generator)
            if count < size:
                order = torch.randint(count, (size,), generator=generator)
            for batch in order[: len(order) // size * size].split(size):
                yield self.knowledge.examples(batch, self.channel, generator)

    def learned_from(self, knowledge: PriorKnowledge) -> ChannelPool:
        """The same from other records."""
        return replace(self, knowledge=knowledge)


@dataclass(frozen=True)
class HeadPool:
    """Estimates from heads that are simulated for the purpose, each used once."""

    knowledge: PriorKnowledge
    regression: HeadRegression

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Groups of new heads."""
        known = self.knowledge
        places, groups = known.places, known.groups
        factory = replace(
            known.factory,
            features=known.features[places],
            labels=known.labels[places],
            coefficients=False,
        )
        heads = max(HEADS_AT_A_TIME, -(-size // len(groups)))
        each = groups.size // len(groups)
        while True:
            made = factory.draw(heads, generator=generator)
            rows = self.regression(Heads.of_rows(made.weights, factory.model)).flatten(0, 1)
            members = places[made.sets.members].view(heads * len(groups), each)
            named = torch.arange(len(groups)).repeat(heads)
            order = torch.randperm(len(rows), generator=generator)
            for batch in order[: len(order) // size * size].split(size):
                records = known.pictures[members[batch]].float()
                yield (
                    rows[batch].to(known.device),
                    named[batch].to(known.device),
                    records.to(known.device),
                )

    def learned_from(self, knowledge: PriorKnowledge) -> HeadPool:
        """The same from other records."""
        return replace(self, knowledge=knowledge)


@dataclass(frozen=True)
class EstimatePool:
    """Estimates from heads that were simulated once, used again and again.

    Where a head determines less than its records' features, what is estimated of a record depends
    on the others in its training set: no noise that is drawn for each record alone looks like that.
    ``estimates`` (s, g, d) are kept in half precision; ``members`` (s, n) are places of the prior's
    records. Copies of records have no heads and are left out.
    """

    knowledge: PriorKnowledge
    estimates: Tensor
    members: Tensor

    @classmethod
    def simulated(
        cls,
        knowledge: PriorKnowledge,
        estimator: Estimator,
        heads: int,
        generator: torch.Generator,
    ) -> EstimatePool:
        """Simulate heads on the prior's records and estimate their features."""
        parts, members, done = [], [], 0
        while done < heads:
            size = min(HEADS_AT_A_TIME, heads - done)
            some = knowledge.simulated(size, generator)
            parts.append(estimator(some.heads).half())
            members.append(some.sets.members)
            done += size
            if progress.report(done, heads):
                break
        return cls(knowledge, torch.cat(parts), torch.cat(members))

    def batches(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Every group of every head once, then again."""
        known = self.knowledge
        allowed = torch.zeros(len(known.labels), dtype=torch.bool)
        allowed[known.places] = True
        counts = list(known.groups.counts)
        parts = self.members.split(counts, 1)
        # A group of fewer records names its first one again.
        padded = [
            torch.cat([own, own[:, :1].expand(-1, max(counts) - own.shape[1])], 1) for own in parts
        ]
        records = torch.stack(padded, 1)
        usable = allowed[records].all(2)
        heads, groups = torch.nonzero(usable, as_tuple=True)
        while True:
            order = torch.randperm(len(heads), generator=generator)
            if len(order) < size:
                order = torch.randint(len(heads), (size,), generator=generator)
            for batch in order[: len(order) // size * size].split(size):
                head, group = heads[batch], groups[batch]
                pictures = known.pictures[records[head, group]].float()
                yield (
                    self.estimates[head, group].float().to(known.device),
                    group.to(known.device),
                    pictures.to(known.device),
                )

    def learned_from(self, knowledge: PriorKnowledge) -> EstimatePool:
        """The same with records of these alone; their companions in a head may be others."""
        return replace(self, knowledge=knowledge)
