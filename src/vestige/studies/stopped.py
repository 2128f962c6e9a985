"""The verdict on a study that ended early. No torch."""

from __future__ import annotations

from vestige.reports.parts import Failure, Verdict, VerdictKind


def stopped_verdict(
    failure: Failure | None, finished: int, planned: int, noun: str
) -> Verdict | None:
    """INVALID for a run that ended early, None for one that did not."""
    if failure is None:
        return None
    who = "it was interrupted" if failure.attack is None else f"{failure.attack} stopped"
    return Verdict(
        kind=VerdictKind.INVALID,
        headline=f"This study says nothing yet: {who} after {finished:,} of {planned:,} {noun}.",
        lede="The run was interrupted; finished units are kept."
        if failure.attack is None
        else f"{who}: {failure.message}",
        remedy=failure.remedy,
    )
