"""Judging: from outcomes to rates with limits, checks and one of five verdicts.

A pure function of the findings, so it can be repeated without model, data or torch. Nothing here
says that a release protects anybody: an attack that failed is not evidence that others will.
"""

from __future__ import annotations

from collections.abc import Sequence

from vestige.bounds.shown import shown_by_audit
from vestige.reports.audit import AttackFindings, AuditFindings, AuditJudgement
from vestige.reports.captured_words import guess_check, permutation_sentence
from vestige.reports.numbers import (
    at_least,
    at_most,
    by_chance,
    count_word,
    one_in,
    percent,
    share,
    some_of,
)
from vestige.reports.parts import Check, CheckOutcome, Rate, Verdict, VerdictKind
from vestige.reports.record_words import record_words
from vestige.statistics.audit_rates import (
    Rates,
    attack_rates,
    exceeds_chance,
    joint_confidence,
    limit_confidence,
    measured_by,
    shown_distance,
    strongest,
)
from vestige.statistics.paired import MOST, closer_rate, redrawn_rate
from vestige.statistics.rates import allowed_rank, decoys_needed, pool_design_effect


def judge_audit(findings: AuditFindings) -> AuditJudgement:
    """Derive rates, curves, checks and the verdict from what the trials found."""
    rates = attack_rates(findings)
    checks = (*findings.preflight, *_statistical_checks(findings, rates))
    verdict, distance = _deciding(findings, _verdict(findings, rates, checks), checks)
    return AuditJudgement(
        verdict=verdict,
        distance=distance,
        checks=checks,
        rates=rates,
        hits=tuple(
            exhibit.rank <= allowed_rank(findings.false_positive_rate, exhibit.decoys)
            for exhibit in findings.exhibits
        ),
        shown=None if verdict.kind is VerdictKind.INVALID else shown_by_audit(findings),
    )


def _statistical_checks(findings: AuditFindings, rates: Rates) -> list[Check]:
    alpha, checks = findings.false_positive_rate, []
    if findings.failure is not None:
        failure = findings.failure
        who = "The run was stopped" if failure.attack is None else f"{failure.attack} stopped"
        checks.append(
            Check.failed(
                f"{who} in trial {failure.trial + 1:,} of {findings.trials_planned:,}: "
                f"{failure.message}",
                failure.remedy,
            )
        )
    elif findings.trials_finished < findings.trials_planned:
        checks.append(
            Check.failed(
                f"{findings.trials_finished:,} of {findings.trials_planned:,} trials are finished.",
                "Run the same command again: it goes on where it stopped.",
            )
        )
    else:
        named = sum(not a.guess for a in findings.attacks)
        checks.append(
            Check.passed(f"{_who_ran(named)} ran on all {findings.trials_planned:,} trials.")
        )
    if allowed_rank(alpha, findings.decoys) == 0:
        checks.append(
            Check.failed(
                f"{findings.decoys} decoys per trial are too few: FPR = {share(alpha)} "
                f"needs {decoys_needed(alpha)}.",
                "Ask for more decoys, or allow a higher false_positive_rate.",
            )
        )
    checks.extend(_guess_checks(findings, rates))
    for attack in findings.attacks:
        lost = sum(o.diverged or o.distance is None for o in attack.outcomes)
        if lost:
            checks.append(
                Check.remark(
                    f"{attack.name} stayed divergent in {lost:,} of "
                    f"{len(attack.outcomes):,} trials; a trial without a finite candidate counts "
                    "as a miss.",
                )
            )
        checks.extend(Check.remark(r) for r in attack.remarks)
    return checks


def _who_ran(count: int) -> str:
    few = {1: "The attack", 2: "Both attacks"}
    return few.get(count, f"All {count_word(count)} attacks")


def _guess_checks(findings: AuditFindings, rates: Rates) -> list[Check]:
    """Guesses hit by chance alone; how often they did is said.

    Where a victim releases what every trial asks for, chance is ours and the remark is no verdict.
    Where releases were captured it is the owner's, and a guess above chance disproves it.
    """
    guesses = [a for a in findings.attacks if a.guess and a.name in rates]
    if not guesses:
        return []
    tests = [
        (one.p_value, a.name)
        for a in guesses
        if a.permutation is not None
        for one in (a.permutation, *a.further_permutations)
    ]
    if tests:
        return [guess_check(tests, (1 - findings.confidence) / 2 / len(tests))]
    best = max(guesses, key=lambda a: _rate(rates, a).hits)
    rate = _rate(rates, best)
    usual = rate.lower <= findings.false_positive_rate
    return [
        Check(
            outcome=CheckOutcome.PASSED if usual else CheckOutcome.REMARK,
            sentence=f"Guesses hit {'as often as' if usual else 'more often than'} chance allows: "
            f"at most {rate.hits:,} of {rate.trials:,} ({best.name}).",
        )
    ]


def _rate(rates: Rates, attack: AttackFindings) -> Rate:
    rate = rates[attack.name].rate
    assert rate is not None
    return rate


