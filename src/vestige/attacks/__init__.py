"""Attacks: one file is one published method; each is one line here."""

from vestige.attacks.closed_form import ClosedForm
from vestige.attacks.combined_inversion import CombinedInversion
from vestige.attacks.deep_leakage import DeepLeakage
from vestige.attacks.exact_inversion import ExactInversion
from vestige.attacks.feature_inversion import FeatureInversion
from vestige.attacks.guess import Guess
from vestige.attacks.head_inversion import HeadInversion
from vestige.attacks.head_reconstructor import HeadReconstructor
from vestige.attacks.imprint_reading import ImprintReading
from vestige.attacks.inverting_gradients import InvertingGradients
from vestige.attacks.prior_matching import PriorMatching
from vestige.attacks.reconstructor_network import ReconstructorNetwork
from vestige.attacks.tensor_features import TensorFeatures

__all__ = [
    "ClosedForm",
    "CombinedInversion",
    "DeepLeakage",
    "ExactInversion",
    "FeatureInversion",
    "Guess",
    "HeadInversion",
    "HeadReconstructor",
    "ImprintReading",
    "InvertingGradients",
    "PriorMatching",
    "ReconstructorNetwork",
    "TensorFeatures",
]
