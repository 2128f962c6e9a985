"""What each kind of report contributes to its annex: who attacked, how often, what came of it.

A kind that is not known here contributes what all reports have. Another package adds its own with
``annex_facts.register(ReportType, function)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from vestige.pages.heads.tables import written_point
from vestige.reports import numbers
from vestige.reports.audit import AuditReport
from vestige.reports.captured_words import method_sentence
from vestige.reports.comparison import Cell, ComparisonFindings, ComparisonReport, DefendedPoint
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.parts import Rate, ThreatDescription, VerdictKind
from vestige.reports.report import Report
from vestige.statistics.audit_rates import strongest
from vestige.statistics.resemblance import hidden_strengths

NO_FIGURE = "No figure can be cited: a check failed or the run was stopped."
NO_BOUND = "No bound is known for this release: whatever lies above the measured rate is open."
ONE_TRIAL_EACH = (
    "Not computed: every secret was attacked in one trial, and unusual records can be more exposed "
    "than the rate says. A study of single records (RecordRisk) measures it."
)
TRAINING, DEPLOYMENT = "training stage", "deployment stage"
Pair = tuple[str, str]


@dataclass(frozen=True)
class Facts:
    """What one kind of report contributes.

    ``trials`` counts attacked releases; ``subject`` is what was attacked; ``average`` and
    ``maximum`` are sentences about risk; ``bounded`` says that a theorem limits the attacks.
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
        f"{numbers.plural(found.trials_finished, 'trial')}, each with another secret",
        theory=f"If the release is what it is said to be, no attack exceeds "
        f"{numbers.allowed(theory.success)} ({theory.tightest})."
        if theory is not None and bounded
        else NO_BOUND,
        mechanism="" if theory is None else theory.mechanism,
        bounded=bounded,
        guess=f"Guesses with the same hints were compared with the same records; chance gives "
        f"{numbers.share(found.false_positive_rate)}.",
        quantity=(
            ("Decoys", f"{numbers.count(found.decoys)} in each trial, of the secret's class"),
            *(
                (
                    (
                        "Additions",
                        f"{numbers.planned_and_added(found.earlier_trials, found.trials_planned)}. "
                        f"{method_sentence(found)}",
                    ),
                )
                if found.earlier_trials
                else ()
            ),
            *((("Pool", f"at least {numbers.count(pool)} records of a class"),) if pool else ()),
        ),
    )


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
        f"{numbers.share(found.false_positive_rate)}."
    )


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
        theory=NO_BOUND,
        mechanism=found.settings.get("Clipping and noise", ""),
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
    exposed = [one for one in rates.classes if one.shown]
    worst = max(exposed, key=lambda one: one.operating_point.true_positive_rate, default=None)
    top = (
        "No single class was shown to be exposed more than chance."
        if worst is None
        else f"Class {worst.label}: of its drawings {written_point(worst.operating_point)} match "
        f"an image of their own head; {len(exposed)} of {len(rates.classes)} classes are shown "
        "exposed."
    )
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
        else f"{numbers.percent(best.operating_point.true_positive_rate)} of the drawings match an "
        f"image of their own head{least}; by chance {chance}.",
        maximum=NO_FIGURE if is_invalid(report) else top,
        sure=f"{numbers.level(rates.confidence)} confidence over {numbers.count(rates.heads)} "
        "heads that share no image",
        theory=NO_BOUND
        if not private
        else "The published head has no bound; heads trained with noise were measured at ε = "
        + ", ".join(numbers.epsilon(p.epsilon) for p in private if p.epsilon is not None)
        + ".",
        guess=f"The same drawings were compared with images of other heads: {chance} may pass.",
        quantity=(("Images of a head", numbers.count(rates.set_size)),),
    )


