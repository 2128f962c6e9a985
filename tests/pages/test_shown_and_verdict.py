"""ε beside a verdict that shows nothing: the page says why both can be."""

from __future__ import annotations

from vestige.pages.audit.shown import shown_view
from vestige.reports.parts import VerdictKind

from .states import STATES

RECONCILED = "the verdict above only those that are hits"


def test_a_positive_epsilon_below_a_verdict_without_one_is_explained():
    report = STATES["demonstrated"]()
    shown = report.judgement.shown
    assert shown is not None
    assert shown.epsilon > 0.01
    assert RECONCILED not in shown_view(report).sentence
    verdict = report.verdict.model_copy(update={"kind": VerdictKind.NOT_DEMONSTRATED})
    judged = report.judgement.model_copy(update={"verdict": verdict})
    assert RECONCILED in shown_view(report.model_copy(update={"judgement": judged})).sentence
    none = judged.model_copy(update={"shown": shown.model_copy(update={"epsilon": 0.0})})
    assert RECONCILED not in shown_view(report.model_copy(update={"judgement": none})).sentence
