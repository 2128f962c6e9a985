"""Records: what a client holds and an attacker wants. Spaces, records, splits and priors.

Images live in [0, 1]. Tables live in standard-deviation units; their space knows how to write a
value in its original unit. Texts are token numbers, held as floating point like all records
(float32 is exact up to 2²⁴), padded at their end.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from vestige.choices import check_fields
from vestige.errors import BadInput, brief


@dataclass(frozen=True)
class ImageSpace:
    """Pictures of one size, channels first, values in [0, 1]."""

    channels: int
    height: int
    width: int
    class_names: tuple[str, ...]
    noun: str = "image"

    def __post_init__(self) -> None:
        check_fields(self, counts=("height", "width"))
        if self.channels not in (1, 3):
            raise BadInput(
                f"Images need 1 or 3 channels, these have {self.channels}: "
                "convert them, or describe them as a table."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return (self.channels, self.height, self.width)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value a record can hold."""
        return (0.0, 1.0)


@dataclass(frozen=True)
class Column:
    """One feature of a table: stored value = (original − center) / scale.

    A category is stored as its index in ``categories``, with center 0 and scale 1.
    """

    name: str
    center: float = 0.0
    scale: float = 1.0
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, positive=("scale",))

    def original(self, value: float) -> float | str:
        """Write a stored value in its original unit, or as the nearest category's word."""
        if not self.categories:
            return value * self.scale + self.center
        if math.isnan(value):
            return "not a number"
        return self.categories[round(min(max(value, 0), len(self.categories) - 1))]


@dataclass(frozen=True)
class TableSpace:
    """Rows of features."""

    columns: tuple[Column, ...]
    class_names: tuple[str, ...]
    noun: str = "row"
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return (len(self.columns),)


MOST_TOKENS = 2**24
"""Token numbers that float32 holds exactly."""


