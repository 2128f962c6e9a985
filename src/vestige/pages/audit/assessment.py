"""What an audit found, worded for a data-protection impact assessment, from the report alone.

Such an assessment (in the European Union by Article 35 of the General Data Protection Regulation)
names the risk, the means by which it was looked for, what was found, and what was not looked for.
``docs/dpia-template.md`` has the same headings, with what only the controller can write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vestige.pages.shell import capital
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditFindings, AuditReport
from vestige.reports.captured_words import method_sentence
from vestige.reports.inversion import InversionReport
from vestige.reports.parts import (
    AttackDescription,
    Check,
    CheckOutcome,
    Rate,
    ThreatDescription,
    VerdictKind,
)
from vestige.reports.shown import UNIT, shown_sentence
from vestige.statistics.fits import is_unmatched

NO_FIGURE = "A check failed: no figure of this audit can be cited."
NOTHING_CITED = "Nothing can be cited from this audit: fix what failed and run it again."
RELEASE_ALONE = "Attacks on the captured release alone, without its records."
NOT_TRIED = (
    "Attacks that are not listed above, attackers who are told more than is said above, and other "
    "releases about the same people."
)

HEADINGS = (
    "What is released",
    "Threat model",
    "Means tried",
    "Result and its limits",
    "What was not tried",
    "How far it can be relied on",
    "What follows",
)


@dataclass(frozen=True)
class Part:
    """One heading with its sentences, and a list below them."""

    heading: str
    sentences: tuple[str, ...]
    items: tuple[str, ...] = ()


def assess_audit(report: AuditReport) -> tuple[Part, ...]:
    """The parts in the order of the headings; of a failed audit no rate is repeated."""
    batch = f"One release is made of {numbers.plural(report.findings.batch_size, 'record')}."
    return _parts(report, batch, _means(report.findings), _result(report), _consequence(report))


def assess_inversion(report: InversionReport) -> tuple[Part, ...]:
    """The parts in the order of the headings; candidates have no rate."""
    findings, verdict = report.findings, report.verdict
    invalid = verdict.kind is VerdictKind.INVALID
    result = Part(
        "Result and its limits",
        (NO_FIGURE,)
        if invalid
        else (
            "Candidates without a rate: they were not compared with the records.",
            verdict.headline,
        ),
    )
    consequence = (
        NOTHING_CITED
        if invalid
        else (
            "The attack did not explain this release, so nothing about it can be cited: describe "
            "the model and the client as they were and run it again."
        )
        if is_unmatched(findings.fits)
        else (
            "A release was captured and attacked without its records: an assessment needs an audit "
            "with secrets, from which a rate follows."
        )
    )
    means = Part("Means tried", (RELEASE_ALONE,), _described(findings.attacks))
    batch = "What is behind it was not given to the audit."
    return _parts(report, batch, means, result, consequence)


def _parts(
    report: AuditReport | InversionReport, batch: str, means: Part, result: Part, consequence: str
) -> tuple[Part, ...]:
    findings = report.findings
    what = capital(numbers.defended(findings.release, findings.defense))
    released = f"{what}. A record is one {findings.space.noun}. {batch}"
    parts = (
        Part("What is released", (released,)),
        _threat(findings.threat),
        means,
        result,
        Part("What was not tried", (NOT_TRIED,), findings.limits),
        _reliance(report.judgement.checks, findings.seed),
        Part("What follows", (consequence,)),
    )
    assert tuple(part.heading for part in parts) == HEADINGS
    return parts


def _threat(threat: ThreatDescription) -> Part:
    return Part(
        "Threat model",
        (threat.who,),
        (
            f"Sees: {threat.sees}",
            f"Was told: {threat.told}",
            f"Not told: {threat.not_told}",
            f"Had collected: {threat.prior}",
        ),
    )


def _means(findings: AuditFindings) -> Part:
    said = [
        f"{numbers.plural(findings.trials_finished, 'trial')} "
        f"({numbers.planned_and_added(findings.earlier_trials, findings.trials_planned)}), each "
        "with another secret. A trial "
        f"counts as a hit if the reconstruction lies closer to its secret than to all but "
        f"{numbers.one_in(findings.false_positive_rate)} other records of the same class, of "
        f"which it has {numbers.count(findings.decoys)} ({findings.distance})."
    ]
    if findings.further_distances:
        names = "; ".join(one.name for one in findings.further_distances)
        said.append(f"The same was measured by further distances, declared in advance: {names}.")
    if method_sentence(findings):
        said.append(method_sentence(findings))
    if any(attack.guess for attack in findings.attacks):
        said.append(
            "Guesses with the same hints were held against the same records; by chance a guess "
            f"reaches {numbers.by_chance(findings.false_positive_rate)}."
        )
    named = [attack for attack in findings.attacks if not attack.guess]
    return Part("Means tried", tuple(said), _described(named))


def _described(attacks: Iterable[AttackDescription]) -> tuple[str, ...]:
    return tuple(
        f"{attack.name}: {attack.summary}" + (f" ({attack.cites})" if attack.cites else "")
        for attack in attacks
    )


def _result(report: AuditReport) -> Part:
    if report.verdict.kind is VerdictKind.INVALID:
        return Part("Result and its limits", (NO_FIGURE,))
    findings = report.findings
    items = tuple(
        _measured(attack, rate)
        for attack in findings.attacks
        if not attack.guess and (rate := report.judgement.rates_of(attack).rate)
    )
    distances = " and distances" if findings.further_distances else ""
    said = [
        f"Limits hold for all attacks{distances} together with "
        f"{numbers.share(findings.confidence)} confidence, for secrets drawn as in this audit."
    ]
    theory, claim = findings.bounds, findings.claim
    if theory is not None and theory.success < 1:
        said.append(
            f"If the release is what it is said to be ({theory.mechanism}), theory allows no "
            f"attack more than {numbers.allowed(theory.success)} ({theory.tightest})."
        )
    else:
        said.append("No theorem limits what another attack could do here.")
    if claim is not None:
        said.append(
            f"{claim.source} claims at most {numbers.share(claim.rate)}, which is no theorem."
        )
    if report.judgement.shown is not None:
        said.append(f"{shown_sentence(report.judgement.shown)} Unit of privacy: {UNIT}")
    return Part("Result and its limits", tuple(said), items)


def _measured(attack: AttackFindings, rate: Rate) -> str:
    return (
        f"{attack.name}: {numbers.hits_of(rate)}; at least {numbers.at_least(rate.lower)}, at most "
        f"{numbers.at_most(rate.upper)}."
    )


def _reliance(checks: Sequence[Check], seed: int | None) -> Part:
    outcomes = [check.outcome for check in checks]
    counted = ", ".join(
        f"{outcomes.count(outcome)} {word}"
        for outcome, word in (
            (CheckOutcome.PASSED, "passed"),
            (CheckOutcome.REMARK, "with a remark"),
            (CheckOutcome.FAILED, "failed"),
        )
    )
    items = tuple(c.sentence for c in checks if c.outcome is not CheckOutcome.PASSED)
    said = (
        f"Checks of the audit itself: {counted}.",
        "Its seed and some of its settings are withheld: its owner can repeat it."
        if seed is None
        else f"It can be repeated from its settings and the seed {seed}.",
    )
    return Part("How far it can be relied on", said, items)


def _consequence(report: AuditReport) -> str:
    kind = report.verdict.kind
    if kind is VerdictKind.INVALID:
        return NOTHING_CITED
    if kind is VerdictKind.CLAIM_REFUTED:
        return (
            "A limit that was relied on does not hold for this release. The risk has to be "
            "assessed by the measured rate, and the claim corrected or its cause found."
        )
    if kind is VerdictKind.DEMONSTRATED:
        if report.findings.defense:
            return (
                "Reconstruction from this release is a risk that was demonstrated with a defence "
                f"in place ({report.findings.defense}): as it is set, it does not remove the risk. "
                "Set it stronger or choose another measure, audit the release with it, and cite "
                "both rates."
            )
        return (
            "Reconstruction from this release is a risk that was demonstrated. Name the measure "
            "against it, audit the release with that measure in place, and cite both rates."
        )
    defense = report.findings.defense
    place = f", with a defence in place ({defense})" if defense else ""
    return (
        f"Reconstruction was not demonstrated by these means{place}, which is not evidence that it "
        "cannot be done. What can be cited is the largest rate that the limits leave open; name "
        "the date or the change after which the audit is repeated."
    )
