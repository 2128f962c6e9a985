"""What the units of a run say of its findings, without model and data, kind by kind.

Outcomes, exhibits, points and rehearsals are in the units and can be put together again. What a
study computes from the units *and* the data, such as the rates of heads, needs the study itself:
``from_plan`` computes all findings again and compares every field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

from vestige.errors import BadInput, VestigeError
from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.heads import HeadFindings
from vestige.reports.inversion import InversionFindings
from vestige.reports.noise import NoiseFindings, NoisePoint
from vestige.reports.numbers import plural
from vestige.reports.report import Findings
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
    shown = with_exhibits(findings.model_copy(update={"exhibits": ()}), trials).exhibits
    if shown != findings.exhibits:
        said.differences.append("The trials that report.json shows are not those of the units.")
        return said
    said.confirmed.append(
        f"Outcomes of {plural(len(findings.attacks), 'attack')} in {plural(len(trials), 'trial')} "
        "and the trials shown are those of the units."
    )
    computed = ["descriptions, settings and bounds"]
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


def from_plan(
    study: Any, manifest: dict[str, Any], units: Sequence[UnitResult], findings: Findings
) -> Comparison:
    """Compute all findings again from the units and the study, and compare every field."""
    from vestige.studies.content_digests import content_digests
    from vestige.studies.study import Header

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
        again = study.findings(units, header)
    except VestigeError as error:
        return Comparison(differences=[f"The findings cannot be computed again: {error}"])
    again = again.model_copy(update={"digests": content_digests(study)})
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
