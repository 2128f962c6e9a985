"""Between mechanisms and accountants: Opacus histories, dp-accounting events, ε at δ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

from vestige.bounds.success.privacy_loss_distribution import privacy_loss_distribution
from vestige.bounds.success.renyi_dp import epsilon_of_renyi, to_renyi_dp
from vestige.errors import BadInput, NotFound
from vestige.mechanisms import (
    DPSGD,
    ApproximateDP,
    Composition,
    Gaussian,
    Laplace,
    Mechanism,
    Neighbouring,
    PureDP,
    noise_parts,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent

EPSILON_ACCURACY = 1e-6
"""Grids are finer for ε, which is quoted with more digits than a success."""


def from_opacus_history(
    history: Sequence[tuple[float, float, int]],
    *,
    clipping_norm: float | None = None,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> DPSGD | Composition:
    """DP-SGD as an Opacus accountant recorded it: (noise multiplier, sample rate, steps) entries.

    Take ``accountant.history`` of a training with Poisson sampling, which is Opacus' default.
    """
    parts = []
    for entry in history if isinstance(history, Sequence) else (history,):
        three = entry if isinstance(entry, Sequence) and len(entry) == 3 else ("", "", "")
        if not all(isinstance(number, Real) for number in three):
            raise BadInput(
                "An Opacus history is a list of (noise_multiplier, sample_rate, num_steps): pass "
                "`accountant.history`."
            )
        noise, rate, steps = three
        parts.append(DPSGD(float(noise), float(rate), _whole(steps), clipping_norm, relation))
    if not parts:
        raise BadInput("The Opacus history is empty: train at least one step first.")
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


def from_dp_event(
    event: DpEvent, *, relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
) -> Gaussian | Laplace | DPSGD | Composition:
    """The mechanism of a dp-accounting event; an event that is not known is refused."""
    parts = _parts(event, 1, relation)
    if not parts:
        raise BadInput("The event composes nothing: give one with at least one release.")
    return parts[0] if len(parts) == 1 else Composition(tuple(parts))


def _parts(event: DpEvent, count: int, relation: Neighbouring) -> list[Gaussian | Laplace | DPSGD]:
    accounting = _dp_accounting()
    if isinstance(event, accounting.ComposedDpEvent):
        return [part for inner in event.events for part in _parts(inner, count, relation)]
    if isinstance(event, accounting.SelfComposedDpEvent):
        return _parts(event.event, count * _whole(event.count), relation)
    if isinstance(event, accounting.GaussianDpEvent):
        return [Gaussian(float(event.noise_multiplier), count, relation)]
    if isinstance(event, accounting.LaplaceDpEvent):
        if relation is not Neighbouring.ADD_OR_REMOVE_ONE:
            raise BadInput(
                "A Laplace event says nothing about replacing a record: build Laplace by hand with "
                "its ε under 'replace one'."
            )
        if not event.noise_multiplier > 0:
            raise BadInput("A Laplace event has a positive noise multiplier.")
        return [Laplace(1 / float(event.noise_multiplier), count, relation)]
    if isinstance(event, accounting.PoissonSampledDpEvent) and isinstance(
        event.event, accounting.GaussianDpEvent
    ):
        rate, noise = float(event.sampling_probability), float(event.event.noise_multiplier)
        return [DPSGD(noise, rate, count, None, relation)]
    raise BadInput(
        f"No bound is known for a {type(event).__name__} here: describe the mechanism by a "
        "guarantee it has, such as ApproximateDP."
    )


def to_dp_event(mechanism: Mechanism) -> DpEvent:
    """The dp-accounting event of a mechanism whose noise is known."""
    accounting = _dp_accounting()
    events = []
    for part in _known_noise(mechanism):
        if isinstance(part, Laplace):
            if part.relation is not Neighbouring.ADD_OR_REMOVE_ONE:
                raise BadInput("dp-accounting has Laplace noise under 'add or remove one' only.")
            event = accounting.LaplaceDpEvent(1 / part.epsilon)
        else:
            event = accounting.GaussianDpEvent(part.noise_multiplier)
            if isinstance(part, DPSGD):
                event = accounting.PoissonSampledDpEvent(part.sampling_rate, event)
        events.append(accounting.SelfComposedDpEvent(event, part.steps))
    return events[0] if len(events) == 1 else accounting.ComposedDpEvent(events)


def epsilon_by_privacy_loss(mechanism: Mechanism, delta: float) -> float:
    """ε at δ from the privacy loss distribution, in both directions; never too small."""
    parts = _known_noise(mechanism)
    symmetric = all(not isinstance(part, DPSGD) or part.sampling_rate == 1 for part in parts)
    directions = (False,) if symmetric else (False, True)
    return max(
        privacy_loss_distribution(parts, record_added=added, accuracy=EPSILON_ACCURACY).epsilon(
            delta
        )
        for added in directions
    )


def epsilon_by_renyi(mechanism: Mechanism, delta: float) -> float:
    """ε at δ from Rényi divergences: larger than the privacy loss distribution gives."""
    return epsilon_of_renyi(to_renyi_dp(mechanism), delta)


def to_approximate_dp(mechanism: Mechanism, delta: float) -> ApproximateDP:
    """The (ε, δ) guarantee of a mechanism, by the privacy loss distribution where it has one."""
    if isinstance(mechanism, PureDP):
        return ApproximateDP(mechanism.epsilon, delta, mechanism.relation)
    epsilon = epsilon_at(mechanism, delta)
    if math.isinf(epsilon):
        raise BadInput(f"The mechanism has no finite ε at δ = {delta:g}: give a larger δ.")
    parts = noise_parts(mechanism)
    return ApproximateDP(
        epsilon, delta, parts[0].relation if parts else to_renyi_dp(mechanism).relation
    )


def epsilon_at(mechanism: Mechanism, delta: float) -> float:
    """ε at δ by the privacy loss distribution where a mechanism has one, else by Rényi; or ∞."""
    if noise_parts(mechanism):
        return epsilon_by_privacy_loss(mechanism, delta)
    return epsilon_by_renyi(mechanism, delta)


def _known_noise(mechanism: Mechanism) -> tuple[Gaussian | Laplace | DPSGD, ...]:
    parts = noise_parts(mechanism)
    if not parts:
        raise BadInput(
            f"A mechanism of the kind {mechanism.kind!r} does not say what its noise is: describe "
            "it as Gaussian, Laplace, DPSGD or a Composition of them."
        )
    return parts


def _whole(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, Real) or float(count) % 1 != 0:
        raise BadInput(f"Steps are a whole number, not {count!r}.")
    return int(float(count))


def _dp_accounting():
    try:
        import dp_accounting
    except ModuleNotFoundError as problem:
        raise NotFound(
            "dp-accounting is not installed: install Vestige with its extra `dp`."
        ) from problem
    return dp_accounting
