"""Texts in a comparison: a secret sentence, and what each defence leaves to read of it."""

from __future__ import annotations

from dataclasses import dataclass

from vestige.pages.audit.texts import TextView, text_view
from vestige.pages.comparison.marks import families
from vestige.reports.comparison import UNDEFENDED, ComparisonFindings, DefendedPoint
from vestige.reports.comparison_words import error_with_limits

MOST_TEXTS = 2
"""Secrets that a section of settings shows."""


@dataclass(frozen=True)
class ReadSetting:
    """One setting before one server: what its strongest attack read of a secret."""

    label: str
    server: str
    error: str
    problem: str
    view: TextView | None


@dataclass(frozen=True)
class ReadSecret:
    """One secret, and what was read of it under every setting."""

    secret: TextView
    settings: tuple[ReadSetting, ...]


def read_secrets(
    comparison: ComparisonFindings, points: list[DefendedPoint] | None = None
) -> tuple[ReadSecret, ...]:
    """The first secrets with what was read under every setting, or under some; none of others."""
    if comparison.space.kind != "text":
        return ()
    found = families(comparison)
    names = sorted(found, key=lambda name: name != UNDEFENDED)
    chosen = [point for name in names for point in found[name]] if points is None else points
    hidden = comparison.redacted
    shown = []
    for place, secret in enumerate(comparison.secrets[:MOST_TEXTS]):
        rows = []
        for server in comparison.servers:
            for point in chosen:
                cell = comparison.cell(point, server.name)
                drawn = cell.pictures[place] if place < len(cell.pictures) else None
                rows.append(
                    ReadSetting(
                        point.label,
                        server.name if len(comparison.servers) > 1 else "",
                        f"error {error_with_limits(cell.protection)}" if cell.protection else "",
                        "" if cell.protection else cell.problem or "Nothing was measured.",
                        text_view(secret, drawn, None, details=False, withheld=hidden)
                        if cell.pictures
                        else None,
                    )
                )
        own = text_view(secret, None, None, details=False, withheld=hidden)
        shown.append(ReadSecret(own, tuple(rows)))
    return tuple(shown)
