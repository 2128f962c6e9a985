"""What a mechanism allows an audit to measure: a bound on the rate of hits."""

from __future__ import annotations

import math

from vestige.bounds.accounting import epsilon_at, epsilon_by_renyi
from vestige.bounds.allowance import tightest
from vestige.bounds.description import USUAL_DELTA, in_words
from vestige.bounds.shown import gaussian_epsilon
from vestige.bounds.success.gaussian import GaussianBound
from vestige.mechanisms import (
    ApproximateDP,
    Mechanism,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    noise_parts,
)
from vestige.reports import numbers
from vestige.reports.audit import HitBound, HitBounds
from vestige.statistics.rates import allowed_rank

LARGE_EPSILON = 100.0
"""An ε beyond which Rényi divergences are exact enough, and a loss distribution is slow."""


def bounds_on_hits(mechanism: Mechanism, false_positive_rate: float, decoys: int) -> HitBounds:
    """Every bound on the probability of a hit, and the smallest.

    A hit is a rank of at most a = ⌊α(m + 1)⌋ among the secret and m decoys of its pool and label.
    Against a release that does not depend on the audited record the secret and its decoys are
    exchangeable, whatever the attack knows of the rest of the batch, so each is as likely as any
    other to take one of the first a places, and ties count as misses: the prior success of a hit is
    at most κ = a / (m + 1), which is α where the decoys are as many as α needs. This κ is not
    estimated and needs no threshold on a distance. So γ(κ) bounds the true rate, and a lower
    confidence limit above γ(κ) says that the release is not what it is said to be.
    """
    places = allowed_rank(false_positive_rate, decoys)
    kappa, delta = places / (decoys + 1), _stated_delta(mechanism)
    allowance = tightest(mechanism, kappa)
    return HitBounds(
        mechanism=in_words(mechanism),
        prior_success=kappa,
        origin=f"without the release a secret takes one of the first {places:,} of {decoys + 1:,} "
        f"places with probability {numbers.chance(kappa)}"
        if places > 1
        else f"without the release a secret comes first of {decoys + 1:,} with probability "
        f"{numbers.chance(kappa)}",
        bounds=tuple(
            HitBound(
                name=curve.bound.name,
                success=curve.success[0],
                assumptions=curve.bound.assumptions,
                cites=curve.bound.cites,
            )
            for curve in allowance.curves
        ),
        success=allowance.success[0],
        tightest=allowance.names[0] if allowance.curves else None,
        epsilon=_stated_epsilon(mechanism, delta),
        delta=delta,
        gaussian=_gaussian_mu(mechanism) is not None,
    )


def _stated_delta(mechanism: Mechanism) -> float:
    """The δ that a mechanism names, or the usual one."""
    named = mechanism.delta if isinstance(mechanism, ApproximateDP) else 0.0
    return named or USUAL_DELTA


def _gaussian_mu(mechanism: Mechanism) -> float | None:
    """μ of a mechanism all of whose noise is Gaussian, without sampling."""
    bound = GaussianBound()
    return bound.mu(mechanism) if bound.covers(mechanism) else None


def _stated_epsilon(mechanism: Mechanism, delta: float) -> float | None:
    """ε of a mechanism at δ, where it has a finite one."""
    if isinstance(mechanism, PureDP | ApproximateDP):
        return mechanism.epsilon
    mu = _gaussian_mu(mechanism)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    if noise_parts(mechanism) or isinstance(mechanism, ZeroConcentratedDP | RenyiDP):
        epsilon = epsilon_by_renyi(mechanism, delta)
        if epsilon <= LARGE_EPSILON:
            epsilon = epsilon_at(mechanism, delta)
        return epsilon if math.isfinite(epsilon) else None
    return None
