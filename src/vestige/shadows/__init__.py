"""Shadows: many simulated victims at once, each trained on the known records and one stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.shadows.training import ShadowTraining as ShadowTraining
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
