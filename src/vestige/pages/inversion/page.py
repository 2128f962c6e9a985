"""The page of an inversion, from its report: pure, without network, clock or randomness.

It shows what was drawn from a captured release without a secret, and how well that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vestige.pages.audit.assessment import assess_inversion
from vestige.pages.audit.features import original
from vestige.pages.confidence import rehearsed_words
from vestige.pages.pictures import Frame, Scale, frame
from vestige.pages.shell import (
    STAMPS,
    Front,
    Panel,
    Stamp,
    attack_settings,
    complete_settings,
    failed_checks,
    render_page,
    sections,
    surroundings,
)
from vestige.pages.tables import Column, Row, Table
from vestige.pages.templates import fragment, text
from vestige.reports import numbers
from vestige.reports.inversion import Candidate, Fit, InversionFindings, InversionReport
from vestige.reports.parts import VerdictKind
from vestige.statistics.fits import Match, came_back, is_unmatched, left_unexplained, match_of

HARD_LIMIT = 6_000_000
"""Bytes that a page may have; agreement maps are dropped if it has more."""

NO_SECRET = "No secret was given, so no rate can be."


def render_inversion(report: InversionReport, *, redact: bool = False) -> str:
    """Render the report of an inversion as one HTML page; ``redact`` withholds candidates."""
    shown = report.without_secrets() if redact or report.findings.redacted else report
    page = _page(shown, agreement=True)
    return page if len(page.encode()) <= HARD_LIMIT else _page(shown, agreement=False)


def _page(report: InversionReport, *, agreement: bool) -> str:
    found, verdict = report.findings, report.verdict
    invalid = verdict.kind is VerdictKind.INVALID
    drawn = () if invalid else candidate_views(found, agreement=agreement)
    fits = None if invalid else fit_table(found)
    exhibit = fragment("audit.html", "exhibit", found, (), drawn, candidates_note(found))
    said = found.replayed or "No secret was given" in verdict.headline + verdict.lede
    derived = [
        ("Batch size", numbers.count(found.batch_size)),
        ("Seed", "withheld" if found.seed is None else str(found.seed)),
    ]
    return render_page(
        title=found.title,
        date=numbers.date(found.times.finished) if found.times.finished else "",
        redacted=found.redacted,
        front=replace(
            Front.of(verdict),
            exhibit=exhibit if drawn else "",
            stamp=stamp_of(report),
            lede=(verdict.lede, "" if said else NO_SECRET),
            failed=failed_checks(report.judgement.checks) if invalid else (),
            layout="slim ",
        ),
        threat=Panel(found.threat, found.release, defense=found.defense),
        body=sections("audit.html", fit=fits and (found, fits)),
        checks=report.judgement.checks,
        limits=found.limits,
        appendix=sections("audit.html", assessment=(assess_inversion(report),)),
        settings=complete_settings(found.settings, derived),
        environment=surroundings(found.environment, found.times.cpu_seconds, "vestige report RUN"),
        attacks=attack_settings(found.attacks),
        source="a record",
        report=report,
        styles=_styles(found),
    )


MOST_CANDIDATES = 12

UNMATCHED = Stamp("Candidates", "halved", "caution")


@dataclass(frozen=True)
class CandidateView:
    """One candidate without a secret to compare it with."""

    title: str
    facts: str
    frames: tuple[Frame, ...]
    features: Table | None
    text: str = ""


def stamp_of(report: InversionReport) -> Stamp:
    """Return the stamp of a verdict; candidates that match nothing have the tone of a warning."""
    if report.verdict.kind is VerdictKind.CANDIDATES and is_unmatched(report.findings.fits):
        return UNMATCHED
    return STAMPS[report.verdict.kind]


def candidates_note(findings: InversionFindings) -> str:
    """Say what candidates are worth, and how many are left out."""
    left = len(findings.candidates) - MOST_CANDIDATES
    sentences = [
        "The attack that left least unexplained comes first." if findings.fits else "",
        "Candidates were not compared with a secret: that independent runs agree says what the "
        "release determines under this attack, and not that it is true.",
        "Where an agreement map is dark, the attack or its prior made up what is seen."
        if any(c.agreement is not None and not _alike(c) for c in findings.candidates)
        else "",
        f"{numbers.count(left)} more are in the record." if left > 0 else "",
    ]
    return " ".join(s for s in sentences if s)


def candidate_views(findings: InversionFindings, *, agreement: bool) -> tuple[CandidateView, ...]:
    """Return the candidates: best fitting attack first, then in the order of its own scores."""
    fits = {fit.attack: fit for fit in findings.fits}
    order = sorted(findings.candidates, key=lambda c: (*_place(fits.get(c.attack)), -_score(c)))
    views = []
    for place, candidate in enumerate(order[:MOST_CANDIDATES], 1):
        fit = fits.get(candidate.attack)
        facts = [
            candidate.attack,
            f"label{' as told,' if candidate.label_told else ''} {candidate.label}"
            if candidate.label and not findings.redacted
            else "",
            f"{left_unexplained(fit)} of the release left unexplained by all candidates together"
            if fit and fit.residual is not None
            else "",
            ""
            if candidate.objective is None
            else f"objective {numbers.quantity(candidate.objective)}",
            rehearsed_words(
                findings.attacks,
                candidate.attack,
                candidate.confidence,
                candidate.rehearsed,
                findings.confidence,
            ),
        ]
        alike = _alike(candidate)
        facts.append("all runs drew the same" if alike else "")
        shown: list[Frame] = []
        words, absent = None, ""
        features: list[tuple[str, str]] = []
        if findings.space.kind == "image":
            shown.append(
                frame(
                    findings.redacted,
                    "Candidate",
                    candidate.picture,
                    f"Candidate {place}: not verified",
                )
            )
            # A map that is white throughout says nothing that the words do not.
            if agreement and not alike and (candidate.agreement is not None or findings.redacted):
                shown.append(
                    frame(
                        findings.redacted,
                        "Agreement",
                        candidate.agreement,
                        f"Where restarts agree on candidate {place}: bright is stable",
                    )
                )
        elif findings.space.kind == "text":
            words = None if candidate.picture is None else candidate.picture.words
            absent = "withheld" if findings.redacted else "nothing"
        elif candidate.picture is not None:
            values = candidate.picture.array()
            features = [(c.name, original(c, v)) for c, v in zip(findings.space.columns, values)]
        else:
            features = [(c.name, "withheld") for c in findings.space.columns]
        views.append(
            CandidateView(
                title=f"Candidate {place}",
                facts="; ".join(f for f in facts if f),
                frames=tuple(shown),
                features=feature_list(features) if features else None,
                text=absent if words is None else "".join(words),
            )
        )
    return tuple(views)


def _styles(findings: InversionFindings) -> tuple[str, ...]:
    if findings.space.kind == "image":
        return (Scale.of(findings.space.shape).css() + "\n",)
    return (text("texts.css"),) if findings.space.kind == "text" else ()


def _alike(candidate: Candidate) -> bool:
    """Whether all runs drew the same, as an attack without randomness does."""
    drawn = None if candidate.agreement is None else candidate.agreement.array()
    return drawn is not None and bool((drawn >= (255 if drawn.dtype == "uint8" else 1)).all())


def feature_list(features: list[tuple[str, str]]) -> Table:
    """The features of a candidate in original units."""
    rows = tuple(Row(name, "", (value,)) for name, value in features)
    return Table("Feature", (Column("Candidate", kind="leak"),), rows)


def fit_table(findings: InversionFindings) -> Table | None:
    """What every attack left unexplained, beside random candidates and its rehearsals."""
    if not findings.fits:
        return None
    best = min(findings.fits, key=_place)
    columns = (
        Column("This release", number=False),
        Column("Left unexplained"),
        Column(f"By random {numbers.plural_noun(findings.space.noun)}"),
        Column("Noise"),
        Column("Runs alike"),
        Column("Rehearsed alike"),
        Column("Of these came back"),
    )
    rows = tuple(
        Row(fit.attack, fit.unmeasured, tuple(_cells(findings, fit)), fit is best)
        for fit in findings.fits
    )
    return Table("Attack", columns, rows).without_empty_columns()


def _cells(findings: InversionFindings, fit: Fit) -> list[str]:
    match = match_of(fit)
    runs = [r for r in fit.run_residuals if r is not None]
    alike = sum(match_of(fit.model_copy(update={"residual": r})) is match for r in runs)
    rehearsed = [one for one in findings.rehearsals if one.fit.attack == fit.attack]
    same = [one for one in rehearsed if match_of(one.fit) is match]
    dash = numbers.EN_DASH
    return [
        match.value,
        dash if fit.residual is None else left_unexplained(fit),
        dash if fit.random_residual is None else numbers.percent(fit.random_residual),
        numbers.percent(fit.noise) if fit.noise else dash,
        f"{alike} of {len(fit.run_residuals)}" if len(fit.run_residuals) > 1 else dash,
        f"{len(same)} of {len(rehearsed)}" if rehearsed else dash,
        f"{sum(map(came_back, same))} of {len(same)}" if same else dash,
    ]


def _place(fit: Fit | None) -> tuple[int, float]:
    """Better matches first, then smaller residuals."""
    if fit is None:
        return len(Match), math.inf
    return list(Match).index(match_of(fit)), math.inf if fit.residual is None else fit.residual


def _score(candidate: Candidate) -> float:
    return -math.inf if candidate.confidence is None else candidate.confidence
