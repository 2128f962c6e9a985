"""How the training set of a head is made up: what a weak adversary knows of it, and draws alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput


@dataclass(frozen=True)
class TrainingSets:
    """Training sets drawn from records: ``members`` (s, n) indices, ``targets`` (s, n) labels.

    Targets are what the head is trained to say, which need not be the records' own classes.
    """

    members: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.members.shape[0]


@dataclass(frozen=True)
class ClassCounts:
    """So many records of each class, in the order of the classes.

    ``label_map`` says which output of the head each class is taught as; by default its own. Two
    classes taught as one make a coarser head than the records' labels, for example a binary one.
    """

    counts: tuple[int, ...]
    label_map: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.counts or min(self.counts) < 0 or sum(self.counts) < 1:
            raise BadInput("A training set needs at least one record and no negative counts.")
        if self.label_map is None:
            if min(self.counts) == 0:
                empty = self.counts.index(0)
                raise BadInput(
                    f"Class {empty} has no record in the training set: a head cannot learn it; "
                    "give it one, or leave the class out."
                )
            return
        if len(self.label_map) != len(self.counts):
            raise BadInput(
                f"The label map names {len(self.label_map)} classes, the counts "
                f"{len(self.counts)}: give one label for each class."
            )
        taught = {to for to, count in zip(self.label_map, self.counts) if count}
        if taught != set(range(max(self.label_map) + 1)):
            raise BadInput(
                "A label map teaches every output of the head from 0 on, each by at least one "
                f"record: {self.label_map} with counts {self.counts} leaves some out."
            )

    @classmethod
    def balanced(cls, classes: int, records: int) -> ClassCounts:
        """``records`` in total, as many of every class: ``balanced(10, 20)`` is two of each."""
        if classes < 1 or records < classes or records % classes:
            raise BadInput(
                f"{records} records cannot be shared evenly by {classes} classes: choose a "
                "multiple of the number of classes."
            )
        return cls((records // classes,) * classes)

    @property
    def size(self) -> int:
        """Records in a training set."""
        return sum(self.counts)

    def __str__(self) -> str:
        least, most = min(self.counts), max(self.counts)
        each = f"{least}" if least == most else f"{least} to {most}"
        words = f"{each} of each of {len(self.counts)} classes"
        return words if self.label_map is None else f"{words}, taught as {self.outputs} labels"

    @property
    def outputs(self) -> int:
        """How many labels the head is taught."""
        return len(self.counts) if self.label_map is None else max(self.label_map) + 1

    def taught(self, labels: Tensor) -> Tensor:
        """What the head is taught for records of these classes."""
        if self.label_map is None:
            return labels
        return torch.tensor(self.label_map, device=labels.device)[labels]

    def draw(
        self, labels: Tensor, count: int, *, disjoint: bool = False, generator: torch.Generator
    ) -> TrainingSets:
        """Draw ``count`` training sets from records of these labels, class after class.

        No set holds a record twice; ``disjoint`` ones share none with each other either.
        """
        parts = []
        for label, size in enumerate(self.counts):
            if size == 0:
                continue
            pool = torch.nonzero(labels.cpu() == label).flatten()
            parts.append(pool[drawn(len(pool), count, size, disjoint, label, generator)])
        members = torch.cat(parts, 1)
        return TrainingSets(members, self.taught(labels.cpu()[members]))


@dataclass(frozen=True)
class OneAgainstRest:
    """One class against the others: ``positives`` records of it, ``negatives`` of any other.

    The face recogniser of Maciazek and Allison 2025: the class changes from set to set, the head
    has a single logit, and positives come first.
    """

    positives: int
    negatives: int

    def __post_init__(self) -> None:
        check_fields(self)
        if self.positives < 1 or self.negatives < 1:
            raise BadInput("One class against the rest needs records of both: at least one each.")

    @property
    def size(self) -> int:
        """Records in a training set."""
        return self.positives + self.negatives

    def __str__(self) -> str:
        return f"{self.positives} of one class, {self.negatives} of others"

    @property
    def outputs(self) -> int:
        """How many labels the head is taught: not this one (0), this one (1)."""
        return 2

    def draw(
        self, labels: Tensor, count: int, *, disjoint: bool = False, generator: torch.Generator
    ) -> TrainingSets:
        """Draw ``count`` training sets; ``disjoint`` ones share no positive record."""
        labels = labels.cpu()
        pools = {
            int(c): torch.nonzero(labels == c).flatten()
            for c in labels.unique()
            if int((labels == c).sum()) >= self.positives
        }
        if not pools:
            raise BadInput(
                f"No class has {self.positives} records: give more, or ask for fewer positives."
            )
        if disjoint:
            sets = [
                (label, part)
                for label, pool in pools.items()
                for part in pool[torch.randperm(len(pool), generator=generator)].split(
                    self.positives
                )
                if len(part) == self.positives
            ]
            if count > len(sets):
                raise BadInput(
                    f"These records make {len(sets)} sets that share no positive record, not "
                    f"{count}: ask for fewer."
                )
            order = torch.randperm(len(sets), generator=generator)[:count].tolist()
            chosen = [sets[index] for index in order]
        else:
            classes = list(pools)
            picks = torch.randint(len(classes), (count,), generator=generator).tolist()
            chosen = []
            for pick in picks:
                pool = pools[classes[pick]]
                order = torch.randperm(len(pool), generator=generator)[: self.positives]
                chosen.append((classes[pick], pool[order]))
        rows = []
        for label, positives in chosen:
            others = torch.nonzero(labels != label).flatten()
            if len(others) < self.negatives:
                raise BadInput(
                    f"{len(others)} records are of other classes, {self.negatives} are needed."
                )
            picked = torch.randperm(len(others), generator=generator)[: self.negatives]
            rows.append(torch.cat([positives, others[picked]]))
        targets = torch.tensor([1] * self.positives + [0] * self.negatives)
        return TrainingSets(torch.stack(rows), targets.expand(count, -1).clone())


Makeup = ClassCounts | OneAgainstRest


def drawn(
    pool: int, sets: int, size: int, disjoint: bool, label: int, generator: torch.Generator
) -> Tensor:
    """Places (sets, size) in a pool, distinct within a set, or over all sets."""
    needed = sets * size if disjoint else size
    if pool < needed:
        raise BadInput(
            f"Class {label} has {pool} records, but {needed} are needed"
            + (" for training sets that share none" if disjoint else "")
            + ": give more records, or ask for less."
        )
    if disjoint:
        return torch.randperm(pool, generator=generator)[:needed].reshape(sets, size)
    places = torch.randint(pool, (sets, size), generator=generator)
    while size > 1:
        ordered = places.sort(1).values
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if not bool(twice.any()):
            break
        # Redrawing a whole set keeps every set of distinct records equally likely.
        again = int(twice.sum())
        if pool < 4 * size:
            rows = [torch.randperm(pool, generator=generator)[:size] for _ in range(again)]
            places[twice] = torch.stack(rows)
        else:
            places[twice] = torch.randint(pool, (again, size), generator=generator)
    return places
