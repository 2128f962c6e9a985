"""Does the new release leak more than the old one? Two audits of the same secrets, pair by pair.

Trials of two runs are pairs if both audited the same records with the same seed, which their units
hold. Other audits are compared as independent samples, and that is said; other kinds are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vestige.content import document_bytes
from vestige.errors import BadInput, VestigeError
from vestige.reports import numbers
from vestige.reports.audit import AttackFindings, AuditFindings, AuditReport
from vestige.reports.files import load_report
from vestige.statistics.paired_hits import PairedHits, paired_hits, unpaired_difference
from vestige.statistics.rates import allowed_rank
from vestige.studies.store import RunFolder

SMALLEST_P = 0.0001
"""Smaller p-values are only said to be smaller."""

ROUNDING_SLACK = 1e-9
"""Absorbs the error of a product before it is rounded outwards."""

SAME_STUDY = (
    "Both folders hold the same study with the same seed, so this is one release and not two: a "
    "difference would be one of computers or versions."
)


@dataclass(frozen=True)
class AttackDifference:
    """One attack in both runs: pairs of trials where there are any, and limits of the difference.

    Limits are joint over the attacks; those of an unpaired comparison are of rates, not of hits.
    """

    attack: str
    old: tuple[int, int]
    new: tuple[int, int]
    lower: float
    upper: float
    paired: PairedHits | None = None

    @property
    def direction(self) -> int:
        """1 if the new run is shown to hit more, −1 if less, 0 if neither is shown."""
        return (self.lower > 0) - (self.upper < 0)


@dataclass(frozen=True)
class RunDifference:
    """What is shown about the difference of two runs, in one sentence, and attack by attack.

    ``unpaired`` says why trials are no pairs; empty where they are.
    """

    sentence: str
    confidence: float
    attacks: tuple[AttackDifference, ...]
    unpaired: str = ""
    remarks: tuple[str, ...] = ()


def compare_runs(old: str | Path, new: str | Path) -> RunDifference:
    """Compare two runs of audits; ``new`` is the one that may leak more."""
    first, second = _audit(old), _audit(new)
    _refuse_copies(old, new, first, second)
    reason = _why_unpaired(Path(old), Path(new), first.findings, second.findings)
    if first.findings.redacted != second.findings.redacted:
        # Settings of a redacted report differ from the others by what it withholds.
        first, second = first.without_secrets(), second.without_secrets()
    found = difference_of(first.findings, second.findings, reason)
    if not reason and _same_study(Path(old), Path(new)):
        return replace(found, remarks=(*found.remarks, SAME_STUDY))
    return found


def difference_of(old: AuditFindings, new: AuditFindings, unpaired: str = "") -> RunDifference:
    """Compare the findings of two audits, as pairs unless there is a reason against it."""
    allowed = [allowed_rank(one.false_positive_rate, one.decoys) for one in (old, new)]
    if (old.false_positive_rate, old.decoys) != (new.false_positive_rate, new.decoys):
        raise BadInput(
            "The two runs count hits differently (false positive rate or decoys): run one of them "
            "again with the settings of the other."
        )
    _check_alike(old, new)
    named = [[a for a in one.attacks if not a.guess and a.outcomes] for one in (old, new)]
    names = [a.name for a in named[0] if a.name in {b.name for b in named[1]}]
    if not names:
        raise BadInput("The two runs share no attack: run the same attacks on both releases.")
    confidence = min(old.confidence, new.confidence)
    joint = 1 - (1 - confidence) / len(names)
    by_name = [{a.name: a for a in part} for part in named]
    found = tuple(
        _difference(by_name[0][name], by_name[1][name], allowed[0], joint, paired=not unpaired)
        for name in names
    )
    left = sorted({a.name for part in named for a in part} - set(names))
    remarks = [f"Only one run has {', '.join(left)}: not compared."] if left else []
    sizes = {len(part[0].outcomes) for part in named}
    if not unpaired and len(sizes) > 1:
        remarks.append(f"The runs have {min(sizes):,} and {max(sizes):,} trials: the first count.")
    remarks += [
        f"{name} has other settings in the new run."
        for name in names
        if by_name[0][name].settings != by_name[1][name].settings
    ]
    sentence = _sentence(found, unpaired=bool(unpaired))
    return RunDifference(sentence, confidence, found, unpaired, tuple(remarks))


def _check_alike(old: AuditFindings, new: AuditFindings) -> None:
    """Raise BadInput where a difference would not be one of the releases."""
    distances = [(one.distance, *(d.name for d in one.further_distances)) for one in (old, new)]
    apart = {
        "their distances": distances[0] != distances[1],
        "what their records are": (old.space.kind, old.space.shape)
        != (new.space.kind, new.space.shape),
    }
    named = [name for name, differs in apart.items() if differs]
    if named:
        raise BadInput(
            f"The two runs differ in {' and '.join(named)}, so a difference would not be one of "
            "the releases: run one of them again with the settings of the other."
        )
    if old.earlier_trials or new.earlier_trials:
        raise BadInput(
            "Trials were added to one of the runs after a report, and the exact test holds for "
            "trials that were planned at once: compare runs without additions."
        )


def _difference(
    old: AttackFindings, new: AttackFindings, allowed: int, confidence: float, *, paired: bool
) -> AttackDifference:
    first, second = ({o.trial: o.rank <= allowed for o in one.outcomes} for one in (old, new))
    if not paired:
        before, after = ((sum(one.values()), len(one)) for one in (first, second))
        lower, upper = unpaired_difference(before, after, confidence)
        return AttackDifference(old.name, before, after, lower, upper)
    trials = sorted(first.keys() & second.keys())
    pairs = paired_hits([first[t] for t in trials], [second[t] for t in trials], confidence)
    before, after = ((sum(one[t] for t in trials), len(trials)) for one in (first, second))
    return AttackDifference(old.name, before, after, pairs.lower, pairs.upper, pairs)


def _sentence(found: Sequence[AttackDifference], *, unpaired: bool) -> str:
    shown = [one for one in found if one.direction]
    if {one.direction for one in shown} == {1, -1}:
        return "The new release leaks more to one attack and less to another: see each of them."
    if not shown:
        return (
            "The runs do not show that one release leaks more than the other. This is not "
            "evidence that they leak equally."
        )
    best = max(shown, key=lambda one: min(abs(one.lower), abs(one.upper)))
    more = best.direction > 0
    word, least = ("more", best.lower) if more else ("fewer", -best.upper)
    head = f"The new release leaks {'more' if more else 'less'}: {best.attack} hit"
    if unpaired:
        apart = abs(best.new[0] / best.new[1] - best.old[0] / best.old[1])
        return f"{head} {_points(apart)} {word}, at least {_signed(_tenths(least))} points."
    count, pairs = abs(best.new[0] - best.old[0]), best.new[1]
    return f"{head} {count:,} {word} of {pairs:,} secrets, {_at_least(least, pairs)}."


def _points(difference: float) -> str:
    return numbers.points(difference).lstrip("+")


def _at_least(hits: float, pairs: int) -> str:
    """A lower limit of a number of hits, which is an expectation, never rounded upwards.

    Less than one hit is written as a share of the pairs: nobody has seen a part of a hit.
    """
    if hits >= 1:
        return f"at least {math.floor(hits):,}"
    share = _tenths(hits / pairs)
    return f"at least {_signed(share)} points" if share else "more than none"


def limits_in_words(one: AttackDifference) -> str:
    """The limits of a difference, rounded outwards: percentage points, and hits where paired."""
    pairs = 1 if one.paired is None else one.paired.pairs
    low, high = _tenths(one.lower / pairs), -_tenths(-one.upper / pairs)
    points = f"{_signed(low, '+')} to {_signed(high, '+')} percentage points"
    if one.paired is None:
        return f"Unpaired difference of the two rates: {points}; no test."
    least, most = math.floor(one.lower), math.ceil(one.upper)
    p = one.paired.p_value
    said = f"= {numbers.p_value(p)}" if p >= SMALLEST_P else f"< {SMALLEST_P:.4f}"
    return (
        f"Paired difference: {points}, that is {_signed(least, '+')} to {_signed(most, '+')} hits "
        f"in {numbers.plural(pairs, 'pair')} of trials; exact test p {said}."
    )


def _tenths(share: float) -> float:
    """A share in percentage points, rounded down to a tenth of one."""
    return math.floor(share * 1e3 + ROUNDING_SLACK) / 10


def _signed(value: float, plus: str = "") -> str:
    text = f"{abs(value):,.1f}".removesuffix(".0")
    return text if text == "0" else f"{plus if value > 0 else numbers.MINUS}{text}"


def _refuse_copies(
    old: str | Path, new: str | Path, first: AuditReport, second: AuditReport
) -> None:
    """Raise BadInput where both are one run: one folder, a copy, or a redacted copy."""
    if document_bytes(first) == document_bytes(second):
        raise BadInput(f"{old} and {new} hold the same report: give runs of two releases.")
    if document_bytes(first.without_secrets()) == document_bytes(second.without_secrets()):
        copy = old if first.findings.redacted else new
        raise BadInput(f"{copy} is a redacted copy of the other run: give runs of two releases.")


def _same_study(old: Path, new: Path) -> bool:
    """Whether two run folders say that they hold one study with one seed."""
    try:
        held = [RunFolder(one).manifest() for one in (old, new)]
    except VestigeError:
        return False
    return all(held[0].get(key) == held[1].get(key) for key in ("kind", "identity", "seed"))


def _audit(path: str | Path) -> AuditReport:
    report = load_report(path)
    if not isinstance(report, AuditReport):
        raise BadInput(
            f"{path} holds another kind, {report.kind}: vestige diff compares two audits."
        )
    if report.findings.failure is not None:
        raise BadInput(f"{path} holds an audit that was stopped: rerun its command to finish it.")
    if report.findings.smallest_pool is not None:
        raise BadInput(
            f"{path} holds an audit of captured releases, whose trials share one pool of records: "
            "the exact test of pairs does not hold for them."
        )
    return report


def _why_unpaired(old: Path, new: Path, first: AuditFindings, second: AuditFindings) -> str:
    """Why trials of the runs are no pairs; empty if the same records were audited in both."""
    if first.redacted or second.redacted:
        which = "both reports are" if first.redacted and second.redacted else "one report is"
        return f"{which} redacted, which withholds seed and secrets"
    if first.seed is None or second.seed is None:
        return "a seed is withheld"
    if first.seed != second.seed:
        return f"the seeds differ ({first.seed} and {second.seed})"
    if first.batch_size != second.batch_size:
        return "the batch sizes differ"
    if not (old / "units").is_dir() or not (new / "units").is_dir():
        return "one of them has no units, which hold the secrets"
    try:
        pairs = zip(_secrets(old, first), _secrets(new, second))
        same = all(a == b for a, b in pairs)
    except (VestigeError, LookupError, ValueError, OSError) as error:
        raise BadInput(f"The units cannot be compared: {error}") from error
    return "" if same else "the secrets differ"


def _secrets(path: Path, findings: AuditFindings) -> list[str]:
    """A digest of the audited record and its first decoy, trial by trial."""
    from vestige.studies.audit.trial_files import trial_of

    run, found = RunFolder(path), []
    for outcome in findings.attacks[0].outcomes:
        trial = trial_of(run.read(outcome.trial))
        secret, decoy = trial.tensors["secret/x"][trial.slot], trial.tensors["decoy"]
        parts = [str(outcome.trial), *(one.numpy().tobytes().hex() for one in (secret, decoy))]
        found.append(hashlib.sha256(" ".join(parts).encode()).hexdigest())
    return found
