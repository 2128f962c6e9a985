"""The Record: everything an audit found, as one JSON document.

Judging and rendering need nothing else: no model, no data, no torch. Times live in ``times``
alone, so two runs of one audit are equal but for that field.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 2
"""The format of a Record; ``record_versions`` reads older ones and says what changed."""


class Document(BaseModel):
    """Part of a Record: frozen, and strict about what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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


class PooledRate(Document):
    """TPR when one threshold serves all trials, at a false positive rate, with honest limits.

    ``threshold``, ``lower`` and ``upper`` are None where there are too few decoys for a limit;
    ``needed`` says how many trials would give one.
    """

    false_positive_rate: float
    threshold: float | None
    true_positive_rate: float | None
    lower: float | None
    upper: float | None
    needed: int


class Outcome(Document):
    """One attack on one trial. Distances are None where the attack gave nothing finite.

    ``rank`` is the place of the secret among itself and its decoys by distance to the
    reconstruction: 1 is closest, ties count against the attack.
    """

    trial: int
    rank: int
    distance: float | None
    decoy_distance: float | None
    nearest_decoy: float | None
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    label_accuracy: float | None = None
    objective: float | None = None
    confidence: float | None = None
    diverged: bool = False


class AttackRecord(Document):
    """What one attack did in all trials."""

    name: str
    summary: str
    cites: str
    guess: bool
    settings: dict[str, str]
    outcomes: tuple[Outcome, ...]
    rate: Rate | None = None
    curve: tuple[CurvePoint, ...] = ()
    pooled: PooledRate | None = None
    remarks: tuple[str, ...] = ()


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


class VerdictKind(StrEnum):
    """The four things an audit can say."""

    DEMONSTRATED = "DEMONSTRATED"
    NOT_DEMONSTRATED = "NOT_DEMONSTRATED"
    CLAIM_REFUTED = "CLAIM_REFUTED"
    INVALID = "INVALID"


class Verdict(Document):
    """The verdict with its sentences; ``attack`` is the strongest one, by lower limit."""

    kind: VerdictKind
    headline: str
    lede: str
    attack: str | None = None
    remedy: str = ""

    def _repr_html_(self) -> str:
        """Show itself in a notebook."""
        from vestige.report.notebook import verdict_html

        return verdict_html(self)


class Failure(Document):
    """Why a run stopped before its last trial; ``attack`` is None if somebody stopped it."""

    attack: str | None
    trial: int
    message: str
    remedy: str


class Claim(Document):
    """A rate that somebody claims is never exceeded, and who claims it."""

    rate: float = Field(ge=0, le=1)
    source: str


class BoundRecord(Document):
    """One theorem's limit on the rate of hits, with what it assumes."""

    name: str
    success: float
    assumptions: tuple[str, ...]
    cites: str


class BoundsRecord(Document):
    """What theory allows any attack if the release is what it is said to be.

    ``prior_success`` is that of a hit and ``origin`` says why; ``success`` is the smallest bound at
    it, 1 where none applies, and ``tightest`` its name.
    """

    mechanism: str
    prior_success: float
    origin: str
    bounds: tuple[BoundRecord, ...] = ()
    success: float = 1.0
    tightest: str | None = None


class ColumnRecord(Document):
    """One feature of a table, with what is needed to write it in its original unit."""

    name: str
    center: float
    scale: float
    categories: tuple[str, ...] = ()


class SpaceRecord(Document):
    """What one record looks like."""

    kind: Literal["image", "table"]
    shape: tuple[int, ...]
    noun: str
    class_names: tuple[str, ...]
    columns: tuple[ColumnRecord, ...] = ()


class Picture(Document):
    """One record for the page: 8-bit pixels (channels, height, width) or a row of features."""

    shape: tuple[int, ...]
    pixels: str | None = None
    features: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Picture:
        """Refuse a shape that the pixels or features do not fill: a page would stumble over it."""
        if self.pixels is not None:
            # Four characters of base64 are three bytes; the rest is padding.
            padding = len(self.pixels) - len(self.pixels.rstrip("="))
            held = len(self.pixels) // 4 * 3 - padding
        elif self.features is not None:
            held = len(self.features)
        else:
            raise ValueError("a picture holds pixels or features")
        if min(self.shape, default=0) < 0 or math.prod(self.shape) != held:
            raise ValueError("the pixels or features of a picture do not fill its shape")
        return self

    @classmethod
    def of(cls, values: np.ndarray) -> Picture:
        """Store an image (c, h, w) in [0, 1], clipped, or a row (features,)."""
        array = np.nan_to_num(np.asarray(values, dtype=np.float64), posinf=1e9, neginf=-1e9)
        if array.ndim == 1:
            return cls(shape=array.shape, features=tuple(float(f"{v:.6g}") for v in array))
        eight = np.round(np.clip(array, 0, 1) * 255).astype(np.uint8)
        return cls(shape=array.shape, pixels=base64.b64encode(eight.tobytes()).decode())

    def array(self) -> np.ndarray:
        """Return the pixels (c, h, w) as uint8, or the features as float64."""
        if self.pixels is None:
            return np.asarray(self.features, dtype=np.float64)
        return np.frombuffer(base64.b64decode(self.pixels), np.uint8).reshape(self.shape)


