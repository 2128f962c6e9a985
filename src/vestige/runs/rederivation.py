"""What the units of a run say of its findings, without model and data, kind by kind.

Outcomes, exhibits, points and rehearsals are in the units and can be put together again. What a
study computes from the units *and* the data, such as the rates of heads, needs the study itself:
``from_plan`` computes all findings again and compares every field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

from vestige.errors import BadInput, VestigeError
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.heads import HeadFindings
from vestige.reports.inversion import InversionFindings
from vestige.reports.noise import NoiseFindings, NoisePoint
from vestige.reports.numbers import plural
from vestige.reports.parts import Rate
from vestige.reports.repeated import RepeatedFindings
from vestige.reports.report import Findings
from vestige.reports.risk import RiskFindings
from vestige.statistics.rates import allowed_rank, matched_rate
from vestige.studies.unit_files import UnitResult, parsed_unit

NEEDS_PLAN = "that needs the study itself, give its file as --plan FILE.py"

UNCOMPARED = ("environment", "times")
"""Fields of findings that describe the computer and the moment, not what was found."""


@dataclass
class Comparison:
    """What of the findings the units confirm, contradict, or cannot say; one sentence each."""

    confirmed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)


@singledispatch
def compare_with_units(findings: Findings, units: Sequence[UnitResult]) -> Comparison:
    """Compare findings with the units they rest on; a kind that is not known stays open."""
    return Comparison(open=[f"The findings were not computed again from the units: {NEEDS_PLAN}."])


@compare_with_units.register
def _audit(findings: AuditFindings, units: Sequence[UnitResult]) -> Comparison:
    from vestige.studies.audit.exhibits import with_exhibits
    from vestige.studies.audit.trial_files import trial_of

    said, trials = Comparison(), [trial_of(one) for one in units]
    if findings.trials_finished != len(trials):
        said.differences.append(
            f"report.json counts {plural(findings.trials_finished, 'finished trial')}, and the "
            f"folder holds {len(trials):,}."
        )
        return said
    for attack in findings.attacks:
        said.differences += _attack_differences(attack, trials)
    if said.differences:
        return said
    # Words of texts need the tokenizer, which is part of the study.
    texts = findings.space.kind == "text"
    if not texts:
        shown = with_exhibits(findings.model_copy(update={"exhibits": ()}), trials).exhibits
        if shown != findings.exhibits:
            said.differences.append("The trials that report.json shows are not those of the units.")
            return said
    said.confirmed.append(
        f"Outcomes of {plural(len(findings.attacks), 'attack')} in {plural(len(trials), 'trial')} "
        f"{'' if texts else 'and the trials shown '}are those of the units."
    )
    computed = ["descriptions, settings and bounds"] + (["trials shown"] if texts else [])
    computed += ["permutation tests"] if any(a.permutation for a in findings.attacks) else []
    said.open.append(
        f"The {' and '.join(computed)} of the report were not computed again: {NEEDS_PLAN}."
    )
    return said


def _attack_differences(attack: AttackFindings, trials: Sequence[Any]) -> list[str]:
    """The first trial in which a report and the units differ about an attack, and how many do."""
    name = attack.name
    if any(name not in one.outcomes for one in trials):
        return [f"report.json holds outcomes of {name}, and the units do not."]
    held, wanted = attack.outcomes, [one.outcomes[name] for one in trials]
    apart = [n for n, (a, b) in enumerate(zip(held, wanted)) if a != b]
    if len(held) != len(wanted):
        return [f"report.json holds {len(held):,} outcomes of {name}, the units {len(wanted):,}."]
    if apart:
        first = apart[0]
        return [
            f"report.json and the units differ about {name} in {plural(len(apart), 'trial')}; in "
            f"trial {wanted[first].trial + 1:,} the rank is {held[first].rank:,} in the report and "
            f"{wanted[first].rank:,} in the unit."
        ]
    remarks = tuple(f"{name}: {one}" for one in sorted({t.remarks[name] for t in trials} - {""}))
    if attack.remarks != remarks:
        return [f"The remarks of {name} in report.json are not those of the units."]
    return []


@compare_with_units.register
def _noise(findings: NoiseFindings, units: Sequence[UnitResult]) -> Comparison:
    points = tuple(parsed_unit(one, NoisePoint) for one in units)
    if points == findings.points:
        return Comparison(
            confirmed=[f"All figures of {plural(len(points), 'strength')} are those of the units."],
            open=[f"Floors, descriptions and settings were not computed again: {NEEDS_PLAN}."],
        )
    if len(points) != len(findings.points):
        count = f"{plural(len(findings.points), 'strength')}, and the folder holds {len(points):,}"
        return Comparison(differences=[f"report.json holds {count}."])
    apart = [n for n, (a, b) in enumerate(zip(points, findings.points)) if a != b]
    where = f"μ = {points[apart[0]].mu:g}"
    return Comparison(differences=[f"report.json and the units differ about {where}."])


@compare_with_units.register
def _inversion(findings: InversionFindings, units: Sequence[UnitResult]) -> Comparison:
    from vestige.studies.audit.exhibits import picture
    from vestige.studies.inversion.runs import finished_rehearsal, finished_run, rank

    said, attacks = Comparison(), len(findings.attacks)
    if findings.failure is not None or not attacks or len(units) % attacks:
        said.open.append(f"The run was stopped, so its findings were not compared: {NEEDS_PLAN}.")
        return said
    each, rehearsed = len(units) // attacks, []
    for place, attack in enumerate(findings.attacks):
        own = units[place * each : (place + 1) * each]
        runs = [one for one in own if "facts" in one.body[:400] or one.tensors]
        rehearsed += [finished_rehearsal(one) for one in own if one not in runs]
        best = min((finished_run(one).found for one in runs), key=rank)
        shown = [one.picture for one in findings.candidates if one.attack == attack.name]
        if [picture(values) for values in best.candidates] != shown:
            said.differences.append(
                f"The candidates of {attack.name} in report.json are not those of the units."
            )
    if tuple(rehearsed) != findings.rehearsals:
        said.differences.append("The rehearsals in report.json are not those of the units.")
    if not said.differences:
        said.confirmed.append("Candidates and rehearsals are those of the units.")
        said.open.append(f"How well candidates fit was not computed again: {NEEDS_PLAN}.")
    return said


@compare_with_units.register
def _heads(findings: HeadFindings, units: Sequence[UnitResult]) -> Comparison:
    if findings.blocks_finished != len(units):
        count = f"{plural(findings.blocks_finished, 'finished block')} of heads"
        return Comparison(
            differences=[f"report.json counts {count}, and the folder holds {len(units):,}."]
        )
    return Comparison(
        open=[f"The rates of heads are computed with the training images: {NEEDS_PLAN}."]
    )


@compare_with_units.register
def _risk(findings: RiskFindings, units: Sequence[UnitResult]) -> Comparison:
    from vestige.studies.audit.exhibits import picture
    from vestige.studies.risk.releases import UnitFacts, hits_of_record

    if findings.releases_finished != len(units):
        count = plural(findings.releases_finished, "finished release")
        return Comparison(
            differences=[f"report.json counts {count}, and the folder holds {len(units):,}."]
        )
    facts = [parsed_unit(one, UnitFacts) for one in units]
    for one, fact in zip(units, facts):
        if divmod(one.number, findings.repeats) != (fact.record, fact.repeat):
            return Comparison(differences=[f"Unit {one.number} is not the release it says it is."])
    allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
    tensors = {one.number: one.tensors for one in units}
    apart: list[str] = []
    for number, record in enumerate(findings.records):
        drawn = tensors.get(number * findings.repeats, {})
        for place, attack in enumerate(findings.attacks):
            if record.found[place] != hits_of_record(facts, number, attack.name, allowed):
                apart.append(f"hits of record {record.name} by {attack.name}")
            key = f"matched/{attack.name}"
            if record.reconstructions[place] != (picture(drawn[key]) if key in drawn else None):
                apart.append(f"what {attack.name} drew of record {record.name}")
    if apart:
        more = f" and {len(apart) - 1:,} more" if len(apart) > 1 else ""
        return Comparison(differences=[f"report.json and the units differ: {apart[0]}{more}."])
    return Comparison(
        confirmed=[
            f"Hits of {plural(len(findings.records), 'record')} in "
            f"{plural(len(units), 'release')}, controls and pictures are those of the units."
        ],
        open=[f"Which records these are, and settings, were not computed again: {NEEDS_PLAN}."],
    )


@compare_with_units.register
def _repeated(findings: RepeatedFindings, units: Sequence[UnitResult]) -> Comparison:
    from vestige.studies.audit.trial_files import trial_of

    trials, doubt = findings.trials_planned, (1 - findings.confidence) / findings.repeats
    held: dict[int, list[Any]] = {place: [] for place in range(len(findings.runs))}
    for one in units:
        place, number = divmod(one.number, trials)
        held[place].append(trial_of(replace(one, number=number)))
    allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
    names = (*findings.attacks, *findings.guesses)
    for place, run in enumerate(findings.runs):
        rates = {}
        for name in names if held[place] else ():
            outcomes = [one.outcomes[name] for one in held[place]]
            each = doubt / max(1, len(findings.attacks)) / (1 + len(outcomes[0].further))
            rates[name] = matched_rate([one.rank for one in outcomes], allowed, 1 - each)
        if run.trials != len(held[place]) or not _equal_rates(run.rates, rates):
            return Comparison(
                differences=[f"report.json and the units differ about repetition {place + 1:,}."]
            )
    return Comparison(
        confirmed=[
            f"Rates of attacks and guesses in {plural(len(findings.runs), 'repetition')} are "
            "those of the units."
        ],
        open=[f"Verdicts of single seeds and settings were not computed again: {NEEDS_PLAN}."],
    )


def _equal_rates(held: Mapping[str, Rate], again: Mapping[str, Rate]) -> bool:
    """Whether rates are equal; a confidence that is put together otherwise is rounded otherwise."""
    return set(held) == set(again) and all(
        (one.hits, one.trials) == (again[name].hits, again[name].trials)
        and math.isclose(one.lower, again[name].lower, rel_tol=1e-9, abs_tol=1e-12)
        and math.isclose(one.upper, again[name].upper, rel_tol=1e-9, abs_tol=1e-12)
        for name, one in held.items()
    )


def _planned(study: Any, manifest: dict[str, Any], findings: Findings) -> Any:
    """The study as it was run: with the size of its folder, and repeated if that was asked for.

    ``vestige run FILE.py`` takes both as options, so a file holds the study without them.
    """
    from vestige.studies.audit.plan import Audit
    from vestige.studies.repeated.plan import Repeated
    from vestige.studies.study import Extendable

    if isinstance(findings, RepeatedFindings) and isinstance(study, Audit):
        return Repeated(study.resized(findings.trials_planned), findings.repeats)
    size = manifest.get("size")
    if isinstance(study, Extendable) and isinstance(size, int) and size > 0 and size != study.size:
        return study.resized(size)
    return study


def from_plan(
    study: Any, manifest: dict[str, Any], units: Sequence[UnitResult], findings: Findings
) -> Comparison:
    """Compute all findings again from the units and the study, and compare every field."""
    from vestige.studies.content_digests import content_digests
    from vestige.studies.declared import declarations
    from vestige.studies.study import Header

    study = _planned(study, manifest, findings)
    if (study.kind, study.identity()) != (manifest.get("kind"), manifest.get("identity")):
        return Comparison(differences=["The plan defines another study than that of the run."])
    if findings.failure is not None or findings.seed is None:
        return Comparison(open=["A run that was stopped is not computed again."])
    try:
        for one in units:
            study.check(one)
        earlier = tuple(manifest.get("earlier_sizes", ()))
        checks = study.preflight(findings.seed)
        header = Header(findings.seed, checks, None, findings.times, earlier)
        declared = {**declarations(study), "digests": content_digests(study)}
        again = study.findings(units, header).model_copy(update=declared)
    except VestigeError as error:
        return Comparison(differences=[f"The findings cannot be computed again: {error}"])
    apart = [
        name
        for name in type(findings).model_fields
        if name not in UNCOMPARED and getattr(again, name) != getattr(findings, name)
    ]
    if not apart:
        return Comparison(confirmed=["All findings are those of the plan and the units."])
    versions = "Python, torch"
    other = again.environment.get(versions) != findings.environment.get(versions)
    ending = "; other versions of Python or torch run here, which may round differently"
    return Comparison(
        differences=[
            f"Plan and units give other findings than report.json, in {', '.join(apart)}"
            f"{ending if other else ''}."
        ]
    )


def checked_comparison(findings: Findings, units: Sequence[UnitResult]) -> Comparison:
    """``compare_with_units``, where a unit that cannot be read is a difference."""
    try:
        return compare_with_units(findings, units)
    except (BadInput, LookupError, ValueError, TypeError, RuntimeError) as error:
        said = str(error) if isinstance(error, BadInput) else "A unit is not a whole one."
        return Comparison(differences=[said])
