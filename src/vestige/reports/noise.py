"""What strengths of DP noise leave of images, as one JSON document.

Rendering needs nothing else: no model, no data, no torch. Errors are mean squared errors of images
in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from vestige.reports.document import Document
from vestige.reports.parts import Picture, Rate, ThreatDescription
from vestige.reports.report import Findings, Judgement, Report

MethodKind = Literal["prior", "classical", "nothing"]


class Mean(Document):
    """A mean over images with its two-sided limits (Student's t, images as independent)."""

    value: float
    lower: float
    upper: float


class Method(Document):
    """One way to look through the noise: with a learned prior, without, or not at all."""

    name: str
    kind: MethodKind
    summary: str


class MethodMeasure(Document):
    """How close one method came at one μ, and how many images its pictures gave away.

    ``other_similarity`` is the SSIM of the same pictures to another image in the secret's place:
    what they would have if the release said nothing. ``closer`` is the mean difference, image by
    image, with limits that hold for all methods and strengths together. ``named`` counts images
    whose picture lies nearer to the secret than to all other candidates; ties count against it.
    """

    error: Mean
    similarity: Mean
    other_similarity: Mean
    closer: Mean
    named: Rate


class SampleAgreement(Document):
    """SSIM among random reconstructions, and between them and the secret, over a few images."""

    images: int
    samples: int
    agreement: Mean
    similarity: Mean


class Sight(Document):
    """One shown image at one μ: what the noise leaves, reconstructions by method, agreement map.

    ``agreement`` is bright where random reconstructions agree.
    """

    left: Picture | None
    reconstructions: tuple[Picture | None, ...]
    agreement: Picture | None


class NoisePoint(Document):
    """Everything about one strength of noise, μ = 1/σ.

    ``epsilon`` is that of the whole training and ``release_epsilon`` that of the one release that
    was attacked, both at the study's δ; None where there is no finite one. ``matched`` counts
    images that the likeliest candidate names, ``matched_error`` is the error of that candidate and
    ``weighted_error`` that of the candidates' mean weighted by likelihood. ``bound`` is what no
    attack on the one release exceeds, ``training_bound`` what none on all steps does.
    """

    mu: float
    epsilon: float | None
    release_epsilon: float | None
    measures: tuple[MethodMeasure, ...]
    samples: SampleAgreement
    matched: Rate
    matched_error: Mean
    weighted_error: Mean
    bound: float
    training_bound: float
    no_prior_error: float
    sights: tuple[Sight, ...]

    def strongest(self, methods: Sequence[Method]) -> int:
        """Place of the method with a prior whose pictures resemble the secrets most."""
        own = [place for place, method in enumerate(methods) if method.kind == "prior"]
        return max(own, key=lambda place: self.measures[place].similarity.value)


class NoiseFindings(Findings):
    """What noise of several strengths hides of the same images; ``points`` start with the least.

    ``floor_error`` and ``floor_similarity`` are those of another image instead of a picture drawn.
    """

    threat: ThreatDescription
    prior: str
    methods: tuple[Method, ...]
    points: tuple[NoisePoint, ...] = Field(min_length=1)
    strengths_planned: int
    secrets: tuple[Picture | None, ...]
    images: int
    candidates: int
    clipping_norm: float
    steps: int
    sampling_rate: float
    delta: float
    confidence: float
    floor_error: Mean
    floor_similarity: Mean


class NoiseReport(Report[NoiseFindings, Judgement]):
    """The report of a study of noise."""

    kind: str = "noise study"