class Exhibit(Document):
    """A trial to look at, chosen by rank of distance to the secret, never by eye.

    ``place`` is its place among ``of`` trials. ``batch`` holds the other records of its batch as
    pairs of secret and reconstruction. Pictures are None where they are withheld or missing.
    """

    attack: str
    trial: int
    place: int
    of: int
    label: str
    hit: bool
    rank: int
    decoys: int
    distance: float | None
    decoy_distance: float | None
    nearest_decoy: float | None
    secret: Picture | None
    reconstruction: Picture | None
    decoy: Picture | None
    batch: tuple[tuple[Picture | None, Picture | None], ...] = ()


class Candidate(Document):
    """One candidate for a record nobody gave us: what an attack on a captured release returns."""

    attack: str
    label: str
    confidence: float | None
    objective: float | None
    picture: Picture | None
    agreement: Picture | None = None


class ExclusivityRate(Document):
    """Share of random batches of one size that meet the condition, with Clopper–Pearson limits."""

    batch_size: int
    held: int
    batches: int
    lower: float
    upper: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.held / self.batches


class ExclusivityCurve(Document):
    """How often one network at one moment of its training meets the condition, by batch size.

    ``reads_features`` says that other layers come before the fully connected ones.
    """

    network: str
    step: int | None = None
    reads_features: bool = False
    audited: bool = False
    rates: tuple[ExclusivityRate, ...]


class Exclusivity(Document):
    """The exclusivity condition (Pan et al. 2020) on batches of ``records`` of the secrets.

    Every curve was measured on the same batches; limits hold at ``confidence``, each for itself.
    """

    records: int
    of: int
    confidence: float
    curves: tuple[ExclusivityCurve, ...]


class ThreatRecord(Document):
    """Who saw what, in sentences."""

    attacker: str
    who: str
    sees: str
    told: str
    not_told: str
    prior: str


class Times(Document):
    """When and how long: the only part of a Record that differs between equal runs."""

    started: str = ""
    finished: str = ""
    cpu_seconds: float = 0.0
    seconds_per_trial: dict[str, float] = {}


class Record(Document):
    """Everything an audit found."""

    schema_version: int = SCHEMA_VERSION
    title: str
    release: str
    space: SpaceRecord
    threat: ThreatRecord
    seed: int
    trials_planned: int
    trials_finished: int
    batch_size: int
    decoys: int
    false_positive_rate: float
    confidence: float
    distance: str
    nearest_neighbor_distance: float | None = None
    claim: Claim | None = None
    bounds: BoundsRecord | None = None
    attacks: tuple[AttackRecord, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    preflight: tuple[Check, ...] = ()
    checks: tuple[Check, ...] = ()
    exclusivity: Exclusivity | None = None
    failure: Failure | None = None
    limits: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    redacted: bool = False
    verdict: Verdict
    times: Times = Times()

    @property
    def smallest_claim(self) -> Claim | None:
        """The lower of what somebody claims and what the stated mechanism allows, if any."""
        claims = [] if self.claim is None else [self.claim]
        if self.bounds is not None and self.bounds.success < 1:
            claims.append(Claim(rate=self.bounds.success, source="The stated mechanism"))
        return min(claims, key=lambda claim: claim.rate, default=None)

    def __repr_args__(self) -> Iterator[tuple[str, str]]:
        """What a console shows: neither secrets nor megabytes."""
        yield from (("title", self.title), ("verdict", self.verdict.kind.value))

    def _repr_html_(self) -> str:
        """Show itself in a notebook; ``record.without_secrets()`` shows no secret."""
        from vestige.report.notebook import record_html

        return record_html(self)

    def without_secrets(self) -> Record:
        """Withhold secrets and reconstructions: a good reconstruction is the secret.

        Decoys go too, they are records of the same pool, and so do labels and what an attack said
        when it stopped, which may quote a record.
        """
        exhibits = tuple(
            e.model_copy(
                update={
                    "label": "",
                    "secret": None,
                    "reconstruction": None,
                    "decoy": None,
                    "batch": ((None, None),) * len(e.batch),
                }
            )
            for e in self.exhibits
        )
        candidates = tuple(
            c.model_copy(update={"label": "", "picture": None, "agreement": None})
            for c in self.candidates
        )
        return self._hushed().model_copy(
            update={"exhibits": exhibits, "candidates": candidates, "redacted": True}
        )

    def _hushed(self) -> Record:
        """Withhold free text that came from an attack."""
        remarks = {remark for attack in self.attacks for remark in attack.remarks}
        said = [] if self.failure is None else [self.failure.message]

        def hush(text: str) -> str:
            for words in said:
                text = text.replace(words, "what it said is withheld.")
            return text

        checks = tuple(
            c.model_copy(update={"sentence": hush(c.sentence)})
            for c in self.checks
            if c.sentence not in remarks
        )
        verdict = self.verdict.model_copy(
            update={"headline": hush(self.verdict.headline), "lede": hush(self.verdict.lede)}
        )
        failure = self.failure and self.failure.model_copy(
            update={"message": hush(self.failure.message)}
        )
        attacks = tuple(a.model_copy(update={"remarks": ()}) for a in self.attacks)
        return self.model_copy(
            update={"checks": checks, "verdict": verdict, "failure": failure, "attacks": attacks}
        )