@dataclass(frozen=True)
class TextSpace:
    """Texts of at most ``length`` tokens, each a number below ``vocabulary``.

    Texts that are shorter end with the token ``padding``. ``tokenizer`` is the JSON of a tokenizer
    of the library ``tokenizers``, which writes tokens as words; without one, numbers are shown.
    """

    length: int
    vocabulary: int
    class_names: tuple[str, ...]
    padding: int = 0
    noun: str = "text"
    tokenizer: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_fields(self, counts=("length", "vocabulary"))
        if self.vocabulary > MOST_TOKENS:
            raise BadInput(f"A vocabulary has at most {MOST_TOKENS:,} tokens.")
        if not 0 <= self.padding < self.vocabulary:
            raise BadInput(
                f"The padding token {self.padding} is not in the vocabulary of "
                f"{self.vocabulary:,}: give the number of one that is."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return (self.length,)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value a record can hold."""
        return (0.0, self.vocabulary - 1.0)

    def tokens(self, row: Tensor) -> list[int]:
        """The token numbers of one record, without the padding at its end."""
        numbers = [int(number) for number in row.round().tolist()]
        while numbers and numbers[-1] == self.padding:
            numbers.pop()
        return numbers


Space = ImageSpace | TableSpace | TextSpace


@dataclass(frozen=True, eq=False)
class Records:
    """Labelled records of one space: ``x`` (n, *shape) float, ``y`` (n,) int64."""

    x: Tensor
    y: Tensor
    space: Space

    def __post_init__(self) -> None:
        check_fields(self)
        if tuple(self.x.shape[1:]) != self.space.shape:
            raise BadInput(
                f"Records have shape {tuple(self.x.shape[1:])} where {self.space.shape} is "
                "expected: reshape them or describe their space."
            )
        if self.y.shape != self.x.shape[:1]:
            raise BadInput(
                f"{self.x.shape[0]} records came with {tuple(self.y.shape)} labels: "
                "give one label for each record."
            )
        if not self.x.is_floating_point() or self.y.dtype != torch.int64:
            raise BadInput("Records are floating point and labels int64: convert them first.")
        if not all_finite(self.x):
            raise BadInput("Some records hold NaN or infinite values: remove or fill them first.")
        if isinstance(self.space, TextSpace) and len(self):
            _check_tokens(self.x, self.space)
        if len(self) and not 0 <= int(self.y.min()) <= int(self.y.max()) < self.classes:
            first, last = int(self.y.min()), int(self.y.max())
            advice = "subtract 1 from every label" if (first, last) == (1, self.classes) else ""
            raise BadInput(
                f"Labels run from {first} to {last}, but there are {self.classes} classes: labels "
                f"must lie in 0 … {self.classes - 1}{advice and '; ' + advice}."
            )

    def __len__(self) -> int:
        return self.x.shape[0]

    def __repr__(self) -> str:
        """How many of what, and a hash of their values in float32 and their labels."""
        content = "".join(self.fingerprints()).encode() + self.y.cpu().numpy().tobytes()
        shape = " × ".join(map(str, self.space.shape))
        return (
            f"Records({len(self)} of {shape}, {self.classes} classes, "
            f"{hashlib.sha256(content).hexdigest()[:8]})"
        )

    def __getitem__(self, index: slice | Sequence[int] | Tensor) -> Records:
        if isinstance(index, slice):
            return replace(self, x=self.x[index], y=self.y[index])
        picked = torch.as_tensor(index)
        if picked.dim() != 1 or (picked.dtype == torch.bool and len(picked) != len(self)):
            raise BadInput(
                "Pick records by a slice, a list of indices or a mask with one entry for each "
                f"record, not by {index!r}."
            )
        if picked.dtype == torch.bool:
            picked = torch.nonzero(picked).flatten()
        picked = picked.to(self.x.device, torch.int64)
        return replace(self, x=self.x[picked], y=self.y[picked])

    @property
    def classes(self) -> int:
        """How many classes the labels can take."""
        return len(self.space.class_names)

    def inputs(self, like: Tensor) -> Tensor:
        """The values with the precision and device of a model's parameter.

        Token numbers stay float32: a model in half precision would round them.
        """
        if isinstance(self.space, TextSpace):
            return self.x.to(like.device, torch.float32)
        return self.x.to(like.device, like.dtype)

    def to(self, device: torch.device | str) -> Records:
        """Copy the records to a device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def fingerprints(self) -> tuple[str, ...]:
        """Content hash of every record, without its label."""
        # Adding zero turns −0 into 0: equal numbers must have equal bytes.
        rows = self.x.detach().to("cpu", torch.float32).numpy()
        return tuple(hashlib.sha256((row + 0.0).tobytes()).hexdigest() for row in rows)

    def distinct(self) -> Records:
        """Keep the first of every set of records with equal content."""
        first = {print_: index for index, print_ in reversed(list(enumerate(self.fingerprints())))}
        return self[sorted(first.values())]

    def split(
        self, *, seed: int, train: float = 0.6, held_out: float = 0.1, prior: float = 0.3
    ) -> Splits:
        """Split into disjoint parts, class by class; equal records are first merged into one.

        How many were merged is ``merged`` of the result, and part of what printing it says.

        ``train`` is the pool that secrets and their decoys are drawn from,
        ``held_out`` is for utility, ``prior`` is what an attacker may have collected.
        """
        shares = (train, held_out, prior)
        if not all(part >= 0 for part in shares) or sum(shares) > 1 + 1e-9:
            raise BadInput("Shares of a split are at least 0 and add up to at most 1.")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise BadInput(f"The seed of a split is {brief(seed)}: give a whole number.")
        whole = self.distinct()
        generator = torch.Generator().manual_seed(seed)
        parts: tuple[list[int], list[int], list[int]] = ([], [], [])
        for label in range(self.classes):
            members = torch.nonzero(whole.y.cpu() == label).flatten()
            members = members[torch.randperm(len(members), generator=generator)].tolist()
            first = round(train * len(members))
            second = first + round(held_out * len(members))
            third = min(len(members), second + round(prior * len(members)))
            for part, (start, stop) in zip(parts, ((0, first), (first, second), (second, third))):
                part.extend(members[start:stop])
        in_train, in_held_out, in_prior = (whole[sorted(part)] for part in parts)
        return Splits(in_train, in_held_out, Prior(in_prior), len(self) - len(whole))


def _check_tokens(x: Tensor, space: TextSpace) -> None:
    least, most = map(int, x.aminmax())
    if not 0 <= least <= most < space.vocabulary or not bool((x == x.round()).all()):
        raise BadInput(
            f"Texts are whole numbers of tokens from 0 to {space.vocabulary - 1:,}, and these run "
            f"from {least:,} to {most:,}: make them with the tokenizer of the model."
        )


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; unlike ``torch.isfinite`` it takes no memory.

    The least and the largest value are NaN if any value is.
    """
    return values.numel() == 0 or all(map(math.isfinite, map(float, values.aminmax())))


@dataclass(frozen=True)
class Prior:
    """What the attacker may have collected: other records of the same kind.

    ``collected=False`` says that nothing was collected and that ``records`` are noise, which gives
    attacks the space of a record and something to start from, and tells them nothing else.
    """

    records: Records
    collected: bool = field(default=True, repr=False)
    _by_label: dict[int | None, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def space(self) -> Space:
        """The space its records live in."""
        return self.records.space

    def members(self, label: int | None = None) -> Tensor:
        """Indices of its records with a label, or of all."""
        if label not in self._by_label:
            labels = self.records.y.cpu()
            chosen = torch.ones_like(labels, dtype=torch.bool) if label is None else labels == label
            self._by_label[label] = torch.nonzero(chosen).flatten()
        return self._by_label[label]

    def draw(self, count: int, *, label: int | None = None, generator: torch.Generator) -> Records:
        """Draw distinct records, conditional on a label if one is given."""
        members = self.members(label)
        if count > len(members):
            under = "" if label is None else f" of class {self.space.class_names[label]!r}"
            raise BadInput(
                f"The prior holds {len(members)} records{under}, but {count} distinct ones are "
                "needed: give a larger prior, ask for fewer decoys, or allow a higher "
                "false_positive_rate."
            )
        order = torch.randperm(len(members), generator=generator)[:count]
        return self.records[members[order]]

    def mean(self, label: int | None = None) -> Tensor:
        """Average of its records with a label, or of all; the overall mean if there are none.

        Numbers of tokens have no average: of texts it is the most common token at each position.
        """
        members = self.members(label)
        chosen = self.records.x[members if len(members) else self.members()]
        return chosen.mode(0).values if isinstance(self.space, TextSpace) else chosen.mean(0)


@dataclass(frozen=True)
class Splits:
    """Disjoint parts of one dataset; ``merged`` records were copies of others and left out."""

    train: Records
    held_out: Records
    prior: Prior
    merged: int = 0

    def __repr__(self) -> str:
        copies = "1 copy of another" if self.merged == 1 else f"{self.merged} copies of others"
        return (
            f"Splits(train={len(self.train)}, held_out={len(self.held_out)}, "
            f"prior={len(self.prior.records)}; {copies} left out)"
        )

    @cached_property
    def space(self) -> Space:
        """The space all parts live in."""
        return self.train.space

    def __iter__(self):
        return iter((self.train, self.held_out, self.prior))