def _verdict(findings: AuditFindings, rates: Rates, checks: Sequence[Check]) -> Verdict:
    failed = [c for c in checks if c.outcome is CheckOutcome.FAILED]
    if failed:
        sentence = None
        if findings.failure is not None and findings.failure.attack is not None:
            sentence = (
                f"{findings.failure.attack} stopped in trial {findings.failure.trial + 1:,} of "
                f"{findings.trials_planned:,}."
            )
        return failed_verdict(failed[0], sentence)
    best = strongest(findings, rates)
    if best is None:
        return Verdict(
            kind=VerdictKind.INVALID,
            headline="This audit says nothing yet: no attack was named.",
            lede="Only guesses ran.",
            remedy="Name at least one attack.",
        )
    claim, lower = findings.smallest_claim, _rate(rates, best).lower
    words = record_words(findings.space.kind)
    if claim is not None and lower > claim.rate:
        redrawn = _redrawing(findings)[1].lower
        redrew = redrawn > claim.rate
        shown = redrawn if redrew else lower
        return Verdict(
            kind=VerdictKind.CLAIM_REFUTED,
            headline=f"{claim.source} allows at most {share(claim.rate)} of secrets to be "
            f"{words.redrawn if redrew else 'singled out'}; the attack "
            f"{words.redrew if redrew else 'singled out'} at least {at_least(shown)}.",
            lede=_rate_sentence(findings, best, rates),
            attack=best.name,
        )
    if findings.trials_finished == 1:
        return _one_trial(findings, best)
    if exceeds_chance(findings, best, rates):
        return Verdict(
            kind=VerdictKind.DEMONSTRATED,
            headline=_demonstrated_headline(findings, _rate(rates, best)),
            lede=_rate_sentence(findings, best, rates)
            + permutation_sentence(best)
            + f" {_redrawn_sentence(findings, best)}",
            attack=best.name,
        )
    return Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline=f"{_attack_words(findings)} {_were(findings)} not shown to {words.redraw} secrets "
        "more often than guessing. This is not evidence of safety.",
        lede=_rate_sentence(findings, best, rates) + permutation_sentence(best),
        attack=best.name,
    )


_MORE = (VerdictKind.NOT_DEMONSTRATED, VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)
"""Verdicts in the order of what they say."""


def _deciding(
    findings: AuditFindings, primary: Verdict, checks: Sequence[Check]
) -> tuple[Verdict, str]:
    """The verdict by the primary distance, or by a further one that says more, and its name.

    Limits are joint over attacks and distances, so whichever says more may be chosen afterwards.
    """
    declared = findings.further_distances
    if not declared or primary.kind is VerdictKind.INVALID or findings.trials_finished == 1:
        return primary, ""
    seen = []
    for place in range(len(declared)):
        view = measured_by(findings, place)
        rates = attack_rates(view)
        best = strongest(view, rates)
        assert best is not None  # otherwise the primary verdict is INVALID
        verdict = _verdict(view, rates, checks)
        seen.append((_MORE.index(verdict.kind), _rate(rates, best).lower, verdict, view.distance))
    more, _, verdict, name = max(seen, key=lambda one: one[:2])
    joint = f"Limits are joint over {count_word(1 + len(declared))} distances."
    if more > _MORE.index(primary.kind):
        said = {
            "headline": f"By {name}: {verdict.headline}",
            "lede": f"{verdict.lede} By {findings.distance} that was not shown. {joint}",
        }
        return verdict.model_copy(update=said), name
    others = " and ".join(one.name for one in declared)
    added = f"Nor was it shown by {others}. {joint}" if more == 0 else joint
    return primary.model_copy(update={"lede": f"{primary.lede} {added}"}), ""


def failed_verdict(failed: Check, sentence: str | None = None) -> Verdict:
    """INVALID because of a check; ``sentence`` is a shorter one for the headline."""
    return Verdict(
        kind=VerdictKind.INVALID,
        headline="This audit says nothing yet: "
        f"{_lowered(_first_clause(sentence or failed.sentence))}",
        lede=failed.sentence,
        remedy=failed.remedy,
    )


def _one_trial(findings: AuditFindings, best: AttackFindings) -> Verdict:
    place = shown_distance(findings, best)
    outcome = best.outcomes[0]
    rank = outcome.rank if place is None else outcome.further[place].rank
    by = "" if place is None else f", by {findings.further_distances[place].name}"
    nearer = (
        f"nearer to the reconstruction than all {findings.decoys:,} decoys"
        if rank == 1
        else f"farther from the reconstruction than {rank - 1:,} of {findings.decoys:,} decoys"
    )
    return Verdict(
        kind=VerdictKind.NOT_DEMONSTRATED,
        headline=f"One trial is {record_words(findings.space.kind).example}, not a rate.",
        lede=f"The secret is {nearer} (rank {rank:,} of {findings.decoys + 1:,}{by}). With "
        "100 trials the limits of a rate are about 10 points to either side.",
        attack=best.name,
    )


