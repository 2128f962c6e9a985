"""Orders of whole comparisons and at equal cost, by errors and costs whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from test_comparisons import plan_of

from vestige.defenses import GradientNoise, GradientPruning, Undefended
from vestige.reports.comparison import AttackMeasure, Cell, DefendedPoint, Matched, Utility
from vestige.reports.noise import Mean
from vestige.reports.parts import Rate, Times
from vestige.statistics.tradeoff import mean_with_limits, weakest_protection
from vestige.studies.comparison.advice import say_equal_cost
from vestige.studies.comparison.assembly import MeasuredDefense, assemble_comparison
from vestige.studies.comparison.cells import BASELINE, MeasuredCell
from vestige.studies.comparison.orders import joint_costs, matched_at_costs, order_settings
from vestige.studies.judge import report_on
from vestige.studies.study import Header

DEFENSES = [*map(GradientPruning, (0.1, 0.5, 0.9)), *map(GradientNoise, (0.1, 0.5, 0.9))]
TRIALS = 12
PLAN = plan_of(defenses=DEFENSES, budget=0.02, trials=TRIALS)
ABOUT = Header(0, (), None, Times())
NAMES = ("First layer", BASELINE.name)


def measured(errors: np.ndarray, costs: np.ndarray, static=None) -> list[MeasuredDefense]:
    """No defence and six settings from errors (trials, 7, attacks) and costs (seeds, 7)."""
    rate = Rate(hits=0, trials=len(errors), lower=0.0, upper=0.3)
    found = []
    for place, defense in enumerate(PLAN.all_defenses):
        own = errors[:, place]
        measures = tuple(
            AttackMeasure(attack=name, error=mean_with_limits(column, 0.975), rate=rate)
            for name, column in zip(NAMES, own.T)
        )
        cell = Cell(
            server="honest server",
            measures=measures,
            strongest=NAMES[0],
            protection=weakest_protection([m.error for m in measures]),
            most_hits=rate,
        )
        utility = Utility(
            repeats=len(costs),
            diverged=0,
            accuracy=None,
            loss=None,
            accuracy_lost=mean_with_limits(costs[:, place], 0.95),
            loss_added=None,
        )
        point = DefendedPoint(
            defense=defense.name,
            undefended=isinstance(defense, Undefended),
            strength=defense.strength,
            setting=defense.setting,
            mechanism="",
            guarantee=False,
            records=1,
            utility=utility,
            cells=(cell,),
        )
        not_told = None if static is None else static[:, place]
        held = {"honest server": MeasuredCell(cell, own, not_told)}
        found.append(MeasuredDefense(defense, point, costs[:, place], held))
    return found


def drawn(generator, means, costs, *, spread=0.02, unsteady=0.003, seeds=4):
    secret = 0.05 * generator.normal(size=(TRIALS, 1))
    left = np.array(means) + secret + spread * generator.normal(size=(TRIALS, 7))
    errors = np.stack([left, np.full_like(left, 0.6)], axis=2)
    lost = np.array(costs) + unsteady * generator.normal(size=(seeds, 7))
    lost[:, 0] = 0
    return errors, lost


STEEP = (0.05, 0.15, 0.25, 0.45)
COSTS = (0.0, 0.01, 0.03, 0.05)


def test_a_real_difference_is_told_in_every_sentence():
    """Pruning leaves the same everywhere, noise far more at the same costs."""
    means = (0.05, 0.06, 0.06, 0.06, 0.3, 0.4, 0.5)
    errors, costs = drawn(np.random.default_rng(0), means, (*COSTS, *COSTS[1:]), unsteady=1e-4)
    found = report_on(assemble_comparison(PLAN, measured(errors, costs), ABOUT))
    pairs = {(t.larger, t.smaller) for t in found.findings.told_apart}
    assert {("Noise σ 0.1", "No defence"), ("Noise σ 0.9", "Pruning 0.9")} <= pairs
    (advice,) = found.judgement.recommendations
    assert "Noise σ 0.1 leaves an error of" in advice.sentence
    assert "more than every other at this cost" in advice.sentence
    assert "This is more than without a defence." in advice.sentence
    assert "Noise leaves more than Pruning and no defence" in advice.equal_cost
    at = {(m.defense, m.accuracy_lost): m for m in found.findings.matched}
    assert at["Noise", 0.02].larger_than == ("Pruning", "No defence")
    assert "Noise" in at["Pruning", 0.02].smaller_than
    errors = np.stack([0.7 - errors[:, :, 0], np.full((TRIALS, 7), 9.0)], axis=2)
    turned = report_on(assemble_comparison(PLAN, measured(errors, costs), ABOUT))
    (advice,) = turned.judgement.recommendations
    assert any(
        said.startswith("Less than without a defence is left with") for said in advice.details
    )
    assert "less than none" in advice.equal_cost


def test_what_is_said_of_the_best_is_never_said_without_a_contrast():
    """Of 60 worlds of equal settings; at a true 5% more than 9 have probability 0.1%."""
    false = 0
    for world in range(60):
        errors, costs = drawn(np.random.default_rng([7, world]), (0.3,) * 7, (*COSTS, *COSTS[1:]))
        found = report_on(assemble_comparison(PLAN, measured(errors, costs), ABOUT))
        (advice,) = found.judgement.recommendations
        words = " ".join((advice.sentence, advice.equal_cost, *advice.details))
        said = any(w in words for w in ("more than", "less than", "Less than", "smaller error"))
        assert found.findings.told_apart or not said
        false += bool(found.findings.told_apart)
    assert false <= 9, false


def test_unsteady_costs_of_equal_defences_do_not_tell_them_apart():
    """Steep curves, costs known to 0.3 points: of 60 worlds at most 9 (0.1%) may be wrong."""
    false = 0
    for world in range(60):
        errors, costs = drawn(
            np.random.default_rng([8, world]), (*STEEP, *STEEP[1:]), (*COSTS, *COSTS[1:])
        )
        some = measured(errors, costs)
        rows = matched_at_costs(PLAN, some, order_settings(some))
        false += any("Noise" in m.larger_than or "Pruning" in m.larger_than for m in rows)
    assert false <= 9, false


def test_a_cost_of_one_strength_has_the_limits_of_its_cell():
    costs = np.repeat([(0.0, 0.01, 0.02, 0.04, 0.01, 0.02, 0.04)], 3, axis=0)
    errors, _ = drawn(np.random.default_rng(1), (*STEEP, *STEEP[1:]), costs[0])
    some = measured(errors, costs)
    rows = matched_at_costs(PLAN, some, order_settings(some))
    cells = {one.point.label: one.cells["honest server"].cell.protection for one in some}
    for row in rows:
        (label,) = row.between
        assert label.startswith(row.defense)
        expected = cells[label]
        assert row.protection.value == pytest.approx(expected.value)
        assert row.protection.lower == pytest.approx(expected.lower)
        assert row.protection.upper == pytest.approx(expected.upper)


def test_attackers_who_were_not_told_are_contrasted_in_the_same_family():
    errors, costs = drawn(np.random.default_rng(2), (*STEEP, *STEEP[1:]), (*COSTS, *COSTS[1:]))
    static = errors.copy()
    static[:, 2] += 0.1 + 0.01 * np.random.default_rng(3).normal(size=(TRIALS, 2))
    found = report_on(assemble_comparison(PLAN, measured(errors, costs, static), ABOUT))
    said = {point.label: point.cells[0].static_larger for point in found.findings.points}
    assert said.pop("Pruning 0.5") is True
    assert set(said.values()) == {False}


def test_limits_of_all_costs_hold_together():
    """Bonferroni over the six settings, by hand; no defence is certain."""
    errors, costs = drawn(np.random.default_rng(4), (0.3,) * 7, (*COSTS, *COSTS[1:]))
    found = joint_costs(measured(errors, costs), 0.95)
    assert found["Noise σ 0.5"] == mean_with_limits(costs[:, 5], 1 - 0.05 / 6, low=-1.0, high=1.0)
    assert found["No defence"] == Mean(value=0, lower=0, upper=0)


@pytest.mark.parametrize(
    ("larger", "smaller", "said"),
    [
        ((), (), "cannot tell A and B from no defence, nor two of them from each other."),
        (("B", "No defence"), (), "A leaves more than B and no defence. These trials"),
        ((), ("No defence",), "A leaves less than none. These trials"),
    ],
)
def test_equal_cost_in_words(larger, smaller, said):
    left = Mean(value=0.3, lower=0.2, upper=0.4)
    rows = [Matched(server="s", defense=name, accuracy_lost=0.02, protection=left) for name in "AB"]
    rows[0] = rows[0].model_copy(update={"larger_than": larger, "smaller_than": smaller})
    assert said in say_equal_cost(rows, 0.02)
    assert say_equal_cost(rows, 0.04) == ""
    alone = say_equal_cost(rows[1:], 0.02)
    assert alone == "At a cost of 2 points, these trials and seeds cannot tell B from no defence."
