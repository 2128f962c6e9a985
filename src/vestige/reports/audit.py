"""What an audit measured and how it is judged, as one JSON document.

Judging and rendering need nothing else: no model, no data, no torch. Times live in ``times``
alone, so two runs of one audit are equal but for that field.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Self

from pydantic import Field, model_validator

from vestige.reports.document import Document
from vestige.reports.exclusivity import Exclusivity
from vestige.reports.parts import (
    AttackDescription,
    CurvePoint,
    Picture,
    Rate,
    RehearsedHits,
    ThreatDescription,
)
from vestige.reports.report import Findings, Judgement, Report
from vestige.reports.shown import ShownPrivacy


class PermutationTest(Document):
    """Whether an attack hit more often than if other records had been behind the releases.

    ``expected_hits`` is the statistic: hits to be expected over all draws of the decoys;
    ``by_chance`` is its mean over all permutations of the records of a class. Of ``permutations``
    random ones ``as_extreme`` reach the statistic.
    """

    expected_hits: float
    by_chance: float
    permutations: int = Field(ge=1)
    as_extreme: int = Field(ge=0)

    @property
    def p_value(self) -> float:
        """Probability of such a statistic if nothing leaked; never zero."""
        return (1 + self.as_extreme) / (1 + self.permutations)


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


class FurtherOutcome(Document):
    """One attack on one trial by another distance than the primary one.

    ``decoy_mean`` is the distance of the mean of the decoys from the secret.
    """

    rank: int
    distance: float | None
    decoy_distance: float | None
    nearest_decoy: float | None
    decoy_mean: float | None = None


class Outcome(Document):
    """One attack on one trial. Distances are None where the attack gave nothing finite.

    ``rank`` is the place of the secret among itself and its decoys by distance to the
    reconstruction: 1 is closest, ties count against the attack. ``likelihood_rank`` is its place by
    the attack's own likelihood, where it has one. ``decoy_mean_error`` is the mean squared error of
    the mean of the decoys, a guess that knows the class. ``further`` holds ranks by the further
    distances of the audit, in their order. Of texts there is instead of errors whether all tokens
    are right, the share of positions that are, ROUGE-L, and how many of how many personal details
    came back.
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
    rehearsed: RehearsedHits | None = None
    diverged: bool = False
    decoy_mean_error: float | None = None
    likelihood_rank: int | None = Field(default=None, ge=1)
    further: tuple[FurtherOutcome, ...] = ()
    exact_match: bool | None = None
    token_accuracy: float | None = None
    rouge_l: float | None = None
    details: tuple[int, int] | None = None


class DisjointRanks(Document):
    """Ranks of captured trials among decoys that no two trials share, so that they are independent.

    ``candidates`` are the secret and its decoys in every trial.
    """

    candidates: int = Field(ge=2)
    ranks: tuple[int, ...]


class AttackFindings(AttackDescription):
    """What one attack did in all trials; ``permutation`` and ``disjoint`` of captured releases.

    ``permutation`` is by the primary distance, ``further_permutations`` by the further ones, in
    their order. ``without_order`` says that it reads tokens of texts and not their places.
    Redacted findings have rounded outcomes, and the ``quartiles`` of the exact ones with the digits
    that a page shows: PSNR, RMSE and SSIM (of a single trial its value), and the mean of labels.
    """

    guess: bool
    outcomes: tuple[Outcome, ...]
    permutation: PermutationTest | None = None
    further_permutations: tuple[PermutationTest, ...] = ()
    disjoint: DisjointRanks | None = None
    remarks: tuple[str, ...] = ()
    without_order: bool = False
    quartiles: dict[str, tuple[float, ...]] = Field(default_factory=dict)


class AttackRates(Document):
    """The rates of one attack; nothing where it has no outcomes.

    ``anytime`` has the same hits with limits that hold at all numbers of trials at once, and
    ``e_value`` is the evidence, in the same sense, that it hits more often than chance allows.
    ``further`` holds its rates by the further distances of the audit, in their order.
    """

    rate: Rate | None = None
    curve: tuple[CurvePoint, ...] = ()
    pooled: PooledRate | None = None
    anytime: Rate | None = None
    e_value: float | None = Field(default=None, ge=0)
    further: tuple[Rate, ...] = ()


class Claim(Document):
    """A rate that is claimed never to be exceeded, and who claims it."""

    rate: float = Field(ge=0, le=1)
    source: str


class HitBound(Document):
    """One theorem's limit on the rate of hits, with what it assumes."""

    name: str
    success: float
    assumptions: tuple[str, ...]
    cites: str


