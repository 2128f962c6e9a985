"""Vestige audits how much training data can be reconstructed from what is released.

Plans, verbs and data are here; attacks, victims, defences and the rest are in their packages:
``vestige.attacks.InvertingGradients``. Names are loaded when they are first used, so that
``vestige --help`` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vestige.lazy import lazy_names
from vestige.reports import document as _document

__version__ = "0.1.0"


def _notebook_view(document: object) -> str | None:
    """The HTML of a document; what draws it is loaded when a notebook first asks."""
    return import_module("vestige.pages.notebook").notebook_html(document)


_document.notebook_view = _notebook_view

if TYPE_CHECKING:
    from vestige import attacks as attacks
    from vestige import bounds as bounds
    from vestige import datasets as datasets
    from vestige import defenses as defenses
    from vestige import distances as distances
    from vestige import engines as engines
    from vestige import integrations as integrations
    from vestige import networks as networks
    from vestige import priors as priors
    from vestige import studies as studies
    from vestige import threats as threats
    from vestige import victims as victims
    from vestige.errors import VestigeError as VestigeError
    from vestige.pages.saving import save_page as save_page
    from vestige.records import ImageSpace as ImageSpace
    from vestige.records import Prior as Prior
    from vestige.records import Records as Records
    from vestige.records import TableSpace as TableSpace
    from vestige.records import TextSpace as TextSpace
    from vestige.reports.files import load_report as load_report
    from vestige.runs.tables import frame as frame
    from vestige.studies.audit.plan import Audit as Audit
    from vestige.studies.captured.plan import CapturedAudit as CapturedAudit
    from vestige.studies.comparison.plan import Comparison as Comparison
    from vestige.studies.heads.plan import HeadStudy as HeadStudy
    from vestige.studies.inversion.plan import Inversion as Inversion
    from vestige.studies.inversion.plan import invert as invert
    from vestige.studies.noise.plan import NoiseStudy as NoiseStudy
    from vestige.studies.risk.plan import RecordRisk as RecordRisk
    from vestige.studies.run import run as run
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
