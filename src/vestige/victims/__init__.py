"""Processes under audit, one per file."""

from vestige.victims.federated_update import FederatedUpdate
from vestige.victims.private_training import PrivateTraining
from vestige.victims.released_convex_model import ReleasedConvexModel
from vestige.victims.released_head import ReleasedHead
from vestige.victims.released_network import ReleasedNetwork
from vestige.victims.shared_gradient import SharedGradient
from vestige.victims.training import trained

__all__ = [
    "FederatedUpdate",
    "PrivateTraining",
    "ReleasedConvexModel",
    "ReleasedHead",
    "ReleasedNetwork",
    "SharedGradient",
    "trained",
]
