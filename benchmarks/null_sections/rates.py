"""How often a study said something false, printed beside the share that its level allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from null_sections.drafts import NOMINAL
from sheet import Sheet
from vestige.reports.parts import VerdictKind
from vestige.reports.report import Report
from vestige.statistics.rates import clopper_pearson

CONFIDENCE = 0.99


def report_rate(sheet: Sheet, words: str, false: int, replicates: int, nominal: float) -> None:
    """Print a share of false statements with its 99% limits (Clopper and Pearson 1934).

    The figure is the lower limit, in percent: the goal is met if it does not exceed the nominal
    share. The observed share and both limits stand in the note.
    """
    if not 0 <= false <= replicates or replicates == 0:
        raise ValueError(f"{false} false statements in {replicates} replicates cannot be a share.")
    lower, upper = clopper_pearson(false, replicates, CONFIDENCE)
    sheet.figure(
        words,
        100 * lower,
        100 * nominal,
        "%",
        most=True,
        note=f"{false:,} of {replicates:,} = {100 * false / replicates:.2f}%, 99% limits "
        f"{100 * lower:.2f} … {100 * upper:.2f}%",
    )


def report_verdicts(sheet: Sheet, where: str, reports: Sequence[Report[Any, Any]]) -> None:
    """Print how often audits were DEMONSTRATED, and how often they said "can redraw"."""
    verdicts = [report.verdict for report in reports]
    demonstrated = sum(verdict.kind is VerdictKind.DEMONSTRATED for verdict in verdicts)
    redrawn = sum("can redraw" in verdict.headline for verdict in verdicts)
    report_rate(sheet, f"{where}: DEMONSTRATED", demonstrated, len(verdicts), NOMINAL)
    report_rate(sheet, f"{where}: 'can redraw'", redrawn, len(verdicts), NOMINAL)
