"""What an audit found, worded for a data-protection impact assessment, from the Record alone.

Such an assessment (in the European Union by Article 35 of the General Data Protection Regulation)
names the risk, the means by which it was looked for, what was found, and what was not looked for.
``docs/dpia-template.md`` has the same headings, with what only the controller can write.
"""

from __future__ import annotations

from dataclasses import dataclass

from vestige import numbers
from vestige.record import AttackRecord, CheckOutcome, Record, VerdictKind

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


def assessment(record: Record) -> tuple[Part, ...]:
    """The parts in the order of the headings; of a failed audit no rate is repeated."""
    parts = (
        _released(record),
        _threat(record),
        _means(record),
        _result(record),
        _not_tried(record),
        _reliance(record),
        Part("What follows", (_consequence(record),)),
    )
    assert tuple(part.heading for part in parts) == HEADINGS
    return parts


def _released(record: Record) -> Part:
    batch = (
        f"One release is made of {numbers.plural(record.batch_size, 'record')}."
        if record.trials_planned
        else "What is behind it was not given to the audit."
    )
    return Part(
        "What is released",
        (f"{_capital(record.release)}. A record is one {record.space.noun}. {batch}",),
    )


def _threat(record: Record) -> Part:
    threat = record.threat
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


def _means(record: Record) -> Part:
    named = [attack for attack in record.attacks if not attack.guess]
    guesses = [attack for attack in record.attacks if attack.guess]
    said = []
    if record.trials_planned:
        said.append(
            f"{numbers.plural(record.trials_finished, 'trial')} of "
            f"{numbers.count(record.trials_planned)} planned, each with another secret. A trial "
            f"counts as a hit if the reconstruction lies closer to its secret than to all but "
            f"{numbers.one_in(record.false_positive_rate)} other records of the same class, of "
            f"which it has {numbers.count(record.decoys)} ({record.distance})."
        )
    if guesses:
        said.append(
            "Guesses with the same hints were held against the same records; by chance they reach "
            f"{numbers.share(record.false_positive_rate)}."
        )
    items = tuple(
        f"{attack.name}: {attack.summary}" + (f" ({attack.cites})" if attack.cites else "")
        for attack in named
    )
    return Part("Means tried", tuple(said), items)


def _result(record: Record) -> Part:
    if record.verdict.kind is VerdictKind.INVALID:
        return Part(
            "Result and its limits",
            ("A check failed: no figure of this audit can be cited.",),
        )
    if not record.trials_planned:
        return Part(
            "Result and its limits",
            ("Candidates without a rate: nobody compared them with the records.",),
        )
    items = tuple(
        _measured(attack) for attack in record.attacks if not attack.guess and attack.rate
    )
    said = [
        f"Limits hold for all attacks together with {numbers.share(record.confidence)} "
        "confidence, for secrets drawn as in this audit."
    ]
    theory = record.bounds
    if theory is not None and theory.success < 1:
        said.append(
            f"If the release is what it is said to be ({theory.mechanism}), theory allows no "
            f"attack more than {numbers.allowed(theory.success)} ({theory.tightest})."
        )
    else:
        said.append("No theorem limits what another attack could do here.")
    if record.claim is not None:
        said.append(
            f"{record.claim.source} claims at most {numbers.share(record.claim.rate)}, which is "
            "no theorem."
        )
    return Part("Result and its limits", tuple(said), items)


def _measured(attack: AttackRecord) -> str:
    rate = attack.rate
    assert rate is not None
    return (
        f"{attack.name}: {numbers.hits_of(rate)}; at least {numbers.at_least(rate.lower)}, at most "
        f"{numbers.at_most(rate.upper)}."
    )


def _not_tried(record: Record) -> Part:
    return Part(
        "What was not tried",
        (
            "Attacks that are not listed above, attackers who are told more than is said above, "
            "and other releases about the same people.",
        ),
        record.limits,
    )


def _reliance(record: Record) -> Part:
    outcomes = [check.outcome for check in record.checks]
    counted = ", ".join(
        f"{outcomes.count(outcome)} {word}"
        for outcome, word in (
            (CheckOutcome.PASSED, "passed"),
            (CheckOutcome.REMARK, "with a remark"),
            (CheckOutcome.FAILED, "failed"),
        )
    )
    items = tuple(c.sentence for c in record.checks if c.outcome is not CheckOutcome.PASSED)
    said = (
        f"Checks of the audit itself: {counted}.",
        f"It can be repeated from its settings and the seed {record.seed}.",
    )
    return Part("How far it can be relied on", said, items)


def _consequence(record: Record) -> str:
    kind = record.verdict.kind
    if kind is VerdictKind.INVALID:
        return "Nothing can be cited from this audit: mend what failed and run it again."
    if not record.trials_planned:
        return (
            "A release was captured and attacked without its records: an assessment needs an audit "
            "with secrets, from which a rate follows."
        )
    if kind is VerdictKind.CLAIM_REFUTED:
        return (
            "A limit that somebody relied on does not hold for this release. The risk has to be "
            "assessed by the measured rate, and the claim corrected or its cause found."
        )
    if kind is VerdictKind.DEMONSTRATED:
        return (
            "Reconstruction from this release is a risk that was demonstrated. Name the measure "
            "against it, audit the release with that measure in place, and cite both rates."
        )
    return (
        "Reconstruction was not demonstrated by these means, which is not evidence that it cannot "
        "be done. What can be cited is the largest rate that the limits leave open; name the date "
        "or the change after which the audit is repeated."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
