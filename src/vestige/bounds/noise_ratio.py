"""μ, signal over noise of one step of DP-SGD, to ε and back, for given steps and sampling rate.

Schwethelm et al., "Visual Privacy Auditing with Diffusion Models" (2025), section 4.1 and appendix
C. μ is the clipping norm over the standard deviation of the noise, μ = C/(σC) = 1/σ: it says how
far one record's gradient stands out of one step, whatever C is, and does not say how often a record
is looked at; ε does. The paper writes μ = C/σ with σ the noise multiplier, which is the same number
at C = 1, as in its experiments, and at no other C: noise multipliers that are quoted for
another C are turned into μ by 1/σ and not by C/σ (:func:`ratio_of`).

The paper converts by published accountants; here by the privacy loss distribution, in both
directions on the side of the attacker: ε is never too small, and a μ that was asked to keep an ε is
never too large.
"""

from __future__ import annotations

import math
from typing import cast

from scipy.optimize import brentq

from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.mechanisms import DPSGD, Neighbouring, require

SMALLEST_RATIO = 1e-6
LARGEST_RATIO = 1e3
"""Signal of a thousand deviations in one step: whatever sampling does not hide is seen."""

STRIDE = math.log(3)
"""Factor by which brackets around the answer grow."""

DIGITS = 4
"""Significant digits of a ratio, rounded down."""


def ratio_of(clipping_norm: float, noise_deviation: float) -> float:
    """μ of gradients clipped to C whose *sum* carries noise of this standard deviation, σC."""
    require(
        0 < clipping_norm < math.inf and 0 < noise_deviation < math.inf,
        "A clipping norm and a noise deviation are positive and finite.",
    )
    return clipping_norm / noise_deviation


def epsilon_of_ratio(
    ratio: float,
    *,
    sampling_rate: float,
    steps: int,
    delta: float = 1e-5,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> float:
    """ε at δ of DP-SGD with this μ, never too small; ∞ where there is none."""
    mechanism = mechanism_of_ratio(
        ratio, sampling_rate=sampling_rate, steps=steps, relation=relation
    )
    return epsilon_by_privacy_loss(mechanism, delta)


def ratio_for_epsilon(
    epsilon: float,
    *,
    sampling_rate: float,
    steps: int,
    delta: float = 1e-5,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> float:
    """The largest μ, rounded down to four digits, whose ε at δ is at most this.

    ε grows with μ, so a root on a logarithmic scale is found, and what is returned is checked.
    Where sampling alone keeps ε, μ is the largest that is considered, ``LARGEST_RATIO``.
    """
    require(0 < epsilon < math.inf, f"ε is positive and finite, not {epsilon!r}.")

    def excess(log_ratio: float) -> float:
        reached = epsilon_of_ratio(
            min(max(math.exp(log_ratio), SMALLEST_RATIO), LARGEST_RATIO),
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
            relation=relation,
        )
        return math.log(max(min(reached, 1e300), 1e-300) / epsilon)

    # From μ = 1 outwards: far above the answer accountants are slow.
    low = high = 0.0
    while excess(high) <= 0:
        if high == math.log(LARGEST_RATIO):
            return LARGEST_RATIO
        low, high = high, min(high + STRIDE, math.log(LARGEST_RATIO))
    while low == high or (low > math.log(SMALLEST_RATIO) and excess(low) > 0):
        low = max(low - STRIDE, math.log(SMALLEST_RATIO))
    require(
        excess(low) <= 0,
        f"No μ from {SMALLEST_RATIO:g} on keeps ε = {epsilon:g} at δ = {delta:g}: allow a larger ε "
        "or take fewer steps.",
    )
    ratio = _round_down(math.exp(cast(float, brentq(excess, low, high, xtol=1e-6))))
    while excess(math.log(ratio)) > 0:
        ratio = _round_down(ratio * (1 - 10.0 ** (1 - DIGITS) / 5))
    return ratio


def mechanism_of_ratio(
    ratio: float,
    *,
    sampling_rate: float,
    steps: int,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> DPSGD:
    """DP-SGD whose noise multiplier is 1/μ."""
    require(
        SMALLEST_RATIO <= ratio <= LARGEST_RATIO,
        f"μ lies from {SMALLEST_RATIO:g} to {LARGEST_RATIO:g}, not at {ratio!r}.",
    )
    return DPSGD(1 / ratio, sampling_rate, steps, None, relation)


def _round_down(ratio: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(ratio)) + 1 - DIGITS)
    return round(math.floor(ratio / unit + 1e-9) * unit, 12)
