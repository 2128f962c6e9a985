"""Attacks: each file or package is one published method; ``recommended`` chooses among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

__all__: list[str]

if TYPE_CHECKING:
    from vestige.attacks.best_of_restarts import BestOfRestarts as BestOfRestarts
    from vestige.attacks.closed_form import ClosedForm as ClosedForm
    from vestige.attacks.combined_inversion.attack import CombinedInversion as CombinedInversion
    from vestige.attacks.deep_leakage import DeepLeakage as DeepLeakage
    from vestige.attacks.embedding_reading import EmbeddingReading as EmbeddingReading
    from vestige.attacks.exact_inversion.attack import ExactInversion as ExactInversion
    from vestige.attacks.feature_inversion.attack import FeatureInversion as FeatureInversion
    from vestige.attacks.guess import Guess as Guess
    from vestige.attacks.head_inversion.attack import HeadInversion as HeadInversion
    from vestige.attacks.head_reconstructor.attack import HeadReconstructor as HeadReconstructor
    from vestige.attacks.imprint_reading import ImprintReading as ImprintReading
    from vestige.attacks.inverting_gradients import InvertingGradients as InvertingGradients
    from vestige.attacks.prior_inversion import PriorInversion as PriorInversion
    from vestige.attacks.prior_matching import PriorMatching as PriorMatching
    from vestige.attacks.recommendation.recommendation import Recommendation as Recommendation
    from vestige.attacks.recommendation.recommended import recommended as recommended
    from vestige.attacks.reconstructor_network import ReconstructorNetwork as ReconstructorNetwork
    from vestige.attacks.rehearsed_confidence import RehearsedConfidence as RehearsedConfidence
    from vestige.attacks.span_inversion.attack import SpanInversion as SpanInversion
    from vestige.attacks.tensor_features.attack import TensorFeatures as TensorFeatures
    from vestige.attacks.text_search.attack import TextSearch as TextSearch
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
