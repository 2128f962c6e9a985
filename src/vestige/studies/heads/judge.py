"""What a study of heads says in sentences: its verdict and what it does not show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vestige.reports.heads import CountedRates, HeadFindings, HeadRates
from vestige.reports.numbers import (
    at_least,
    count,
    grown,
    level,
    one_in,
    p_value,
    percent,
    quantity,
)
from vestige.reports.parts import Rate, Verdict, VerdictKind
from vestige.reports.report import Judgement
from vestige.statistics.paired import MOST
from vestige.studies.stopped import stopped_verdict


def judge_heads(findings: HeadFindings) -> Judgement:
    """Judge what the heads gave away; INVALID if the study was stopped."""
    stopped = stopped_verdict(
        findings.failure, findings.blocks_finished, findings.blocks_planned, "blocks of heads"
    )
    verdict = stopped or _with_accuracy(judge_rates(findings.rates), findings)
    return Judgement(verdict=verdict, checks=findings.preflight)


def _with_accuracy(verdict: Verdict, findings: HeadFindings) -> Verdict:
    """The verdict, with a remark where nothing was shown on heads that learned little."""
    if verdict.kind is not VerdictKind.NOT_DEMONSTRATED or not findings.learned_little:
        return verdict
    said = f"{verdict.lede} {findings.accuracy_sentence}"
    return verdict.model_copy(update={"lede": said})


def judge_rates(rates: HeadRates) -> Verdict:
    """Say what the strongest count shows: pooled, per class or class-normalised.

    A count exceeds chance if its permutation test says so, jointly for all statements of the study,
    and if its lower limit, which holds for the three counts together, exceeds the false positive
    rate. "Redraw" is said only if the lower limit of the share of redrawn images exceeds that rate
    too: images that pass the same threshold and are less than half as far as the guess from the
    same set.
    """
    best, alpha = rates.strongest, rates.false_positive_rate
    test = best.test
    lower = best.operating_point.lower if test is None else best.joint_lower
    said = _rate_sentence(rates, best, lower)
    if not rates.exceeds(best):
        headline = "This attack was not shown to redraw training images more often than chance."
        if lower is None:
            headline = "Too few heads were attacked to say more than pictures do."
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline=headline,
            lede=f"{said}{_why_not(rates, best)} This is not evidence of safety.",
        )
    named = "" if test is None or not rates.conditional else f" ({NAMES[best.name]} count)"
    by_class = " (by the test of each class)"  # classes are not told apart by any count
    redrawn = rates.redrawn if test is None else best.redrawn
    if test is not None and lower is None:
        headline = f"can tell its training images from others{named}. How many needs more heads."
        said += f" Own images matched {count(test.hits)} times, {quantity(test.by_chance)} times "
        said += f"are expected by chance (p = {p_value(test.p_value)})."
    elif redrawn is None or redrawn.lower <= alpha:
        shown = sum(one.shown for one in rates.classes)
        what = f"training images of {shown} of {len(rates.classes)} classes"
        headline = f"can tell {what if shown else 'its training images'} from others"
        headline += f"{by_class if shown else named}. "
        headline += "Redrawing them was not shown."
        said += f" {_redrawn_sentence(redrawn)}."
    else:
        shown = sum(one.redrawn for one in rates.classes)
        what = "some of its training images" if redrawn.lower < MOST else "its training images"
        some = f"some training images of {shown} of {len(rates.classes)} classes"
        headline = f"can redraw {some if shown else what}{by_class if shown else named}."
        if shown:
            headline += f" Of all drawings {percent(redrawn.value)} were redrawn."
        said += f" {_redrawn_sentence(redrawn)}: at least {at_least(redrawn.lower, alpha)}."
    return Verdict(
        kind=VerdictKind.DEMONSTRATED, headline=f"Anyone with this model {headline}", lede=said
    )


def _why_not(rates: HeadRates, best: CountedRates) -> str:
    """Why a limit above chance shows nothing: the exact test over heads does not reach its level.

    H heads can be given their training sets in H! ways, so no p-value lies below 1/H!.
    """
    test, alpha = best.test, rates.false_positive_rate
    if test is None or best.joint_lower is None or best.joint_lower <= alpha:
        return ""
    asked = (1 - rates.confidence) / 2
    ways = math.factorial(min(rates.heads, 20))
    told = f"an exact test over the heads must reach p = {level(asked)}"
    if 1 / ways > asked:
        return (
            f" The limit alone does not decide: {told}, and {count(rates.heads)} heads, whose "
            f"training sets can be swapped in {count(ways)} ways, allow no p below "
            f"{percent(1 / ways)}."
        )
    return f" The limit alone does not decide: {told}, and it gives p = {p_value(test.p_value)}."


NAMES = {"pooled": "pooled", "per class": "per-class", "class-normalised": "class-normalised"}
"""Counts as adjectives."""

THRESHOLDS = {
    "pooled": "a threshold for all classes",
    "per class": "a threshold of their class",
    "class-normalised": "a threshold in units of their class's own distance",
}


def _rate_sentence(rates: HeadRates, best: CountedRates, lower: float | None) -> str:
    """Say how many passed by the strongest count, and the rates of all counts."""
    value = percent(best.operating_point.true_positive_rate)
    known = rates.conditional and best.test is not None
    threshold = THRESHOLDS[best.name] if known else "a threshold"
    said = f"{value} of the reconstructions passed {threshold}"
    said += f" that {one_in(rates.false_positive_rate)} reconstructions of other heads pass"
    if lower is not None:
        limit = at_least(lower, rates.false_positive_rate)
        said += f": at least {limit}, with {level(rates.confidence)} confidence"
    said += f", in {count(rates.heads)} heads of {count(rates.set_size)} images each."
    if rates.conditional and len(rates.counted) > 1:
        every = [f"{o.name} {percent(o.operating_point.true_positive_rate)}" for o in rates.counted]
        said += f" By all counts: {', '.join(every)}."
    if lower is None:
        said += f" A limit needs at most {count(best.operating_point.needed)} heads."
    return said


def _redrawn_sentence(rate: Rate | None) -> str:
    """Say how many images were redrawn and what that means, without a full stop."""
    if rate is None:
        return "Whether any was redrawn is not recorded"
    share = {0: "None", rate.trials: "All"}.get(rate.hits, percent(rate.value))
    return (
        f"{share} were redrawn, less than half as far from an image of their head as "
        "the mean of the attacker's own images"
    )


def head_limits(
    rates: HeadRates, earlier_sizes: Sequence[int] = (), confidence: float = 0.95
) -> tuple[str, ...]:
    """Say what the study does not show; ``confidence`` is what was planned."""
    nearest = (
        "The threshold is how far images of this kind usually lie from the nearest other one: a "
        "reconstruction beyond it can still be recognised, and one within it can be a blur."
    )
    return (
        "A stronger attack may redraw more. Rates are what this attack did, not the most that can "
        "be done.",
        "Misses are not protected images: the attack failed on them this time.",
        nearest,
        "Heads were trained on images of one source. Unusual images can be more exposed than "
        "the rates say.",
        "Limits come from drawing the heads again with replacement. They are approximate, and the "
        f"spread is estimated from {count(rates.heads)} heads; the tests are exact.",
        "One head was read at a time. Several heads trained on the same images reveal more.",
        *_added(rates, earlier_sizes, confidence),
    )


def _added(rates: HeadRates, earlier_sizes: Sequence[int], confidence: float) -> tuple[str, ...]:
    """Say that heads were added to a study, and what that costs."""
    if not earlier_sizes:
        return ()
    return (
        f"Heads were added: the study was {grown(earlier_sizes, rates.heads)}. "
        f"Limits and tests are at {level(rates.confidence)} instead of {level(confidence)}, so "
        f"that reports after additions are wrong at most {level(1 - confidence)} of the time, "
        "however many there are. The report before the first addition has an error of its own.",
    )
