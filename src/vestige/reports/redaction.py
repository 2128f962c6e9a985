"""What a redacted document withholds, and why: the one place where this is decided.

``report.without_secrets()``, ``--redact`` and MLflow's ``redact=True`` all come here. A redacted
document says what was found and keeps from its reader the people it was found about:

=====================  ===========================================================================
withheld               because
=====================  ===========================================================================
pictures and features  of secrets, decoys and batches they are records; a good reconstruction is
                       the secret, the film of how it emerged ends with it, and an agreement map
                       is its outline
labels, class names    the label of a secret is part of it, and a class may be a person's name;
                       classes are numbered instead
columns of a table     exact means, deviations and categories are statistics of the records;
                       columns are numbered instead
normalisation          a client's means and deviations are those of its records
seeds                  with one, and the audited code, a reader who holds a candidate record can
                       repeat a trial with it and compare what comes out
distances and errors   of a single trial, for the same reason: rounded to two significant digits;
                       ranks, hits and rates stay as they are; means, medians and their limits
                       keep the digits that a page shows, so that its figures are the same
what attacks and user  exception messages, remarks and problems of cells can quote records, file
code said              names and paths; a neutral sentence takes their place
settings               a value that is no plain number may be a path, a name or a tensor; of the
                       settings only those that Vestige writes itself stay, without paths
names of user code     a loss, distance, network or threat model that is neither Vestige's nor
                       torch's own may be called like a person
titles                 a user's own may name a person, a client or a file; the title that Vestige
                       gives to a study without one takes its place
names of captures      a file or a client may be called like a person
digests of data and    they let a guess at all of few records be tested; a digest of the model
prior                  names no record and stays
=====================  ===========================================================================

What describes the audit stays: the names, summaries and citations of attacks, defences and methods,
the threat model, limits, bounds, claims, and the versions it ran with. These should hold no record.

A redacted report keeps its judgement, which was reached from the exact distances, and is not judged
again. Ranks and times stay, in the order of the trials.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TypeVar

from vestige.reports.audit import AttackFindings, AttackRates, AuditFindings, AuditJudgement
from vestige.reports.comparison import Cell, ComparisonFindings, ComparisonJudgement, DefendedPoint
from vestige.reports.heads import HeadFindings
from vestige.reports.inversion import Fit, InversionFindings, InversionJudgement, label_sentence
from vestige.reports.noise import NoiseFindings, Sight
from vestige.reports.parts import AttackDescription, ColumnDescription, SpaceDescription
from vestige.reports.redacted_distances import chosen_names, public_further
from vestige.reports.redacted_texts import (
    SAID,
    WITHHELD,
    Redact,
    is_digest,
    is_path,
    public_digests,
    public_environment,
    public_name,
    public_number,
    public_settings,
    redacted_checks,
    redacted_verdict,
    replacing,
)
from vestige.reports.redacted_titles import public_title
from vestige.reports.repeated import RepeatedFindings
from vestige.reports.report import Findings, J, Judgement
from vestige.reports.risk import ReleasedRecord, RiskFindings
from vestige.reports.rounding import (
    class_without_images,
    coarse,
    kept_quartiles,
    rounded_part,
    with_rounded_means,
)

Described = TypeVar("Described", bound=AttackDescription)


@singledispatch
def redacted_findings(findings: Findings) -> Findings:
    """What of findings may leave."""
    raise NotImplementedError(f"{type(findings).__name__} does not say what it withholds.")


@singledispatch
def redacted_judgement(judgement: Judgement, findings: Findings) -> Judgement:
    """What of a judgement may leave; ``findings`` are those that were judged."""
    return _judgement(judgement, findings, replacing(_said(findings)))


def _judgement(judgement: J, findings: Findings, redact: Redact) -> J:
    """A judgement in which ``redact`` replaces what sentences repeat of findings."""
    update = {
        "verdict": redacted_verdict(judgement.verdict, redact),
        "checks": redacted_checks(judgement.checks, _attack_names(findings), redact),
    }
    return judgement.model_copy(update=update)


@redacted_findings.register
def redacted_audit(findings: AuditFindings) -> AuditFindings:
    """What of an audit's findings may leave."""
    return findings.model_copy(
        update={
            **common_redactions(findings),
            "distance": public_name("Distance", findings.distance),
            "further_distances": public_further(findings),
            "nearest_neighbor_distance": coarse(findings.nearest_neighbor_distance),
            "attacks": tuple(_attack(attack) for attack in findings.attacks),
            "exhibits": tuple(
                rounded_part(
                    one,
                    label="",
                    secret=None,
                    reconstruction=None,
                    decoy=None,
                    batch=((None, None),) * len(one.batch),
                    film=None,
                )
                for one in findings.exhibits
            ),
        }
    )


