"""What a study of noise says in sentences: who sees what, its verdict, what it does not show."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.reports.noise import Method, NoiseFindings, NoisePoint
from vestige.reports.numbers import at_least, count, count_word, percent, rate_with_limits
from vestige.reports.parts import ThreatDescription, Verdict, VerdictKind
from vestige.reports.report import Judgement
from vestige.statistics.paired import MOST
from vestige.statistics.rates import lower_limit
from vestige.statistics.resemblance import SOME, joint_doubt, resembling
from vestige.studies.stopped import stopped_verdict

DOUBT_IN_THEORY = 1e-4
"""Probability of calling a study invalid, over all its strengths, though bound and noise hold."""


def judge_noise(findings: NoiseFindings) -> Judgement:
    """Judge what was seen through the noise; INVALID if the study was stopped."""
    points = findings.points
    stopped = stopped_verdict(
        findings.failure, len(points), findings.strengths_planned, "strengths"
    )
    verdict = stopped or judge_points(
        points, findings.methods, findings.candidates, findings.images, findings.confidence
    )
    return Judgement(verdict=verdict, checks=findings.preflight)


def judge_points(
    points: Sequence[NoisePoint],
    methods: Sequence[Method],
    candidates: int,
    images: int,
    confidence: float = 0.95,
) -> Verdict:
    """Say at how many strengths of noise pictures drawn with a prior resemble their own secret.

    A picture resembles its secret if it lies nearer to it than to all other candidates, and if the
    pictures of its method are on average more similar to their own secret than to another image
    (SSIM, image by image). "Most" and "some" are lower limits of the share of such pictures, joint
    over strengths and methods: a blurred average is a little more similar to its own secret long
    after it has ceased to look like it. That releases name their secret is judged at the same
    limits, so that equal counts read alike.
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
            remedy="Check that every image gets noise of its own.",
        )
    joint = joint_doubt(len(points), len(methods), confidence)
    for word, least in (("most", MOST), ("some", max(SOME, 1 / candidates))):
        shares = [resembling(p, methods, joint) for p in points]
        seen = [place for place, (_, lower) in enumerate(shares) if lower > least]
        if seen:
            last, (method, lower) = points[seen[-1]], shares[seen[-1]]
            return Verdict(
                kind=VerdictKind.DEMONSTRATED,
                headline=f"{_strengths(len(seen), len(points))}, {word} pictures from a prior "
                "resemble their secret.",
                lede=f"{_resemblance(last, methods, method, lower, candidates)} "
                f"{_named(last, candidates, joint)}",
                attack=methods[method].name,
            )
    told = [
        p for p in points if lower_limit(p.matched.hits, p.matched.trials, joint) > 1 / candidates
    ]
    if told:
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline=f"{_strengths(len(told), len(points))}, images can be told apart. "
            "Drawing them was not shown.",
            lede=f"{_named(told[-1], candidates, joint)} {_similarity(told[-1], methods)}",
        )
    return Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline="At no strength of noise did pictures drawn with this prior resemble their "
        "secret.",
        lede=f"{_similarity(points[0], methods)} {_named(points[0], candidates, joint)} "
        "This is not evidence of safety.",
    )


def _strengths(seen: int, of: int) -> str:
    if of == 1:
        return "At this strength of noise"
    if seen == of:
        return f"At all {count_word(of)} strengths of noise"
    return f"At {count_word(seen)} of {count_word(of)} strengths of noise"


def _resemblance(
    point: NoisePoint, methods: Sequence[Method], method: int, lower: float, candidates: int
) -> str:
    """Say what resembling means, for how many pictures it holds and how similar they are."""
    found = point.measures[method]
    share = "all" if found.named.hits == found.named.trials else percent(found.named.value)
    others = "the other candidate" if candidates == 2 else f"{count(candidates - 1)} others"
    return (
        f"At μ = {point.mu:g}, {share} of {count(found.named.trials)} pictures by "
        f"{methods[method].name} are nearer to their own secret than to {others}: at least "
        f"{at_least(lower)}. Their structural similarity to the secret is "
        f"{found.similarity.value:.2f}, to another image {found.other_similarity.value:.2f}."
    )


def _similarity(point: NoisePoint, methods: Sequence[Method]) -> str:
    found = point.measures[point.strongest(methods)]
    return (
        f"At μ = {point.mu:g} the structural similarity of pictures to the secret is "
        f"{found.similarity.value:.2f}, to another image {found.other_similarity.value:.2f}."
    )


def _named(point: NoisePoint, candidates: int, doubt: float) -> str:
    """How often the release names its secret; the limit is at the doubt of all other counts."""
    rate = point.matched
    said = f"Of {count(candidates)} candidates, an attacker names the right one in"
    if rate.hits == 0:
        return f"{said} none of {count(rate.trials)} releases."
    share = "all" if rate.hits == rate.trials else percent(rate.value)
    return (
        f"{said} {share} of {count(rate.trials)} releases: at least "
        f"{at_least(lower_limit(rate.hits, rate.trials, doubt))}, where guessing reaches "
        f"{percent(1 / candidates)}."
    )


def noise_threat(
    noun: str, clipping_norm: float, prior_name: str, candidates: int
) -> ThreatDescription:
    """Who sees what: the worst case of Schwethelm et al. 2025, section 2.2."""
    return ThreatDescription(
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
        f"Limits at {percent(confidence)} are for {count(attacked)} images of this kind; those of "
        "counts hold together, those of means each for itself. Unusual images can be more exposed.",
    )
