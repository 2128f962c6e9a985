"""A Record beside the run that it is about: figures, settings, page and JSON in MLflow.

    with mlflow.start_run():
        log_record(record)

Everything goes to the tracking store that the user's MLflow is set to, and to nowhere else. A
tracking store has many readers, and a good reconstruction is the secret: page and JSON are redacted
unless ``redact=False`` says otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from vestige.errors import BadInput, NotFound
from vestige.record import CheckOutcome, Record, VerdictKind
from vestige.report import render
from vestige.store import record_bytes
from vestige.verdicts import strongest

LONGEST_VALUE = 500
"""Characters of a parameter: the least that tracking stores of any kind have allowed."""

LONGEST_NAME = 250


def log_record(
    record: Record,
    *,
    page: bool = True,
    redact: bool = True,
    prefix: str = "vestige",
    client: Any = None,
    run_id: str | None = None,
) -> str:
    """Log a Record to the active MLflow run, or to the one of ``run_id``, and return its id.

    Rates and limits of every attack become metrics, settings become parameters (cut where the store
    allows no more), the verdict a tag, Record and page artifacts below ``prefix``. ``client`` is an
    ``mlflow.MlflowClient``, by default one of the current tracking store. No figure of a failed
    audit is logged: a dashboard would show it like any other.
    """
    client, run_id = _place(client, run_id)
    shown = record.without_secrets() if redact else record
    for name, value in figures(record):
        client.log_metric(run_id, f"{prefix}.{name}", value)
    for name, text in settings(shown):
        client.log_param(run_id, f"{prefix}.{name}"[:LONGEST_NAME], _cut(text))
    client.set_tag(run_id, f"{prefix}.verdict", shown.verdict.kind.value)
    client.set_tag(run_id, f"{prefix}.headline", _cut(shown.verdict.headline))
    client.log_text(run_id, record_bytes(shown).decode(), f"{prefix}/record.json")
    if page:
        client.log_text(run_id, render(shown), f"{prefix}/page.html")
    return run_id


def figures(record: Record) -> Iterator[tuple[str, float]]:
    """What a dashboard compares: trials, checks, and of a sound audit all rates with limits."""
    yield "trials", float(record.trials_finished)
    outcomes = [check.outcome for check in record.checks]
    for outcome in CheckOutcome:
        yield f"checks.{outcome.value}", float(outcomes.count(outcome))
    if record.verdict.kind is VerdictKind.INVALID:
        return
    best = strongest(record)
    named = [("strongest", best), *((attack_key(a.name), a) for a in record.attacks)]
    for key, attack in named:
        if attack is None or attack.rate is None:
            continue
        yield f"{key}.rate", attack.rate.value
        yield f"{key}.rate_lower", attack.rate.lower
        yield f"{key}.rate_upper", attack.rate.upper
        distances = [o.distance for o in attack.outcomes if o.distance is not None]
        if distances:
            middle = sorted(distances)[(len(distances) - 1) // 2]
            if math.isfinite(middle):
                yield f"{key}.median_distance", middle
    if record.bounds is not None and record.bounds.success < 1:
        yield "bound", record.bounds.success
    if record.claim is not None:
        yield "claim", record.claim.rate


def settings(record: Record) -> Iterator[tuple[str, str]]:
    """What a reader needs to repeat the audit, as parameters."""
    yield "title", record.title
    yield "release", record.release
    yield "seed", str(record.seed)
    for name, value in record.settings.items():
        yield f"setting.{attack_key(name)}", value
    for attack in record.attacks:
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
