"""What stands in place of a user's title in a redacted document: the title that Vestige gives."""

from __future__ import annotations

from functools import singledispatch

from vestige.reports.audit import AuditFindings
from vestige.reports.comparison import ComparisonFindings
from vestige.reports.heads import HeadFindings
from vestige.reports.inversion import InversionFindings
from vestige.reports.noise import NoiseFindings
from vestige.reports.repeated import RepeatedFindings
from vestige.reports.report import Findings
from vestige.reports.risk import RiskFindings


@singledispatch
def public_title(findings: Findings) -> str:
    """A title that holds no word of the user's; a kind of another package has the same for all."""
    return "A study"


@public_title.register
def _audit(findings: AuditFindings) -> str:
    if findings.smallest_pool is not None:
        return "Captured releases of a training"
    return f"Audit of {findings.release}"


@public_title.register
def _repeated(findings: RepeatedFindings) -> str:
    return f"Repeated audit of {findings.release}"


@public_title.register
def _risk(findings: RiskFindings) -> str:
    return f"Risk of single records: {findings.release}"


@public_title.register
def _heads(findings: HeadFindings) -> str:
    return "Published heads"


@public_title.register
def _noise(findings: NoiseFindings) -> str:
    return "Images under noise"


@public_title.register
def _comparison(findings: ComparisonFindings) -> str:
    return "Defences compared"


@public_title.register
def _inversion(findings: InversionFindings) -> str:
    return "A captured release"
