"""Made-up noise studies, one for each state of their page."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vestige.reports.noise import (
    Mean,
    Method,
    MethodMeasure,
    NoiseFindings,
    NoisePoint,
    NoiseReport,
    SampleAgreement,
    Sight,
)
from vestige.reports.parts import Picture, Rate, SpaceDescription
from vestige.statistics.rates import clopper_pearson
from vestige.studies.judge import judge
from vestige.studies.noise.judge import noise_limits, noise_threat

METHODS = (
    Method(name="Posterior mean", kind="prior", summary="learned prior, one step"),
    Method(name="DDIM", kind="prior", summary="learned prior, four steps"),
    Method(name="Total variation", kind="classical", summary="no prior"),
    Method(name="Noisy image", kind="nothing", summary="what the noise leaves, in [0, 1]"),
)
STRENGTHS = (200.0, 50.0, 10.0, 5.0, 1.0)
IMAGES = 100


def picture(seed: int) -> Picture:
    return Picture.of(np.random.default_rng(seed).random((1, 8, 8)))


def mean(value: float, reach: float = 0.01) -> Mean:
    return Mean(value=value, lower=value - reach, upper=value + reach)


def rate(hits: int) -> Rate:
    lower, upper = clopper_pearson(hits, IMAGES)
    return Rate(hits=hits, trials=IMAGES, lower=lower, upper=upper)


def point(place: int, *, seen: bool, hits: int, bound: float) -> NoisePoint:
    similarity = 0.95 - 0.18 * place
    measures = tuple(
        MethodMeasure(
            error=mean(0.001 * 4**place * (1 + i), 1e-4),
            similarity=mean(max(similarity - 0.1 * i, 0.02)),
            other_similarity=mean(0.15),
            closer=mean(0.2 if seen else 0.0, 0.05),
            named=rate(hits // (i + 1)),
        )
        for i in range(len(METHODS))
    )
    return NoisePoint(
        mu=STRENGTHS[place],
        epsilon=None if place == 0 else 10.0 ** (5 - place) * 1.23,
        release_epsilon=10.0 ** (4 - place),
        measures=measures,
        samples=SampleAgreement(
            images=16, samples=5, agreement=mean(similarity), similarity=mean(similarity - 0.05)
        ),
        matched=rate(hits),
        matched_error=mean(0.0 if hits == IMAGES else 0.02 * place, 0.001),
        weighted_error=mean(0.0 if hits == IMAGES else 0.015 * place, 0.001),
        bound=bound,
        training_bound=min(1.0, 1.1 * bound),
        no_prior_error=0.004 * 16.0**place,
        sights=tuple(
            Sight(
                left=picture(100 * place + 10 * i),
                reconstructions=tuple(picture(100 * place + 10 * i + j) for j in range(1, 5)),
                agreement=picture(100 * place + 10 * i + 5),
            )
            for i in range(3)
        ),
    )


def noise(*, seen: int = 4, bounds: tuple[float, ...] = (1.0, 1.0, 1.0, 0.97, 0.05)) -> NoiseReport:
    """A study of five strengths; at ``seen`` of them pictures resemble their secrets."""
    hits = (100, 100, 80, 30, 1) if seen else (2, 1, 1, 1, 0)
    points = tuple(
        point(i, seen=i < seen, hits=hits[i], bound=bounds[i]) for i in range(len(STRENGTHS))
    )
    findings = NoiseFindings(
        title="Digits under <noise>",
        space=SpaceDescription(
            kind="image", shape=(1, 8, 8), noun="digit", class_names=tuple("0123456789")
        ),
        threat=noise_threat("digit", 1.0, "a made-up prior", 256),
        prior="a made-up prior",
        methods=METHODS,
        points=points,
        secrets=tuple(picture(7000 + i) for i in range(3)),
        images=IMAGES,
        candidates=256,
        clipping_norm=1.0,
        steps=1000,
        sampling_rate=0.01,
        delta=1e-5,
        confidence=0.95,
        floor_error=mean(0.17),
        floor_similarity=mean(0.18),
        limits=noise_limits(IMAGES, 0.95),
        settings={"Seed": "0"},
        environment={"Vestige": "0.1.0"},
        seed=0,
        strengths_planned=len(STRENGTHS),
    )
    return NoiseReport(findings=findings, judgement=judge(findings))


def one_strength() -> NoiseReport:
    """A study of a single μ."""
    whole = noise().findings
    findings = whole.model_copy(update={"points": whole.points[2:3], "strengths_planned": 1})
    return NoiseReport(findings=findings, judgement=judge(findings))


NOISE_STUDIES: dict[str, Callable[[], NoiseReport]] = {
    "noise": noise,
    "noise-null": lambda: noise(seen=0),
    "noise-invalid": lambda: noise(bounds=(1.0, 1.0, 0.5, 0.97, 0.05)),
    "noise-one": one_strength,
    "noise-redacted": lambda: noise().without_secrets(),
}
