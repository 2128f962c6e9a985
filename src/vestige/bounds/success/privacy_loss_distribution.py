"""Composed privacy loss, discretised so that it errs on the side of the attacker only.

Each interval between two grid losses is replaced by its two ends with the same probability under
both distributions (Doroshenko et al. 2022, "Connect the Dots", Algorithm 1, in terms of interval
probabilities instead of second differences of δ(ε), which lose all digits on fine grids). The
likelihood ratio only spreads out, so every test gets better. Steps are composed by FFT.

Where we go beyond the published accountants:

- The FFT knows probabilities to about 1e-16 in absolute terms, which says nothing at κ = 1e-12.
  The distribution is tilted by e^(θ·loss) before the FFT, so that the losses which matter for κ
  are the probable ones, and tilted back afterwards. Every tilt gives a valid bound; the smallest
  counts.
- What leaves the window at the top (Chernoff) becomes an infinite loss, and what leaves it at the
  bottom wraps around to higher losses, which favours the attacker as well.
- The rounding error of the FFT is bounded and added to the attacker's power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy.fft import next_fast_len

from vestige.bounds.bound import ROUNDING, Array
from vestige.bounds.success.dominating_pairs import Pair, Swapped, pair_of
from vestige.errors import BadInput

if TYPE_CHECKING:
    from vestige.mechanisms import DPSGD, Gaussian, Laplace

ACCURACY = 1e-5
"""Aim for the error of γ that discretisation may cause."""

MOST_BINS = 2**20
"""Grids are coarsened, on the side of the attacker, rather than made longer than this."""

MOST_WINDOW = 2**21
"""Likewise for the window of the total loss."""

LOG_TAIL = 48.0
"""Windows leave out e^−48 = 1e-21 of the tilted probability at each end."""

FURTHEST_LOG_PRIOR = -46.0
"""Below κ = 1e-20 the left-out tails are what γ consists of, so no tilt goes further."""

LOG_RANGE = 600.0
"""Largest and smallest of the weights that undo a tilt are at most e^600 apart."""

ROUGH_BINS = 4096
"""Bins of the rough copies on which windows and tilts are looked for."""

WINDOW_ORDERS = 10
"""Chernoff orders tried for each end of a window."""

MOST_SPANS = 3.0
"""Tilts are weakened until their window is at most this many times that of no tilt."""

TILT_SPACING = 12.0
"""One tilt serves priors within a factor of about e^±6."""

TRANSFORM_ERROR = 8 * np.finfo(np.float64).eps
"""Error of a transform of length N, relative to its size and to log2 N, generously."""


@dataclass(frozen=True)
class StepLosses:
    """The discretised loss of one step under the upper distribution, repeated ``count`` times."""

    first: int
    masses: Array
    infinite: float
    count: int

    @cached_property
    def log_masses(self) -> Array:
        """The logarithm of the masses, −∞ for empty bins."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)


@dataclass(frozen=True)
class PowerCurve:
    """Points of the attacker's best tests, from the strictest on, in units of e^scales.

    ``levels`` are probabilities under the reference, ``powers`` under the true release.
    """

    losses: Array
    levels: Array
    powers: Array
    log_level_unit: float
    log_power_unit: float

    def log_success(self, log_prior: Array) -> Array:
        """The logarithm of the largest power of a test with this level; 0 beyond the last level."""
        with np.errstate(over="ignore"):
            scaled = np.exp(log_prior - self.log_level_unit)
        powers = np.interp(scaled, self.levels, self.powers, right=np.inf)
        with np.errstate(divide="ignore"):
            return np.log(powers) + self.log_power_unit


