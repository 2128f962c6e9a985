"""The page of an audit, from its report: pure, without network, clock or randomness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

from markupsafe import Markup

from vestige.pages.audit import evidence, front
from vestige.pages.audit.assessment import assess_audit
from vestige.pages.audit.exclusivity import exclusivity_view
from vestige.pages.audit.shown import shown_view
from vestige.pages.pictures import Scale
from vestige.pages.shell import (
    Front,
    Panel,
    attack_settings,
    complete_settings,
    failed_checks,
    render_page,
    sections,
    surroundings,
)
from vestige.pages.templates import fragment, text
from vestige.reports import numbers
from vestige.reports.audit import AuditFindings, AuditReport
from vestige.reports.parts import Check, VerdictKind

HARD_LIMIT = 6_000_000
"""Bytes that a page may have; optional pictures are dropped in turn until it fits."""


def render_audit(report: AuditReport, *, redact: bool = False) -> str:
    """Render the report of an audit as one HTML page.

    Parameters
    ----------
    report
        Everything an audit found; nothing else is read.
    redact
        Withhold secrets and reconstructions, also where only a program would find them.

    Returns
    -------
    str
        The page. Equal reports give equal pages.
    """
    shown = report.without_secrets() if redact or report.findings.redacted else report
    page = _page(shown)
    for less in _economies(shown):
        if len(page.encode()) <= HARD_LIMIT:
            break
        page = _page(shown, **less)
    return page


class _Shown(TypedDict, total=False):
    """Optional pictures of a page."""

    film: bool
    differences: int | None
    batches: bool


def _economies(report: AuditReport) -> Iterator[_Shown]:
    """What a page that is too large shows in turn: ever fewer of the optional pictures."""
    if any(one.film for one in report.findings.exhibits):
        yield {"film": False}
    for differences in reversed(range(front.MOST_TRIALS)):
        yield {"film": False, "differences": differences}
    yield {"film": False, "differences": 0, "batches": False}


def _page(
    report: AuditReport,
    *,
    film: bool = True,
    differences: int | None = None,
    batches: bool = True,
) -> str:
    found, invalid = report.findings, report.verdict.kind is VerdictKind.INVALID
    images = found.space.kind == "image"
    doubt = None if invalid else evidence.evidence(report)
    triplets = (
        ()
        if invalid
        else front.triplets(report, batches=batches, differences=differences, film=film)
    )
    condition = None if invalid else exclusivity_view(report)
    shown = None if invalid else shown_view(report)
    note = front.trials_note(found)
    if not film and any(one.film for one in found.exhibits):
        note += " The film strip is left out to keep the page small."
    if differences is not None and images and not found.redacted:
        note += " Differences of some trials are left out to keep the page small."
    texts = found.space.kind == "text"  # may be long: the first, the decision, then the others
    exhibit = fragment(
        "audit.html", "exhibit", found, triplets[:1] if texts else triplets, (), note
    )
    more = any(one.film or one.batch for one in triplets)
    further = fragment("audit.html", "further", triplets) if more else ""
    if not triplets:
        exhibit = ""
    elif texts and len(triplets) > 1:
        others = fragment("audit.html", "exhibit", found, triplets[1:], (), "")
        further = Markup("{} {}").format(others, further)
    return render_page(
        title=found.title,
        date=numbers.date(found.times.finished) if found.times.finished else "",
        redacted=found.redacted,
        front=replace(
            Front.of(report.verdict),
            exhibit=exhibit,
            further=further,
            lede=(report.verdict.lede, shown.sentence if shown else ""),
            failed=failed_checks(report.judgement.checks) if invalid else (),
            arrays=() if invalid else front.arrays(report),
            layout=("slim " if len(triplets) in (1, 2) and found.space.kind != "text" else "")
            + ("tabular" if triplets and found.space.kind == "table" else ""),
        ),
        threat=Panel(found.threat, found.release, defense=found.defense),
        body=sections(
            "audit.html",
            evidence=doubt and (found, doubt, triplets),
            exclusivity=condition and (condition,),
            bounds=doubt and (report, evidence.theory(report), front.named_claim(found), shown),
        ),
        checks=(*report.judgement.checks, *_other_runs(found)),
        partial=evidence.partial(report) if invalid and found.attacks else None,
        limits=found.limits,
        appendix=sections("audit.html", assessment=(assess_audit(report),)),
        settings=_settings(found),
        environment=surroundings(found.environment, found.times.cpu_seconds, "vestige report RUN"),
        attacks=attack_settings(found.attacks),
        source="a record",
        report=report,
        styles=_styles(found),
        scripts=(text("trials.js"),) if images and not found.redacted else (),
        readouts={"roc-readout": doubt.roc.readout} if doubt and doubt.roc else None,
    )


def _other_runs(findings: AuditFindings) -> list[Check]:
    """A remark on the same audit with other seeds or sizes, which is no part of its judgement."""
    said = findings.times.other_runs
    return [Check.remark(said)] if said else []


def _styles(findings: AuditFindings) -> tuple[str, ...]:
    """Stylesheets of the trials: those of pictures or of texts; tables need none."""
    if findings.space.kind == "image":
        return (text("trials.css"), Scale.of(findings.space.shape).css() + "\n")
    return (text("texts.css"),) if findings.space.kind == "text" else ()


def _settings(findings: AuditFindings) -> list[tuple[str, str]]:
    """Return what is needed to repeat the audit: its settings, and what they leave out."""
    trials = numbers.count(findings.trials_finished)
    if findings.trials_finished != findings.trials_planned:
        trials += f" of {numbers.count(findings.trials_planned)} planned"
    derived = [
        ("Release", numbers.defended(findings.release, findings.defense)),
        ("Trials", trials),
        ("Decoys per trial", numbers.count(findings.decoys)),
        ("Batch size", numbers.count(findings.batch_size)),
        ("Distance", findings.distance),
        *(
            [("Further distances", "; ".join(one.name for one in findings.further_distances))]
            if findings.further_distances
            else []
        ),
        ("False positive rate", numbers.share(findings.false_positive_rate)),
        ("Confidence", f"{numbers.share(findings.confidence)}, joint over all attacks"),
        ("Seed", "withheld" if findings.seed is None else str(findings.seed)),
    ]
    return complete_settings(findings.settings, derived)
