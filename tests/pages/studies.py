"""Made-up head studies, one for each state of their page."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from vestige.reports.heads import (
    ClassExhibit,
    ClassRates,
    HeadExhibit,
    HeadFindings,
    HeadRates,
    HeadReport,
    NullRates,
    PrivacyPoint,
)
from vestige.reports.parts import AttackDescription, Picture, SpaceDescription, ThreatDescription
from vestige.statistics.head_rates import (
    clustered_rate,
    counted_rates,
    operating_point,
    redrawn_rate,
)
from vestige.statistics.head_roc import histogram, normal_fit, roc_curves, transform_errors
from vestige.studies.judge import judge

CLASSES = 10


def errors(strength: float, heads: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Errors to own sets, the smaller the greater the strength, and to others."""
    world = np.random.default_rng(seed)
    own = world.normal(-2.9 - strength, 0.6, (heads, CLASSES))
    other = world.normal(-2.9, 0.5, (heads, CLASSES))
    return 1 / (1 + np.exp(-own)), 1 / (1 + np.exp(-other))


@cache
def made_rates(strength: float, heads: int = 120, *, alpha: float = 0.05) -> HeadRates:
    own, other = errors(strength, heads)
    by_class = np.linspace(0.02, 0.03, CLASSES)
    best, best_other = errors(strength + 0.5, heads, seed=1)
    doubt = 0.025
    return HeadRates(
        heads=heads,
        set_size=CLASSES,
        conditional=True,
        threshold=0.025,
        confidence=0.95,
        false_positive_rate=alpha,
        missing=0,
        counted=counted_rates(own, other, 0.025, by_class, alpha, 0.95),
        nulls=tuple(
            NullRates(
                name=name,
                false_positives=clustered_rate(other <= 0.025, doubt),
                operating_point=operating_point(own, other, alpha, 0.95),
                fit=normal_fit(transform_errors(other)),
            )
            for name in ("another head", "prior draw", "Gaussian weights")
        ),
        classes=tuple(
            ClassRates(
                label=str(c),
                threshold=float(by_class[c]),
                true_positives=clustered_rate(own[:, c : c + 1] <= by_class[c], doubt),
                false_positives=clustered_rate(other[:, c : c + 1] <= by_class[c], doubt),
                operating_point=operating_point(own[:, [c]], other[:, [c]], alpha, 0.995),
                shown=c > 6,
                redrawn=c > 7,
            )
            for c in range(CLASSES)
        ),
        curves=roc_curves(own, other),
        fit=normal_fit(transform_errors(own)),
        histogram=histogram(own, other),
        ceiling=counted_rates(best, best_other, 0.025, by_class, alpha, 0.95),
        redrawn=redrawn_rate(own, other, other.mean(0), alpha, 0.95),
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
