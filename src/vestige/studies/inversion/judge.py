"""Judging a captured release without a secret: was it matched, and what do rehearsals say of that?

A pure function of the findings; ``vestige.statistics.fits`` says when a release is matched.
"""

from __future__ import annotations

import math
import statistics

from vestige.reports.inversion import (
    Fit,
    InversionFindings,
    InversionJudgement,
    InversionReport,
    RehearsedRelease,
    label_sentence,
)
from vestige.reports.numbers import (
    at_least,
    count_word,
    distance,
    percent,
    plural_noun,
    quantity,
    share,
)
from vestige.reports.parts import Check, CheckOutcome, Failure, Verdict, VerdictKind
from vestige.reports.record_words import record_words
from vestige.statistics.fits import Match, best_fit, came_back, excess, left_unexplained, match_of
from vestige.statistics.rates import clopper_pearson
from vestige.studies.audit.judge import failed_verdict

SCALE_TOLERANCE = 0.1
"""Relative difference in length beyond which a matched release is said to be scaled."""

SCALE_PER_ERROR = 30.0
"""|ln scale| that imperfect candidates explain, per root of the residual. Candidates were digits of
8 × 8 with noise, faded or mixed with others, in batches of one and four, through three kinds of
trained networks; those counted left less than 3%. Of these 1 in 100 exceeded it where it was chosen
and 2 in 100 with other weights and records, against 30 in 100 for ``SCALE_TOLERANCE`` alone."""


def judge_inversion(findings: InversionFindings) -> InversionJudgement:
    """Say what was drawn, and whether it explains the release; INVALID if a check failed."""
    checks = (*findings.preflight, *candidate_checks(findings))
    failed = next((c for c in checks if c.outcome is CheckOutcome.FAILED), None)
    verdict = judge_candidates(findings) if failed is None else failed_verdict(failed)
    if failed is None and findings.failure is not None:
        verdict = _so_far(verdict, findings.failure)
    return InversionJudgement(verdict=verdict, checks=checks)


def _so_far(verdict: Verdict, failure: Failure) -> Verdict:
    """The verdict on the best candidates of an inversion that the user interrupted."""
    return verdict.model_copy(
        update={
            "headline": f"Interrupted; so far: {verdict.headline[0].lower()}{verdict.headline[1:]}",
            "lede": _joined(failure.message, verdict.lede),
            "remedy": failure.remedy,
        }
    )


def further_remarks(report: InversionReport) -> list[str]:
    """Remarks on candidates that the verdict does not say itself, each with what to do."""
    if report.verdict.kind is not VerdictKind.CANDIDATES:
        return []
    return [
        f"Remark: {check.sentence} {check.remedy}".rstrip()
        for check in report.judgement.checks
        if check.outcome is CheckOutcome.REMARK and check.remedy != report.verdict.remedy
    ]


def judge_candidates(findings: InversionFindings) -> Verdict:
    """The verdict on a captured release without a secret: what was drawn, and whether it fits."""
    fit, words = best_fit(findings.fits), record_words(findings.space.kind)
    drawn = [c for c in findings.candidates if fit is None or c.attack == fit.attack]
    if not drawn:
        return Verdict(
            kind=VerdictKind.CANDIDATES,
            headline=f"No candidate was {words.drawn} from this {_noun(findings)}.",
            lede=f"This is not evidence that nothing can be {words.drawn} from it. " + NO_RATE,
            attack=None if fit is None else fit.attack,
            remedy="Try another attack: 'vestige attacks' says what each of them reads.",
        )
    labels = label_sentence([c.label for c in drawn], told=all(c.label_told for c in drawn))
    if fit is None:
        return Verdict(
            kind=VerdictKind.CANDIDATES,
            headline=f"{_candidates(len(drawn))} {words.drawn} from this {_noun(findings)}; how "
            "well the release is explained was not measured.",
            lede=_joined(labels, NO_RATE),
        )
    match = match_of(fit)
    return Verdict(
        kind=VerdictKind.CANDIDATES,
        headline=_headline(findings, fit, match, len(drawn)),
        lede=_joined(
            _fit_sentence(findings, fit, match),
            labels,
            rehearsal_sentence(findings, fit.attack),
            REPLAYED if findings.replayed else NO_RATE,
        ),
        attack=fit.attack,
        remedy=_remedy(findings, match),
    )


NO_RATE = (
    "No secret was given, so no rate can be: only a comparison with the records says how close a "
    "candidate comes."
)


REPLAYED = (
    "The batch was given as a reference, and its replay agrees with the release. It was not "
    "compared with the candidates: a CapturedAudit does that and gives a rate."
)


