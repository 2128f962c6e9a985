"""Rates of a repeated audit in words: the same wherever they are written."""

from __future__ import annotations

from vestige.reports import numbers
from vestige.reports.repeated import RepeatedFindings, spread


def spread_words(findings: RepeatedFindings) -> str:
    """How far the rates of every attack vary over seeds, with their limits; empty without a rate.

    Limits are the lowest and the highest of all repetitions; all hold together.
    """
    said = []
    for name in findings.attacks:
        rates = findings.rates_of(name)
        found = spread(rates)
        if found is None:
            continue
        low, middle, high = map(numbers.percent, found)
        span = f"{low} in every repetition" if low == high else f"{low} to {high}, median {middle}"
        reach = numbers.limits(min(r.lower for r in rates), max(r.upper for r in rates))
        said.append(f"{name} {span} (limits over all repetitions {reach})")
    return "; ".join(said)


def sizes_words(findings: RepeatedFindings) -> str:
    """How many seeds of how many trials: ``3 seeds of 40 trials each``."""
    trials = {run.trials for run in findings.runs}
    seeds = numbers.plural(len(findings.runs), "seed")
    if len(trials) == 1:
        return f"{seeds} of {numbers.plural(trials.pop(), 'trial')} each"
    return f"{seeds}, {numbers.plural(sum(run.trials for run in findings.runs), 'trial')} together"
