"""A report beside the run that it is about: figures, settings, page and JSON in MLflow.

    with mlflow.start_run():
        log_report(report)

Everything goes to the tracking store that the user's MLflow is set to, and to nowhere else. A
tracking store has many readers, and a good reconstruction is the secret: page and JSON are redacted
unless ``redact=False`` says otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from vestige.content import document_bytes
from vestige.errors import BadInput, NotFound
from vestige.pages import render
from vestige.reports.audit import AuditReport
from vestige.reports.inversion import InversionReport
from vestige.reports.parts import CheckOutcome, VerdictKind
from vestige.reports.report import Report
from vestige.statistics.audit_rates import strongest
from vestige.statistics.fits import Match, match_of

LONGEST_VALUE = 500
"""Characters of a parameter: the least that tracking stores of any kind have allowed."""

LONGEST_NAME = 250


def log_report(
    report: Report[Any, Any],
    *,
    page: bool = True,
    redact: bool = True,
    prefix: str = "vestige",
    client: Any = None,
    run_id: str | None = None,
) -> str:
    """Log a report to the active MLflow run, or to the one of ``run_id``, and return its id.

    Rates and limits of every attack become metrics, settings become parameters (cut where the store
    allows no more), the verdict a tag, report and page artifacts below ``prefix``. ``client`` is an
    ``mlflow.MlflowClient``, by default one of the current tracking store. No figure of a failed
    audit is logged: a dashboard would show it like any other.
    """
    client, run_id = _place(client, run_id)
    shown = report.without_secrets() if redact else report
    for name, value in figures(shown):
        client.log_metric(run_id, f"{prefix}.{name}", value)
    for name, text in settings(shown):
        client.log_param(run_id, f"{prefix}.{name}"[:LONGEST_NAME], _cut(text))
    client.set_tag(run_id, f"{prefix}.verdict", shown.verdict.kind.value)
    client.set_tag(run_id, f"{prefix}.headline", _cut(shown.verdict.headline))
    client.log_text(run_id, document_bytes(shown).decode(), f"{prefix}/report.json")
    if page:
        client.log_text(run_id, render(shown), f"{prefix}/page.html")
    return run_id


def figures(report: Report[Any, Any]) -> Iterator[tuple[str, float]]:
    """What a dashboard compares: trials, checks, and of a sound audit all rates with limits."""
    if isinstance(report, AuditReport):
        yield "trials", float(report.findings.trials_finished)
    outcomes = [check.outcome for check in report.judgement.checks]
    for outcome in CheckOutcome:
        yield f"checks.{outcome.value}", float(outcomes.count(outcome))
    if report.verdict.kind is VerdictKind.INVALID:
        return
    if isinstance(report, InversionReport):
        for fit in report.findings.fits:
            key = attack_key(fit.attack)
            if fit.residual is not None:
                yield f"{key}.unexplained", fit.residual
            yield f"{key}.matched", float(match_of(fit) is Match.MATCHED)
    if isinstance(report, AuditReport):
        yield from _rates(report)


def _rates(report: AuditReport) -> Iterator[tuple[str, float]]:
    findings = report.findings
    best = strongest(findings, report.judgement.rates)
    named = [("strongest", best), *((attack_key(a.name), a) for a in findings.attacks)]
    for key, attack in named:
        rate = None if attack is None else report.judgement.rates_of(attack).rate
        if attack is None or rate is None:
            continue
        yield f"{key}.rate", rate.value
        yield f"{key}.rate_lower", rate.lower
        yield f"{key}.rate_upper", rate.upper
        distances = [o.distance for o in attack.outcomes if o.distance is not None]
        if distances:
            middle = sorted(distances)[(len(distances) - 1) // 2]
            if math.isfinite(middle):
                yield f"{key}.median_distance", middle
    if findings.bounds is not None and findings.bounds.success < 1:
        yield "bound", findings.bounds.success
    if findings.claim is not None:
        yield "claim", findings.claim.rate


def settings(report: Report[Any, Any]) -> Iterator[tuple[str, str]]:
    """What a reader needs to repeat the study, as parameters."""
    findings = report.findings
    yield "title", findings.title
    if isinstance(report, AuditReport | InversionReport):
        yield "release", findings.release
    yield "seed", "withheld" if findings.seed is None else str(findings.seed)
    for name, value in findings.settings.items():
        yield f"setting.{attack_key(name)}", value
    if isinstance(report, AuditReport | InversionReport):
        for attack in findings.attacks:
            for name, value in attack.settings.items():
                yield f"{attack_key(attack.name)}.{attack_key(name)}", value


def attack_key(name: str) -> str:
    """A name as MLflow allows it in keys: letters, digits, dashes and underscores."""
    return re.sub(r"[^0-9A-Za-z_-]+", "_", name).strip("_").lower() or "unnamed"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def _place(client: Any, run_id: str | None) -> tuple[Any, str]:
    """The client to log with, and the run to log to."""
    try:
        import mlflow
    except ImportError as error:
        raise NotFound(
            "MLflow is not installed: install Vestige with its extra `mlflow`."
        ) from error
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise BadInput(
                "No MLflow run is active: log inside of `with mlflow.start_run():`, or pass run_id."
            )
        run_id = active.info.run_id
    return mlflow.MlflowClient() if client is None else client, str(run_id)
