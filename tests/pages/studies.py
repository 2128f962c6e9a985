"""Made-up head studies, one for each state of their page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vestige.reports.heads import (
    ClassExhibit,
    HeadExhibit,
    HeadFindings,
    HeadRates,
    HeadReport,
    NullRates,
    PrivacyPoint,
)
from vestige.reports.parts import AttackDescription, Picture, SpaceDescription, ThreatDescription
from vestige.statistics.head_counts import HeadCounts
from vestige.statistics.head_pairs import PairErrors
from vestige.statistics.head_roc import histogram, normal_fit, roc_curves, transform_errors
from vestige.statistics.head_tests import assignment_tests
from vestige.studies.judge import judge

CLASSES = 10


def pairs(strength: float, heads: int, seed: int = 0) -> PairErrors:
    """Errors of all pairs; own ones are smaller, the more the later the class."""
    world = np.random.default_rng(seed)
    phi = world.normal(-2.9, 0.5, (CLASSES, heads, heads))
    places = np.arange(heads)
    shifts = strength * np.linspace(0, 2, CLASSES)[:, None]
    phi[:, places, places] = world.normal(-2.9, 0.5, (CLASSES, heads)) - shifts
    return PairErrors((1 / (1 + np.exp(-phi))).astype(np.float32))


@cache
def made_rates(strength: float, heads: int = 60, *, alpha: float = 0.05) -> HeadRates:
    errors, units = pairs(strength, heads), np.linspace(0.02, 0.03, CLASSES)
    own, other = errors.own, errors.sample(5000)
    tests = assignment_tests(errors, units, alpha, permutations=999)
    counts = HeadCounts.of(errors, units, alpha, 0.95, np.full_like(own, 0.05))
    counted = counts.counted_rates(0.025, tests[:3])
    best = HeadCounts.of(pairs(strength + 0.5, heads, seed=1), units, alpha, 0.95)
    return HeadRates(
        heads=heads,
        set_size=CLASSES,
        conditional=True,
        threshold=0.025,
        confidence=0.95,
        false_positive_rate=alpha,
        missing=0,
        counted=counted,
        nulls=tuple(
            NullRates(
                name=name,
                false_positives=counted[0].false_positives,
                operating_point=counted[0].operating_point,
                fit=normal_fit(transform_errors(other)),
                points=tuple(one.operating_point for one in counted),
            )
            for name in ("another head", "prior draw", "Gaussian weights")
        ),
        classes=counts.class_rates([str(c) for c in range(CLASSES)], tests[3:]),
        curves=roc_curves(own, other, smallest=1 / own.size),
        fit=normal_fit(transform_errors(own)),
        histogram=histogram(own, other),
        ceiling=best.counted_rates(0.025),
    )


def picture(seed: int) -> Picture:
    return Picture.of(np.random.default_rng(seed).random((1, 8, 8)))


def heads(strength: float = 1.6) -> HeadReport:
    """A study in which the attack works, with three strengths of noise."""
    rates = made_rates(strength)
    points = tuple(
        PrivacyPoint(
            epsilon=epsilon,
            delta=None if epsilon is None else 0.08,
            accuracy=accuracy,
            accuracy_lower=accuracy - 0.02,
            accuracy_upper=accuracy + 0.02,
            operating_point=made_rates(s).pooled.operating_point,
            true_positives=made_rates(s).pooled.true_positives,
            counted=made_rates(s).counted,
            reconstruction=picture(90 + i),
            error=0.01 * (4 - i),
        )
        for i, (epsilon, accuracy, s) in enumerate(
            [(1.5, 0.12, 0.0), (14.0, 0.3, 0.3), (250.0, 0.5, 1.0), (None, 0.6, strength)]
        )
    )
    findings = HeadFindings(
        title="Digits behind <heads>",
        space=SpaceDescription(
            kind="image", shape=(1, 8, 8), noun="digit", class_names=tuple("0123456789")
        ),
        threat=ThreatDescription(
            attacker="weak adversary",
            who="The attacker reads the published model and knows none of its training records.",
            sees="The head of one model, trained on 10 records, as it was published.",
            told="The backbone and the form of the head, how the head is trained, the size of the "
            "training set (10) and of its classes, records of the same kind.",
            not_told="The records, seeds, initial weights and the order of training.",
            prior="629 other records of the same kind; no training image is among them.",
        ),
        attack=AttackDescription(name="Made up", summary="draws noise", cites="nobody"),
        rates=rates,
        exhibit=HeadExhibit(
            place=60,
            of=120,
            classes=tuple(
                ClassExhibit(
                    label=str(c),
                    threshold=0.025,
                    error=None if c == 4 else 0.005 * (c + 1),
                    decoy_error=None if c == 4 else 0.09 - 0.008 * c,
                    secret=picture(3 * c),
                    reconstruction=None if c == 4 else picture(3 * c + 1),
                    decoy=picture(3 * c + 2),
                )
                for c in range(CLASSES)
            ),
        ),
        privacy=points,
        privacy_secret=picture(80),
        accuracy=0.6,
        seed=0,
        limits=("A stronger attack may redraw more.",),
        settings={"Heads": "120"},
        environment={"Vestige": "0.1.0"},
        blocks_planned=4,
        blocks_finished=4,
    )
    return HeadReport(findings=findings, judgement=judge(findings))


def null_heads() -> HeadReport:
    """A study in which nothing came back, without noise and without a ceiling."""
    rates = made_rates(0.0).model_copy(update={"ceiling": ()})
    findings = heads().findings.model_copy(update={"rates": rates, "privacy": ()})
    return HeadReport(findings=findings, judgement=judge(findings))


STUDIES: dict[str, Callable[[], HeadReport]] = {
    "heads": heads,
    "heads-null": null_heads,
    "heads-redacted": lambda: heads().without_secrets(),
}
