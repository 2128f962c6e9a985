"""Which settings of a comparison can be told apart, and what defences leave at equal cost.

One family of contrasts serves all that is said.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from vestige.defenses.undefended import Undefended
from vestige.reports.comparison import DefendedPoint, Matched, ToldApart
from vestige.reports.comparison_words import cost_words, lost_words, runs_behind
from vestige.statistics.tradeoff import (
    COST_SHARE,
    TIE,
    Contrasts,
    Curve,
    is_larger,
    mean_with_limits,
    paired_contrasts,
)

if TYPE_CHECKING:
    from vestige.reports.noise import Mean
    from vestige.studies.comparison.assembly import MeasuredDefense
    from vestige.studies.comparison.plan import Comparison


Larger = frozenset[tuple[str, str]]
"""Labels of settings before one server, (larger, smaller), that are told apart."""


@dataclass(frozen=True)
class Orders:
    """What is told apart in a whole comparison.

    The family has every pair of settings before every server, no defence included, and every
    setting under attackers who were and who were not told of it. A page says something about
    each server and chooses among all settings, so nothing smaller would do.
    """

    contrasts: Contrasts

    def larger(self, server: str, labels: Sequence[str], confidence: float) -> Larger:
        """The ordered pairs of settings before a server that are told apart."""
        return frozenset(
            (one, other)
            for one in labels
            for other in labels
            if self.contrasts.larger((server, one, True), (server, other, True), confidence)
        )

    def static_larger(self, server: str, label: str, confidence: float) -> bool:
        """Whether attackers who were not told of a setting are shown to leave a larger error."""
        return self.contrasts.larger((server, label, False), (server, label, True), confidence)


def order_settings(measured: Sequence[MeasuredDefense]) -> Orders:
    """Contrast all settings that were measured, trial by trial."""
    errors: dict[Hashable, np.ndarray] = {}
    pairs = []
    for server in measured[0].cells:
        told = []
        for one in measured:
            cell, label = one.cells[server], one.point.label
            if cell.errors is None:
                continue
            told.append((server, label, True))
            errors[told[-1]] = cell.errors
            if cell.static_errors is not None:
                errors[server, label, False] = cell.static_errors
                pairs.append(((server, label, False), told[-1]))
        pairs += combinations(told, 2)
    return Orders(paired_contrasts(errors, pairs))


def told_apart(larger: Mapping[str, Larger]) -> tuple[ToldApart, ...]:
    """The pairs of every server as a document keeps them."""
    return tuple(
        ToldApart(server=server, larger=one, smaller=other)
        for server, pairs in larger.items()
        for one, other in sorted(pairs)
    )


def with_static_orders(
    point: DefendedPoint, one: MeasuredDefense, orders: Orders, confidence: float
) -> DefendedPoint:
    """A point whose cells say whether attackers who were not told of it leave more."""
    return point.model_copy(
        update={
            "cells": tuple(
                cell
                if one.cells[cell.server].static_errors is None
                else cell.model_copy(
                    update={
                        "static_larger": orders.static_larger(cell.server, point.label, confidence)
                    }
                )
                for cell in point.cells
            )
        }
    )


def joint_costs(measured: Sequence[MeasuredDefense], confidence: float) -> dict[str, Mean]:
    """Costs by label, with limits that hold for all settings together (Bonferroni)."""
    known = [one for one in measured if one.costs is not None]
    joint = 1 - (1 - confidence) / max(1, len(known) - 1)  # no defence costs nothing, surely
    return {
        one.point.label: mean_with_limits(one.costs, joint, low=-1.0, high=1.0)
        for one in known
        if one.costs is not None
    }


@dataclass(frozen=True)
class _Family:
    """One defence before one server: its strengths, and those of them that were measured."""

    server: str
    undefended: MeasuredDefense
    members: Sequence[MeasuredDefense]

    @property
    def name(self) -> str:
        return self.members[0].defense.name

    @property
    def known(self) -> list[MeasuredDefense]:
        return [
            one
            for one in self.members
            if one.costs is not None and one.cells[self.server].errors is not None
        ]

    @property
    def line(self) -> list[MeasuredDefense]:
        return [self.undefended, *self.known]

    def curve(self, costs: Mapping[str, Mean]) -> Curve:
        """Its protections beside costs with the given limits."""
        protections = [one.cells[self.server].cell.protection for one in self.line]
        return Curve(
            tuple(costs[one.point.label] for one in self.line),
            tuple(mean for mean in protections if mean is not None),
        )

    def mixtures(self, cost: float, costs: Mapping[str, Mean]) -> list[dict[str, float]]:
        """What its protection at a cost may be: weights of settings by label."""
        labels = [one.point.label for one in self.line]
        found = []
        for left, weight in self.curve(costs).positions(cost):
            right = labels[min(left + 1, len(labels) - 1)]
            mixture = {labels[left]: 1 - weight}
            mixture[right] = mixture.get(right, 0.0) + weight
            found.append(mixture)
        return found


def matched_at_costs(
    plan: Comparison, measured: Sequence[MeasuredDefense], orders: Orders
) -> list[Matched]:
    """What every defence leaves at half the budget, the budget and twice as much.

    Two defences are told apart at a cost if settings that may lie on either side of it are told
    apart for certain: costs have limits that are joint over all settings, and a fifth of the
    probability of error; the contrasts of settings have the rest.
    """
    names = dict.fromkeys(one.defense.name for one in measured[1:])
    shown = {
        one.point.label: one.point.utility.accuracy_lost
        for one in measured
        if one.point.utility.accuracy_lost is not None
    }
    level = 1 - plan.confidence
    joint = joint_costs(measured, 1 - COST_SHARE * level)
    found = []
    for server in plan.servers:
        families = [
            _Family(
                server.name, measured[0], [one for one in measured[1:] if one.defense.name == n]
            )
            for n in names
        ]
        labels = [one.point.label for one in measured]
        larger = orders.larger(server.name, labels, 1 - (1 - COST_SHARE) * level)
        at_costs = {
            cost: [_at(family, cost, shown) for family in families]
            for cost in (plan.budget / 2, plan.budget, 2 * plan.budget)
        }
        ordered = {
            cost: _ordered(families, matched, cost, joint, larger)
            for cost, matched in at_costs.items()
        }
        for place in range(len(families)):
            found += [ordered[cost][place] for cost in ordered]
    return found


def _ordered(
    families: Sequence[_Family],
    matched: Sequence[Matched],
    cost: float,
    costs: Mapping[str, Mean],
    larger: Larger,
) -> list[Matched]:
    """What was matched at one cost, with the names of what each is told apart from."""
    mixtures = {
        family.name: family.mixtures(cost, costs)
        for family, one in zip(families, matched)
        if one.protection is not None
    }
    mixtures[Undefended.name] = [{families[0].undefended.point.label: 1.0}]

    def exceeds(first: str, second: str) -> bool:
        return first != second and all(
            is_larger(one, other, larger) for one in mixtures[first] for other in mixtures[second]
        )

    return [
        one
        if one.protection is None
        else one.model_copy(
            update={
                "larger_than": tuple(name for name in mixtures if exceeds(one.defense, name)),
                "smaller_than": tuple(name for name in mixtures if exceeds(name, one.defense)),
            }
        )
        for one in matched
    ]


def _at(family: _Family, cost: float, costs: Mapping[str, Mean]) -> Matched:
    def nothing(reason: str) -> Matched:
        return Matched(
            server=family.server,
            defense=family.name,
            accuracy_lost=cost,
            protection=None,
            reason=reason,
        )

    undefended, members, known = family.undefended, family.members, family.known
    if undefended.costs is None or undefended.cells[family.server].errors is None:
        return nothing("There is no measurement without a defence to start from.")
    if not known:
        problems = [
            one.cells[family.server].cell.problem or one.point.utility.problem for one in members
        ]
        why = next((problem for problem in problems if problem), "")
        return nothing(why or "Its cost is not known: training diverged.")
    curve = family.curve(costs)
    means = curve.mean_costs
    if cost > means[-1] + TIE:
        last = known[-1].point
        worse = len(members) - len(known)
        beyond = " Stronger ones diverged or could not be measured." if worse else ""
        return nothing(
            f"No measured strength costs {lost_words(cost)}: {last.label} costs "
            f"{cost_words(last.utility.accuracy_lost, runs_behind(last))}.{beyond}"
        )
    line = family.line
    left = int((means <= cost + TIE).sum()) - 1
    there = means[left] >= cost - TIE or left == len(line) - 1
    sides = [left] if there else [left, left + 1]
    return Matched(
        server=family.server,
        defense=family.name,
        accuracy_lost=cost,
        protection=curve.at(cost),
        between=tuple(line[side].point.label for side in sides),
    )
