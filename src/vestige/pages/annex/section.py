"""The annex and the answers for the decision as parts of a page."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from vestige.pages import templates
from vestige.pages.annex.build import annex_of
from vestige.pages.annex.facts import facts_of
from vestige.reports.report import Report

IDENTIFIER, LINK, HEADING = "annex", "Annex", "What do those who decide need to see?"


def annex_parts(report: Report[Any, Any]) -> tuple[Markup, Markup, str]:
    """The block for the decision, the annex's content, and a warning for the first screen.

    The warning says that not even hits in all trials could have been shown; it is empty otherwise.
    """
    annex, enough = annex_of(report), facts_of(report).enough
    warning = f"{enough.doubt[:1].upper()}{enough.doubt[1:]}. {enough.advice}"
    return (
        templates.fragment("annex.html", "decision", annex),
        templates.fragment("annex.html", "annex", annex),
        warning if enough.hopeless else "",
    )
