"""Bounds: what theory allows an attacker, given a mechanism and a prior success.

``mechanisms`` describes what was done to a release; every other file is one theorem, or one
question that theorems answer: ``allowance``, ``calibration``, ``protection``;
``statement`` is all of it about one mechanism that a ``description`` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vestige.lazy import lazy_names

if TYPE_CHECKING:
    from vestige.bounds.accounting import epsilon_by_privacy_loss as epsilon_by_privacy_loss
    from vestige.bounds.accounting import epsilon_by_renyi as epsilon_by_renyi
    from vestige.bounds.accounting import from_dp_event as from_dp_event
    from vestige.bounds.accounting import from_opacus_history as from_opacus_history
    from vestige.bounds.accounting import to_approximate_dp as to_approximate_dp
    from vestige.bounds.accounting import to_dp_event as to_dp_event
    from vestige.bounds.allowance import BOUNDS as BOUNDS
    from vestige.bounds.allowance import Allowance as Allowance
    from vestige.bounds.allowance import BoundCurve as BoundCurve
    from vestige.bounds.allowance import tightest as tightest
    from vestige.bounds.bound import ReconstructionBound as ReconstructionBound
    from vestige.bounds.calibration import Calibration as Calibration
    from vestige.bounds.calibration import calibrate as calibrate
    from vestige.bounds.description import Description as Description
    from vestige.bounds.description import in_words as in_words
    from vestige.bounds.errors.defended import ErrorBounds as ErrorBounds
    from vestige.bounds.errors.defended import ReleaseSlopes as ReleaseSlopes
    from vestige.bounds.errors.defended import SquaredError as SquaredError
    from vestige.bounds.errors.defended import bound_errors as bound_errors
    from vestige.bounds.errors.defended import defended_jacobian as defended_jacobian
    from vestige.bounds.errors.fisher_information import RenyiErrorBound as RenyiErrorBound
    from vestige.bounds.errors.fisher_information import batch_jacobian as batch_jacobian
    from vestige.bounds.errors.fisher_information import clipped_jacobian as clipped_jacobian
    from vestige.bounds.errors.fisher_information import cramer_rao as cramer_rao
    from vestige.bounds.errors.fisher_information import (
        cramer_rao_from_norm as cramer_rao_from_norm,
    )
    from vestige.bounds.errors.fisher_information import pruned_jacobian as pruned_jacobian
    from vestige.bounds.errors.fisher_information import van_trees as van_trees
    from vestige.bounds.errors.fisher_information import with_known_dropout as with_known_dropout
    from vestige.bounds.errors.no_prior import NoPriorReconstruction as NoPriorReconstruction
    from vestige.bounds.errors.prior_densities import (
        CorrelatedGaussianDensity as CorrelatedGaussianDensity,
    )
    from vestige.bounds.errors.prior_densities import CosineDensity as CosineDensity
    from vestige.bounds.errors.prior_densities import GaussianDensity as GaussianDensity
    from vestige.bounds.errors.prior_densities import PriorDensity as PriorDensity
    from vestige.bounds.errors.prior_densities import prior_deviation as prior_deviation
    from vestige.bounds.errors.release_defense import ReleaseDefense as ReleaseDefense
    from vestige.bounds.noise_ratio import epsilon_of_ratio as epsilon_of_ratio
    from vestige.bounds.noise_ratio import mechanism_of_ratio as mechanism_of_ratio
    from vestige.bounds.noise_ratio import ratio_for_epsilon as ratio_for_epsilon
    from vestige.bounds.noise_ratio import ratio_of as ratio_of
    from vestige.bounds.protection import Protection as Protection
    from vestige.bounds.protection import protection_of as protection_of
    from vestige.bounds.statement import Statement as Statement
    from vestige.bounds.statement import Strengths as Strengths
    from vestige.bounds.statement import state as state
    from vestige.bounds.statement import strengths_of as strengths_of
    from vestige.bounds.statement import whole_curve as whole_curve
    from vestige.bounds.success.approximate_dp import ApproximateDPBound as ApproximateDPBound
    from vestige.bounds.success.f_dp import FDPBound as FDPBound
    from vestige.bounds.success.finite_candidates import (
        FiniteCandidatesBound as FiniteCandidatesBound,
    )
    from vestige.bounds.success.gaussian import GaussianBound as GaussianBound
    from vestige.bounds.success.laplace import LaplaceBound as LaplaceBound
    from vestige.bounds.success.poisson_gaussian import PoissonGaussianBound as PoissonGaussianBound
    from vestige.bounds.success.privacy_loss import PrivacyLossBound as PrivacyLossBound
    from vestige.bounds.success.privacy_profile import PrivacyProfileBound as PrivacyProfileBound
    from vestige.bounds.success.pure_dp import PureDPBound as PureDPBound
    from vestige.bounds.success.renyi_dp import RenyiDPBound as RenyiDPBound
    from vestige.bounds.success.renyi_dp import to_renyi_dp as to_renyi_dp
    from vestige.bounds.success.zero_concentrated_dp import (
        ZeroConcentratedDPBound as ZeroConcentratedDPBound,
    )
    from vestige.mechanisms import DPSGD as DPSGD
    from vestige.mechanisms import ApproximateDP as ApproximateDP
    from vestige.mechanisms import Composition as Composition
    from vestige.mechanisms import Gaussian as Gaussian
    from vestige.mechanisms import Laplace as Laplace
    from vestige.mechanisms import LocalAggregation as LocalAggregation
    from vestige.mechanisms import Mechanism as Mechanism
    from vestige.mechanisms import Neighbouring as Neighbouring
    from vestige.mechanisms import NonPrivate as NonPrivate
    from vestige.mechanisms import PrivacyProfile as PrivacyProfile
    from vestige.mechanisms import PureDP as PureDP
    from vestige.mechanisms import RenyiDP as RenyiDP
    from vestige.mechanisms import TradeOff as TradeOff
    from vestige.mechanisms import ZeroConcentratedDP as ZeroConcentratedDP
    from vestige.mechanisms import mechanism_from_json as mechanism_from_json
    from vestige.mechanisms import mechanism_to_json as mechanism_to_json
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
