"""What a verdict says of permutation tests of captured releases, and of trials that were added."""

from __future__ import annotations

from collections.abc import Sequence

from vestige.reports.audit import AttackFindings, AuditFindings
from vestige.reports.numbers import grown, p_value
from vestige.reports.parts import Check


def guess_check(tests: Sequence[tuple[float, str]], level: float) -> Check:
    """Whether guesses, which see no release, find secrets among others of their class."""
    value, name = min(tests)
    if value > level:
        return Check.passed(
            f"Guesses, which see no release, find the secrets as often as chance allows "
            f"(permutation test, smallest p = {p_value(value)}).",
        )
    return Check.failed(
        "The audited records can be told from the others without any release: "
        f"{name} is closer to them than chance allows (permutation test, p = {p_value(value)}).",
        "Take trained and other records at random from one dataset (Records.split), and "
        "audit that training.",
    )


def permutation_sentence(attack: AttackFindings) -> str:
    """Say what the statistic of captured releases is, with a space before it, or nothing."""
    test = attack.permutation
    if test is None:
        return ""
    return (
        f" Permutation test: of {test.permutations + 1:,} ways to put records of the same classes "
        f"behind the releases, the true one among them, {test.as_extreme + 1:,} "
        f"{'gives' if test.as_extreme == 0 else 'give'} as many hits (p = {p_value(test.p_value)})."
    )


def method_sentence(findings: AuditFindings) -> str:
    """Say how limits come about where releases were captured or trials added; else nothing."""
    pool = findings.smallest_pool
    if pool is None:
        return _added_sentence(findings)
    return (
        "All trials share one pool, the audited records and others of their classes, at least "
        f"{pool:,} of a class. So the verdict is that of a permutation test. Its statistic is the "
        "number of hits to be expected over all draws of decoys from the pool, and p is the share "
        "of random ways to put records of the same classes behind the releases that reach it. "
        f"Limits are those of Clopper and Pearson with {pool - 1:,} of {pool:,} trials counted, "
        "which allows for the shared pool."
    )


def _added_sentence(findings: AuditFindings) -> str:
    """Say that trials were added to an audit, and what that costs; else nothing."""
    if not findings.earlier_trials:
        return ""
    said = grown(findings.earlier_trials, findings.trials_planned)
    return (
        f"Trials were added: the audit was {said}. Limits therefore hold at all numbers of trials "
        "at once, and are wider than those of a plan that ran once. The first report and all "
        "later ones share the error that a verdict may have."
    )
