"""ε beside a verdict that shows nothing: the page says why both can be."""

from __future__ import annotations

import pytest

from vestige.pages.audit.shown import shown_view
from vestige.reports.parts import VerdictKind
from vestige.reports.shown import ShownByRank, ShownPrivacy

from .audits import changed, image_report

RECONCILED = "the verdict above only those that are hits"


@pytest.mark.parametrize(
    ("kind", "epsilon", "explained"),
    [
        (VerdictKind.NOT_DEMONSTRATED, 1.8, True),
        (VerdictKind.NOT_DEMONSTRATED, 0.0, False),
        (VerdictKind.DEMONSTRATED, 1.8, False),
    ],
)
def test_a_positive_epsilon_below_a_verdict_without_one_is_explained(kind, epsilon, explained):
    by_rank = ShownByRank(
        attack="Guess",
        by="distance",
        trials=160,
        candidates=100,
        places=(1, 10),
        hits=(2, 40),
        epsilon=epsilon,
        mu=0.0,
        gaussian_epsilon=0.0,
    )
    shown = ShownPrivacy(delta=1e-5, confidence=0.95, ranks=(by_rank,))
    report = changed(image_report(kind, trials=160), shown=shown)
    view = shown_view(report)
    assert view is not None
    assert (RECONCILED in view.sentence) is explained
