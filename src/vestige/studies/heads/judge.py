"""What a study of heads says in sentences: its verdict and what it does not show."""

from __future__ import annotations

from vestige.reports.heads import HeadFindings, HeadRates
from vestige.reports.numbers import at_least, count, one_in, percent
from vestige.reports.parts import Rate, Verdict, VerdictKind
from vestige.reports.report import Judgement
from vestige.statistics.paired import MOST
from vestige.studies.stopped import stopped_verdict


def judge_heads(findings: HeadFindings) -> Judgement:
    """Judge what the heads gave away; INVALID if the study was stopped."""
    stopped = stopped_verdict(
        findings.failure, findings.blocks_finished, findings.blocks_planned, "blocks of heads"
    )
    return Judgement(verdict=stopped or judge_rates(findings.rates), checks=findings.preflight)


def judge_rates(rates: HeadRates) -> Verdict:
    """Say what the pooled rate shows: its lower limit against the false positive rate.

    "Redraw" is said only if the lower limit of the share of redrawn images exceeds that rate too:
    images that pass the same threshold and are less than half as far as the guess from the same set
    (:func:`vestige.statistics.head_rates.redrawn_rate`).
    """
    point = rates.pooled.operating_point
    alpha, lower = point.false_positive_rate, point.lower
    value = percent(point.true_positive_rate)
    among = f"in {count(rates.heads)} heads of {count(rates.set_size)} images each"
    allowed = f"a threshold that {one_in(alpha)} reconstructions of other heads pass"
    if lower is None:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="Too few heads were attacked to say more than pictures do.",
            lede=f"{value} of the reconstructions passed {allowed}, {among}. A limit needs at most "
            f"{count(point.needed)} heads. This is not evidence of safety.",
        )
    said = f"{value} of the reconstructions passed {allowed}: at least {at_least(lower)}, with "
    said += f"{percent(rates.confidence)} confidence, {among}."
    if lower <= alpha:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="This attack was not shown to redraw training images more often than chance.",
            lede=f"{said} This is not evidence of safety.",
        )
    redrawn = rates.redrawn
    if redrawn is None or redrawn.lower <= alpha:
        shown = sum(one.shown for one in rates.classes)
        what = f"training images of {shown} of {len(rates.classes)} classes"
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline=f"Anyone with this model can tell {what if shown else 'its training images'} "
            "from others. Redrawing them was not shown.",
            lede=f"{said} {_redrawn_sentence(redrawn)}.",
        )
    shown = sum(one.redrawn for one in rates.classes)
    what = "some of its training images" if redrawn.lower < MOST else "its training images"
    if shown:
        what = f"training images of {shown} of {len(rates.classes)} classes"
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"Anyone with this model can redraw {what}.",
        lede=f"{said} {_redrawn_sentence(redrawn)}: at least {at_least(redrawn.lower)}.",
    )


def _redrawn_sentence(rate: Rate | None) -> str:
    """Say how many images were redrawn and what that means, without a full stop."""
    if rate is None:
        return "Whether any was redrawn is not recorded"
    share = {0: "None", rate.trials: "All"}.get(rate.hits, percent(rate.value))
    return (
        f"{share} were redrawn, less than half as far from an image of their head as "
        "the mean of the attacker's own images"
    )


def head_limits(rates: HeadRates) -> tuple[str, ...]:
    """Say what the study does not show."""
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
        "Limits count images of one head as dependent; their spread is estimated from "
        f"{count(rates.heads)} heads.",
        "One head was read at a time. Several heads trained on the same images reveal more.",
    )
