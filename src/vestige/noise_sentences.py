"""What a study of noise says in sentences: who sees what, its verdict, what it does not show."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.noise_study import Method, NoisePoint
from vestige.numbers import at_least, count, count_word, percent, rate_with_limits
from vestige.rates import lower_limit
from vestige.record import ThreatRecord, Verdict, VerdictKind

DOUBT_IN_THEORY = 1e-4
"""Probability of calling a study invalid, over all its strengths, though bound and noise hold."""


def judge_noise(
    points: Sequence[NoisePoint],
    methods: Sequence[Method],
    candidates: int,
    images: int,
) -> Verdict:
    """Say at how many strengths of noise pictures drawn with a prior resemble their own secret.

    They do if their similarity to the secret exceeds that to another image, image by image, with
    limits joint over strengths and methods.
    """
    doubt = DOUBT_IN_THEORY / len(points)
    beyond = [p for p in points if lower_limit(p.matched.hits, p.matched.trials, doubt) > p.bound]
    if beyond:
        worst = beyond[0]
        return Verdict(
            kind=VerdictKind.INVALID,
            headline="This study says nothing yet: more images were named than the noise allows.",
            lede=f"At μ = {worst.mu:g} the right candidate was named in "
            f"{rate_with_limits(worst.matched)} of {count(images)} releases, and no attack on such "
            f"noise exceeds {percent(worst.bound)}.",
            remedy="Check that the noise is drawn anew for every image.",
        )
    seen = [point for point in points if point.resembles(methods)]
    if not seen:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="At no strength of noise did pictures drawn with this prior resemble their "
            "secret.",
            lede=f"{_similarity(points[0], methods)} {_named(points[0], candidates)} "
            "This is not evidence of safety.",
        )
    last = seen[-1]
    strengths = f"At {count_word(len(seen))} of {count_word(len(points))} strengths of noise"
    if len(points) == 1:
        strengths = "At this strength of noise"
    elif len(seen) == len(points):
        strengths = f"At all {count_word(len(points))} strengths of noise"
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"{strengths}, pictures drawn with a prior resemble their secret.",
        lede=f"{_similarity(last, methods)} {_named(last, candidates)}",
        attack=methods[last.strongest(methods)].name,
    )


def _similarity(point: NoisePoint, methods: Sequence[Method]) -> str:
    found = point.measures[point.strongest(methods)]
    return (
        f"At μ = {point.mu:g} their structural similarity to the secret is "
        f"{found.similarity.value:.2f}, to another image {found.other_similarity.value:.2f}."
    )


def _named(point: NoisePoint, candidates: int) -> str:
    rate = point.matched
    said = f"Of {count(candidates)} candidates, an attacker names the right one in"
    if rate.hits == 0:
        return f"{said} none of {count(rate.trials)} releases."
    share = "all" if rate.hits == rate.trials else percent(rate.value)
    return (
        f"{said} {share} of {count(rate.trials)} releases: at least {at_least(rate.lower)}, where "
        f"guessing reaches {percent(1 / candidates)}."
    )


def noise_threat(noun: str, clipping_norm: float, prior_name: str, candidates: int) -> ThreatRecord:
    """Who sees what: the worst case of Schwethelm et al. 2025, section 2.2."""
    return ThreatRecord(
        attacker="training server",
        who=f"A malicious server sends a network whose gradient is the {noun} itself and reads "
        "what DP-SGD sends back: the worst case that its guarantee covers.",
        sees=f"One clipped gradient of one {noun} with Gaussian noise.",
        told=f"The noise level, the clipping norm {clipping_norm:g}, and how much this gradient "
        "was clipped.",
        not_told=f"The {noun}, and the noise that was drawn.",
        prior=f"{prior_name[:1].upper()}{prior_name[1:]}. Where images are told apart, also "
        f"{count(candidates)} candidates, one of them the secret.",
    )


def noise_limits(attacked: int, confidence: float) -> tuple[str, ...]:
    """Say what the study does not show."""
    return (
        "A better prior, or one closer to the data, sees more. What this prior cannot redraw is "
        "not thereby hidden.",
        "One release was attacked. Each further step in which the image takes part adds to what an "
        "attacker sees; (ε, δ) counts all of them, the pictures do not.",
        "The attacker was told how much each gradient was clipped. Not told, the brightness of an "
        "image is uncertain, its shapes hardly.",
        "An honest server's network gives away less than one made to copy its input.",
        "The bound without a prior holds for unbiased attackers: one who believes anything about "
        "images can be below it.",
        "Squared error and SSIM are not what a person recognises: look at the pictures.",
        f"Limits at {percent(confidence)} are for {count(attacked)} images of this kind, each "
        "limit for itself; unusual images can be more exposed.",
    )