def _demonstrated_headline(findings: AuditFindings, identified: Rate) -> str:
    who = f"The {findings.threat.attacker}"
    noun, batch = findings.space.noun, findings.batch_size
    lower, words = _redrawing(findings)[1].lower, record_words(findings.space.kind)
    if lower <= findings.false_positive_rate and identified.lower < MOST:
        return (
            f"{who} can tell some records apart: at least "
            f"{at_least(identified.lower).rstrip('%')} in 100. {words.redrawing} them was not "
            "shown."
        )
    if lower <= findings.false_positive_rate:
        what, it = (f"{noun} is", "it") if batch == 1 else ("records are", "them")
        return (
            f"{who} can tell which {what} behind {findings.release}. "
            f"{words.redrawing} {it} was not shown."
        )
    if lower < MOST:
        return (
            f"The {findings.threat.attacker.split()[-1]} can {words.redraw} some records: at "
            "least "
            f"{at_least(lower).rstrip('%')} in 100, where guessing finds "
            f"{findings.false_positive_rate * 100:.3g}."
        )
    shared = findings.release if batch == 1 else f"{findings.release} of {batch}"
    if batch > 1 and findings.release == "a trained model":
        shared = f"a model trained on {batch} records"
    return f"{who} can {words.redraw} {'the' if batch == 1 else 'a'} {noun} behind {shared}."


def _redrawing(findings: AuditFindings) -> tuple[AttackFindings, Rate]:
    """The attack that redrew most, by lower limit, and its rate; limits are joint over attacks."""
    allowed = allowed_rank(findings.false_positive_rate, findings.decoys)
    guesses = [a for a in findings.attacks if a.guess]
    confidence, effect = limit_confidence(findings), pool_design_effect(findings.smallest_pool)
    added = bool(findings.earlier_trials)
    rated = [
        (a, redrawn_rate(a, guesses, allowed, confidence, effect, anytime=added))
        for a in findings.attacks
        if not a.guess and a.outcomes
    ]
    return max(rated, key=lambda pair: (pair[1].lower, pair[1].value))


def _redrawn_sentence(findings: AuditFindings, best: AttackFindings) -> str:
    """Say how many secrets were redrawn, and what that means; if few, how many came closer."""
    attack, rate = _redrawing(findings)
    words = record_words(findings.space.kind)
    named = "" if attack.name == best.name else f"By {attack.name}, "
    many = some_of(rate.hits, rate.trials, "secret")
    were = "was" if rate.hits == 1 or many.startswith("neither") else "were"
    far = "(less than half as far from the secret as the best guess)"
    said = _capital(f"{named}{many} {were} {words.redrawn} {far}")
    if rate.lower > findings.false_positive_rate:
        return f"{said}: at least {at_least(rate.lower)}."
    guesses = [a for a in findings.attacks if a.guess]
    closer = closer_rate(attack, guesses, joint_confidence(findings))
    drawings = some_of(closer.hits, rate.trials, words.drawing)
    were = "was" if closer.hits == 1 or drawings.startswith("neither") else "were"
    return f"{said}; {drawings} {were} closer than the best guess."


def _rate_sentence(findings: AuditFindings, best: AttackFindings, rates: Rates) -> str:
    rate = _rate(rates, best)
    close = f"closer than all but {one_in(findings.false_positive_rate)} decoys"
    limits = (
        f"at least {at_least(rate.lower)}, with {share(findings.confidence)} confidence, in "
        f"{rate.trials:,} trials"
    )
    guess = f"By chance it is {by_chance(findings.false_positive_rate)}."
    if rate.hits == 0:
        none = _capital(some_of(0, rate.trials, "secret"))
        return (
            f"{none} came back {close}: at most {at_most(rate.upper)}, with "
            f"{share(findings.confidence)} confidence. {guess}"
        )
    if rate.hits == rate.trials:
        every = _capital(some_of(rate.hits, rate.trials, "secret"))
        return f"{every} came back {close}: {limits}. {guess}"
    if not exceeds_chance(findings, best, rates):
        limits = limits.replace(",", f" and at most {at_most(rate.upper)},", 1)
    return f"{percent(rate.value)} of the secrets came back {close}: {limits}. {guess}"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _were(findings: AuditFindings) -> str:
    return "was" if len(_names(findings.attacks)) == 1 else "were"


def _attack_words(findings: AuditFindings) -> str:
    names = _names(findings.attacks)
    return names[0] if len(names) == 1 else f"These {count_word(len(names))} attacks"


def _names(attacks: Sequence[AttackFindings]) -> list[str]:
    return [a.name for a in attacks if not a.guess]


def _first_clause(sentence: str) -> str:
    return sentence if len(sentence) < 100 else f"{sentence.split(': ')[0].rstrip('.')}."


def _lowered(sentence: str) -> str:
    """Continue a sentence after a colon; names keep their capital."""
    first = sentence.split(" ", 1)[0]
    return sentence[0].lower() + sentence[1:] if first in _OPENERS else sentence


_OPENERS = {"The", "This", "Some", "Every", "Only", "No"}
