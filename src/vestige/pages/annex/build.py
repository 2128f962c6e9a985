"""From a report to its annex: pure, without torch, clock or randomness.

Sources: EDPB Opinion 28/2024 (classes of attacks, scope and context of tests, documentation), the
ICO's guidance on anonymisation (motivated intruder: cost, time, technology), NIST AI 100-2 (goal,
knowledge, capability, stage), NIST SP 800-226 (unit of privacy), ISO/IEC 27559 (average and maximum
risk, repetition). Paragraph numbers are pointers, marked "see"; nothing is quoted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vestige.content import document_digest
from vestige.errors import BadInput, brief
from vestige.mechanisms import Neighbouring
from vestige.pages.annex import (
    several_releases,  # noqa: F401 (registers its kinds)
    several_settings,  # noqa: F401 (registers its kinds)
)
from vestige.pages.annex.facts import Facts, facts_of, is_invalid
from vestige.pages.annex.not_tried import not_tried
from vestige.reports import numbers
from vestige.reports.annex import (
    TITLES,
    Annex,
    AnnexPoint,
    Coverage,
    CoverageState,
    Fact,
)
from vestige.reports.audit import AuditReport
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.reports.redacted_texts import is_digest
from vestige.reports.report import Report
from vestige.reports.shown import shown_sentence

NOT_DECLARED = "not declared"
NOT_SHOWN = "not computed in this report"
NOT_SURE = "Not at all: a check failed or the run was stopped"
OTHERS = ("Attribute inference", "Exfiltration", "Regurgitation", "Model inversion")
LIMITS = (
    (
        "Attacks",
        "Withstanding these attacks is evidence about these attacks and no others (EDPB Opinion "
        "28/2024, see ¶55).",
    ),
    (
        "Means",
        "Anonymity is judged by all the means reasonably likely to be used, by the controller or "
        "anyone else. Cost, time and technology change, so the test is repeated.",
    ),
    (
        "Context",
        "How much testing is enough depends on who gets the release, see ¶46 there, and point 2.",
    ),
    (
        "Documents",
        "Threat model and theoretical resistance are points 3 and 5, see ¶58 there. This annex is "
        "one document of an assessment and does not replace it.",
    ),
)
"""Limits in the words of those who ask; paragraphs are those of EDPB Opinion 28/2024."""

NEXT = {
    VerdictKind.DEMONSTRATED: "State the rate you tolerate; if it is below the lower limit, revise "
    "the release and audit it again, or refuse it.",
    VerdictKind.CLAIM_REFUTED: "A limit that was relied on does not hold: correct the claim or "
    "find its cause before any release.",
    VerdictKind.NOT_DEMONSTRATED: "State the rate you tolerate and compare it with the upper "
    "limit; decide whether these attacks are all the means likely to be used.",
    VerdictKind.INVALID: "Nothing can be cited: fix what failed and run it again.",
    VerdictKind.CANDIDATES: "A decision needs a rate, and candidates have none.",
}


def annex_of(report: Report[Any, Any]) -> Annex:
    """The annex of a report of any kind; of a redacted one without what it withholds."""
    if not isinstance(report, Report):
        raise BadInput(f"An annex is made of a report, not of {brief(report)}.")
    found, facts = report.findings, facts_of(report)
    coverage = _coverage(report, facts)
    digest = document_digest(json.loads(report.model_dump_json()))
    lines = (
        tuple((one.attacks, _covered(one)) for one in coverage),
        (("Declared", found.release_context or NOT_DECLARED),),
        tuple(_threat(facts)),
        tuple(_scope(report, facts)),
        tuple(_theory(report, facts)),
        (("Average", facts.average), ("Maximum", facts.maximum)),
        tuple(_cost(report, facts)),
        (
            ("Decision", "release / revise / refuse: left to the controller"),
            ("Tolerated rate", "left to the controller"),
        ),
        LIMITS,
        (
            ("Report", f"SHA-256 {digest}{' of the redacted report' if found.redacted else ''}"),
            ("Check", "vestige verify RUN compares a run folder with its digests."),
        ),
    )
    return Annex(
        title=found.title,
        study=report.kind,
        date=numbers.date(found.times.finished) if found.times.finished else "",
        redacted=found.redacted,
        verdict=report.verdict.kind,
        headline=report.verdict.headline,
        release_context=found.release_context,
        answers=_answers(report, facts),
        coverage=coverage,
        points=tuple(
            AnnexPoint(
                number=number,
                title=title,
                facts=tuple(Fact(name=name, text=text) for name, text in told),
            )
            for number, (title, told) in enumerate(zip(TITLES, lines, strict=True), 1)
        ),
        limits=found.limits,
        report_digest=digest,
    )


def _coverage(report: Report[Any, Any], facts: Facts) -> tuple[Coverage, ...]:
    failed = is_invalid(report)
    note = f"{_joined(facts.attacks)} on {facts.subject}." if facts.attacks else ""
    membership = (
        "No attack was run; the stated mechanism limits it (point 5)."
        if facts.bounded
        else "No attack was run, and no bound is known here."
    )
    reconstruction = Coverage(
        attacks="Reconstruction",
        state=CoverageState.FAILED if failed else CoverageState.EXECUTED,
        trials=facts.trials,
        note=note,
    )
    rest = {name: Coverage(attacks=name, state=CoverageState.NOT_RUN) for name in OTHERS}
    member = Coverage(attacks="Membership inference", state=CoverageState.NOT_RUN, note=membership)
    return (
        rest["Attribute inference"],
        member,
        rest["Exfiltration"],
        rest["Regurgitation"],
        rest["Model inversion"],
        reconstruction,
    )


def _covered(one: Coverage) -> str:
    trials = "" if one.trials is None else f", {numbers.plural(one.trials, 'trial')}"
    return f"{one.state.value}{trials}{f'. {one.note}' if one.note else ''}"


def _threat(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "Goal", "Privacy: data reconstruction, to bring back records of the training data."
    if not facts.threats:
        yield "Knowledge", "as the report says"
    for name, threat in facts.threats:
        who = f"{name}: " if name else ""
        yield "Knowledge", f"{who}{threat.told} Not told: {threat.not_told} Prior: {threat.prior}"
        yield "Capability", f"{who}{threat.who} Sees: {threat.sees}"
    if facts.stage:
        yield "Stage", f"{facts.stage}: the attacker reads what left it."


def _scope(report: Report[Any, Any], facts: Facts) -> Iterator[tuple[str, str]]:
    found = report.findings
    yield "Scope", f"{facts.subject[:1].upper()}{facts.subject[1:]}."
    if facts.attacks:
        yield "Attacks", _joined(facts.attacks)
    finished = numbers.date(found.times.finished) if found.times.finished else "not recorded"
    yield "Date", finished
    before = found.previous if is_digest(found.previous) else ""
    yield "Audit before", f"SHA-256 {before}" if before else "none declared"
    if facts.trials is not None:
        planned = facts.planned
        of = "" if planned in (None, facts.trials) else f" of {numbers.count(planned)} planned"
        yield "Trials", f"{numbers.count(facts.trials)}{of}"
    yield from facts.quantity
    yield "Seed", "withheld" if found.seed is None else str(found.seed)
    yield "Checks", _checks(report)
    if facts.guess:
        yield "Guesses", facts.guess
    yield "Confidence", f"{facts.sure}."
    versions = [
        found.environment[n] for n in ("Vestige", "Python, torch") if n in found.environment
    ]
    if versions:
        yield "Versions", f"Vestige, Python, torch: {', '.join(versions)}"
    yield from _digests(report)


def _digests(report: Report[Any, Any]) -> Iterator[tuple[str, str]]:
    """Digests of model and data. A digest of few records lets a guess at them be tested."""
    digests = getattr(report.findings, "digests", None) or {}
    for name, digest in digests.items():
        withheld = report.findings.redacted and name != "model"
        yield f"Digest of the {name}", "withheld" if withheld else f"SHA-256 {digest}"
    if not digests:
        yield "Digests", "of model and data: not in this report"


def _checks(report: Report[Any, Any]) -> str:
    outcomes = [check.outcome for check in report.judgement.checks]
    if not outcomes:
        return "none in this report"
    counted = (
        f"{outcomes.count(CheckOutcome.PASSED)} passed",
        numbers.plural(outcomes.count(CheckOutcome.REMARK), "remark"),
        f"{outcomes.count(CheckOutcome.FAILED)} failed",
    )
    return ", ".join(counted)


def _theory(report: Report[Any, Any], facts: Facts) -> Iterator[tuple[str, str]]:
    yield "Bound", facts.theory
    if facts.mechanism:
        yield "Mechanism", facts.mechanism
    relations = [one.value for one in Neighbouring if one.value in facts.mechanism]
    yield (
        "Unit of privacy",
        f"one record, {report.findings.space.noun}; relation: {' and '.join(relations)}"
        if relations
        else f"one record, {report.findings.space.noun}; no guarantee is stated for it",
    )
    yield "ε shown by the trials", _shown(report)


def _shown(report: Report[Any, Any]) -> str:
    shown = report.judgement.shown if isinstance(report, AuditReport) else None
    return NOT_SHOWN if shown is None else shown_sentence(shown)


def _cost(report: Report[Any, Any], facts: Facts) -> Iterator[tuple[str, str]]:
    times = report.findings.times
    per_trial = {n: s for n, s in times.seconds_per_trial.items() if n in facts.attacks}
    if per_trial:
        said = (f"{name} {numbers.seconds(value)}" for name, value in per_trial.items())
        yield "Time for one release", f"{'; '.join(said)}"
    yield (
        "Computing",
        (
            f"{core_time(times.cpu_seconds)} for all of this study, the victim's work included."
            if times.cpu_seconds > 0
            else "CPU time was not recorded."
        ),
    )
    if times.cpu_seconds > 0:
        yield "Money", "What that much of one rented or owned core costs; no hardware beside it."
    if facts.threats:
        yield "Knowledge", "What point 3 lists; collecting the prior is not in the time above."


def core_time(seconds: float) -> str:
    """An amount of computing in plain words, never less than it was."""
    for most, words in ((60, "a minute"), (3600, "an hour"), (86_400, "a day")):
        if seconds < most:
            return f"Less than {words} of one CPU core"
    return f"{numbers.plural(-int(-seconds // 86_400), 'day')} of one CPU core"


def _answers(report: Report[Any, Any], facts: Facts) -> tuple[Fact, ...]:
    """Seven questions of those who decide, each in a line or two."""
    several = len(facts.threats) > 1
    who = " ".join(f"{n}: {threat.who}" if several else threat.who for n, threat in facts.threats)
    sure = "; ".join(filter(None, (facts.sure, facts.enough.doubt)))
    sure = NOT_SURE if is_invalid(report) else sure
    decide = " ".join(
        filter(None, ("Release, revise or refuse.", facts.enough.advice, NEXT[report.verdict.kind]))
    )
    answers = (
        ("Who attacks?", who or "As the report says."),
        ("What was found?", facts.average),
        ("How sure is it?", f"{sure.removesuffix('.')}. Checks: {_checks(report)}."),
        ("Who is most exposed?", facts.maximum),
        ("What was not tried?", facts.not_tried or not_tried((), (), "stronger attacks")),
        ("What does theory allow?", facts.theory),
        ("What is to be decided?", decide),
    )
    return tuple(Fact(name=name, text=text) for name, text in answers)


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names)