def candidate_checks(findings: InversionFindings) -> list[Check]:
    """Every attack's fit as a check, and what its scale and its rehearsals give away."""
    checks = []
    for fit in findings.fits:
        match = match_of(fit)
        checks.append(
            Check(
                outcome=CheckOutcome.PASSED if match is Match.MATCHED else CheckOutcome.REMARK,
                sentence=f"{fit.attack}: {_check_sentence(findings, fit, match)}",
                remedy="" if match is Match.MATCHED else _remedy(findings, match),
            )
        )
        if match in (Match.MATCHED, Match.IN_PART) and _is_scaled(fit):
            assert fit.scale is not None
            checks.append(
                Check.remark(
                    f"{fit.attack}: the {_noun(findings)} has the direction of what the "
                    f"candidates give and {quantity(fit.scale)} times its length.",
                    "The candidates may be imperfect: their loss sets the length. If they look "
                    "right, check the batch size (similar records give one direction), the "
                    "reduction of the loss, loss scaling and, for an update, the learning rate and "
                    "the number of local steps.",
                )
            )
        checks += _rehearsal_checks(findings, fit)
    return checks


def _is_scaled(fit: Fit) -> bool:
    """Whether a release is longer or shorter than imperfect candidates would make it."""
    if fit.scale is None or fit.residual is None or abs(fit.scale - 1) <= SCALE_TOLERANCE:
        return False
    left = max(fit.residual - fit.noise, 0.0)
    return fit.scale <= 0 or abs(math.log(fit.scale)) > SCALE_PER_ERROR * math.sqrt(left)


def rehearsal_sentence(findings: InversionFindings, attack: str) -> str:
    """How close rehearsed releases that fitted alike came back, with a limit; or nothing."""
    fit, rehearsed = _of(findings, attack)
    if fit is None or not rehearsed:
        return ""
    match = match_of(fit)
    told = match is not Match.UNDECIDED
    alike = [one for one in rehearsed if not told or match_of(one.fit) is match]
    single = len(rehearsed) == 1
    others = (
        "one simulated release" if single else f"{len(rehearsed):,} simulated releases"
    ) + " of prior records"
    if not alike and match is Match.NOT_MATCHED:
        subject = "The one simulated release of prior records was" if single else ""
        return (
            f"{subject or f'All of {others} were'} matched under the same attack, at least in part."
        )
    if not alike and single:
        return (
            f"One simulated release of prior records was not {match.value} under the same attack."
        )
    if not alike:
        return f"None of {others} was {match.value} under the same attack."
    close = [one for one in alike if came_back(one)]
    lower, _ = clopper_pearson(len(close), len(alike), findings.confidence)
    errors = [one.error for one in alike if one.error is not None]
    middle = distance(statistics.median(errors)) if errors else "none"
    guess = distance(statistics.median(one.guess_error for one in alike))
    measure, against = (
        ("share", "most common ones") if _texts(findings) else ("error", "class mean")
    )
    if single:
        same = f"was {match.value} under the same attack" if told else "was attacked alike"
        return (
            f"One simulated release of prior records {same} and "
            f"{'came' if close else 'did not come'} back {CAME_BACK[_texts(findings)]} "
            f"({measure} {middle}, {against} {guess}); one rehearsal shows no rate."
        )
    were = "was" if len(alike) == 1 else "were"
    same = (
        f"{len(alike)} {were} {match.value} under the same attack, and"
        if told
        else "attacked alike,"
    )
    return (
        f"Of {others}, {same} {len(close)} of these came back {CAME_BACK[_texts(findings)]} "
        f"(at least {at_least(lower)}, with {share(findings.confidence)} confidence; median "
        f"{measure} {middle}, {against} {guess})."
    )


CAME_BACK = (
    "within half the class mean's error",
    "with at most half as many wrong tokens as the most common tokens of the class",
)
"""When a rehearsed release came back, for texts the second."""


def _texts(findings: InversionFindings) -> bool:
    return findings.space.kind == "text"


def _rehearsal_checks(findings: InversionFindings, fit: Fit) -> list[Check]:
    """Whether the release is matched as well as those that were made by this very description.

    If the description is right and the records are like those of the prior, all excesses are
    exchangeable, so the captured one is the largest of m + 1 with probability 1/(m + 1) at most.
    """
    _, rehearsed = _of(findings, fit.attack)
    own = excess(fit)
    if not rehearsed or own is None or match_of(fit) is Match.MATCHED:
        return []
    found = [excess(one.fit) for one in rehearsed]
    if any(one is None or one >= own for one in found):
        return []
    return [
        Check.remark(
            f"{fit.attack}: {_all_simulated(len(found))} less unexplained than this "
            f"one. If the model is described rightly and the records are like the prior's, "
            f"that has a probability of {percent(1 / (len(found) + 1))} at most.",
        )
    ]


def _all_simulated(number: int) -> str:
    return (
        "the one simulated release left"
        if number == 1
        else f"all {number:,} simulated releases left"
    )


def _of(findings: InversionFindings, attack: str) -> tuple[Fit | None, list[RehearsedRelease]]:
    fit = next((f for f in findings.fits if f.attack == attack), None)
    return fit, [one for one in findings.rehearsals if one.fit.attack == attack]


