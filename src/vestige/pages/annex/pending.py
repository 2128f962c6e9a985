"""Two facts that reports may hold: the ε that trials show by themselves, and exposed records.

Both are read by name, so that reports without them give an annex that says so.
"""

from __future__ import annotations

from typing import Any

from vestige.reports import numbers
from vestige.reports.report import Report

NOT_SHOWN = "not computed in this report"


def shown_epsilon(report: Report[Any, Any]) -> str:
    """The ε that the trials show whatever the mechanism, with δ and confidence, or that none is."""
    shown = getattr(report.judgement, "shown", None)
    if shown is None:
        return NOT_SHOWN
    refusal = getattr(shown, "refusal", "")
    if refusal:
        return f"none: {refusal}"
    sure = f"δ = {numbers.quantity(shown.delta)}, {numbers.share(shown.confidence)} confidence"
    if shown.epsilon < 0.01:
        return f"no ε above 0 ({sure}), which rules out none"
    return f"at least {int(100 * shown.epsilon) / 100:g} ({sure})"


def exposed_records(report: Report[Any, Any]) -> str:
    """The most exposed records by digest, or nothing where a report does not hold them."""
    records = getattr(report.judgement, "most_exposed", None)
    records = records or getattr(report.findings, "most_exposed", None)
    if not records:
        return ""
    named = []
    for one in tuple(records)[:3]:
        rate = getattr(one, "rate", None)
        said = f" {numbers.rate_with_limits(rate)}" if rate is not None else ""
        named.append(f"{str(getattr(one, 'digest', ''))[:12]}{said}".strip())
    return f"Most exposed records, by digest: {'; '.join(filter(None, named))}."
