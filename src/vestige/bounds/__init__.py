"""Bounds: what theory allows an attacker, given a mechanism and a prior success.

``mechanisms`` describes what was done to a release; every other file is one theorem, or one
question that theorems answer: ``allowance``, ``prior_success``, ``calibration``, ``protection``;
``statement`` is all of it about one mechanism that a ``description`` names.
``prior_success`` alone needs torch and is imported by its own name.
"""

from vestige.bounds.accounting import (
    epsilon_by_privacy_loss,
    epsilon_by_renyi,
    from_dp_event,
    from_opacus_history,
    to_approximate_dp,
    to_dp_event,
)
from vestige.bounds.allowance import BOUNDS, Allowance, BoundCurve, tightest
from vestige.bounds.approximate_dp import ApproximateDPBound
from vestige.bounds.bound import Bound, ReconstructionBound
from vestige.bounds.calibration import Calibration, calibrate
from vestige.bounds.defended_errors import (
    ErrorBounds,
    ReleaseDefense,
    ReleaseSlopes,
    SquaredError,
    bound_errors,
    defended_jacobian,
)
from vestige.bounds.description import Description, in_words
from vestige.bounds.f_dp import FDPBound
from vestige.bounds.finite_candidates import FiniteCandidatesBound
from vestige.bounds.fisher_information import (
    RenyiErrorBound,
    batch_jacobian,
    clipped_jacobian,
    cramer_rao,
    cramer_rao_from_norm,
    pruned_jacobian,
    van_trees,
    with_known_dropout,
)
from vestige.bounds.gaussian import GaussianBound
from vestige.bounds.laplace import LaplaceBound
from vestige.bounds.mechanisms import (
    DPSGD,
    ApproximateDP,
    Composition,
    Gaussian,
    Laplace,
    LocalAggregation,
    Mechanism,
    Neighbouring,
    NonPrivate,
    PrivacyProfile,
    PureDP,
    RenyiDP,
    TradeOff,
    ZeroConcentratedDP,
    mechanism_from_json,
    mechanism_to_json,
)
from vestige.bounds.monte_carlo import MonteCarloBound, monte_carlo_estimate
from vestige.bounds.no_prior import NoPriorReconstruction
from vestige.bounds.noise_ratio import (
    epsilon_of_ratio,
    mechanism_of_ratio,
    ratio_for_epsilon,
    ratio_of,
)
from vestige.bounds.poisson_gaussian import PoissonGaussianBound
from vestige.bounds.prior_densities import (
    CorrelatedGaussianDensity,
    CosineDensity,
    GaussianDensity,
    PriorDensity,
    prior_deviation,
)
from vestige.bounds.privacy_loss import PrivacyLossBound
from vestige.bounds.privacy_profile import PrivacyProfileBound
from vestige.bounds.protection import Protection, protection_of
from vestige.bounds.pure_dp import PureDPBound
from vestige.bounds.renyi_dp import RenyiDPBound, to_renyi_dp
from vestige.bounds.statement import Statement, Strengths, state, strengths_of, whole_curve
from vestige.bounds.two_layer import TwoLayerNetwork
from vestige.bounds.zero_concentrated_dp import ZeroConcentratedDPBound

__all__ = [
    "BOUNDS",
    "DPSGD",
    "Allowance",
    "ApproximateDP",
    "ApproximateDPBound",
    "Bound",
    "BoundCurve",
    "Calibration",
    "Composition",
    "CorrelatedGaussianDensity",
    "CosineDensity",
    "Description",
    "ErrorBounds",
    "FDPBound",
    "FiniteCandidatesBound",
    "Gaussian",
    "GaussianBound",
    "GaussianDensity",
    "Laplace",
    "LaplaceBound",
    "LocalAggregation",
    "Mechanism",
    "MonteCarloBound",
    "Neighbouring",
    "NoPriorReconstruction",
    "NonPrivate",
    "PoissonGaussianBound",
    "PriorDensity",
    "PrivacyLossBound",
    "PrivacyProfile",
    "PrivacyProfileBound",
    "Protection",
    "PureDP",
    "PureDPBound",
    "ReconstructionBound",
    "ReleaseDefense",
    "ReleaseSlopes",
    "RenyiDP",
    "RenyiDPBound",
    "RenyiErrorBound",
    "SquaredError",
    "Statement",
    "Strengths",
    "TradeOff",
    "TwoLayerNetwork",
    "ZeroConcentratedDP",
    "ZeroConcentratedDPBound",
    "batch_jacobian",
    "bound_errors",
    "calibrate",
    "clipped_jacobian",
    "cramer_rao",
    "cramer_rao_from_norm",
    "defended_jacobian",
    "epsilon_by_privacy_loss",
    "epsilon_by_renyi",
    "epsilon_of_ratio",
    "from_dp_event",
    "from_opacus_history",
    "in_words",
    "mechanism_from_json",
    "mechanism_of_ratio",
    "mechanism_to_json",
    "monte_carlo_estimate",
    "prior_deviation",
    "protection_of",
    "pruned_jacobian",
    "ratio_for_epsilon",
    "ratio_of",
    "state",
    "strengths_of",
    "tightest",
    "to_approximate_dp",
    "to_dp_event",
    "to_renyi_dp",
    "van_trees",
    "whole_curve",
    "with_known_dropout",
]
