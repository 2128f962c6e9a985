"""Vestige audits how much training data can be reconstructed from what is released.

Names are loaded when they are first used, so that ``vestige --help`` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOME = {
    "Audit": "audit",
    "BadInput": "errors",
    "BareImprint": "imprint",
    "Bins": "imprint",
    "ClassCounts": "training_sets",
    "ClippedNoise": "private_steps",
    "ClosedForm": "attacks",
    "Column": "records",
    "ComparedServer": "comparison_plan",
    "Comparison": "comparison",
    "ComparisonPlan": "comparison_plan",
    "BestOfRestarts": "best_of_restarts",
    "CombinedInversion": "attacks",
    "ConvexFit": "convex",
    "DeepLeakage": "attacks",
    "ExactInversion": "attacks",
    "FeatureInversion": "attacks",
    "FederatedUpdate": "victims",
    "Guess": "attacks",
    "HeadReconstructor": "attacks",
    "HeadStudy": "head_study",
    "HeadInversion": "attacks",
    "HeadTraining": "heads",
    "HeadedModel": "heads",
    "HonestServer": "threats",
    "ImageSpace": "records",
    "ImprintReading": "attacks",
    "ImprintedModel": "imprint",
    "InformedAdversary": "threats",
    "InvertingGradients": "attacks",
    "LocalTraining": "simulation",
    "MaliciousServer": "threats",
    "ModelRelease": "observations",
    "NoiseStudy": "noise_study",
    "Normalization": "simulation",
    "OneAgainstRest": "training_sets",
    "Prior": "records",
    "PriorMatching": "attacks",
    "PrivateTraining": "victims",
    "ReconstructorNetwork": "attacks",
    "Record": "record",
    "Records": "records",
    "ReleasedConvexModel": "victims",
    "ReleasedHead": "victims",
    "ReleasedNetwork": "victims",
    "SharedGradient": "victims",
    "Stage": "exclusivity",
    "TableSpace": "records",
    "TensorFeatures": "attacks",
    "VestigeError": "errors",
    "WeakAdversary": "threats",
    "invert": "inversion",
    "save_page": "pages",
    "UpdateRelease": "observations",
    "UtilityTraining": "utility_training",
    "compare": "comparisons",
    "measure_utility": "utilities",
    "Reconstruction": "observations",
    "Public": "observations",
    "Observation": "observations",
    "Hints": "observations",
    "GradientRelease": "observations",
    "GradientSequenceRelease": "observations",
    "load": "datasets",
    "measure_heads": "measured_heads",
    "missing_record": "fitted_classifiers",
    "render": "report",
    "run": "audit",
    "study_heads": "head_studies",
    "study_noise": "noise_studies",
    "trained": "victims",
}

_ROOMS = ("datasets", "defenses", "distances", "networks")

__all__ = [
    "Audit",
    "BadInput",
    "BareImprint",
    "BestOfRestarts",
    "Bins",
    "ClassCounts",
    "ClippedNoise",
    "ClosedForm",
    "Column",
    "CombinedInversion",
    "ComparedServer",
    "Comparison",
    "ComparisonPlan",
    "ConvexFit",
    "DeepLeakage",
    "ExactInversion",
    "FeatureInversion",
    "FederatedUpdate",
    "GradientRelease",
    "GradientSequenceRelease",
    "Guess",
    "HeadInversion",
    "HeadReconstructor",
    "HeadStudy",
    "HeadTraining",
    "HeadedModel",
    "Hints",
    "HonestServer",
    "ImageSpace",
    "ImprintReading",
    "ImprintedModel",
    "InformedAdversary",
    "InvertingGradients",
    "LocalTraining",
    "MaliciousServer",
    "ModelRelease",
    "NoiseStudy",
    "Normalization",
    "Observation",
    "OneAgainstRest",
    "Prior",
    "PriorMatching",
    "PrivateTraining",
    "Public",
    "Reconstruction",
    "ReconstructorNetwork",
    "Record",
    "Records",
    "ReleasedConvexModel",
    "ReleasedHead",
    "ReleasedNetwork",
    "SharedGradient",
    "Stage",
    "TableSpace",
    "TensorFeatures",
    "UpdateRelease",
    "UtilityTraining",
    "VestigeError",
    "WeakAdversary",
    "__version__",
    "compare",
    "datasets",
    "distances",
    "invert",
    "load",
    "measure_heads",
    "measure_utility",
    "missing_record",
    "networks",
    "render",
    "run",
    "save_page",
    "study_heads",
    "study_noise",
    "trained",
]


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"vestige.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'vestige' has no attribute {name!r}")
    return getattr(import_module(f"vestige.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from vestige import datasets, distances, networks
    from vestige.attacks import (
        ClosedForm,
        CombinedInversion,
        DeepLeakage,
        ExactInversion,
        FeatureInversion,
        Guess,
        HeadInversion,
        HeadReconstructor,
        ImprintReading,
        InvertingGradients,
        PriorMatching,
        ReconstructorNetwork,
        TensorFeatures,
    )
    from vestige.audit import Audit, run
    from vestige.best_of_restarts import BestOfRestarts
    from vestige.comparison import Comparison
    from vestige.comparison_plan import ComparedServer, ComparisonPlan
    from vestige.comparisons import compare
    from vestige.convex import ConvexFit
    from vestige.datasets import load
    from vestige.errors import BadInput, VestigeError
    from vestige.exclusivity import Stage
    from vestige.fitted_classifiers import missing_record
    from vestige.head_studies import study_heads
    from vestige.head_study import HeadStudy
    from vestige.heads import HeadedModel, HeadTraining
    from vestige.imprint import BareImprint, Bins, ImprintedModel
    from vestige.inversion import invert
    from vestige.measured_heads import measure_heads
    from vestige.noise_studies import study_noise
    from vestige.noise_study import NoiseStudy
    from vestige.observations import (
        GradientRelease,
        GradientSequenceRelease,
        Hints,
        ModelRelease,
        Observation,
        Public,
        Reconstruction,
        UpdateRelease,
    )
    from vestige.pages import save_page
    from vestige.private_steps import ClippedNoise
    from vestige.record import Record
    from vestige.records import Column, ImageSpace, Prior, Records, TableSpace
    from vestige.report import render
    from vestige.simulation import LocalTraining, Normalization
    from vestige.threats import HonestServer, InformedAdversary, MaliciousServer, WeakAdversary
    from vestige.training_sets import ClassCounts, OneAgainstRest
    from vestige.utilities import measure_utility
    from vestige.utility_training import UtilityTraining
    from vestige.victims import (
        FederatedUpdate,
        PrivateTraining,
        ReleasedConvexModel,
        ReleasedHead,
        ReleasedNetwork,
        SharedGradient,
        trained,
    )
