"""Processes under audit, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.simulation.convex import ConvexFit as ConvexFit
    from vestige.simulation.dp_sgd import ClippedNoise as ClippedNoise
    from vestige.simulation.head_training import HeadTraining as HeadTraining
    from vestige.simulation.local_training import LocalTraining as LocalTraining
    from vestige.simulation.local_training import Normalization as Normalization
    from vestige.simulation.training_sets import ClassCounts as ClassCounts
    from vestige.simulation.training_sets import OneAgainstRest as OneAgainstRest
    from vestige.victims.federated_update import FederatedUpdate as FederatedUpdate
    from vestige.victims.pretraining import trained as trained
    from vestige.victims.private_training import PrivateTraining as PrivateTraining
    from vestige.victims.released_convex_model import ReleasedConvexModel as ReleasedConvexModel
    from vestige.victims.released_head import ReleasedHead as ReleasedHead
    from vestige.victims.released_network import ReleasedNetwork as ReleasedNetwork
    from vestige.victims.shared_gradient import SharedGradient as SharedGradient
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
