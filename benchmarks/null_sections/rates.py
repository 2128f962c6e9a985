"""How often a study said something false, printed beside the share that its level allows."""

from __future__ import annotations

from sheet import Sheet
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
