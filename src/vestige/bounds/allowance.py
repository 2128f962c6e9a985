"""All bounds that say something about a mechanism, and the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vestige.bounds.bound import Array, ReconstructionBound, check_prior_success
from vestige.bounds.success.approximate_dp import ApproximateDPBound
from vestige.bounds.success.f_dp import FDPBound
from vestige.bounds.success.gaussian import GaussianBound
from vestige.bounds.success.laplace import LaplaceBound
from vestige.bounds.success.poisson_gaussian import PoissonGaussianBound
from vestige.bounds.success.privacy_loss import PrivacyLossBound
from vestige.bounds.success.privacy_profile import PrivacyProfileBound
from vestige.bounds.success.pure_dp import PureDPBound
from vestige.bounds.success.renyi_dp import RenyiDPBound
from vestige.bounds.success.zero_concentrated_dp import ZeroConcentratedDPBound

if TYPE_CHECKING:
    from vestige.mechanisms import Mechanism

BOUNDS: tuple[ReconstructionBound, ...] = (
    GaussianBound(),
    PoissonGaussianBound(),
    LaplaceBound(),
    PrivacyLossBound(),
    FDPBound(),
    PrivacyProfileBound(),
    PureDPBound(),
    ApproximateDPBound(),
    RenyiDPBound(),
    ZeroConcentratedDPBound(),
)
"""Bounds that hold with certainty and need nothing but a mechanism."""


@dataclass(frozen=True)
class BoundCurve:
    """One bound's γ for each κ that was asked for."""

    bound: ReconstructionBound
    success: tuple[float, ...]


@dataclass(frozen=True)
class Allowance:
    """What theory allows an attacker: the smallest bound at each κ, and all that apply."""

    prior_success: tuple[float, ...]
    success: tuple[float, ...]
    names: tuple[str, ...]
    """Which bound is the smallest, for each κ; ``"nothing"`` where none applies."""
    curves: tuple[BoundCurve, ...]


def tightest(
    mechanism: Mechanism,
    prior_success: float | Sequence[float] | Array,
    *,
    bounds: Sequence[ReconstructionBound] = BOUNDS,
) -> Allowance:
    """Every bound that supports a mechanism, and the smallest of them at each κ.

    Where none does, nothing is promised: success 1. Bounds with settings of their own, such as
    ``FiniteCandidatesBound``, are passed by the caller beside ``BOUNDS``.
    """
    kappas = np.atleast_1d(np.asarray(prior_success, dtype=np.float64))
    check_prior_success(kappas)  # even where no bound applies
    curves = tuple(
        BoundCurve(bound, tuple(map(float, bound.curve(mechanism, kappas))))
        for bound in bounds
        if bound.supports(mechanism)
    )
    smallest, names = [], []
    for place in range(len(kappas)):
        best = min(curves, key=lambda curve: curve.success[place], default=None)
        smallest.append(1.0 if best is None else best.success[place])
        names.append("nothing" if best is None else best.bound.name)
    return Allowance(tuple(map(float, kappas)), tuple(smallest), tuple(names), curves)
