"""What each kind of report contributes to its annex: who attacked, how often, what came of it.

A kind that is not known here contributes what all reports have. Another package adds its own with
``annex_facts.register(ReportType, function)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from vestige.pages.annex import enough
from vestige.pages.annex.enough import NOTHING_MISSING, Enough
from vestige.pages.annex.not_tried import (
    attacks_left,
    budget_words,
    defense_left,
    not_tried,
)
from vestige.pages.heads.tables import written_point
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditReport, HitBounds
from vestige.reports.captured_words import method_sentence
from vestige.reports.comparison_words import joined
from vestige.reports.heads import ClassRates, HeadRates, HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.parts import Rate, ThreatDescription, VerdictKind
from vestige.reports.report import Report
from vestige.reports.shown import SMALLEST, plain, rounded_down
from vestige.statistics.audit_rates import strongest

NO_FIGURE = "No figure can be cited: a check failed or the run was stopped."
NO_BOUND = "No bound is known for this release: whatever lies above the measured rate is open."
NO_BOUND_NO_RATE = "No bound is known for this release, and no rate was measured: all is open."
ONE_TRIAL_EACH = (
    "Not computed: every secret was attacked in one trial, and unusual records can be more exposed "
    "than the rate says. A study of single records (RecordRisk) measures it."
)
MOST_TIED = 3
"""Most classes of equal share that are named."""

TRAINING, DEPLOYMENT = "training stage", "deployment stage"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """What one kind of report contributes.

    ``trials`` counts attacked releases; ``subject`` is what was attacked; ``average`` and
    ``maximum`` are sentences about risk; ``bounded`` says that a theorem limits the attacks.
    ``not_tried`` are sentences about what did not run, ``enough`` says whether what ran suffices.
    """

    subject: str
    trials: int | None
    planned: int | None
    threats: tuple[tuple[str, ThreatDescription], ...]
    stage: str
    attacks: tuple[str, ...]
    average: str
    maximum: str
    sure: str
    theory: str
    mechanism: str = ""
    bounded: bool = False
    guess: str = ""
    quantity: tuple[Pair, ...] = ()
    not_tried: str = ""
    enough: Enough = NOTHING_MISSING


def facts_of(report: Report[Any, Any]) -> Facts:
    """The facts of a report; no figure of an INVALID one."""
    return annex_facts(report)


def is_invalid(report: Report[Any, Any]) -> bool:
    """Whether nothing of a report can be cited."""
    return report.verdict.kind is VerdictKind.INVALID


@singledispatch
def annex_facts(report: Report[Any, Any]) -> Facts:
    """What a report of any kind contributes: its own verdict, and what all findings hold."""
    found = report.findings
    threat = getattr(found, "threat", None)
    trials = getattr(found, "trials", None)
    attack = getattr(found, "attack", None)
    return Facts(
        subject=found.title,
        trials=trials if isinstance(trials, int) else None,
        planned=None,
        threats=(("", threat),) if isinstance(threat, ThreatDescription) else (),
        stage="",
        attacks=(attack,) if isinstance(attack, str) else (),
        average=NO_FIGURE if is_invalid(report) else report.verdict.lede,
        maximum="This kind of study does not state the most exposed records.",
        sure="As its verdict and limits say.",
        theory=NO_BOUND,
    )


@annex_facts.register
def audit_facts(report: AuditReport) -> Facts:
    """Trials of an audit: the rate of the strongest attack, and the bound of the mechanism."""
    found, theory = report.findings, report.findings.bounds
    attacks = tuple(attack.name for attack in found.attacks if not attack.guess)
    bounded = theory is not None and theory.success < 1
    pool = found.smallest_pool
    return Facts(
        subject=f"{numbers.defended(found.release, found.defense)}, one release of "
        f"{numbers.plural(found.batch_size, 'record')} in each trial",
        trials=found.trials_finished,
        planned=found.trials_planned,
        threats=(("", found.threat),),
        stage=stage_of(found.release),
        attacks=attacks,
        average=NO_FIGURE if is_invalid(report) else _audit_rate(report),
        maximum=NO_FIGURE if is_invalid(report) else ONE_TRIAL_EACH,
        sure=f"{numbers.share(found.confidence)} confidence, jointly over "
        f"{numbers.plural(len(attacks), 'attack')}; "
        f"{numbers.plural(found.trials_finished, 'trial')}"
        + (f" ({_additions(report)})" if found.earlier_trials else "")
        + (", each with another secret" if found.trials_finished > 1 else ""),
        theory=" ".join(filter(None, (bound_words(theory), _shown_words(report)))),
        mechanism="" if theory is None else theory.mechanism,
        bounded=bounded,
        not_tried=not_tried(
            (found.threat.attacker,),
            attacks_left(found.release, found.space.kind, attacks),
            budget_words(a for a in found.attacks if not a.guess),
            defense_left(found.defense),
            "several releases about one record",
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.audit_enough(report),
        guess=f"Guesses with the same hints were compared with the same records"
        f"{_guessed(report)}; by chance {numbers.by_chance(found.false_positive_rate)}.",
        quantity=(
            ("Decoys", f"{numbers.count(found.decoys)} in each trial, of the secret's class"),
            *(
                (
                    (
                        "Additions",
                        f"{_additions(report)}. {method_sentence(found)}",
                    ),
                )
                if found.earlier_trials
                else ()
            ),
            *((("Pool", f"at least {numbers.count(pool)} records of a class"),) if pool else ()),
        ),
    )


def _additions(report: AuditReport) -> str:
    found = report.findings
    return numbers.planned_and_added(found.earlier_trials, found.trials_planned)


def bound_words(theory: HitBounds | None, mechanism: str = "") -> str:
    """What theory allows any attack; ``mechanism`` is what a report without a bound states."""
    if theory is not None and theory.success < 1:
        return (
            "If the release is what it is said to be, no attack exceeds "
            f"{numbers.allowed(theory.success)} ({theory.tightest})."
        )
    if theory is None and mechanism:
        return f"Stated: {mechanism}. What it allows was not computed in this report."
    if theory is not None and theory.epsilon is not None:
        return "The stated mechanism rules nothing out here: all above the measured rate is open."
    return NO_BOUND


def _shown_words(report: AuditReport) -> str:
    """The ε that the trials show beside the stated one, in short."""
    shown = report.judgement.shown
    if shown is None or shown.refusal or is_invalid(report):
        return ""
    stated = shown.stated_epsilon
    found = shown.comparable if stated is not None else shown.epsilon
    said = f"ε ≥ {rounded_down(found)}" if found >= SMALLEST else "no ε above 0"
    beside = "none is stated" if stated is None else f"stated: ε = {plain(stated)}"
    end = "; so the release is not what it is said to be" if shown.contradicts else ""
    return f"These trials alone show {said}; {beside} (δ = {plain(shown.delta)}){end}."


def stage_of(release: str) -> str:
    """The stage at which a release, in its words, leaves its owner."""
    return DEPLOYMENT if "model" in release or "head" in release else TRAINING


def _audit_rate(report: AuditReport) -> str:
    found = report.findings
    best = strongest(found, report.judgement.rates)
    rate = None if best is None else report.judgement.rates_of(best).rate
    if best is None or rate is None:
        return "No attack has a rate."
    some = numbers.some_of(rate.hits, rate.trials, "secret")
    return (
        f"{some[:1].upper()}{some[1:]} came back by {best.name}: at least "
        f"{numbers.at_least(rate.lower)}, at most {numbers.at_most(rate.upper)}; by chance "
        f"{numbers.share(found.false_positive_rate)}.{_no_better(report, best.name, rate)}"
        f"{detail_words(best)}"
    )


def _best_guess(report: AuditReport) -> tuple[str, Rate] | None:
    """The guess that hit most, and its rate; a guess never looks at the release."""
    rates = (
        (one.name, rate)
        for one in report.findings.attacks
        if one.guess and (rate := report.judgement.rates_of(one).rate) is not None
    )
    return max(rates, key=lambda one: one[1].value, default=None)


def _guessed(report: AuditReport) -> str:
    """How often the best guess hit, as a clause; nothing where a check failed."""
    best = _best_guess(report)
    if best is None or is_invalid(report):
        return ""
    return f": the best, {best[0]}, hit {numbers.hits_of(best[1])}"


def _no_better(report: AuditReport, name: str, rate: Rate) -> str:
    """Say that the leading attack hit no more than a guess, which reads nothing of the release."""
    best = _best_guess(report)
    if best is None or not rate.hits or rate.value > best[1].value:
        return ""
    return (
        f" {name} hit no more often than a guess that reads nothing of the release "
        f"({best[0]}: {numbers.hits_of(best[1])})."
    )


def detail_words(attack: AttackFindings) -> str:
    """How many personal details of texts came back over all trials; empty where none counts."""
    known = [one.details for one in attack.outcomes if one.details is not None]
    found, total = (sum(one[place] for one in known) for place in (0, 1))
    if not total:
        return ""
    return f" Personal details that came back: {numbers.count(found)} of {numbers.count(total)}."


@annex_facts.register
def inversion_facts(report: InversionReport) -> Facts:
    """Runs on one captured release without its records: candidates, and no rate."""
    found = report.findings
    runs = sum(len(fit.run_residuals) for fit in found.fits)
    return Facts(
        subject=numbers.defended(found.release, found.defense),
        trials=None,
        planned=None,
        threats=(("", found.threat),),
        stage=TRAINING,
        attacks=tuple(attack.name for attack in found.attacks),
        average=NO_FIGURE
        if is_invalid(report)
        else f"No rate: candidates were not compared with the records. {report.verdict.headline}",
        maximum=NO_FIGURE if is_invalid(report) else "Not known without the records.",
        sure="Nothing was compared with a record: how well candidates fit is no rate",
        theory=NO_BOUND_NO_RATE,
        mechanism=found.settings.get("Clipping and noise", ""),
        not_tried=not_tried(
            (found.threat.attacker,),
            attacks_left(found.release, found.space.kind, [one.name for one in found.attacks]),
            budget_words(found.attacks),
            "a comparison with the records",
            "other releases of the same client",
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.inversion_enough(report),
        quantity=(("Runs", f"{numbers.count(runs)} on one captured release"),) if runs else (),
    )


@annex_facts.register
def head_facts(report: HeadReport) -> Facts:
    """Heads: the share of drawings that match their own head, and the most exposed class."""
    found, rates = report.findings, report.findings.rates
    best, chance = rates.strongest, numbers.share(rates.false_positive_rate)
    lower = best.operating_point.lower if best.test is None else best.joint_lower
    least = (
        "" if lower is None else f", at least {numbers.at_least(lower, rates.false_positive_rate)}"
    )
    upper = best.operating_point.upper
    if upper is not None and not rates.exceeds(best):
        least += f", at most {numbers.at_most(upper)}"
    exposed = [one for one in rates.classes if one.shown]
    drawings = best.true_positives.trials
    matched = round(best.operating_point.true_positive_rate * drawings)
    private = [p for p in found.privacy if p.epsilon is not None]
    return Facts(
        subject=f"{numbers.plural(rates.heads, 'published head')}, each trained on "
        f"{numbers.plural(rates.set_size, 'image')}",
        trials=rates.heads,
        planned=None,
        threats=(("", found.threat),),
        stage=DEPLOYMENT,
        attacks=(found.attack.name,),
        average=NO_FIGURE
        if is_invalid(report)
        else f"{numbers.count(matched)} of {numbers.plural(drawings, 'drawing')} match an image of "
        f"their own head{least}; by chance {chance}.",
        maximum=NO_FIGURE if is_invalid(report) else _exposed_classes(exposed, rates),
        sure=f"{numbers.level(rates.confidence)} confidence over {numbers.count(rates.heads)} "
        "heads that share no image",
        not_tried=not_tried(
            (found.threat.attacker,),
            attacks_left("a published head", found.space.kind, (found.attack.name,)),
            budget_words((found.attack,)),
            "" if private else "training with noise",
            "several heads trained on the same images",
        ),
        enough=NOTHING_MISSING if is_invalid(report) else enough.head_enough(report),
        theory=NO_BOUND
        if not private
        else "The published head has no bound; heads trained with noise were measured at ε = "
        + ", ".join(numbers.epsilon(p.epsilon) for p in private if p.epsilon is not None)
        + ".",
        guess=f"The same drawings were compared with images of other heads: {chance} may pass.",
        quantity=(("Images of a head", numbers.count(rates.set_size)),),
    )


def _exposed_classes(exposed: Sequence[ClassRates], rates: HeadRates) -> str:
    """The classes with the largest share, all of those that tie, and what was shown of how many."""
    if not exposed:
        return "Not computed image by image; no single class was shown to be exposed."
    most = max(one.operating_point.true_positive_rate for one in exposed)
    tied = [one for one in exposed if one.operating_point.true_positive_rate == most]
    total, redrawn = len(rates.classes), sum(one.redrawn for one in exposed)
    which = (
        f"Class {tied[0].label}"
        if len(tied) == 1
        else f"Classes {joined([one.label for one in tied])} alike"
        if len(tied) <= MOST_TIED
        else f"{numbers.count(len(tied))} classes alike"
    )
    return (
        f"{which}: {written_point(tied[0].operating_point)} of the drawings match their own head. "
        f"Told from others: {len(exposed)} of {total} classes; redrawn: {redrawn} of {total}. "
        "Single images were not compared."
    )