def _noun(findings: InversionFindings) -> str:
    return findings.release.rpartition(" ")[2]


def _candidates(number: int) -> str:
    word = count_word(number)
    return f"{word[:1].upper()}{word[1:]} candidate{' was' if number == 1 else 's were'}"


def _they(number: int) -> str:
    return "it" if number == 1 else "they"


def _headline(findings: InversionFindings, fit: Fit, match: Match, drawn: int) -> str:
    noun = _noun(findings)
    if match is Match.MATCHED:
        word = count_word(drawn)
        who = f"{word[:1].upper()}{word[1:]} candidate{' matches' if drawn == 1 else 's match'}"
        return f"{who} this {noun}: {left_unexplained(fit)} of it is left unexplained."
    if match is Match.IN_PART:
        return (
            f"This {noun} was matched in part: {left_unexplained(fit)} of it is left unexplained."
            f"{'' if findings.failure else ' Too few iterations, or another batch size?'}"
        )
    if match is Match.NOT_MATCHED:
        if findings.failure:
            return f"This {noun} was not matched."
        if findings.replayed:
            return f"This {noun} is described rightly, and {fit.attack} did not match it."
        _, rehearsed = _of(findings, fit.attack)
        if rehearsed and all(match_of(one.fit) is Match.NOT_MATCHED for one in rehearsed):
            which = "the simulated one" if len(rehearsed) == 1 else "any simulated one"
            return f"{fit.attack} did not match this {noun} or {which} closely enough."
        told = any(c.label_told for c in findings.candidates if c.attack == fit.attack)
        suspects = "labels, weights, mode" if told else "weights, mode"
        last = "tokenizer" if _texts(findings) else "normalisation"
        return f"This {noun} was not matched: wrong {suspects} or {last}?"
    fits = "fits" if drawn == 1 else "fit"
    done = record_words(findings.space.kind).drawn
    return f"{_candidates(drawn)} {done}; whether {_they(drawn)} {fits} this {noun} cannot be told."


def _fit_sentence(findings: InversionFindings, fit: Fit, match: Match) -> str:
    if match is Match.UNDECIDED:
        return _undecided(findings, fit)
    assert fit.random_residual is not None
    others = plural_noun(findings.space.noun)
    usual = f"random {others} leave {percent(fit.random_residual)} unexplained"
    known = f", of which noise makes up {percent(fit.noise)}" if fit.noise else ""
    if match is Match.MATCHED:
        return f"{fit.attack} fits it, where {usual}{known}."
    done = record_words(findings.space.kind).drawn
    end = f"what is {done} cannot be relied on" if match is Match.NOT_MATCHED else ""
    return (
        f"The best candidate of {fit.attack} leaves {left_unexplained(fit)} of it, {usual}{known}"
        f"{f': {end}' if end else ''}."
    )


def _check_sentence(findings: InversionFindings, fit: Fit, match: Match) -> str:
    if match is Match.UNDECIDED:
        return _undecided(findings, fit)
    assert fit.random_residual is not None
    runs = [r for r in fit.run_residuals if r is not None]
    alike = sum(match_of(fit.model_copy(update={"residual": r})) is match for r in runs)
    among = f" ({alike} of {len(fit.run_residuals)} runs)" if len(fit.run_residuals) > 1 else ""
    return (
        f"the {_noun(findings)} was {match.value}{among}; {left_unexplained(fit)} of it is left, "
        f"by random {plural_noun(findings.space.noun)} {percent(fit.random_residual)}."
    )


def _undecided(findings: InversionFindings, fit: Fit) -> str:
    noun = _noun(findings)
    if fit.residual is None or fit.random_residual is None:
        said = fit.unmeasured or "Random candidates release nothing that is finite."
        return f"The fit was not measured: {said[:1].lower()}{said[1:]}"
    if fit.unknowns >= fit.entries:
        return (
            f"The {noun} holds {fit.entries:,} numbers and the candidates {fit.unknowns:,}: a "
            "wrong description could be matched as well."
        )
    return (
        f"Noise of the stated size makes up {percent(fit.noise)} of this {noun}: a random "
        f"{findings.space.noun} fits it nearly as well as the true one."
    )


def _remedy(findings: InversionFindings, match: Match) -> str:
    if findings.replayed and match in (Match.NOT_MATCHED, Match.IN_PART):
        return "Give the attack more iterations or runs, or try another attack."
    if match is Match.NOT_MATCHED:
        return (
            "Give the weights that it was computed at, and compare mode, normalisation, labels, "
            "batch size and local steps with those of the client; dropout does this too. If all "
            "are right, try more iterations or another attack."
        )
    if match is Match.IN_PART:
        return (
            "Give the attack more iterations or runs; if that does not help, compare batch size, "
            "labels, weights, mode and normalisation with those of the client."
        )
    return ""


def _joined(*sentences: str) -> str:
    return " ".join(s for s in sentences if s)