@redacted_judgement.register
def redacted_audit_judgement(judgement: AuditJudgement, findings: AuditFindings) -> AuditJudgement:
    """What of the judgement on an audit may leave."""

    def rates_of(rates: AttackRates) -> AttackRates:
        pooled = rates.pooled
        rounded = pooled and pooled.model_copy(update={"threshold": coarse(pooled.threshold)})
        return rates.model_copy(update={"pooled": rounded})

    rates = {name: rates_of(rates) for name, rates in judgement.rates.items()}
    redacted = _judgement(judgement, findings, replacing(_said(findings)))
    distance = replacing(chosen_names(findings))(judgement.distance)
    return redacted.model_copy(update={"rates": rates, "distance": distance})


@redacted_findings.register
def redacted_inversion(findings: InversionFindings) -> InversionFindings:
    """What of an inversion's findings may leave."""
    return findings.model_copy(
        update={
            **common_redactions(findings),
            "attacks": tuple(_described(attack) for attack in findings.attacks),
            "candidates": tuple(
                rounded_part(one, label="", picture=None, agreement=None)
                for one in findings.candidates
            ),
            "fits": tuple(_fit(fit) for fit in findings.fits),
            "rehearsals": tuple(
                rounded_part(one, fit=_fit(one.fit)) for one in findings.rehearsals
            ),
        }
    )


@redacted_judgement.register
def redacted_inversion_judgement(
    judgement: InversionJudgement, findings: InversionFindings
) -> InversionJudgement:
    """What of the judgement on candidates may leave."""
    shown = [one for one in findings.candidates if one.attack == judgement.verdict.attack]
    labels, told = [one.label for one in shown], all(one.label_told for one in shown)
    sentence = (label_sentence(labels, told=told), "Labels are withheld.")
    return _judgement(judgement, findings, replacing([sentence, *_said(findings)]))


@redacted_findings.register
def redacted_heads(study: HeadFindings) -> HeadFindings:
    """What of a study of heads may leave."""
    numbered = {name: _class(place) for place, name in enumerate(study.space.class_names)}

    def label(name: str) -> str:
        return numbered.get(name, WITHHELD) if name else ""

    classes = tuple(
        one.model_copy(update={"label": label(one.label), "threshold": coarse(one.threshold)})
        for one in study.rates.classes
    )
    shown = tuple(class_without_images(one, label(one.label)) for one in study.exhibit.classes)
    return study.model_copy(
        update={
            **common_redactions(study),
            "attack": _described(study.attack),
            "rates": study.rates.model_copy(
                update={"classes": classes, "threshold": coarse(study.rates.threshold)}
            ),
            "exhibit": study.exhibit.model_copy(update={"classes": shown}),
            "privacy": tuple(
                one.model_copy(update={"reconstruction": None, "error": coarse(one.error)})
                for one in study.privacy
            ),
            "privacy_secret": None,
        }
    )


@redacted_findings.register
def redacted_noise(study: NoiseFindings) -> NoiseFindings:
    """What of a study of noise may leave: with little noise every picture is the secret."""
    nothing = Sight(left=None, reconstructions=(None,) * len(study.methods), agreement=None)
    points = tuple(
        with_rounded_means(point.model_copy(update={"sights": (nothing,) * len(point.sights)}))
        for point in study.points
    )
    redact = replacing([(study.prior, "a learned prior")] if is_path(study.prior) else [])
    return study.model_copy(
        update={
            **common_redactions(study),
            "prior": redact(study.prior),
            "threat": study.threat.model_copy(update={"prior": redact(study.threat.prior)}),
            "points": points,
            "floor_error": with_rounded_means(study.floor_error),
            "floor_similarity": with_rounded_means(study.floor_similarity),
            "secrets": (None,) * len(study.secrets),
        }
    )


@redacted_findings.register
def redacted_risk(findings: RiskFindings) -> RiskFindings:
    """What of a study of single records may leave; their names are keyed digests."""
    return findings.model_copy(
        update={
            **common_redactions(findings),
            "distance": public_name("Distance", findings.distance),
            "attacks": tuple(_described(attack) for attack in findings.attacks),
            "records": tuple(map(_released, findings.records)),
        }
    )


@redacted_findings.register
def redacted_repeated(findings: RepeatedFindings) -> RepeatedFindings:
    """What of a repeated audit may leave: rates without the seeds that give them again."""
    runs = tuple(run.model_copy(update={"seed": None}) for run in findings.runs)
    return findings.model_copy(update={**common_redactions(findings), "runs": runs})


def common_redactions(findings: Findings) -> dict[str, object]:
    """What every kind withholds alike."""
    redact, failure = replacing(_said(findings)), findings.failure
    return {
        "title": public_title(findings),
        "space": _space(findings.space),
        "seed": None,
        "settings": public_settings(findings.settings),
        "environment": public_environment(findings.environment),
        "preflight": redacted_checks(findings.preflight, _attack_names(findings), redact),
        "failure": failure and failure.model_copy(update={"message": redact(failure.message)}),
        "previous": findings.previous if is_digest(findings.previous) else "",
        "digests": public_digests(findings.digests),
        "redacted": True,
    }


