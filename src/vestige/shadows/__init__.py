"""Shadows: many simulated victims at once, each trained on the known records and one stand-in."""

from vestige.shadows.training import ShadowTraining

__all__ = ["ShadowTraining"]
