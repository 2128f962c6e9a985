"""Reports as self-contained HTML pages. No torch."""

from __future__ import annotations

from functools import singledispatch

from vestige.bounds.statement import Statement
from vestige.errors import BadInput, brief
from vestige.pages.audit.page import render_audit
from vestige.pages.bounds.page import render_bounds
from vestige.pages.comparison.page import render_comparison
from vestige.pages.heads.page import render_heads
from vestige.pages.inversion.page import render_inversion
from vestige.pages.noise.page import render_noise
from vestige.pages.repeated.page import render_repeated
from vestige.pages.risk.page import render_risk
from vestige.reports.audit import AuditReport
from vestige.reports.comparison import ComparisonReport
from vestige.reports.heads import HeadReport
from vestige.reports.inversion import InversionReport
from vestige.reports.noise import NoiseReport
from vestige.reports.repeated import RepeatedReport
from vestige.reports.risk import RiskReport

__all__ = ["render"]


@singledispatch
def render(report: object, *, redact: bool = False) -> str:
    """Render a report as one HTML page; ``redact`` withholds secrets and reconstructions.

    The type of the report decides how it is drawn. Another package adds its own type with
    ``render.register(Type, function)`` and assembles its page with ``vestige.pages.shell``.
    """
    raise BadInput(
        f"A page shows a report or a statement of bounds, not {brief(report)}: give what run, "
        "compare or invert returned."
    )


render.register(AuditReport, render_audit)
render.register(HeadReport, render_heads)
render.register(InversionReport, render_inversion)
render.register(NoiseReport, render_noise)
render.register(RiskReport, render_risk)
render.register(RepeatedReport, render_repeated)
render.register(ComparisonReport, render_comparison)
render.register(Statement, render_bounds)
