"""Whether what ran is enough for a verdict, and how much would be: computed, never a rule of thumb.

Limits are those of Clopper and Pearson (1934) unless a report has others. "A rate as measured would
be shown" means that its lower limit, at the doubt of the report, exceeds what chance gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

from vestige.reports import numbers
from vestige.reports.audit import AuditFindings, AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.parts import Rate, VerdictKind
from vestige.reports.record_words import record_words
from vestige.reports.repeated import RepeatedReport
from vestige.reports.risk import RiskReport
from vestige.statistics.anytime import anytime_limits
from vestige.statistics.audit_rates import joint_confidence, strongest
from vestige.statistics.rates import clopper_pearson, pool_design_effect
from vestige.statistics.record_risk import with_and_without
from vestige.statistics.resemblance import SOME, hidden_strengths, joint_doubt
from vestige.statistics.tradeoff import least_trials

MOST = 1_000_000
"""Trials beyond which no number is named."""

WIDE = 0.25
"""Distance of two limits from which on they are called wide."""

ASKED = 0.2
"""Distance of two limits that more trials are asked for: about 10 points to either side."""

SLACK = 1e-9
"""Absorbs the error of a product before it is rounded."""

Limits = Callable[[float, int], tuple[float, float]]
"""Both limits of a rate from hits, which may be a fraction, and trials."""


@dataclass(frozen=True)
class Enough:
    """What is said of too few trials: how sure that leaves a reader, and what to run.

    ``hopeless`` says that not even hits in all of them could have been shown.
    """

    doubt: str = ""
    advice: str = ""
    hopeless: bool = False


NOTHING_MISSING = Enough()
"""What ran is enough, or the report has no number to say so."""


def smallest(passes: Callable[[int], bool], start: int = 1) -> int | None:
    """The smallest number from ``start`` on that passes, if larger ones do; None beyond MOST."""
    low, high = start - 1, max(start, 1)
    while not passes(high):
        if high >= MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def all_hits_shown(limits: Limits, chance: float) -> int | None:
    """Fewest trials whose hits would be shown if all were hits."""
    return smallest(lambda n: limits(n, n)[0] > chance)


def rate_shown(value: float, limits: Limits, chance: float, start: int = 1) -> int | None:
    """Fewest trials with which a rate of this size, hits rounded down, would be shown."""
    if value <= chance:
        return None
    # Fewer hits give lower limits, so no number below that of hits that are not rounded passes.
    first = smallest(lambda n: limits(value * n, n)[0] > chance, start)
    several = () if first is None else range(first, 2 * first + math.ceil(10 / value))
    return next((n for n in several if limits(math.floor(value * n + SLACK), n)[0] > chance), first)


def limits_narrow(value: float, limits: Limits, start: int = 1) -> int | None:
    """Fewest trials, about, with which limits of a rate of this size lie as close as is asked."""

    def passes(n: int) -> bool:
        lower, upper = limits(value * n, n)
        return upper - lower <= ASKED

    return smallest(passes, start)


def enough_trials(
    rate: Rate,
    chance: float,
    limits: Limits,
    unit: str,
    *,
    shown: bool,
    each: str = "",
    fewest: int = 1,
) -> Enough:
    """What to say of a rate: too few trials to show anything, too few for this rate, wide limits.

    ``unit`` is what is counted and ``each`` what follows its number: "in each repetition". No
    fewer than ``fewest`` are asked for, because another statement of the report needs them.
    """

    def many(number: int) -> str:
        return f"{numbers.plural(number, unit)}{each}"

    least = all_hits_shown(limits, chance)
    if not shown and least is not None and rate.trials < least:
        return Enough(
            f"{many(rate.trials)} {_are(rate.trials)} too few for a verdict: even if all were hits "
            "it would not be shown",
            f"Run at least {many(max(least, fewest))}, where all hits would be shown.",
            hopeless=True,
        )
    spoken = numbers.limits(rate.lower, rate.upper)
    doubted = not shown and rate.lower <= chance
    needed = rate_shown(rate.value, limits, chance, rate.trials) if doubted else None
    if needed is not None:
        return Enough(
            f"the limits, {spoken}, include chance ({numbers.share(chance)})",
            f"Run about {many(max(needed, fewest))}: a rate as measured would then be shown.",
        )
    if rate.upper - rate.lower <= WIDE:
        return NOTHING_MISSING
    narrow = limits_narrow(rate.value, limits, rate.trials)
    advice = "" if narrow is None else many(max(narrow, fewest))
    advice = advice and f"Run about {advice} for limits 20 points apart."
    return Enough(f"the limits are wide, {spoken}", advice)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _clopper_pearson(confidence: float, effect: float = 1.0) -> Limits:
    return lambda hits, trials: clopper_pearson(hits / effect, trials / effect, confidence)


def audit_limits(found: AuditFindings) -> Limits:
    """Limits as the report of an audit has them, at other numbers of trials."""
    confidence = joint_confidence(found)
    if found.earlier_trials:
        return lambda hits, trials: anytime_limits(math.floor(hits + SLACK), trials, confidence)
    return _clopper_pearson(confidence, pool_design_effect(found.smallest_pool))


def audit_enough(report: AuditReport) -> Enough:
    """Trials of an audit, by its strongest attack."""
    found = report.findings
    best = strongest(found, report.judgement.rates)
    rate = None if best is None else report.judgement.rates_of(best).rate
    if found.trials_finished == 1:
        needed = limits_narrow(0.5, audit_limits(found))
        advice = f"Run about {numbers.plural(needed or MOST, 'trial')} for limits 20 points apart."
        return Enough(f"one trial is {record_words(found.space.kind).example}, not a rate", advice)
    if rate is None or not rate.trials:
        return NOTHING_MISSING
    shown = report.verdict.kind in (VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)
    unit = "trial" if found.smallest_pool is None else "captured release"
    chance = found.false_positive_rate
    return enough_trials(rate, chance, audit_limits(found), unit, shown=shown)


def inversion_enough(report: InversionReport) -> Enough:
    """Candidates have no rate: how many trials of an audit would give one with narrow limits."""
    needed = limits_narrow(0.5, _clopper_pearson(report.findings.confidence))
    if needed is None:
        return NOTHING_MISSING
    return Enough(
        "",
        f"Run an audit with known records: about {numbers.plural(needed, 'trial')} give limits 20 "
        "points apart.",
    )


def head_enough(report: HeadReport) -> Enough:
    """Heads of a study: enough ways to swap their training sets, and limits that are not wide.

    Of H heads there are H! ways to assign training sets, so no p-value lies below 1/H!. Limits
    come from drawing heads again: their distance falls with the root of the number of heads.
    """
    rates = report.findings.rates
    best, alpha, heads = rates.strongest, rates.false_positive_rate, rates.heads
    point, level = best.operating_point, (1 - rates.confidence) / 2
    value = point.true_positive_rate
    if best.test is not None and 1 / math.factorial(min(heads, 20)) > level:
        least = smallest(lambda n: 1 / math.factorial(min(n, 20)) <= level)
        return Enough(
            f"{numbers.plural(heads, 'head')} {_are(heads)} too few for a verdict: even if all "
            "drawings matched, it would not be shown",
            f"Run at least {numbers.plural(least or 20, 'head')}, where matches of all would be.",
            hopeless=True,
        )
    lower = point.lower if best.test is None else best.joint_lower
    if lower is None or point.upper is None:
        return Enough(
            f"{numbers.plural(heads, 'head')} {_are(heads)} too few for a limit",
            f"Run {numbers.plural(point.needed, 'head')}: they surely give one.",
        )
    if not rates.exceeds(best) and value > alpha:
        factor = ((value - lower) / (value - alpha)) ** 2 if lower <= alpha else 1.0
        if best.test is not None and level < best.test.p_value < 0.5:
            normal = NormalDist()
            reached, asked = (-normal.inv_cdf(p) for p in (best.test.p_value, level))
            factor = max(factor, (asked / reached) ** 2)
        needed = math.ceil(heads * factor)
        if heads < needed <= MOST:
            return Enough(
                "a share as measured could be chance with so few heads",
                f"Run about {numbers.plural(needed, 'head')}: a share as measured would be shown.",
            )
    if point.upper - lower <= WIDE:
        return NOTHING_MISSING
    narrow = math.ceil(heads * ((point.upper - lower) / ASKED) ** 2)
    return Enough(
        f"the limits are wide, {numbers.limits(lower, point.upper, alpha)}",
        f"Run about {numbers.plural(narrow, 'head')} for limits 20 points apart.",
    )


def noise_enough(report: NoiseReport) -> Enough:
    """Images of a study of noise, by the pictures at the least noise."""
    found, first = report.findings, report.findings.points[0]
    confidence = 1 - 2 * joint_doubt(len(found.points), len(found.methods), found.confidence)
    limits = _clopper_pearson(confidence)
    named = first.measures[first.strongest(found.methods)].named
    lower, upper = limits(named.hits, named.trials)
    rate = named.model_copy(update={"lower": lower, "upper": upper})
    least = max(SOME, 1 / found.candidates)
    shown = len(hidden_strengths(found)) < len(found.points)
    return enough_trials(rate, least, limits, "image", shown=shown)


def comparison_enough(report: ComparisonReport) -> Enough:
    """Trials of each setting, by hits without a defence and by what tells settings apart."""
    found = report.findings
    cells = [c for p in found.points if p.undefended for c in p.cells if c.most_hits]
    best = max(cells, key=lambda c: c.most_hits.lower if c.most_hits else 0.0, default=None)
    if best is None or best.most_hits is None:
        return NOTHING_MISSING
    limits = _clopper_pearson(1 - (1 - found.confidence) / max(1, len(best.measures)))
    alpha = found.false_positive_rate
    shown = best.most_hits.lower > alpha
    each = " of each setting"
    apart = least_trials(found.confidence)
    said = enough_trials(
        best.most_hits, alpha, limits, "trial", shown=shown, each=each, fewest=apart
    )
    if found.trials >= apart or said.hopeless:
        return said
    told = f"{numbers.plural(found.trials, 'trial')} cannot tell settings apart"
    doubt = f"{told}; {said.doubt}" if said.doubt else told
    return Enough(doubt, said.advice or f"Run at least {numbers.plural(apart, 'trial')}{each}.")


def repeated_enough(report: RepeatedReport) -> Enough:
    """Trials of each repetition, by the attack whose repetitions reach most."""
    found = report.findings
    rates = [(r.lower, r.value, r) for name in found.attacks for r in found.rates_of(name)]
    if not rates:
        return NOTHING_MISSING
    best = max(rates, key=lambda one: one[:2])[2]
    limits = _clopper_pearson(1 - (1 - found.confidence) / found.repeats / len(found.attacks))
    shown, each = report.verdict.kind is VerdictKind.DEMONSTRATED, " in each repetition"
    chance = found.false_positive_rate
    said = enough_trials(best, chance, limits, "trial", shown=shown, each=each)
    named = said.doubt.replace("the limits", "the limits of the repetition that hit most", 1)
    return replace(said, doubt=named)


def risk_enough(report: RiskReport) -> Enough:
    """Releases of each record: by Fisher's test at the first step of Holm's procedure."""
    found, risks = report.findings, report.judgement.attacks
    tests = len(found.records) * len(found.attacks)
    if not tests or not risks or not found.repeats or not found.controls:
        return NOTHING_MISSING
    level = (1 - found.confidence) / 2 / tests
    each = " of each record"

    def shown(share: float, without: float, releases: int) -> bool:
        controls = releases * found.controls
        hits, other = math.floor(share * releases + SLACK), math.ceil(without * controls - SLACK)
        return with_and_without(hits, releases, other, controls) <= level

    repeats = numbers.plural(found.repeats, "release")
    least = smallest(lambda n: shown(1.0, 0.0, n))
    exposed = any(one.exposed for one in risks)
    if not exposed and least is not None and found.repeats < least:
        return Enough(
            f"{repeats}{each} {_are(found.repeats)} too few for a verdict: even hits in all of "
            "them would not be shown",
            f"Run at least {numbers.plural(least, 'release')}{each} (repeats), where hits in all "
            "would be shown.",
            hopeless=True,
        )
    if not exposed:
        hit = max((h for r in found.records for h in r.found), key=lambda one: one.excess)
        if not (hit.excess > 0 and hit.releases and hit.controls):
            return NOTHING_MISSING
        with_it, without = hit.hits / hit.releases, hit.control_hits / hit.controls
        needed = smallest(lambda n: shown(with_it, without, n), found.repeats)
        if needed is None:
            return NOTHING_MISSING
        return Enough(
            "the record with the most hits above its control could be chance",
            f"Run about {numbers.plural(needed, 'release')}{each} (repeats): its rate as measured "
            "would then be shown.",
        )
    rate = max(
        (r.rate for one in risks for r in one.rates if r.exposed), key=lambda r: (r.lower, r.value)
    )
    if rate.upper - rate.lower <= WIDE:
        return NOTHING_MISSING
    limits = _clopper_pearson(1 - (1 - found.confidence) / tests)
    narrow = limits_narrow(rate.value, limits, rate.trials)
    return Enough(
        f"the limits of single records are wide, {numbers.limits(rate.lower, rate.upper)}",
        ""
        if narrow is None
        else f"Run about {numbers.plural(narrow, 'release')}{each} for limits 20 points apart.",
    )
