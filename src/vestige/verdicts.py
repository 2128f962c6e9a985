"""Judging: from outcomes to rates with limits, checks and one of four verdicts.

A pure function of the Record, so it can be repeated without model, data or torch. Nothing here
says that a release protects anybody: an attack that failed is not evidence that others will.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from vestige.numbers import at_least, at_most, count_word, one_in, percent, share
from vestige.rates import (
    NOTHING,
    allowed_rank,
    decoys_needed,
    matched_curve,
    matched_rate,
    pooled_rate,
)
from vestige.record import (
    AttackRecord,
    Check,
    CheckOutcome,
    Record,
    Verdict,
    VerdictKind,
)


def judge(record: Record) -> Record:
    """Fill in rates, curves, checks and the verdict from what the trials found.

    Limits are joint over the attacks (Bonferroni): with probability ``confidence`` all hold.
    """
    judged = record.model_copy(
        update={"attacks": tuple(_with_rates(record, attack) for attack in record.attacks)}
    )
    checks = (*record.preflight, *_statistical_checks(judged))
    judged = judged.model_copy(update={"checks": checks})
    exhibits = tuple(
        e.model_copy(update={"hit": e.rank <= allowed_rank(record.false_positive_rate, e.decoys)})
        for e in record.exhibits
    )
    return judged.model_copy(update={"verdict": _verdict(judged), "exhibits": exhibits})


def joint_confidence(record: Record) -> float:
    """Confidence of one limit such that those of all attacks hold together."""
    count = sum(not attack.guess for attack in record.attacks)
    return 1 - (1 - record.confidence) / max(1, count)


def strongest(record: Record) -> AttackRecord | None:
    """The attack with the highest lower limit; on a tie the higher rate, then the first."""
    rated = [a for a in record.attacks if not a.guess and a.rate is not None]
    return max(rated, key=lambda a: (a.rate.lower, a.rate.value), default=None)  # pyright: ignore[reportOptionalMemberAccess]


def _with_rates(record: Record, attack: AttackRecord) -> AttackRecord:
    outcomes = attack.outcomes
    if not outcomes:
        return attack.model_copy(update={"rate": None, "curve": (), "pooled": None})
    confidence = joint_confidence(record)
    allowed = allowed_rank(record.false_positive_rate, record.decoys)
    ranks = [o.rank for o in outcomes]
    return attack.model_copy(
        update={
            "rate": matched_rate(ranks, allowed, confidence),
            "curve": matched_curve(ranks, record.decoys, confidence),
            "pooled": pooled_rate(
                [NOTHING if o.distance is None else o.distance for o in outcomes],
                [NOTHING if o.decoy_distance is None else o.decoy_distance for o in outcomes],
                record.false_positive_rate,
                confidence,
            ),
        }
    )


def _statistical_checks(record: Record) -> list[Check]:
    if record.trials_planned == 0:
        return []
    alpha, checks = record.false_positive_rate, []
    if record.failure is not None:
        failure = record.failure
        who = "The run was stopped" if failure.attack is None else f"{failure.attack} stopped"
        checks.append(
            Check(
                outcome=CheckOutcome.FAILED,
                sentence=f"{who} in trial {failure.trial + 1:,} of {record.trials_planned:,}: "
                f"{failure.message}",
                remedy=failure.remedy,
            )
        )
    elif record.trials_finished < record.trials_planned:
        checks.append(
            Check(
                outcome=CheckOutcome.FAILED,
                sentence=f"{record.trials_finished:,} of {record.trials_planned:,} trials are "
                "finished.",
                remedy="Run the same command again: it goes on where it stopped.",
            )
        )
    else:
        named = sum(not a.guess for a in record.attacks)
        checks.append(
            Check(
                outcome=CheckOutcome.PASSED,
                sentence=f"{_who_ran(named)} ran on all {record.trials_planned:,} trials.",
            )
        )
    if allowed_rank(alpha, record.decoys) == 0:
        checks.append(
            Check(
                outcome=CheckOutcome.FAILED,
                sentence=f"{record.decoys} decoys per trial are too few: FPR = {share(alpha)} "
                f"needs {decoys_needed(alpha)}.",
                remedy="Ask for more decoys, or allow a higher false_positive_rate.",
            )
        )
    checks.extend(_guess_checks(record))
    for attack in record.attacks:
        lost = sum(o.diverged for o in attack.outcomes)
        if lost:
            checks.append(
                Check(
                    outcome=CheckOutcome.REMARK,
                    sentence=f"{attack.name} stayed divergent in {lost:,} of "
                    f"{len(attack.outcomes):,} trials; a trial without a finite candidate counts "
                    "as a miss.",
                )
            )
        checks.extend(Check(outcome=CheckOutcome.REMARK, sentence=r) for r in attack.remarks)
    return checks


def _who_ran(count: int) -> str:
    few = {1: "The attack", 2: "Both attacks"}
    return few.get(count, f"All {count_word(count)} attacks")


def _guess_checks(record: Record) -> list[Check]:
    """Guesses hit by chance alone; how often they did is said, and it is no verdict."""
    guesses = [a for a in record.attacks if a.guess and a.rate is not None]
    if not guesses:
        return []
    best = max(guesses, key=lambda a: a.rate.hits if a.rate else 0)
    assert best.rate is not None
    usual = best.rate.lower <= record.false_positive_rate
    return [
        Check(
            outcome=CheckOutcome.PASSED if usual else CheckOutcome.REMARK,
            sentence=f"Guesses hit {'as often as' if usual else 'more often than'} chance allows: "
            f"at most {best.rate.hits:,} of {best.rate.trials:,} ({best.name}).",
        )
    ]


def _verdict(record: Record) -> Verdict:
    failed = [c for c in record.checks if c.outcome is CheckOutcome.FAILED]
    if failed:
        sentence = failed[0].sentence
        if record.failure is not None and record.failure.attack is not None:
            sentence = (
                f"{record.failure.attack} stopped in trial {record.failure.trial + 1:,} of "
                f"{record.trials_planned:,}."
            )
        return Verdict(
            kind=VerdictKind.INVALID,
            headline=f"This audit says nothing yet: {_lowered(_first_clause(sentence))}",
            lede=failed[0].sentence,
            remedy=failed[0].remedy,
        )
    if record.trials_planned == 0:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline="No secret was given, so no rate can be.",
            lede="Below is what the attacks draw from this release, with their own confidence. "
            "Only somebody who holds the records can say how close it comes.",
        )
    best = strongest(record)
    if best is None or best.rate is None:
        return Verdict(
            kind=VerdictKind.INVALID,
            headline="This audit says nothing yet: no attack was named.",
            lede="Only guesses ran.",
            remedy="Name at least one attack.",
        )
    claim = record.smallest_claim
    if claim is not None and best.rate.lower > claim.rate:
        return Verdict(
            kind=VerdictKind.CLAIM_REFUTED,
            headline=f"{claim.source} allows at most {share(claim.rate)} of "
            f"secrets to be redrawn; the attack redrew at least {at_least(best.rate.lower)}.",
            lede=_rate_sentence(record, best),
            attack=best.name,
        )
    if record.trials_finished == 1:
        return _one_trial(record, best)
    if best.rate.lower > record.false_positive_rate:
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline=_demonstrated_headline(record, best),
            lede=_rate_sentence(record, best),
            attack=best.name,
        )
    return Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline=f"{_attack_words(record)} did not redraw secrets more often than guessing. "
        "This is not evidence of safety.",
        lede=_rate_sentence(record, best),
        attack=best.name,
    )


def _one_trial(record: Record, best: AttackRecord) -> Verdict:
    rank = best.outcomes[0].rank
    nearer = (
        f"nearer to the reconstruction than all {record.decoys:,} decoys"
        if rank == 1
        else f"farther from the reconstruction than {rank - 1:,} of {record.decoys:,} decoys"
    )
    return Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline="One trial is a picture, not a rate.",
        lede=f"The secret is {nearer} (rank {rank:,} of {record.decoys + 1:,}). With 100 trials "
        "the limits of a rate are about 10 points to either side.",
        attack=best.name,
    )


def _demonstrated_headline(record: Record, best: AttackRecord) -> str:
    assert best.rate is not None
    who, lower = f"The {record.threat.attacker}", best.rate.lower
    noun, batch = record.space.noun, record.batch_size
    shared = record.release if batch == 1 else f"{record.release} of {batch}"
    if batch > 1 and record.release == "a trained model":
        shared = f"a model trained on {batch} records"
    if not _resembles(record, best):
        return f"{who} can tell which {noun} is behind {shared}, without drawing it."
    if lower < 0.1:
        found = math.floor(lower * 1000) / 10 if lower >= 0.001 else lower * 100
        return (
            f"The {record.threat.attacker.split()[-1]} can redraw some records: at least "
            f"{found:.3g} in 100, where guessing finds {record.false_positive_rate * 100:.3g}."
        )
    return f"{who} can redraw {'the' if batch == 1 else 'a'} {noun} behind {shared}."


def _resembles(record: Record, best: AttackRecord) -> bool:
    """Whether what the attack drew is closer to the secrets than what guesses drew.

    A rank says that the release identifies the record, not that it was drawn: noise that leans
    towards its secret has rank one too. Hits are compared, by their median distance.
    """
    allowed = allowed_rank(record.false_positive_rate, record.decoys)
    hits = [o.trial for o in best.outcomes if o.rank <= allowed]
    own = _median_distance(best, hits)
    guessed = [_median_distance(a, hits) for a in record.attacks if a.guess and a.outcomes]
    return not guessed or own < min(guessed)


def _median_distance(attack: AttackRecord, trials: Sequence[int]) -> float:
    """Median distance to the secret over some trials; nothing finite counts as far."""
    chosen = set(trials)
    found = [
        NOTHING if o.distance is None else o.distance for o in attack.outcomes if o.trial in chosen
    ]
    return statistics.median(found) if found else NOTHING


def _rate_sentence(record: Record, best: AttackRecord) -> str:
    rate = best.rate
    assert rate is not None
    close = f"closer than all but {one_in(record.false_positive_rate)} decoys"
    limits = (
        f"at least {at_least(rate.lower)}, with {share(record.confidence)} confidence, in "
        f"{rate.trials:,} trials"
    )
    guess = f"Guessing with the same hints reaches {share(record.false_positive_rate)}."
    if rate.hits == 0:
        return (
            f"None of {rate.trials:,} secrets came back {close}: at most {at_most(rate.upper)}, "
            f"with {share(record.confidence)} confidence. {guess}"
        )
    if rate.hits == rate.trials:
        return f"All {rate.trials:,} secrets came back {close}: {limits}. {guess}"
    return f"{percent(rate.value)} of the secrets came back {close}: {limits}. {guess}"


def _attack_words(record: Record) -> str:
    names = _names(record.attacks)
    return names[0] if len(names) == 1 else f"These {count_word(len(names))} attacks"


def _names(attacks: Sequence[AttackRecord]) -> list[str]:
    return [a.name for a in attacks if not a.guess]


def _first_clause(sentence: str) -> str:
    return sentence if len(sentence) < 100 else f"{sentence.split(': ')[0].rstrip('.')}."


def _lowered(sentence: str) -> str:
    """Continue a sentence after a colon; names keep their capital."""
    first = sentence.split(" ", 1)[0]
    return sentence[0].lower() + sentence[1:] if first in _OPENERS else sentence


_OPENERS = {"The", "This", "Some", "Every", "Only", "No"}
