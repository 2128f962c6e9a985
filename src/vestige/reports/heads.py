"""What an attack drew of many published heads, as one JSON document.

Rendering needs nothing else: no model, no data, no torch. Errors are mean squared errors of images
in [0, 1]; for images in [−1, 1], as Maciazek and Allison 2025 count, they are four times as large.
"""

from __future__ import annotations

from pydantic import Field

from vestige.reports import numbers
from vestige.reports.document import Document
from vestige.reports.parts import AttackDescription, CurvePoint, Picture, Rate, ThreatDescription
from vestige.reports.report import Findings, Judgement, Report

PAPER_SCALE = 4
"""An error of images in [−1, 1] over the same error of images in [0, 1]."""

LITTLE = 0.1
"""Share of the way from guessing to perfect accuracy below which heads learned little. Chosen by
hand: it decides a remark and no verdict."""


class NormalFit(Document):
    """A normal law fitted to φ."""

    mean: float
    deviation: float


class Histogram(Document):
    """How often φ lies in each bar: own reconstructions first, then each kind of null."""

    edges: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


class RocCurve(Document):
    """One ROC, by name."""

    name: str
    points: tuple[CurvePoint, ...]


class OperatingPoint(Document):
    """TPR where FPR = α: the value that counting gives, and limits that doubt the threshold too.

    ``lower`` and ``upper`` are None where the heads are too few for a limit; ``needed`` says how
    many would surely give one.
    """

    false_positive_rate: float
    true_positive_rate: float
    lower: float | None = None
    upper: float | None = None
    needed: int


class AssignmentTest(Document):
    """Whether drawings match their own head's records more often than if sets were swapped.

    ``hits`` own errors lie below the α-quantile of the errors of all drawings to all sets;
    ``by_chance`` is the mean over all assignments of sets to heads. Of ``permutations`` random
    assignments ``as_extreme`` reach it in some statement of the study, so p-values hold jointly.
    """

    hits: int
    by_chance: float
    permutations: int = Field(ge=1)
    as_extreme: int = Field(ge=0)

    @property
    def p_value(self) -> float:
        """Probability that some statement of the study looks so strong if nothing leaked."""
        return (1 + self.as_extreme) / (1 + self.permutations)


class CountedRates(Document):
    """Rates of one way to count: at the nearest-neighbour threshold, and where FPR = α.

    False positives are counted over all ordered pairs of disjoint heads. The limits of
    ``operating_point`` hold for this count alone, ``joint_lower`` for the three counts together.
    ``redrawn`` counts images that pass the threshold of ``joint_lower`` and are less than half as
    far from an image of their head as the mean of the prior's images; None without such a limit.
    """

    name: str
    true_positives: Rate
    false_positives: Rate
    operating_point: OperatingPoint
    joint_lower: float | None = None
    redrawn: Rate | None = None
    test: AssignmentTest | None = None


class NullRates(Document):
    """Own reconstructions against one kind of null: what passes at the threshold, and φ.

    ``points`` are the operating points of all counts, in their order; the first is the pooled one.
    """

    name: str
    false_positives: Rate
    operating_point: OperatingPoint
    fit: NormalFit | None = None
    points: tuple[OperatingPoint, ...] = ()


class ClassRates(Document):
    """One class: its own threshold, and rates at that threshold and where its own FPR = α.

    The limits of ``operating_point`` hold for all classes together. ``shown`` says that ``test``
    finds the class exposed and no lower limit contradicts it, ``redrawn`` that the lower limit of
    the share of redrawn images exceeds α too.
    """

    label: str
    threshold: float
    true_positives: Rate
    false_positives: Rate
    operating_point: OperatingPoint
    shown: bool
    redrawn: bool = False
    test: AssignmentTest | None = None


