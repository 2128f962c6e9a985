"""What a repeated audit says in sentences: in how many repetitions, and how far rates vary."""

from __future__ import annotations

from vestige.reports.audit import stated_bounds
from vestige.reports.numbers import count, plural, share
from vestige.reports.parts import CheckOutcome, Verdict, VerdictKind
from vestige.reports.repeated import RepeatedFindings, RepeatedJudgement
from vestige.reports.repeated_words import sizes_words, spread_words
from vestige.studies.stopped import stopped_verdict


def judge_repeated(findings: RepeatedFindings) -> RepeatedJudgement:
    """Count repetitions that exceed chance; INVALID if one of them is, or the run was stopped."""
    finished = sum(run.trials for run in findings.runs)
    planned = findings.repeats * findings.trials_planned
    stopped = stopped_verdict(findings.failure, finished, planned, "trials")
    verdict, bounds = stopped or _verdict(findings), stated_bounds(findings.bounds)
    rates = [rate for name in findings.attacks for rate in findings.rates_of(name)]
    return RepeatedJudgement(
        verdict=verdict,
        checks=findings.preflight,
        bounds=bounds,
        exceeds_bounds=bounds is not None
        and verdict.kind is not VerdictKind.INVALID
        and any(rate.lower > bounds.success for rate in rates),
    )


def _verdict(findings: RepeatedFindings) -> Verdict:
    runs = findings.runs
    failed = [check for check in findings.preflight if check.outcome is CheckOutcome.FAILED]
    invalid = [run for run in runs if run.verdict is VerdictKind.INVALID]
    if failed or invalid:
        return Verdict(
            kind=VerdictKind.INVALID,
            headline=f"This study says nothing yet: {plural(len(invalid), 'repetition')} of "
            f"{count(len(runs))} failed a check.",
            lede=failed[0].sentence if failed else "A check of one audit failed.",
            remedy=failed[0].remedy if failed else "Run that audit alone to see which.",
        )
    shown = [
        run for run in runs if run.verdict in (VerdictKind.DEMONSTRATED, VerdictKind.CLAIM_REFUTED)
    ]
    lede = (
        f"Measured rates over {sizes_words(findings)}: {spread_words(findings)}; by chance "
        f"{share(findings.false_positive_rate)}. Limits hold for all repetitions together, with "
        f"{share(findings.confidence)} confidence."
    )
    if not shown:
        return Verdict(
            kind=VerdictKind.NOT_DEMONSTRATED,
            headline=f"In none of {count(len(runs))} repetitions were secrets shown to come back "
            "more often than by chance.",
            lede=f"{lede} This is not evidence of safety.",
        )
    return Verdict(
        kind=VerdictKind.DEMONSTRATED,
        headline=f"In {count(len(shown))} of {count(len(runs))} repetitions secrets came back more "
        "often than by chance.",
        lede=lede,
    )