@annex_facts.register
def noise_facts(report: NoiseReport) -> Facts:
    """Noise: what was redrawn at the least noise, and where nothing was."""
    found, points = report.findings, report.findings.points
    first, last = points[0], points[-1]
    best = first.measures[first.strongest(found.methods)].named
    hidden = hidden_strengths(found)
    where = (
        "At every strength something was redrawn."
        if not hidden
        else f"At {numbers.count(len(hidden))} of {numbers.plural(len(points), 'strength')} "
        "nothing was shown to be redrawn."
    )
    epsilons = [p.epsilon for p in points if p.epsilon is not None]
    spent = (
        f"ε from {numbers.epsilon(min(epsilons))} to {numbers.epsilon(max(epsilons))} at "
        f"δ = {numbers.quantity(found.delta)}"
        if epsilons
        else "no finite ε"
    )
    return Facts(
        subject=f"one noisy gradient of one {found.space.noun}, at "
        f"{numbers.plural(len(points), 'strength')} of noise",
        trials=found.images * len(points),
        planned=found.images * found.strengths_planned,
        threats=(("", found.threat),),
        stage=TRAINING,
        attacks=tuple(m.name for m in found.methods if m.kind != "nothing"),
        average=NO_FIGURE
        if is_invalid(report)
        else f"With the least noise {numbers.some_of(best.hits, best.trials, 'picture')} "
        f"came out nearest to their own secret: at least {numbers.at_least(best.lower)}. {where}",
        maximum=NO_FIGURE
        if is_invalid(report)
        else "Not computed image by image; the least noise is the worst setting.",
        sure=f"{numbers.share(found.confidence)} confidence, {numbers.count(found.images)} images "
        "at every strength",
        theory=f"With the most noise no attack on one release names more than "
        f"{numbers.allowed(last.bound)} of the secrets among {numbers.count(found.candidates)}; "
        f"with the least, {numbers.allowed(first.bound)}. The whole training: {spent}.",
        mechanism=f"DP-SGD, {spent} (add or remove one)",
        bounded=last.bound < 1,
        guess=f"The same pictures were compared with another image; guessing among "
        f"{numbers.count(found.candidates)} candidates gives "
        f"{numbers.percent(1 / found.candidates)}.",
        quantity=(("Strengths of noise", numbers.count(len(points))),),
    )


@annex_facts.register
def comparison_facts(report: ComparisonReport) -> Facts:
    """Defences: the rates without one, and the setting with the largest rate."""
    found = report.findings
    cells = [(point, cell) for point in found.points for cell in point.cells if cell.most_hits]
    bare = [(point, cell) for point, cell in cells if point.undefended]
    most = max(cells, key=lambda one: _lower(one[1]), default=None)
    guaranteed = [point.label for point in found.points if point.guarantee]
    return Facts(
        subject=f"releases under {numbers.plural(len(found.points), 'setting')} of defences "
        f"before {numbers.plural(len(found.servers), 'server')}",
        trials=found.trials * len(cells),
        planned=None,
        threats=tuple((server.name, server.threat) for server in found.servers),
        stage=TRAINING,
        attacks=tuple(found.attacks),
        average=NO_FIGURE if is_invalid(report) else _hits(found, bare, "without a defence"),
        maximum=NO_FIGURE
        if is_invalid(report)
        else _hits(found, [most] if most else [], "the largest rate"),
        sure=f"{numbers.share(found.confidence)} confidence, jointly over the attacks of a "
        f"setting; {numbers.plural(found.trials, 'trial')} of each setting",
        theory=f"A guarantee holds under {numbers.count(len(guaranteed))} of "
        f"{numbers.plural(len(found.points), 'setting')}; the others have none. "
        "Choosing among private trainings spends more than one of them."
        if guaranteed
        else "No setting here has a guarantee: whatever lies above the measured rates is open.",
        mechanism="; ".join(f"{p.label}: {p.mechanism}" for p in found.points if p.guarantee),
        bounded=bool(guaranteed),
        guess=f"A guess of the class mean joins the attacks; by chance "
        f"{numbers.share(found.false_positive_rate)} hit.",
        quantity=(("Settings", numbers.count(len(found.points))),),
    )


def _lower(cell: Cell) -> tuple[float, float]:
    rate = cell.most_hits
    return (rate.lower, rate.value) if isinstance(rate, Rate) else (0.0, 0.0)


def _hits(
    found: ComparisonFindings, cells: Iterable[tuple[DefendedPoint, Cell]], words: str
) -> str:
    said = [
        f"{cell.server}, {words if point.undefended else f'{words}, under {point.label}'}: "
        f"{numbers.rate_with_limits(cell.most_hits)}"
        for point, cell in cells
        if cell.most_hits is not None
    ]
    chance = numbers.share(found.false_positive_rate)
    return f"{'; '.join(said)}; by chance {chance}." if said else "No setting has a rate."