class HeadRates(Document):
    """How many training images an attack redrew from many heads, counted in several ways.

    ``counted`` holds the pooled rates, those with a threshold for each class and those of errors
    divided by the class's threshold; ``ceiling`` the same for images that a decoder drew from the
    true features, so that what a head hides and what a decoder cannot draw are told apart.
    ``nulls`` begins with Definition 1, reconstructions of other heads. ``missing`` counts
    reconstructions that were not finite; they are misses. ``redrawn`` is a field of documents that
    were written before every count had its own.
    """

    heads: int
    set_size: int
    conditional: bool
    threshold: float
    confidence: float
    false_positive_rate: float
    missing: int
    counted: tuple[CountedRates, ...]
    nulls: tuple[NullRates, ...]
    classes: tuple[ClassRates, ...]
    curves: tuple[RocCurve, ...]
    fit: NormalFit | None = None
    histogram: Histogram | None = None
    ceiling: tuple[CountedRates, ...] = ()
    redrawn: Rate | None = None

    @property
    def pooled(self) -> CountedRates:
        """All classes together, one threshold."""
        return self.counted[0]

    @property
    def strongest_ceiling(self) -> CountedRates | None:
        """What the decoder draws of true features, by the count that the verdict rests on."""
        named = [one for one in self.ceiling if one.name == self.strongest.name]
        return named[0] if named else None

    @property
    def strongest(self) -> CountedRates:
        """The count with the largest joint limit among those that exceed chance, or among all."""
        if self.pooled.test is None or not self.conditional:
            return self.pooled
        return max(self.counted, key=lambda one: (self.exceeds(one), one.joint_lower or 0.0))

    def exceeds(self, count: CountedRates) -> bool:
        """Whether a count exceeds chance: by its exact test, and by its limit where it has one.

        In documents without tests, by the limit of the count alone.
        """
        lower, alpha = count.joint_lower, self.false_positive_rate
        if count.test is None:
            lower = count.operating_point.lower
            return lower is not None and lower > alpha
        return count.test.p_value <= (1 - self.confidence) / 2 and (lower is None or lower > alpha)


class ClassExhibit(Document):
    """One class of the head to look at: original, reconstruction, and an image of another head.

    The decoy is the nearest image of the class in a training set that the head never saw.
    """

    label: str
    threshold: float
    error: float | None
    decoy_error: float | None
    secret: Picture | None
    reconstruction: Picture | None
    decoy: Picture | None

    @property
    def hit(self) -> bool:
        """Whether the reconstruction lies within the threshold of the original."""
        return self.error is not None and self.error <= self.threshold

    @property
    def false_hit(self) -> bool:
        """Whether it lies within the threshold of the decoy."""
        return self.decoy_error is not None and self.decoy_error <= self.threshold


class HeadExhibit(Document):
    """A head to look at, chosen by its mean error: ``place`` of ``of``, 1 is the closest."""

    place: int
    of: int
    classes: tuple[ClassExhibit, ...]


class PrivacyPoint(Document):
    """The same study under DP-SGD: ε at δ (None: no noise), accuracy and rates.

    ``operating_point`` and ``true_positives`` are pooled, ``counted`` holds every count.
    ``reconstruction`` is what came back of the image that every point shows.
    """

    epsilon: float | None
    delta: float | None
    accuracy: float
    accuracy_lower: float
    accuracy_upper: float
    operating_point: OperatingPoint
    true_positives: Rate
    counted: tuple[CountedRates, ...] = ()
    reconstruction: Picture | None
    error: float | None


class HeadFindings(Findings):
    """What a study of published heads measured, in so many blocks of heads.

    ``accuracy`` is the mean over heads on so many records, ``tested``, held out or of the prior;
    ``guessing`` is that of always saying the most frequent label there.
    """

    threat: ThreatDescription
    attack: AttackDescription
    rates: HeadRates
    exhibit: HeadExhibit
    privacy: tuple[PrivacyPoint, ...] = ()
    privacy_secret: Picture | None = None
    accuracy: float | None = None
    tested: int = 0
    tested_held_out: bool = False
    guessing: float | None = None
    blocks_planned: int
    blocks_finished: int

    @property
    def learned_little(self) -> bool:
        """Whether heads hardly beat guessing: by less than a tenth of what is left above it."""
        if self.accuracy is None or self.guessing is None:
            return False
        return self.accuracy < self.guessing + LITTLE * (1 - self.guessing)

    @property
    def accuracy_sentence(self) -> str:
        """What the attacked heads learned, and plainly where that is little; else nothing."""
        if self.accuracy is None or self.guessing is None:
            return ""
        which = "held-out records" if self.tested_held_out else "of the prior's records"
        said = (
            f"The attacked heads are right on {numbers.percent(self.accuracy)} of "
            f"{numbers.count(self.tested)} {which}; always saying the most frequent label would be "
            f"on {numbers.percent(self.guessing)}."
        )
        if self.learned_little:
            said += " These heads learned little: a low rate says little about one that learned."
        return said


class HeadReport(Report[HeadFindings, Judgement]):
    """The report of a study of heads."""

    kind: str = "head study"
