"""Judging: from findings to a judgement. Pure, without plan, model, data or torch."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from vestige.errors import BadInput, brief
from vestige.reports.audit import AuditFindings
from vestige.reports.comparison import ComparisonFindings
from vestige.reports.heads import HeadFindings
from vestige.reports.inversion import InversionFindings
from vestige.reports.noise import NoiseFindings
from vestige.reports.repeated import RepeatedFindings
from vestige.reports.report import F, Judgement, Report, report_type
from vestige.reports.risk import RiskFindings
from vestige.studies.audit.judge import judge_audit
from vestige.studies.comparison.judge import judge_comparison
from vestige.studies.heads.judge import judge_heads
from vestige.studies.inversion.judge import judge_inversion
from vestige.studies.noise.judge import judge_noise
from vestige.studies.repeated.judge import judge_repeated
from vestige.studies.risk.judge import judge_risk


@singledispatch
def judge(findings: Any) -> Judgement:
    """Judge findings: derive the verdict, the checks and what else a report says of them.

    The type of the findings decides how. Another package adds its own with
    ``judge.register(Type, function)``.
    """
    raise BadInput(
        f"{brief(findings)} cannot be judged: give the findings of a report, or register a judge."
    )


judge.register(AuditFindings, judge_audit)
judge.register(ComparisonFindings, judge_comparison)
judge.register(HeadFindings, judge_heads)
judge.register(InversionFindings, judge_inversion)
judge.register(NoiseFindings, judge_noise)
judge.register(RiskFindings, judge_risk)
judge.register(RepeatedFindings, judge_repeated)


def report_on(findings: F) -> Report[F, Any]:
    """Findings with the judgement on them."""
    return report_type(type(findings))(findings=findings, judgement=judge(findings))


def judged_again(report: Report[F, Any]) -> Report[F, Any]:
    """The report with a new judgement.

    A redacted one keeps its judgement, which was reached from numbers that it no longer holds.
    """
    return report if report.findings.redacted else report_on(report.findings)