def _said(findings: Findings) -> list[tuple[str, str]]:
    """What attacks and captures put into sentences, and what stands in its place."""
    failure, attacks = findings.failure, _attacks(findings)
    said = [] if failure is None or failure.attack is None else [failure.message]
    said += [remark for attack in attacks for remark in getattr(attack, "remarks", ())]
    names = findings.settings.get("Captured", "").split(", ")
    captured = [(name, "a captured release") for name in names if len(name) > 1]
    named = chosen_names(findings) if isinstance(findings, AuditFindings) else []
    return [*((text, SAID) for text in said), *captured, *named]


def _attacks(findings: Findings) -> list[AttackDescription]:
    attacks = getattr(findings, "attacks", ())
    return [attack for attack in attacks if isinstance(attack, AttackDescription)]


def _attack_names(findings: Findings) -> list[str]:
    return [attack.name for attack in _attacks(findings)]


def _described(attack: Described) -> Described:
    settings = {name: public_number(name, text) for name, text in attack.settings.items()}
    return attack.model_copy(update={"settings": settings})


def _attack(attack: AttackFindings) -> AttackFindings:
    return _described(attack).model_copy(
        update={
            "quartiles": attack.quartiles or kept_quartiles(attack),
            "outcomes": tuple(
                rounded_part(outcome, further=tuple(map(rounded_part, outcome.further)))
                for outcome in attack.outcomes
            ),
            "remarks": (f"{attack.name}: {SAID}",) if attack.remarks else (),
        }
    )


def _released(record: ReleasedRecord) -> ReleasedRecord:
    return rounded_part(record, label="", secret=None, reconstructions=())


def _fit(fit: Fit) -> Fit:
    return rounded_part(fit, unmeasured=SAID if fit.unmeasured else "")


def _space(space: SpaceDescription) -> SpaceDescription:
    return space.model_copy(
        update={
            "class_names": tuple(_class(place) for place in range(len(space.class_names))),
            "columns": tuple(
                ColumnDescription(name=f"column {place + 1}", center=0.0, scale=1.0)
                for place in range(len(space.columns))
            ),
        }
    )


def _class(place: int) -> str:
    return f"class {place + 1}"


WHY = "It could not be measured; why is withheld."


@redacted_findings.register
def redacted_comparison(comparison: ComparisonFindings) -> ComparisonFindings:
    """What of a comparison's findings may leave."""
    redact = _problems(comparison)

    def cell_of(cell: Cell) -> Cell:
        hidden = (None,) * len(cell.pictures)
        floor = cell.floor.model_copy(update={"reason": redact(cell.floor.reason)})
        problem = redact(cell.problem)
        update = {"pictures": hidden, "problem": problem, "floor": floor}
        return with_rounded_means(cell.model_copy(update=update))

    def point_of(point: DefendedPoint) -> DefendedPoint:
        problem = redact(point.utility.problem)
        utility = point.utility.model_copy(update={"problem": problem})
        cells = tuple(cell_of(cell) for cell in point.cells)
        return point.model_copy(update={"utility": utility, "cells": cells})

    return comparison.model_copy(
        update={
            **common_redactions(comparison),
            "points": tuple(point_of(point) for point in comparison.points),
            "matched": tuple(
                with_rounded_means(one.model_copy(update={"reason": redact(one.reason)}))
                for one in comparison.matched
            ),
            "refuted": tuple(map(redact, comparison.refuted)),
            "secrets": (None,) * len(comparison.secrets),
            "guess_error": with_rounded_means(comparison.guess_error),
            "limits": tuple(map(redact, comparison.limits)),
        }
    )


@redacted_judgement.register
def redacted_comparison_judgement(
    judgement: ComparisonJudgement, findings: ComparisonFindings
) -> ComparisonJudgement:
    """What of the judgement on a comparison may leave."""
    redact = _problems(findings)
    recommendations = tuple(
        one.model_copy(
            update={
                "sentence": redact(one.sentence),
                "details": tuple(map(redact, one.details)),
                "equal_cost": redact(one.equal_cost),
            }
        )
        for one in judgement.recommendations
    )
    return _judgement(judgement, findings, redact).model_copy(
        update={"recommendations": recommendations}
    )


def _problems(comparison: ComparisonFindings) -> Redact:
    """What replaces the problems of cells and trainings, and reasons of missing floors."""
    cells = [cell for point in comparison.points for cell in point.cells]
    problems = [cell.problem for cell in cells]
    problems += [point.utility.problem for point in comparison.points]
    problems += [cell.floor.reason for cell in cells]
    return replacing([(problem, WHY) for problem in problems])
