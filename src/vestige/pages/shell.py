"""The frame of every page: head, front, threat, checks, limits, settings, footer.

A page kind supplies what is its own: sections, and what stands beside the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from vestige.pages import templates
from vestige.pages.marks import DotArray
from vestige.pages.tables import Column, Row, Table, pairs
from vestige.reports import numbers
from vestige.reports.parts import (
    AttackDescription,
    Check,
    CheckOutcome,
    ThreatDescription,
    Verdict,
    VerdictKind,
)
from vestige.reports.report import Report


@dataclass(frozen=True)
class Stamp:
    """The verdict as a word, with the shape and the tone that carry it."""

    word: str
    shape: str
    tone: str


STAMPS = {
    VerdictKind.DEMONSTRATED: Stamp("Demonstrated", "filled", "leak"),
    VerdictKind.NOT_DEMONSTRATED: Stamp("Not demonstrated", "hollow", "decoy"),
    VerdictKind.CLAIM_REFUTED: Stamp("Claim refuted", "struck", "leak"),
    VerdictKind.INVALID: Stamp("Invalid", "dashed", "caution"),
    VerdictKind.CANDIDATES: Stamp("Candidates", "halved", "decoy"),
}


@dataclass(frozen=True)
class Front:
    """The first screen: the verdict, and beside it ``exhibit``, which the page kind draws.

    ``layout`` names the classes of the first screen beside ``front``. ``further`` are pictures that
    stand below the answers for the decision.
    """

    headline: str
    lede: tuple[str, ...]
    stamp: Stamp | None = None
    remedy: str = ""
    failed: tuple[Check, ...] = ()
    arrays: tuple[DotArray, ...] = ()
    exhibit: str = ""
    layout: str = ""
    further: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> Front:
        """The first screen of a verdict alone."""
        return cls(verdict.headline, (verdict.lede,), STAMPS[verdict.kind], verdict.remedy)


def failed_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks that failed."""
    return tuple(check for check in checks if check.outcome is CheckOutcome.FAILED)


@dataclass(frozen=True)
class Section:
    """One part of a page: the reader's question, the answer, and its short name for the menu."""

    identifier: str
    link: str
    heading: str
    content: Markup


def sections(template: str, **arguments: Any) -> list[Section]:
    """Draw the sections that a template lists: for each a macro, and here its arguments.

    A section without arguments is left out.
    """
    module: Any = templates.environment().get_template(template).module
    return [
        Section(identifier, link, heading, getattr(module, identifier)(*arguments[identifier]))
        for identifier, (link, heading) in module.sections.items()
        if arguments.get(identifier)
    ]


@dataclass(frozen=True)
class Panel:
    """Who sees what: an attacker, and what is released to it."""

    threat: ThreatDescription
    release: str
    title: str = "Who sees what"
    defense: str = ""


def render_page(
    *,
    title: str,
    front: Front,
    body: Sequence[Section],
    source: str,
    limits: Sequence[str],
    settings: Sequence[tuple[str, str]],
    environment: Sequence[tuple[str, str]] = (),
    attacks: Table | None = None,
    threat: Panel | Sequence[Panel] = (),
    checks: Sequence[Check] | None = None,
    partial: Table | None = None,
    appendix: Sequence[Section] = (),
    tab: str | None = None,
    date: str = "",
    redacted: bool = False,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    readouts: Mapping[str, object] | None = None,
    report: Report[Any, Any] | None = None,
) -> str:
    """Assemble one self-contained HTML page.

    Parameters
    ----------
    title, tab, date, redacted
        What the masthead says; ``tab`` is the title of the window.
    front, body, appendix
        First screen and sections; the appendix stands between limits and settings.
    source
        What the page was made from: ``a record``.
    threat
        One panel stands beside the verdict, a sequence of panels in a section of its own.
    checks, partial
        Checks of the document itself, and what finished before one failed. None: it has none.
    limits, settings, environment, attacks
        What the document does not show, and what is needed to repeat it.
    styles, scripts, readouts
        Text beside the common stylesheet and script, and JSON for the script by identifier.
    report
        The report as it is shown: adds the answers for the decision and the annex.
    """
    decision = ""
    if report is not None:
        from vestige.pages.annex.section import HEADING, IDENTIFIER, LINK, annex_parts

        decision, content, hopeless = annex_parts(report)
        front = replace(front, lede=(*front.lede, hopeless))
        appendix = (*appendix, Section(IDENTIFIER, LINK, HEADING, content))
        styles = (templates.text("annex.css"), *styles)
    style = "".join((templates.text("page.css"), *styles))
    script = "".join((templates.text("page.js"), *scripts))
    outcomes = [check.outcome for check in checks or ()]
    return (
        templates.environment()
        .get_template("document.html")
        .render(
            policy=templates.policy(style, script),
            style=Markup(style),
            script=Markup(script),
            title=title,
            tab=tab or (f"{front.stamp.word}: {title}" if front.stamp else title),
            date=date,
            redacted=redacted,
            front=front,
            decision=decision,
            panel=threat if isinstance(threat, Panel) else None,
            panels=() if isinstance(threat, Panel) else threat,
            sections=body,
            appendix=appendix,
            source=source,
            checks=checks,
            counts={outcome.value: outcomes.count(outcome) for outcome in CheckOutcome},
            partial=partial,
            limits=limits,
            settings=pairs(settings),
            environment=pairs(environment),
            attacks=attacks,
            readouts=readouts or {},
        )
    )


def complete_settings(
    own: Mapping[str, str], derived: Iterable[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Return the settings as they were given, then those that they leave out."""
    given = [(capital(name), value) for name, value in own.items()]
    # One setting may hold two things: "Trials, seed".
    said = {word for name, _ in given for word in name.lower().split(", ")}
    return given + [(name, value) for name, value in derived if name.lower() not in said]


def surroundings(
    environment: Mapping[str, str], cpu_seconds: float | None = None, again: str = ""
) -> list[tuple[str, str]]:
    """Return where a document was made, how much work it was, and how to render it again."""
    return [
        *complete_settings(environment),
        *([("Work", f"{numbers.seconds(cpu_seconds)} CPU")] if cpu_seconds else []),
        *([("Render again", again)] if again else []),
    ]


def capital(text: str) -> str:
    """Write the first letter as a capital."""
    return text[:1].upper() + text[1:]


def attack_settings(attacks: Iterable[AttackDescription]) -> Table:
    """The attacks with their settings and sources."""
    rows = tuple(
        Row(
            attack.name,
            attack.summary,
            (
                ", ".join(f"{name} = {value}" for name, value in attack.settings.items())
                or numbers.EN_DASH,
                attack.cites or numbers.EN_DASH,
            ),
        )
        for attack in attacks
    )
    columns = (Column("Settings", False, "mono"), Column("Source", False))
    return Table("Attack", columns, rows)
