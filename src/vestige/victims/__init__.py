"""Processes under audit, one per file."""

from vestige.victims.federated_update import FederatedUpdate
from vestige.victims.shared_gradient import SharedGradient
from vestige.victims.training import trained

__all__ = ["FederatedUpdate", "SharedGradient", "trained"]
