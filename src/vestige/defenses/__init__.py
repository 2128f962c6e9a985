"""Defences: each turns a victim into a defended one. One file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.defenses.batch_size import BatchSize as BatchSize
    from vestige.defenses.client_aggregation import ClientAggregation as ClientAggregation
    from vestige.defenses.combined import Combined as Combined
    from vestige.defenses.defended_victims import AggregatedClients as AggregatedClients
    from vestige.defenses.defended_victims import AlteredVictim as AlteredVictim
    from vestige.defenses.defended_victims import innermost as innermost
    from vestige.defenses.defended_victims import mean_release as mean_release
    from vestige.defenses.defended_victims import with_model as with_model
    from vestige.defenses.dp_sgd import PrivateGradients as PrivateGradients
    from vestige.defenses.gradient_clipping import GradientClipping as GradientClipping
    from vestige.defenses.gradient_clipping import RecordClipping as RecordClipping
    from vestige.defenses.gradient_dropout import GradientDropout as GradientDropout
    from vestige.defenses.gradient_noise import GradientNoise as GradientNoise
    from vestige.defenses.gradient_pruning import GradientPruning as GradientPruning
    from vestige.defenses.gradient_pruning import TopKSparsification as TopKSparsification
    from vestige.defenses.local_aggregation import LocalAggregation as LocalAggregation
    from vestige.defenses.quantization import GradientQuantization as GradientQuantization
    from vestige.defenses.quantization import GradientSign as GradientSign
    from vestige.defenses.quantization import HalfPrecision as HalfPrecision
    from vestige.defenses.undefended import Undefended as Undefended
    from vestige.interfaces import Defense as Defense
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
