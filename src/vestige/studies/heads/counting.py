"""Counting what an attack redrew of many heads: three counts, every class, and kinds of chance.

The validation of Maciazek and Allison 2025 (Algorithms 2 and 3), with false positives by
Definition 1 over all ordered pairs of heads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from vestige.interfaces import Reconstructor
from vestige.records import Prior, Records
from vestige.reports.heads import CountedRates, HeadRates, NullRates
from vestige.shadows.heads.factory import HeadFactory
from vestige.statistics.head_counts import HeadCounts
from vestige.statistics.head_rates import clustered_rate, operating_point, point_by_class
from vestige.statistics.head_roc import histogram, normal_fit, roc_curves, transform_errors
from vestige.statistics.head_tests import PERMUTATIONS, assignment_tests
from vestige.studies.heads.measure import DrawnHeads, reconstruct_heads
from vestige.studies.heads.rates import Thresholds, nearest_neighbor_thresholds
from vestige.studies.heads.reading import Decoder
from vestige.victims import ReleasedHead

CURVE_NULLS = 1_000_000
"""Pairs behind curves and fits: all of them, up to so many. Rates use all."""


def measure_heads(
    reconstruct: Reconstructor,
    victim: ReleasedHead,
    records: Records,
    heads: int,
    *,
    prior: Prior,
    generator: torch.Generator,
    factory: HeadFactory | None = None,
    shadows: Tensor | None = None,
    decoder: Decoder | None = None,
    false_positive_rate: float = 0.01,
    confidence: float = 0.95,
) -> HeadRates:
    """Run a prepared attack over ``heads`` disjoint validation heads and count what it redrew.

    ``records`` are images that the attack never saw, ``prior`` those it had: τ is the mean error
    from the first to the second. ``factory`` trains the heads in one batch, on the features of the
    same records, in place of ``victim.release``. ``shadows`` (n, size) are weights of simulated
    heads, for the Gaussian surrogates of the paper; ``decoder`` draws the ceiling from true
    features.
    """
    drawn = reconstruct_heads(
        reconstruct,
        victim,
        records,
        heads,
        prior=prior,
        generator=generator,
        factory=factory,
        shadows=shadows,
        decoder=decoder,
    )
    thresholds = nearest_neighbor_thresholds(records, prior.records)
    return rates_of(drawn, thresholds, false_positive_rate, confidence)


def rates_of(
    drawn: DrawnHeads,
    thresholds: Thresholds,
    false_positive_rate: float,
    confidence: float,
    *,
    permutations: int | None = None,
) -> HeadRates:
    """Count what an attack redrew, in every way; a pure function of what was drawn.

    Without a number, there are enough ``permutations`` for a p-value well below the error that the
    confidence leaves to the tests.
    """
    if permutations is None:
        permutations = max(PERMUTATIONS, math.ceil(20 / (1 - confidence)))
    alpha, units = false_positive_rate, np.array([thresholds.pooled])
    if drawn.classes is not None:
        units = np.asarray(thresholds.by_class)[drawn.classes.numpy()]
    pairs, guessed = drawn.pairs(drawn.images), drawn.errors(drawn.guesses)
    own, others = pairs.own, pairs.sample(CURVE_NULLS)
    tests = assignment_tests(pairs, units, alpha, permutations=permutations)
    counts = HeadCounts.of(pairs, units, alpha, confidence, guessed)
    counted = counts.counted_rates(thresholds.pooled, tests[:3])
    classes = ()
    if drawn.classes is not None:
        names = drawn.records.space.class_names
        labels = [names[label] for label in drawn.classes.tolist()]
        classes = counts.class_rates(labels, tests[3:])
    ceiling: tuple[CountedRates, ...] = ()
    if drawn.decoded is not None:
        decoded = HeadCounts.of(drawn.pairs(drawn.decoded), units, alpha, confidence)
        ceiling = decoded.counted_rates(thresholds.pooled)
    first = NullRates(
        name="another head",
        false_positives=counted[0].false_positives,
        operating_point=counted[0].operating_point,
        fit=normal_fit(transform_errors(others)),
        points=tuple(one.operating_point for one in counted),
    )
    nulls = {"prior draw": drawn.errors(drawn.prior_draws)}
    if drawn.surrogates is not None:
        nulls["Gaussian weights"] = drawn.errors(drawn.surrogates)
    return HeadRates(
        heads=len(drawn.sets),
        set_size=drawn.sets.members.shape[1],
        conditional=drawn.classes is not None,
        threshold=thresholds.pooled,
        confidence=confidence,
        false_positive_rate=alpha,
        missing=int((~np.isfinite(own)).sum()),
        counted=counted,
        nulls=(
            first,
            *(
                _null_rates(name, own, errors, thresholds.pooled, units, alpha, confidence)
                for name, errors in nulls.items()
            ),
        ),
        classes=classes,
        curves=roc_curves(own, others, smallest=1 / own.size),
        fit=normal_fit(transform_errors(own)),
        histogram=histogram(own, others, *nulls.values()),
        ceiling=ceiling,
    )


def _null_rates(
    name: str,
    own: np.ndarray,
    nulls: np.ndarray,
    threshold: float,
    units: np.ndarray,
    alpha: float,
    confidence: float,
) -> NullRates:
    """Own errors against one null error (heads, classes) for each, by every count."""
    pooled = operating_point(own, nulls, alpha, confidence)
    by_class = point_by_class(own, nulls, alpha, confidence)
    return NullRates(
        name=name,
        false_positives=clustered_rate(nulls <= threshold, (1 - confidence) / 2),
        operating_point=pooled,
        fit=normal_fit(transform_errors(nulls)),
        points=(pooled, by_class, operating_point(own / units, nulls / units, alpha, confidence)),
    )
