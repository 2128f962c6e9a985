"""The noise study: what strengths of DP noise leave of images, as one JSON document.

Rendering needs nothing else: no model, no data, no torch. Errors are mean squared errors of images
in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from vestige.record import Document, Picture, Rate, SpaceRecord, ThreatRecord, Verdict

SCHEMA_VERSION = 1

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
    whose picture lies nearer to the secret than to all other candidates.
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

    def resembles(self, methods: Sequence[Method]) -> bool:
        """Whether pictures of a method with a prior are surely closer to their own secret."""
        found = zip(self.measures, methods)
        return any(m.closer.lower > 0 for m, method in found if method.kind == "prior")


class NoiseStudy(Document):
    """What noise of several strengths hides of the same images; ``points`` start with the least.

    ``floor_error`` and ``floor_similarity`` are those of another image instead of a picture drawn.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["noise study"] = "noise study"
    title: str
    space: SpaceRecord
    threat: ThreatRecord
    prior: str
    methods: tuple[Method, ...]
    points: tuple[NoisePoint, ...] = Field(min_length=1)
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
    limits: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    redacted: bool = False
    verdict: Verdict

    def without_secrets(self) -> NoiseStudy:
        """Withhold every picture: with little noise all of them are the secret."""
        points = tuple(
            point.model_copy(
                update={
                    "sights": tuple(
                        Sight(
                            left=None, reconstructions=(None,) * len(self.methods), agreement=None
                        )
                        for _ in point.sights
                    )
                }
            )
            for point in self.points
        )
        hidden = (None,) * len(self.secrets)
        return self.model_copy(update={"points": points, "secrets": hidden, "redacted": True})
