"""The annex and the answers for the decision as parts of a page."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from vestige.pages import templates
from vestige.pages.annex.build import annex_of
from vestige.reports.report import Report

IDENTIFIER, LINK, HEADING = "annex", "Annex", "What do those who decide need to see?"


def annex_parts(report: Report[Any, Any]) -> tuple[Markup, Markup]:
    """The block for the decision, and the content of the annex's section."""
    annex = annex_of(report)
    return (
        templates.fragment("annex.html", "decision", annex),
        templates.fragment("annex.html", "annex", annex),
    )
