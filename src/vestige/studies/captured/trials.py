"""The trials of captured releases: which record each audits, its decoys, and its pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vestige.distances import Distance
from vestige.errors import BadInput
from vestige.interfaces import Attack, Observation, Public
from vestige.records import Records, TextSpace
from vestige.reports.audit import DisjointRanks
from vestige.statistics.permutation_tests import ClassPool
from vestige.streams import stream
from vestige.studies.audit.texts import length_bands
from vestige.studies.audit.trial_files import trial_bytes
from vestige.studies.audit.trials import Draw, attacked, prepare_attacks


@dataclass(frozen=True)
class KnownRelease:
    """A captured release, what its attacker knows, and the batch that was behind it.

    ``name`` says where it came from, such as a round and a client.
    """

    observation: Observation
    public: Public
    secret: Records
    name: str = ""


@dataclass(frozen=True)
class CapturedTrial:
    """One release, the slot of its batch that is audited, its decoys and the pool of its class.

    ``pool`` holds the audited records of all trials of the class in their order, then the others.
    ``apart`` are the slots of the batch whose records other trials audit. They take no part in the
    assignment of candidates: distances in this trial must not depend on which record of the pool
    is the audited one of another.
    """

    release: KnownRelease
    slot: int
    apart: frozenset[int]
    decoys: Records
    pool: Records


@dataclass(frozen=True)
class TrialPlan:
    """All trials, and class by class their numbers and which audited records share a batch.

    ``shared`` (n, n) of a class with n trials says in row t which audited records of others are
    also in the batch of trial t. Texts are compared with texts of their class and of a similar
    length, as in an ``Audit``: each band of lengths of a class is one of ``classes`` then, and key
    k is band k // c of class k % c where there are c classes.
    """

    trials: tuple[CapturedTrial, ...]
    classes: Mapping[int, tuple[int, ...]]
    shared: Mapping[int, np.ndarray]

    @property
    def smallest_pool(self) -> int:
        """Fewest records that a trial's secret and decoys come from."""
        return min(
            len(self.trials[number].pool) - int(row.sum())
            for label, numbers in self.classes.items()
            for number, row in zip(numbers, self.shared[label])
        )

    def class_pools(self, distances: Mapping[str, Sequence[np.ndarray]]) -> list[ClassPool]:
        """What permutation tests take, from a row of distances for each attack and trial."""
        return [
            ClassPool(
                {name: np.stack([rows[n] for n in numbers]) for name, rows in distances.items()},
                self.shared[label],
            )
            for label, numbers in self.classes.items()
        ]

    def disjoint_ranks(
        self, distances: Mapping[str, Sequence[np.ndarray]], seed: int
    ) -> dict[str, DisjointRanks]:
        """Ranks of every trial among other records of its class that no other trial compares with.

        Audited records are in no other trial's set, so given the sets the secret of each is any of
        its own with equal probability, independently, if the release says nothing of it: limits for
        independent trials hold. Empty where a class has fewer other records than trials.
        """
        shares = {
            label: (len(self.trials[numbers[0]].pool) - len(numbers)) // len(numbers)
            for label, numbers in self.classes.items()
        }
        decoys = min(shares.values())
        if decoys < 1:
            return {}
        ranks: dict[str, dict[int, int]] = {name: {} for name in distances}
        for label, numbers in self.classes.items():
            count = len(numbers)
            others = len(self.trials[numbers[0]].pool) - count
            order = count + torch.randperm(others, generator=stream(seed, "disjoint", label))
            for place, number in enumerate(numbers):
                own = order[place * decoys : (place + 1) * decoys].numpy()
                for name, rows in distances.items():
                    row = rows[number]
                    # Ties count against the audited record.
                    ranks[name][number] = 1 + int((row[own] <= row[place]).sum())
        return {
            name: DisjointRanks(
                candidates=decoys + 1, ranks=tuple(found[n] for n in range(len(self.trials)))
            )
            for name, found in ranks.items()
        }


