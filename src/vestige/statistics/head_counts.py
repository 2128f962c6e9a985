"""TPR at FPR = α over all pairs of heads, counted in three ways and class by class, with limits.

Maciazek and Allison, "Vulnerability of Transfer-Learned Neural Networks to Data Reconstruction
Attacks in Small-Data Regime" (2025), Section 2 and Definition 1. Limits draw heads again
(:mod:`vestige.statistics.head_bootstrap`), each at half of the doubt; which counts and classes
exceed chance is decided by :mod:`vestige.statistics.head_tests` as well, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vestige.reports.heads import AssignmentTest, ClassRates, CountedRates, OperatingPoint
from vestige.statistics.head_bootstrap import (
    Resampled,
    head_weights,
    resampled_rates,
)
from vestige.statistics.head_pairs import PairErrors, false_positive_rate_at
from vestige.statistics.head_rates import clustered_rate
from vestige.statistics.paired import HALFWAY
from vestige.statistics.rates import nulls_needed

COUNTS = ("pooled", "per class", "class-normalised")
"""One threshold for all classes, one for each, one for errors divided by the class's τ."""


@dataclass(frozen=True)
class Shares:
    """Shares of one count or class: images that pass, and those that are redrawn as well."""

    passed: Resampled
    redrawn: Resampled | None

    def point(self, alpha: float, doubt: float) -> OperatingPoint:
        """TPR at FPR = α with limits, each at ``doubt``."""
        lower, upper = self.passed.limits(doubt) or (None, None)
        return OperatingPoint(
            false_positive_rate=alpha,
            true_positive_rate=self.passed.value,
            lower=lower,
            upper=upper,
            needed=nulls_needed(alpha, doubt),
        )


@dataclass(frozen=True)
class HeadCounts:
    """The shares of every count and class of a study, from the same replicates of its heads."""

    pairs: PairErrors
    units: np.ndarray
    alpha: float
    confidence: float
    counts: tuple[Shares, ...]
    classes: tuple[Shares, ...]

    @classmethod
    def of(
        cls,
        pairs: PairErrors,
        units: np.ndarray,
        alpha: float,
        confidence: float,
        guessed: np.ndarray | None = None,
    ) -> HeadCounts:
        """Count errors pooled, class by class and divided by ``units`` (classes,).

        ``guessed`` (heads, classes) are the errors of the guess to each head's own records: an
        image is redrawn if it passes and has less than half the guess's distance.
        """
        weights = head_weights(pairs.heads, pairs.count, alpha)
        near = () if guessed is None else (pairs.own < HALFWAY * guessed,)

        def shares(errors: PairErrors, *eligible: np.ndarray) -> Shares:
            passed, *redrawn = resampled_rates(errors, alpha, weights, *eligible)
            return Shares(passed, redrawn[0] if redrawn else None)

        classes = tuple(
            shares(pairs.of_class(c), *(one[:, c : c + 1] for one in near))
            for c in range(pairs.classes)
        )
        redrawn = [one.redrawn for one in classes if one.redrawn is not None]
        middle = Shares(
            Resampled.mean([one.passed for one in classes]),
            Resampled.mean(redrawn) if redrawn else None,
        )
        counts = (shares(pairs, *near), middle, shares(pairs.in_units(units), *near))
        return cls(pairs, units, alpha, confidence, counts, classes)

    @property
    def doubt(self) -> float:
        """Probability that a limit may be wrong by itself."""
        return (1 - self.confidence) / 2

    def counted_rates(
        self, threshold: float, tests: Sequence[AssignmentTest] = ()
    ) -> tuple[CountedRates, ...]:
        """Pooled, with a threshold for each class, and with errors divided by the class's unit.

        A pooled threshold is set by the classes that are easy to guess (a blank "1" is near every
        "1"), so it says little about the others. ``threshold`` is the pooled nearest-neighbour
        one. ``joint_lower`` holds for the three counts together (Bonferroni); without classes they
        are one count.
        """
        joint = self.doubt / (len(COUNTS) if self.pairs.classes > 1 else 1)
        relative = self.pairs.in_units(self.units)
        taus = ((self.pairs, threshold), (relative, 1.0), (relative, 1.0))
        found = []
        for place, (shares, (errors, tau)) in enumerate(zip(self.counts, taus)):
            limits = shares.passed.limits(joint)
            found.append(
                CountedRates(
                    name=COUNTS[place],
                    true_positives=clustered_rate(errors.own <= tau, self.doubt),
                    false_positives=false_positive_rate_at(errors, tau, self.doubt),
                    operating_point=shares.point(self.alpha, self.doubt),
                    joint_lower=None if limits is None else limits[0],
                    redrawn=None if shares.redrawn is None else shares.redrawn.rate(joint),
                    test=tests[place] if tests else None,
                )
            )
        return tuple(found)

    def class_rates(
        self, labels: Sequence[str], tests: Sequence[AssignmentTest]
    ) -> tuple[ClassRates, ...]:
        """Every class with its own threshold; limits hold for all classes together (Bonferroni).

        A class is exposed if its permutation test, which is exact for any attack, says so at the
        same confidence, and its lower limit exceeds α where heads are enough for one.
        """
        joint, alpha = self.doubt / len(self.classes), self.alpha
        found = []
        for place, (label, test) in enumerate(zip(labels, tests, strict=True)):
            shares, tau = self.classes[place], float(self.units[place])
            mine = self.pairs.of_class(place)
            point = shares.point(alpha, joint)
            redrawn = None if shares.redrawn is None else shares.redrawn.rate(joint)
            shown = test.p_value <= self.doubt and (point.lower is None or point.lower > alpha)
            found.append(
                ClassRates(
                    label=label,
                    threshold=tau,
                    true_positives=clustered_rate(mine.own <= tau, self.doubt),
                    false_positives=false_positive_rate_at(mine, tau, self.doubt),
                    operating_point=point,
                    shown=shown,
                    redrawn=shown and redrawn is not None and redrawn.lower > alpha,
                    test=test,
                )
            )
        return tuple(found)