@dataclass(frozen=True)
class PrivacyLossDistribution:
    """Steps on a common grid, ready to be composed."""

    steps: tuple[StepLosses, ...]
    interval: float

    @property
    def hopeless(self) -> bool:
        """Whether the loss of some step is as good as always infinite."""
        return any(step.infinite > 1 - ROUNDING for step in self.steps)

    def log_success(self, log_prior: Array) -> Array:
        """The logarithm of γ for every ln κ: one FFT for each tilt that the priors ask for."""
        best = np.zeros_like(log_prior)
        if self.hopeless:
            return best
        for tilt in self._tilts(log_prior):
            best = np.minimum(best, self.power_curve(tilt).log_success(log_prior))
        return np.minimum(best + ROUNDING, 0.0)

    def delta(self, epsilons: Sequence[float] | Array) -> Array:
        """δ(ε) for every ε, never too small."""
        if self.hopeless:
            return np.ones(len(epsilons))
        curve = self.power_curve(0.0)
        wanted = np.asarray(epsilons, dtype=np.float64)
        # Losses fall from the front, where the first point holds the infinite loss alone.
        place = np.searchsorted(-curve.losses[1:], -wanted, side="left")
        powers, levels = np.exp(curve.log_power_unit) * curve.powers[place], curve.levels[place]
        with np.errstate(over="ignore", invalid="ignore"):
            taken = np.where(levels > 0, levels * np.exp(wanted + curve.log_level_unit), 0.0)
        return np.minimum(np.maximum(powers - taken, 0.0) + ROUNDING * powers, 1.0)

    def epsilon(self, delta: float) -> float:
        """Smallest ε ≥ 0 whose δ(ε) is at most this, never too small; ∞ if there is none."""
        if not 0 < delta < 1:
            raise BadInput(f"δ lies between 0 and 1, not at {delta!r}.")
        if any(step.infinite > delta for step in self.steps):
            return math.inf
        curve = self.power_curve(0.0)
        powers = np.exp(curve.log_power_unit) * curve.powers * (1 + ROUNDING)
        if powers[0] > delta:
            return math.inf
        # While the points up to place j count, δ(ε) = power_j − e^ε · level_j falls to ``delta``
        # at this ε; δ(ε) is the largest of these lines, so the answer is the largest of these ε.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossings = np.log((powers - delta) / curve.levels) - curve.log_level_unit
        # A line counts up to the loss of its last point only, whatever has underflowed.
        crossings = np.fmin(crossings, curve.losses)[powers > delta]
        return max(float(crossings.max(initial=0.0)), 0.0)

    def power_curve(self, tilt: float) -> PowerCurve:
        """Compose all steps under one tilt and read off the best tests."""
        low, high, log_total = self._window(tilt)
        start = math.floor(low / self.interval)
        bins = math.ceil(high / self.interval) - start + 1
        length = cast(int, next_fast_len(bins, real=True))
        tilted, error = self._composed(tilt, start, length)
        losses = _grid(start, length, self.interval)
        # From the strictest test on: the largest loss first, and no further than powers have room
        # in a float; a level that underflows makes tests look stricter, a power must not.
        room = length if tilt == 0 else math.ceil(LOG_RANGE / (tilt * self.interval))
        losses, tilted = losses[::-1][:room], np.maximum(tilted[::-1][:room], 0.0)
        untilt = log_total - tilt * losses
        power_unit, level_unit = float(untilt.max()), float((untilt - losses).max())
        weight = np.exp(untilt - power_unit)
        with np.errstate(over="ignore"):
            missed = self._infinite(log_total - tilt * high) * np.exp(-power_unit)
        powers = missed + np.cumsum((tilted + error) * weight)
        levels = np.cumsum(tilted * np.exp(untilt - losses - level_unit))
        return PowerCurve(
            np.append(np.inf, losses),
            np.append(0.0, levels),
            np.append(missed, powers),
            level_unit,
            power_unit,
        )

    def _infinite(self, log_above: float) -> float:
        """Probability of an infinite loss in any step, or of one above the window."""
        log_finite = sum(step.count * math.log1p(-step.infinite) for step in self.steps)
        return -math.expm1(log_finite) + math.exp(min(log_above - LOG_TAIL, 0.0))

    def _composed(self, tilt: float, start: int, length: int) -> tuple[Array, float]:
        """The tilted distribution of the total loss on a window, and its largest rounding error."""
        logarithm = np.zeros(length // 2 + 1, dtype=np.complex128)
        total, offset = 0, 0
        vanished = np.zeros(length // 2 + 1, dtype=bool)
        for step in self.steps:
            masses = self._tilted(step, tilt)
            folded = np.zeros(-(-len(masses) // length) * length)
            folded[: len(masses)] = masses
            spectrum = np.fft.rfft(folded.reshape(-1, length).sum(axis=0))
            vanished |= spectrum == 0
            logarithm += step.count * np.log(np.where(spectrum == 0, 1.0, spectrum))
            total += step.count
            offset += step.count * step.first
        spectrum = np.where(vanished, 0.0, np.exp(logarithm))
        composed = np.fft.irfft(spectrum, n=length)
        # Every factor is known to ε·log2 N; the inverse transform adds as much again.
        largest = 2 * float(np.abs(spectrum).sum()) / length
        error = TRANSFORM_ERROR * math.log2(max(length, 2)) * (total + 1) * largest
        return np.roll(composed, -((start - offset) % length)), error

    def _tilted(self, step: StepLosses, tilt: float) -> Array:
        exponents = self._exponents(step, tilt)
        weighted = np.exp(exponents - exponents.max())
        return weighted / weighted.sum()

    def _exponents(self, step: StepLosses, order: float) -> Array:
        """The logarithm of mass · e^(order·loss), so that empty bins of the far ends stay empty."""
        if order == 0:
            return step.log_masses
        losses = _grid(step.first, len(step.masses), self.interval)
        return step.log_masses + order * losses

    def _log_moment(self, order: float) -> float:
        """The logarithm of E e^(order·loss), of the total finite loss under ``upper``."""
        value = 0.0
        for step in self.steps:
            exponents = self._exponents(step, order)
            top = float(exponents.max())
            value += step.count * (top + math.log(float(np.exp(exponents - top).sum())))
        return value

    def _window(self, tilt: float) -> tuple[float, float, float]:
        """Losses that hold all but e^−48 of the tilted probability at each end; ln of its total."""
        total = self._log_moment(tilt)
        spread = math.sqrt(max(self._tilted_moments(tilt)[1], self.interval**2))
        low = sum(step.count * step.first for step in self.steps) * self.interval
        high = (
            sum(step.count * (step.first + len(step.masses) - 1) for step in self.steps)
            * self.interval
        )
        # About ten for a normal total; rare large losses ask for orders near 1, whatever it is.
        for order in np.geomspace(min(0.5, 2 / spread), 16 / spread, WINDOW_ORDERS):
            above = (self._log_moment(tilt + order) - total + LOG_TAIL) / order
            below = -(self._log_moment(tilt - order) - total + LOG_TAIL) / order
            high = min(high, above) if math.isfinite(above) else high
            low = max(low, below) if math.isfinite(below) else low
        return low, high, total

    def _tilted_moments(self, tilt: float) -> tuple[float, float]:
        """Mean and variance of the total loss under a tilt."""
        mean = variance = 0.0
        for step in self.steps:
            masses = self._tilted(step, tilt)
            losses = _grid(step.first, len(masses), self.interval)
            own = float(masses @ losses)
            mean += step.count * own
            variance += step.count * float(masses @ (losses - own) ** 2)
        return mean, variance

    def _tilts(self, log_prior: Array) -> list[float]:
        """Tilts under which the thresholds of these priors are typical losses."""
        wanted = np.unique(np.round(np.maximum(log_prior, FURTHEST_LOG_PRIOR) / TILT_SPACING))
        coarse = self._coarse()
        tilts = {coarse.tilt_for(TILT_SPACING * place) for place in wanted if place < 0}
        return [0.0, *sorted(tilts)]

    def tilt_for(self, log_prior: float) -> float:
        """Tilt whose mean loss is exceeded under the reference with about this probability."""
        low, high = 0.0, 1.0

        def exponent(tilt: float) -> float:
            return self._log_moment(tilt) - (tilt + 1) * self._tilted_moments(tilt)[0]

        while exponent(high) > log_prior and high < 1e4:
            low, high = high, 2 * high
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (middle, high) if exponent(middle) > log_prior else (low, middle)
        # Where single steps have rare large losses, a strong tilt makes them common in all steps.
        while low > 0.1 and self.span(low) > MOST_SPANS * self.span(0.0):
            low *= 0.8
        return low

    def span(self, tilt: float) -> float:
        """Length of the window of a tilt."""
        low, high, _ = self._window(tilt)
        return high - low

    def _coarse(self) -> PrivacyLossDistribution:
        """A rough copy to search tilts on: which tilt is used changes no guarantee."""
        longest = max(len(step.masses) for step in self.steps)
        factor = max(1, longest // ROUGH_BINS)
        merged = []
        for step in self.steps:
            places = np.arange(step.first, step.first + len(step.masses)) // factor
            masses = np.zeros(int(places[-1] - places[0]) + 1)
            np.add.at(masses, places - places[0], step.masses)
            merged.append(StepLosses(int(places[0]), masses, step.infinite, step.count))
        return PrivacyLossDistribution(tuple(merged), self.interval * factor)


def privacy_loss_distribution(
    parts: Sequence[Gaussian | Laplace | DPSGD],
    *,
    record_added: bool = False,
    accuracy: float = ACCURACY,
    largest_loss: float = math.inf,
) -> PrivacyLossDistribution:
    """Discretise all parts on a grid fine enough for ``accuracy``.

    Success of reconstruction compares the release with the record to one without it. The other
    direction, ``record_added``, counts for ε alone. Losses of one step beyond ``largest_loss``
    count as infinite, in the attacker's favour: see :func:`largest_loss_for`.
    """
    if not 0 < accuracy < 1:
        raise BadInput(f"Accuracy is a small positive number, not {accuracy!r}.")
    pairs: list[tuple[Pair, int]] = []
    for part in parts:
        pair, count = pair_of(part)
        pairs.append((Swapped(pair) if record_added else pair, count))
    interval = _interval(pairs, accuracy, largest_loss)
    widest = max(high - low for low, high in (_loss_range(pair, largest_loss) for pair, _ in pairs))
    rough = _on_grid(pairs, max(interval, widest / ROUGH_BINS), largest_loss)
    if not rough.hopeless:
        interval = max(interval, rough.span(0.0) / MOST_WINDOW)
    return _on_grid(pairs, interval, largest_loss)


def largest_loss_for(log_prior: float) -> float:
    """The loss of one step from which on it may count as infinite, for a success at this κ.

    With L = 2(ln(1/κ) + 12): the other steps take more than L/2 off with a probability below
    e^−L/2 only, and otherwise the total exceeds L/2, which costs a level below e^−L/2. Both are
    e^−12 of κ, in the attacker's favour.
    """
    return 2 * (12.0 - max(log_prior, FURTHEST_LOG_PRIOR))


def _on_grid(
    pairs: Sequence[tuple[Pair, int]], interval: float, largest_loss: float
) -> PrivacyLossDistribution:
    return PrivacyLossDistribution(
        tuple(_discretise(pair, count, interval, largest_loss) for pair, count in pairs), interval
    )


def _interval(pairs: Sequence[tuple[Pair, int]], accuracy: float, largest_loss: float) -> float:
    """Grid interval: spreading within intervals adds about interval²/6 of variance a step.

    A relative change r of the total variance V moves γ by at most about 0.4·r·min(1, √V), and a
    deviation of interval·√(steps/6) by at most about 0.4 times itself, however small V is.
    """
    count = sum(count for _, count in pairs)
    variance = max(sum(count * pair.variance() for pair, count in pairs), 1e-30)
    relative = min(accuracy / (0.4 * min(1.0, math.sqrt(variance))), 20 * accuracy)
    fine = math.sqrt(6 * relative * variance / count)
    enough = accuracy / 0.4 * math.sqrt(6 / count)
    widest = max(high - low for low, high in (_loss_range(pair, largest_loss) for pair, _ in pairs))
    interval = max(fine, enough, widest / MOST_BINS)
    # An atom between two grid points would spread over both; the first one can be met exactly.
    atom = next((atom for pair, _ in pairs if (atom := pair.atom()) is not None), None)
    return interval if atom is None else atom / math.ceil(atom / interval)


def _grid(first: int, count: int, interval: float) -> Array:
    return np.arange(first, first + count, dtype=np.float64) * interval


def _loss_range(pair: Pair, largest_loss: float) -> tuple[float, float]:
    low, high = pair.loss_range()
    return max(low, -largest_loss), min(high, largest_loss)


def _discretise(pair: Pair, count: int, interval: float, largest_loss: float) -> StepLosses:
    low, high = _loss_range(pair, largest_loss)
    # One point more at each end: rounding must not push an end that is probable off the grid.
    first, last = math.floor(low / interval) - 1, math.ceil(high / interval) + 1
    edges = _grid(first, last - first + 1, interval)
    cells = pair.masses(edges)
    upper, lower = cells.upper[1:-1], cells.lower[1:-1]
    # The share at the right end that keeps both probabilities; all of it where lower underflows.
    with np.errstate(over="ignore", invalid="ignore"):
        reference = np.nan_to_num(lower * np.exp(edges[:-1]), nan=0.0, posinf=0.0)
    right = np.clip((upper - reference) / -math.expm1(-interval), 0.0, upper)
    masses = np.zeros(len(edges))
    masses[1:] += right
    masses[:-1] += upper - right
    # What lies below the grid is moved up to its first point, in the attacker's favour.
    masses[0] += cells.upper[0]
    return StepLosses(first, masses, float(cells.upper[-1]), count)