class HitBounds(Document):
    """What theory allows any attack if the release is what it is said to be.

    ``prior_success`` is that of a hit and ``origin`` says why; ``success`` is the smallest bound at
    it, 1 where none applies, and ``tightest`` its name. ``epsilon`` is that of the mechanism at
    ``delta``, where it has one; ``gaussian`` says that all of its noise is Gaussian.
    """

    mechanism: str
    prior_success: float
    origin: str
    bounds: tuple[HitBound, ...] = ()
    success: float = 1.0
    tightest: str | None = None
    epsilon: float | None = Field(default=None, ge=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    gaussian: bool = False


def stated_bounds(bounds: HitBounds | None) -> HitBounds | None:
    """The bounds of a mechanism that has a guarantee, or None."""
    if bounds is None or (bounds.epsilon is None and bounds.success >= 1):
        return None
    return bounds


class FilmFrame(Document):
    """What a reconstruction looked like after so many iterations."""

    after: int = Field(ge=0)
    picture: Picture


class Film(Document):
    """How a reconstruction emerged in ``iterations``: frames before the one that was returned."""

    iterations: int = Field(ge=1)
    frames: tuple[FilmFrame, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Refuse frames that are no images of one shape, or out of order."""
        pictures = [one.picture for one in self.frames]
        images = all(one.pixels is not None and len(one.shape) == 3 for one in pictures)
        if not images or len({one.shape for one in pictures}) > 1:
            raise ValueError("the frames of a film are images of one shape")
        taken = [*(one.after for one in self.frames), self.iterations]
        if any(left >= right for left, right in pairwise(taken)):
            raise ValueError("the frames of a film are in order of its iterations")
        return self

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a console shows: how long it is, not what is on it."""
        yield from (("iterations", self.iterations), ("frames", len(self.frames)))


class Exhibit(Document):
    """A trial to look at, chosen by the rank of the secret and then by distance, never by eye.

    ``place`` is its place among ``of`` trials. ``batch`` holds the other records of its batch as
    pairs of secret and reconstruction. Pictures are None where they are withheld or missing.
    ``film`` shows how the reconstruction emerged: of the median trial, if it is an image and the
    attack is a search that hands out frames.
    """

    attack: str
    trial: int
    place: int
    of: int
    label: str
    rank: int
    decoys: int
    distance: float | None
    decoy_distance: float | None
    nearest_decoy: float | None
    secret: Picture | None
    reconstruction: Picture | None
    decoy: Picture | None
    batch: tuple[tuple[Picture | None, Picture | None], ...] = ()
    film: Film | None = None

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What a console shows: which trial it is, and nothing of its records."""
        yield from ((name, getattr(self, name)) for name in ("attack", "trial", "place", "rank"))


class FurtherDistance(Document):
    """A distance that was declared beside the primary one.

    ``squared_error`` says that it is a mean squared error of the records' own values, so that half
    the way from a guess to a secret is a quarter of it.
    """

    name: str
    squared_error: bool = False


class AuditFindings(Findings):
    """What the trials of an audit measured.

    ``smallest_pool`` is there for captured releases: the fewest records of one class that secrets
    and decoys come from. Limits allow for it. ``defense`` is what was done to the release before it
    left, in words; empty where nothing was. ``earlier_trials`` are the numbers of trials that were
    planned before more were added: limits then hold at all numbers of trials at once. ``distance``
    is the primary one, declared first; limits are joint over it and the ``further_distances``.
    """

    release: str
    defense: str = ""
    threat: ThreatDescription
    trials_planned: int
    trials_finished: int
    earlier_trials: tuple[int, ...] = ()
    batch_size: int
    decoys: int
    false_positive_rate: float
    confidence: float
    distance: str
    further_distances: tuple[FurtherDistance, ...] = ()
    nearest_neighbor_distance: float | None = None
    smallest_pool: int | None = Field(default=None, ge=2)
    claim: Claim | None = None
    bounds: HitBounds | None = None
    attacks: tuple[AttackFindings, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    exclusivity: Exclusivity | None = None

    @model_validator(mode="after")
    def _measured(self) -> Self:
        """Refuse outcomes by other distances than the declared ones."""
        outcomes = (outcome for attack in self.attacks for outcome in attack.outcomes)
        if any(len(one.further) != len(self.further_distances) for one in outcomes):
            raise ValueError("every outcome has a rank by each further distance")
        tested = [one for one in self.attacks if one.permutation is not None]
        if any(len(one.further_permutations) != len(self.further_distances) for one in tested):
            raise ValueError("every permutation test has one by each further distance beside it")
        return self

    @property
    def smallest_claim(self) -> Claim | None:
        """The lower of the claim and what the stated mechanism allows, if any."""
        claims = [] if self.claim is None else [self.claim]
        if self.bounds is not None and self.bounds.success < 1:
            claims.append(Claim(rate=self.bounds.success, source="The stated mechanism"))
        return min(claims, key=lambda claim: claim.rate, default=None)


class AuditJudgement(Judgement):
    """The rates of the attacks, by name, and which exhibits are hits, in their order.

    ``shown`` is the privacy loss that the ranks show by themselves; None in an INVALID audit.
    ``distance`` is the one that the verdict speaks of, where that is not the primary one.
    """

    rates: dict[str, AttackRates] = Field(default_factory=dict)
    hits: tuple[bool, ...] = ()
    shown: ShownPrivacy | None = None
    distance: str = ""

    def rates_of(self, attack: AttackDescription) -> AttackRates:
        """The rates of an attack."""
        return self.rates.get(attack.name, AttackRates())


class AuditReport(Report[AuditFindings, AuditJudgement]):
    """The report of an audit, also of captured releases whose batches are known."""

    kind: str = "audit"

    @model_validator(mode="after")
    def _judged(self) -> Self:
        """Refuse a judgement on other exhibits."""
        if len(self.judgement.hits) != len(self.findings.exhibits):
            raise ValueError("a judgement says of every exhibit whether it is a hit")
        return self
