"""One unit: a release that holds a chosen record, and releases that hold another in its place.

Both are drawn by one rule, so that under the null hypothesis hits of a record have one
probability in both: a stand-in of the record's class is drawn, then decoys of the class, then
companions, and none of them is a chosen record. In the release the slot holds the record; in a
control it holds the stand-in. Hits are always those of the chosen record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vestige import progress
from vestige.errors import BadInput
from vestige.interfaces import Reconstruction, Reconstructor
from vestige.reports.document import Document
from vestige.reports.risk import RecordHits
from vestige.simulation.head import HeadSimulator
from vestige.simulation.training_sets import ClassCounts
from vestige.streams import stream
from vestige.studies.audit.evidence import (
    capped,
    costs_between,
    matched_candidates,
    rank_among,
    record_and_decoys,
    slot_distances,
)
from vestige.studies.audit.trials import AttackStopped, checked, completing, release_of
from vestige.studies.unit_files import unit_bytes

if TYPE_CHECKING:
    from vestige.studies.audit.plan import Audit

MOST_SEARCHED = 2000
"""Records among which outliers are looked for: the first ones of a random order."""


@dataclass(frozen=True)
class Choice:
    """The records that are released again and again, as places in the pool; outliers come last.

    ``neighbors`` are the distances to their nearest neighbour in the pool.
    """

    places: tuple[int, ...]
    outliers: int
    neighbors: tuple[float, ...]

    def group(self, number: int) -> str:
        """Why a record was chosen."""
        return "outlier" if number >= len(self.places) - self.outliers else "random"


@dataclass(frozen=True)
class Batch:
    """Places of a drawn batch: companions around a slot, a stand-in for it, decoys."""

    companions: tuple[int, ...]
    slot: int
    stand_in: int
    decoys: tuple[int, ...]

    def holding(self, place: int) -> list[int]:
        """The batch with a record at the slot."""
        return [*self.companions[: self.slot], place, *self.companions[self.slot :]]


class UnitFacts(Document):
    """Ranks that a unit measured, by attack.

    ``ranks`` are those of its own record; ``controls`` hold for each control the ranks of all
    chosen records of the class, as pairs of their number and rank.
    """

    record: int
    repeat: int
    ranks: dict[str, int]
    controls: dict[str, tuple[tuple[tuple[int, int], ...], ...]]


def hits_of_record(
    facts: Sequence[UnitFacts], number: int, attack: str, allowed: int
) -> RecordHits:
    """Hits of a chosen record by an attack: ranks of at most ``allowed``, with it and without."""
    own = [one.ranks[attack] for one in facts if one.record == number]
    without = [
        rank
        for one in facts
        for control in one.controls[attack]
        for seen, rank in control
        if seen == number
    ]
    return RecordHits(
        hits=sum(rank <= allowed for rank in own),
        releases=len(own),
        control_hits=sum(rank <= allowed for rank in without),
        controls=len(without),
    )


def choose(audit: Audit, count: int, outliers: int, seed: int) -> Choice:
    """Records at random, and those farthest from their nearest neighbour in the pool."""
    pool = audit.secrets
    order = torch.randperm(len(pool), generator=stream(seed, "risk records")).tolist()
    distance = audit.distances[0]

    def neighbor(place: int) -> float:
        row = costs_between(distance, pool.x, pool.x[[place]])[:, 0]
        row[place] = float("inf")
        return float(row.min())

    far: list[int] = []
    if outliers:
        searched = order[:MOST_SEARCHED]
        known = {place: neighbor(place) for place in searched}
        far = sorted(searched, key=lambda place: -known[place])[:outliers]
    drawn = [place for place in order if place not in far][:count]
    places = (*drawn, *far)
    return Choice(places, len(far), tuple(neighbor(place) for place in places))


def draw_batch(audit: Audit, choice: Choice, label: int, generator: torch.Generator) -> Batch:
    """Draw stand-in, decoys and companions for a slot of a class, none of them chosen."""
    pool = audit.secrets
    free = torch.ones(len(pool), dtype=torch.bool)
    free[list(choice.places)] = False
    members = torch.nonzero(free & (pool.y.cpu() == label)).flatten()
    count = audit.decoy_count
    if len(members) < count + 1:
        raise BadInput(
            f"The secrets hold {len(members)} records of class {pool.space.class_names[label]!r} "
            f"beside the chosen ones, but a release needs {count} decoys and a stand-in: give more "
            "secrets, or choose fewer records."
        )
    members = members[torch.randperm(len(members), generator=generator)]
    stand_in, decoys = int(members[0]), members[1 : count + 1]
    free[stand_in] = False
    free[decoys] = False
    rest = torch.nonzero(free).flatten()
    rest = rest[torch.randperm(len(rest), generator=generator)]
    simulator = audit.victim.simulator
    makeup = simulator.training.makeup if isinstance(simulator, HeadSimulator) else None
    if isinstance(makeup, ClassCounts):
        rest = completing(rest, pool.y, label, makeup)
    companions = rest[: audit.batch_size - 1].tolist()
    if len(companions) < audit.batch_size - 1:
        raise BadInput(
            f"A batch of {audit.batch_size} cannot be drawn beside the chosen records and the "
            "decoys: give more secrets, or choose fewer records."
        )
    slot = int(torch.randint(audit.batch_size, (), generator=generator))
    return Batch(tuple(companions), slot, stand_in, tuple(decoys.tolist()))


@dataclass(frozen=True)
class ReleaseWork:
    """The releases of a study as units of work; attacks come prepared."""

    audit: Audit
    choice: Choice
    reconstructors: Mapping[str, Reconstructor]
    repeats: int
    controls: int
    seed: int

    def __call__(self, number: int) -> bytes:
        """Run one release that holds a record, and its controls."""
        record, repeat = divmod(number, self.repeats)
        pool, chosen = self.audit.secrets, self.choice.places
        label = int(pool.y[chosen[record]])
        same = [n for n, place in enumerate(chosen) if int(pool.y[place]) == label]
        tensors: dict[str, Tensor] = {}
        ranks: dict[str, int] = {}
        controls: dict[str, list[tuple[tuple[int, int], ...]]] = {
            name: [] for name in self.reconstructors
        }
        for arm in range(1 + self.controls):
            generator = stream(self.seed, "risk batch", number, arm)
            batch = draw_batch(self.audit, self.choice, label, generator)
            held = chosen[record] if arm == 0 else batch.stand_in
            judged = [record] if arm == 0 else same
            for name, found in self._found(batch, held, number, arm):
                seen = tuple((n, self._rank(found, batch, chosen[n])) for n in judged)
                if arm:
                    controls[name].append(seen)
                    continue
                ranks[name] = seen[0][1]
                if repeat == 0:
                    secret = pool[batch.holding(held)]
                    matched = matched_candidates(found, secret, batch.slot, self.audit.distances[0])
                    tensors[f"matched/{name}"] = matched[batch.slot]
        facts = UnitFacts(
            record=record,
            repeat=repeat,
            ranks=ranks,
            controls={name: tuple(seen) for name, seen in controls.items()},
        )
        return unit_bytes(facts.model_dump_json(), tensors)

    def _found(
        self, batch: Batch, held: int, number: int, arm: int
    ) -> Sequence[tuple[str, Reconstruction]]:
        """What every attack makes of one release."""
        secret = self.audit.secrets[batch.holding(held)]
        # Every release has a stream of its own, whichever record it holds.
        run = release_of(self.audit, secret, number * (1 + self.controls) + arm, self.seed)
        found = []
        for name, reconstruct in self.reconstructors.items():
            generator = stream(self.seed, "risk attacker", number, arm, name)
            try:
                with progress.part(name):
                    drawn = reconstruct(self.audit.threat.observe(run), generator)
                found.append((name, checked(drawn, self.audit.prior.space)))
            except Exception as cause:
                raise AttackStopped(name, number, cause) from cause
        return found

    def _rank(self, found: Reconstruction, batch: Batch, place: int) -> int:
        """Rank of a record among the decoys if it is put at the slot."""
        pool, distance = self.audit.secrets, self.audit.distances[0]
        candidates = capped(found, self.audit.batch_size).candidates
        to_batch = costs_between(distance, candidates, pool.x[batch.holding(place)])
        own, others = record_and_decoys(
            distance, candidates, pool.x[place], pool.x[list(batch.decoys)]
        )
        far = slot_distances(to_batch, np.concatenate([own, others], 1), batch.slot)
        return rank_among(float(far[0]), far[1:])


def releases_differ(audit: Audit, choice: Choice, seed: int) -> bool:
    """Whether two releases of one record differ by anything: companions, weights, noise."""
    if audit.batch_size > 1:
        return True
    secret = audit.secrets[[choice.places[0]]]
    first, second = (release_of(audit, secret, n, seed).release.tensors for n in (0, 1))
    return any(not torch.equal(first[name], second[name]) for name in first)


def audited_once(audit: Audit) -> Audit:
    """The audit without what only a whole audit uses."""
    return replace(audit, trials=1, exclusivity_stages=())
