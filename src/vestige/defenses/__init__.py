"""Defences: each turns a victim into a defended one. One file each."""

from vestige.defenses.batch_size import BatchSize
from vestige.defenses.client_aggregation import ClientAggregation
from vestige.defenses.combined import Combined
from vestige.defenses.defended_victims import (
    AggregatedClients,
    AlteredVictim,
    innermost,
    mean_release,
    with_model,
)
from vestige.defenses.defense import Defense
from vestige.defenses.gradient_clipping import GradientClipping, RecordClipping
from vestige.defenses.gradient_dropout import GradientDropout
from vestige.defenses.gradient_noise import GradientNoise
from vestige.defenses.gradient_pruning import GradientPruning, TopKSparsification
from vestige.defenses.local_aggregation import LocalAggregation
from vestige.defenses.private_gradients import PrivateGradients
from vestige.defenses.quantization import GradientQuantization, GradientSign, HalfPrecision
from vestige.defenses.undefended import Undefended

__all__ = [
    "AggregatedClients",
    "AlteredVictim",
    "BatchSize",
    "ClientAggregation",
    "Combined",
    "Defense",
    "GradientClipping",
    "GradientDropout",
    "GradientNoise",
    "GradientPruning",
    "GradientQuantization",
    "GradientSign",
    "HalfPrecision",
    "LocalAggregation",
    "PrivateGradients",
    "RecordClipping",
    "TopKSparsification",
    "Undefended",
    "innermost",
    "mean_release",
    "with_model",
]
