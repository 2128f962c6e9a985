"""What the same audit found with several seeds, as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from vestige.reports.audit import HitBounds
from vestige.reports.document import Document
from vestige.reports.parts import Rate, ThreatDescription, VerdictKind
from vestige.reports.report import Findings, Judgement, Report


class SeedRun(Document):
    """One repetition: its seed, its verdict alone, and the rates of its attacks by name.

    ``seed`` is None where it is withheld. Limits hold for all attacks and repetitions together.
    """

    seed: int | None
    trials: int
    verdict: VerdictKind
    rates: dict[str, Rate] = Field(default_factory=dict)


class RepeatedFindings(Findings):
    """Rates of the same audit with ``repeats`` seeds, in the order of seeds; none is chosen.

    ``bounds`` is what theory allows any attack of the audit; None in older reports.
    """

    release: str
    defense: str = ""
    threat: ThreatDescription
    repeats: int
    trials_planned: int
    decoys: int
    false_positive_rate: float
    confidence: float
    attacks: tuple[str, ...]
    guesses: tuple[str, ...] = ()
    runs: tuple[SeedRun, ...] = Field(min_length=1)
    bounds: HitBounds | None = None

    def rates_of(self, attack: str) -> tuple[Rate, ...]:
        """The rates of an attack, seed by seed, where it has one."""
        return tuple(run.rates[attack] for run in self.runs if attack in run.rates)


def spread(rates: Sequence[Rate]) -> tuple[float, float, float] | None:
    """Smallest, median and largest of the measured rates; None of none."""
    values = sorted(rate.value for rate in rates)
    if not values:
        return None
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    return values[0], median, values[-1]


class RepeatedJudgement(Judgement):
    """The verdict on all repetitions.

    ``bounds`` are what the stated mechanism allows any attack, where it has a guarantee;
    ``exceeds_bounds``: the lower limit of a rate exceeds them in some repetition.
    """

    bounds: HitBounds | None = None
    exceeds_bounds: bool = False


class RepeatedReport(Report[RepeatedFindings, RepeatedJudgement]):
    """The report of a repeated audit."""

    kind: str = "repeated audit"
