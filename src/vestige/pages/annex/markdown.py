"""The annex as Markdown: tables of names and texts in which nothing is taken for markup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vestige.printable import terminal_text
from vestige.reports.annex import Annex, AnnexPoint
from vestige.reports.parts import spoken

BLANK = "\\_" * 24
"""A line to write on."""


def annex_markdown(annex: Annex) -> str:
    """The annex as one Markdown document."""
    return "\n".join(_lines(annex)) + "\n"


def escaped(text: str) -> str:
    """Text for one cell or line: no control characters, no line breaks, no markup."""
    plain = " ".join(terminal_text(text.replace("\n", " ").replace("\t", " ")).split())
    plain = re.sub(r"([\\`*_\[\]<>|~$&])", r"\\\1", plain)
    plain = re.sub(r"^([#+=:-]|[0-9]+(?=[.)]))", r"\\\1", plain)
    # A bare address would become a link.
    return re.sub(r"(?i)\b(https?|ftp|mailto|www)([:.])", r"\1\\\2", plain)


def _lines(annex: Annex) -> Iterator[str]:
    yield f"# Annex: {escaped(annex.title)}"
    yield ""
    said = [annex.study, annex.date, "redacted" if annex.redacted else ""]
    yield escaped(", ".join(part for part in said if part))
    yield ""
    verdict = spoken(annex.verdict)
    yield f"**{escaped(verdict)}**: {escaped(annex.headline)}"
    yield ""
    yield "## For the decision"
    yield ""
    yield from _table("Question", "Answer", [(one.name, one.text) for one in annex.answers])
    for point in annex.points:
        yield ""
        yield f"## {point.number}. {escaped(point.title)}"
        yield ""
        yield from _point(annex, point)
    if annex.limits:
        yield ""
        yield "## What the study itself says it does not show"
        yield ""
        yield from (f"- {escaped(limit)}" for limit in annex.limits)


def _point(annex: Annex, point: AnnexPoint) -> Iterator[str]:
    if point.number == 1:
        yield "| Class of attacks | State | Trials | Note |"
        yield "| --- | --- | ---: | --- |"
        for one in annex.coverage:
            trials = "" if one.trials is None else f"{one.trials:,}"
            cells = (one.attacks, one.state.value, trials, one.note)
            yield f"| {' | '.join(map(escaped, cells))} |"
    elif point.number == 8:
        yield "To be filled by the controller."
        yield ""
        yield "| | |\n| --- | --- |"
        for choice in annex.decision.choices:
            yield f"| {choice} | \\[ \\] |"
        for name in ("Tolerated rate", "Decided by", "Date", "Reasons"):
            yield f"| {name} | {BLANK} |"
    else:
        yield from _table("", "", [(one.name, one.text) for one in point.facts])


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {first} | {second} |"
    yield "| --- | --- |"
    for name, text in rows:
        yield f"| {escaped(name)} | {escaped(text)} |"