def draw_trials(
    releases: Sequence[KnownRelease], others: Records, decoys: int, seed: int
) -> TrialPlan:
    """One record of each release that no earlier trial has audited, and decoys of its class."""
    prints = [release.secret.fingerprints() for release in releases]
    worlds = [stream(seed, "captured", number) for number in range(len(releases))]
    slots = _audited_slots(releases, prints, worlds)
    keys = [prints[number][slot] for number, slot in enumerate(slots)]
    audited_keys = set(keys)
    labels = [int(r.secret.y[slot]) for r, slot in zip(releases, slots)]
    shared, trials, classes = {}, {}, {}
    for key, numbers, pool in _pools(releases, slots, labels, others, decoys, prints):
        classes[key] = numbers
        held = np.array([[keys[i] in prints[t] for i in numbers] for t in numbers])
        shared[key] = held & ~np.eye(len(numbers), dtype=bool)
        for place, number in enumerate(numbers):
            others_audit = {s for s, one in enumerate(prints[number]) if one in audited_keys}
            trials[number] = CapturedTrial(
                releases[number],
                slots[number],
                frozenset(others_audit - {slots[number]}),
                pool[_decoys(pool, place, shared[key][place], decoys, worlds[number])],
                pool,
            )
    return TrialPlan(tuple(trials[n] for n in range(len(releases))), classes, shared)


def _pools(
    releases: Sequence[KnownRelease],
    slots: Sequence[int],
    labels: Sequence[int],
    others: Records,
    decoys: int,
    prints: Sequence[tuple[str, ...]],
) -> Iterator[tuple[int, tuple[int, ...], Records]]:
    """Key, trials and pool of every class, or of every band of lengths of a class of texts.

    A pool begins with the audited records of its trials in their order. A band holds enough texts
    for the decoys of any trial, after those that share its batch are left out.
    """
    for label in sorted(set(labels)):
        numbers = tuple(number for number, other in enumerate(labels) if other == label)
        audited = torch.stack([releases[n].secret.x[slots[n]].to(others.x) for n in numbers])
        same = others.x[others.y == label]
        whole = torch.full((len(numbers) + len(same),), label)
        pool = Records(torch.cat([audited, same]), whole, others.space)
        if not isinstance(others.space, TextSpace):
            yield label, numbers, pool
            continue
        mates = max(len(prints[number]) for number in numbers) - 1
        bands = length_bands(pool, decoys + 1 + min(mates, len(numbers) - 1))
        for band in sorted(set(bands[: len(numbers)].tolist())):
            chosen = torch.nonzero(bands == band).flatten()
            own = tuple(numbers[place] for place in chosen.tolist() if place < len(numbers))
            yield label + others.classes * band, own, pool[chosen]


def _audited_slots(
    releases: Sequence[KnownRelease],
    prints: Sequence[tuple[str, ...]],
    worlds: Sequence[torch.Generator],
) -> list[int]:
    audited: set[str] = set()
    slots = []
    for number, release in enumerate(releases):
        free = [slot for slot, key in enumerate(prints[number]) if key not in audited]
        if not free:
            raise BadInput(
                f"Every record behind {release.name or f'release {number + 1}'} has been audited "
                "in an earlier trial: audit fewer rounds of the same clients."
            )
        slots.append(free[int(torch.randint(len(free), (), generator=worlds[number]))])
        audited.add(prints[number][slots[-1]])
    return slots


def _decoys(
    pool: Records, audited: int, mates: np.ndarray, count: int, world: torch.Generator
) -> Tensor:
    """Distinct decoys as places in the pool, none of which is in the audited record's batch."""
    left_out = {audited, *np.nonzero(mates)[0].tolist()}
    free = torch.tensor([place for place in range(len(pool)) if place not in left_out])
    if count > len(free):
        raise BadInput(
            f"There are {len(free)} records of class {pool.space.class_names[int(pool.y[0])]!r} to "
            f"compare with, but every trial needs {count} decoys beside its secret: give more "
            "other records, or allow a higher false_positive_rate."
        )
    return free[torch.randperm(len(free), generator=world)[:count]]


@dataclass(frozen=True)
class CapturedWork:
    """The trials of an audit of captured releases as units of work.

    A unit keeps, beside its trial, the distances of every attack to all records of the pool
    (``trials.pool_key``) by every declared distance, which permutation tests need.
    """

    plan: TrialPlan
    attacks: Mapping[str, Attack]
    distances: Sequence[Distance]
    seed: int

    def __call__(self, number: int) -> bytes:
        """Run a trial."""
        trial, seed = self.plan.trials[number], self.seed
        public, secret = trial.release.public, trial.release.secret
        draw = Draw(secret, trial.slot, trial.decoys, trial.apart, trial.pool)
        prepared = prepare_attacks(self.attacks, public, seed, trial=number)
        primary, *further = self.distances
        setting = (number, seed, self.attacks, public.space, primary)
        return trial_bytes(
            attacked(prepared, lambda: trial.release.observation, draw, *setting, further=further)
        )
