"""Parts that documents of every kind share. No torch."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from vestige.reports.document import Document, NotebookDocument


class Rate(Document):
    """Hits among trials with Clopper–Pearson limits, joint over the attacks of the audit."""

    hits: int
    trials: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        """Hits divided by trials."""
        return self.hits / self.trials if self.trials else 0.0


class CurvePoint(Document):
    """One point of a ROC: hits among secrets when this share of decoys may pass.

    Without limits where decoys are too few to give them.
    """

    false_positive_rate: float
    true_positive_rate: float
    lower: float | None = None
    upper: float | None = None


class CheckOutcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    REMARK = "remark"
    FAILED = "failed"


class Check(Document):
    """Something that suspects the audit itself."""

    outcome: CheckOutcome
    sentence: str
    remedy: str = ""

    @classmethod
    def passed(cls, sentence: str) -> Check:
        """A check that found nothing wrong."""
        return cls(outcome=CheckOutcome.PASSED, sentence=sentence)

    @classmethod
    def remark(cls, sentence: str, remedy: str = "") -> Check:
        """Something that a reader should know, and what to do about it, if anything."""
        return cls(outcome=CheckOutcome.REMARK, sentence=sentence, remedy=remedy)

    @classmethod
    def failed(cls, sentence: str, remedy: str = "") -> Check:
        """What makes the audit say nothing, and how to fix it."""
        return cls(outcome=CheckOutcome.FAILED, sentence=sentence, remedy=remedy)


class VerdictKind(StrEnum):
    """The five things an audit can say; CANDIDATES is that of a release without a secret."""

    DEMONSTRATED = "DEMONSTRATED"
    NOT_DEMONSTRATED = "NOT_DEMONSTRATED"
    CLAIM_REFUTED = "CLAIM_REFUTED"
    INVALID = "INVALID"
    CANDIDATES = "CANDIDATES"


def spoken(kind: str) -> str:
    """A kind of verdict as people read it: NOT DEMONSTRATED. Documents keep its value."""
    return kind.replace("_", " ")


class Verdict(Document, NotebookDocument):
    """The verdict with its sentences; ``attack`` is the strongest one, by lower limit."""

    kind: VerdictKind
    headline: str
    lede: str
    attack: str | None = None
    remedy: str = ""


class Failure(Document):
    """Why a run stopped before its last trial; ``attack`` is None if the user stopped it."""

    attack: str | None
    trial: int
    message: str
    remedy: str


class ColumnDescription(Document):
    """One feature of a table, with what is needed to write it in its original unit."""

    name: str
    center: float
    scale: float
    categories: tuple[str, ...] = ()


class SpaceDescription(Document):
    """What one record looks like."""

    kind: Literal["image", "table", "text"]
    shape: tuple[int, ...]
    noun: str
    class_names: tuple[str, ...]
    columns: tuple[ColumnDescription, ...] = ()


class Picture(Document):
    """One record for the page: 8-bit pixels (channels, height, width), features, or words.

    ``words`` are the tokens of a text as they are written: joined they are the text.
    """

    shape: tuple[int, ...]
    pixels: str | None = None
    features: tuple[float, ...] | None = None
    words: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Picture:
        """Refuse a shape that the pixels or features do not fill: a page would stumble over it."""
        if self.pixels is not None:
            # Four characters of base64 are three bytes; the rest is padding.
            padding = len(self.pixels) - len(self.pixels.rstrip("="))
            held = len(self.pixels) // 4 * 3 - padding
        elif self.features is not None:
            held = len(self.features)
        elif self.words is not None:
            held = len(self.words)
        else:
            raise ValueError("a picture holds pixels, features or words")
        if min(self.shape, default=0) < 0 or math.prod(self.shape) != held:
            raise ValueError("the content of a picture does not fill its shape")
        return self

    @classmethod
    def of_text(cls, words: Sequence[str]) -> Picture:
        """Store the tokens of a text, as they are written."""
        return cls(shape=(len(words),), words=tuple(words))

    @classmethod
    def of(cls, values: np.ndarray) -> Picture:
        """Store an image (c, h, w) in [0, 1], clipped, or a row (features,)."""
        array = np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=1e9, neginf=-1e9)
        if array.ndim == 1:
            return cls(shape=array.shape, features=tuple(float(f"{v:.6g}") for v in array))
        eight = np.round(np.clip(array, 0, 1) * 255).astype(np.uint8)
        return cls(shape=array.shape, pixels=base64.b64encode(eight.tobytes()).decode())

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a console shows: how large it is, not what is on it."""
        yield "shape", self.shape

    def array(self) -> np.ndarray:
        """Return the pixels (c, h, w) as uint8, or the features as float64."""
        if self.pixels is None:
            return np.asarray(self.features, dtype=np.float64)
        return np.frombuffer(base64.b64decode(self.pixels), np.uint8).reshape(self.shape)


class ThreatDescription(Document):
    """Who saw what, in sentences."""

    attacker: str
    who: str
    sees: str
    told: str
    not_told: str
    prior: str


ReleaseContext = Literal["public weights", "public interface", "partners", "internal"]
"""Who gets what is released, as the owner of a study declares it; it is never inferred."""


class Times(Document):
    """When, how long, beside what: the only part of a report that differs between equal runs.

    ``expected`` is what was predicted before the work began, where that was long. ``other_runs``
    says whether the same study was also started with other seeds or sizes, as far as folders
    beside the run tell.
    """

    started: str = ""
    finished: str = ""
    expected: str = ""
    other_runs: str = ""
    cpu_seconds: float = 0.0
    seconds_per_trial: dict[str, float] = Field(default_factory=dict)


class RehearsedHits(Document):
    """Rehearsed candidates at most as sure as one, a release each: how many of them hit.

    A hit is closer to its record than each of ``decoys`` prior records of its label.
    """

    hits: int = Field(ge=0)
    candidates: int = Field(ge=0)
    decoys: int = Field(ge=0)

    @classmethod
    def of(cls, numbers: Sequence[float]) -> RehearsedHits:
        """From hits, candidates and decoys in this order."""
        hits, candidates, decoys = (int(number) for number in numbers)
        return cls(hits=hits, candidates=candidates, decoys=decoys)


class AttackDescription(Document):
    """Which attack ran, with its settings; ``rehearsed`` if its confidence is a rate of hits."""

    name: str
    summary: str
    cites: str
    settings: dict[str, str] = Field(default_factory=dict)
    rehearsed: bool = False
