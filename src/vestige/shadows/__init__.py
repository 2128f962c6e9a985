"""Shadows: many simulated victims at once, each trained on the known records and one stand-in."""

from vestige.shadows.private_steps import PrivateSteps
from vestige.shadows.training import ShadowTraining

__all__ = ["PrivateSteps", "ShadowTraining"]
