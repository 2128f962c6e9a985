"""The least noise under which reconstruction stays below a target, and what that costs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from scipy.optimize import brentq

from vestige.bounds.accounting import epsilon_by_privacy_loss
from vestige.bounds.success.privacy_loss import PrivacyLossBound
from vestige.errors import BadInput
from vestige.mechanisms import DPSGD, Neighbouring, mechanism_to_json, require

SMALLEST_NOISE = 0.1
"""Below this DP-SGD hides nothing that sampling does not hide already."""

LARGEST_NOISE = 1e6

ACCURACY_OF_GAP = 1e-3
"""Error of the bound relative to the gap between target and prior: the noise is that much more."""

DIGITS = 4
"""Significant digits of a noise multiplier, rounded up."""


@dataclass(frozen=True)
class Calibration:
    """The noise that was found, the success it allows, and its cost."""

    mechanism: DPSGD
    prior_success: float
    target: float
    success: float
    """What the bound allows at this noise: at most the target."""
    epsilon: float
    delta: float
    noise_on_mean: float | None
    """Standard deviation of the noise on the mean gradient in units of the clipping norm, for
    each step: σ over the expected batch size. None if the size of the dataset is not given."""

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.mechanism.noise_multiplier

    def to_json(self) -> str:
        """Everything that was asked and found, as a JSON document."""
        return json.dumps(
            {
                "noise_multiplier": self.noise_multiplier,
                "prior_success": self.prior_success,
                "target": self.target,
                "success": self.success,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "noise_on_mean": self.noise_on_mean,
                "mechanism": json.loads(mechanism_to_json(self.mechanism)),
            },
            indent=2,
            ensure_ascii=False,
        )


def calibrate(
    target: float,
    prior_success: float,
    *,
    sampling_rate: float,
    steps: int,
    delta: float = 1e-5,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    dataset_size: int | None = None,
) -> Calibration:
    """Smallest noise multiplier of DP-SGD under which no attack exceeds ``target``.

    The bound errs on the side of the attacker, the result is rounded up to four digits, and the
    rounded value is what is checked: the target holds for the multiplier that is returned.
    """
    require(0 < prior_success < 1, "A prior success lies between 0 and 1.")
    require(0 < delta < 1, "δ lies between 0 and 1.")
    require(dataset_size is None or dataset_size >= 1, "A dataset has at least one record.")
    if not prior_success < target < 1:
        raise BadInput(
            f"A target of {target:g} at a prior success of {prior_success:g} is out of reach: it "
            "must lie above the prior success and below 1."
        )
    DPSGD(1.0, sampling_rate, steps, None, relation)  # refuses what is no training
    accuracy = max(ACCURACY_OF_GAP * (target - prior_success), 5e-7)
    bound, rough = PrivacyLossBound(accuracy), PrivacyLossBound(min(20 * accuracy, 0.01))

    def described(noise: float) -> DPSGD:
        return DPSGD(noise, sampling_rate, steps, None, relation)

    def excess(log_noise: float, bound: PrivacyLossBound) -> float:
        return math.log(bound(described(math.exp(log_noise)), prior_success) / target)

    # Without any noise the record still hides in the steps that do not sample it.
    unseen = (1 - sampling_rate) ** steps
    if target >= 1 - unseen + min(unseen, prior_success):
        smallest = math.log(SMALLEST_NOISE)
    else:
        # The rough bound is larger, so its answer suffices and the sharp one is close below.
        start = _root(lambda log_noise: excess(log_noise, rough), 0.0, math.log(2))
        smallest = _root(lambda log_noise: excess(log_noise, bound), start, 0.02)
    noise = _round_up(math.exp(smallest))
    while (success := bound(described(noise), prior_success)) > target:
        noise = _round_up(noise * (1 + 10.0 ** (1 - DIGITS) / 5))
    mechanism = described(noise)
    epsilon = epsilon_by_privacy_loss(mechanism, delta)
    require(
        math.isfinite(epsilon),
        f"No finite ε can be reported at δ = {delta:g}: give a larger δ, for example 1e-5.",
    )
    batch = None if dataset_size is None else sampling_rate * dataset_size
    return Calibration(
        mechanism=mechanism,
        prior_success=prior_success,
        target=target,
        success=success,
        epsilon=epsilon,
        delta=delta,
        noise_on_mean=None if batch is None else noise / batch,
    )


def _root(excess: Callable[[float], float], start: float, stride: float) -> float:
    """Where the excess over the target changes sign, looked for from a start in growing strides.

    The smallest noise there is, if that suffices.
    """
    floor, ceiling = math.log(SMALLEST_NOISE), math.log(LARGEST_NOISE)
    upwards = excess(start) > 0
    here, there = start, start
    while True:
        there = min(here + stride, ceiling) if upwards else max(here - stride, floor)
        if (excess(there) > 0) != upwards:
            low, high = min(here, there), max(here, there)
            return cast(float, brentq(excess, low, high, xtol=2e-4))
        if there == floor:
            return floor
        if there == ceiling:
            raise BadInput(
                "No noise multiplier below a million suffices: allow a higher target, or fewer "
                "steps."
            )
        here, stride = there, 2 * stride


def _round_up(noise: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - DIGITS)
    return round(math.ceil(noise / unit - 1e-9) * unit, 12)
