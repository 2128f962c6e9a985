"""Counts over all pairs of heads: against naive loops, exact tests and simulated truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from vestige.reports.heads import AssignmentTest
from vestige.simulation.training_sets import ClassCounts
from vestige.statistics import head_pairs
from vestige.statistics.head_bootstrap import head_weights, resampled_rates
from vestige.statistics.head_counts import HeadCounts
from vestige.statistics.head_pairs import PairErrors, effective_pairs, false_positive_rate_at
from vestige.statistics.head_tests import assignment_tests
from vestige.streams import stream
from vestige.studies.heads import pairs as pair_module
from vestige.studies.heads.pairs import overlapping_sets, pair_errors
from vestige.studies.heads.rates import members_of_classes
from worlds import draws

ALPHA = 0.1


def errors_of(random, classes=3, heads=7, levels=None) -> PairErrors:
    """Errors of pairs, of few values where ties are wanted."""
    values = random.random((classes, heads, heads))
    if levels is not None:
        values = np.round(values * levels) / levels
    return PairErrors(values.astype(np.float32))


def naive_nulls(pairs: PairErrors) -> list[float]:
    """Every error of a drawing to the set of another head, one after the other."""
    found = []
    for c, i, j in itertools.product(range(pairs.classes), range(pairs.heads), range(pairs.heads)):
        if i == j or (pairs.shared is not None and pairs.shared[i, j]):
            continue
        unit = np.float32(1) if pairs.divisors is None else pairs.divisors[c]
        found.append(float(pairs.values[c, i, j] / unit))
    return found


def naive_rate(own, nulls, alpha) -> float:
    """Largest share of own errors below a threshold that at most a share α of nulls is below."""
    best = 0.0
    for threshold in [*nulls, math.inf]:
        if sum(null < threshold for null in nulls) <= alpha * len(nulls) + 1e-9:
            best = max(best, sum(one < threshold for one in own) / len(own))
    return best


# Errors of all pairs (Definition 1).


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1, 3)])
def test_errors_are_those_of_a_naive_loop_over_drawings_and_sets(counts, monkeypatch):
    monkeypatch.setattr(pair_module, "HEADS_AT_ONCE", 3)
    records = draws(90, 5)
    sets = ClassCounts(counts).draw(records.y, 8, disjoint=True, generator=stream(0, "sets"))
    drawn = torch.rand((8, 3, *records.space.shape), generator=stream(1, "drawn"))
    drawn[2, 1] = torch.nan
    drawn[4, 0] = records.x[sets.members[6][records.y[sets.members[6]] == 0][0]]
    counted = members_of_classes(sets, records.y, torch.arange(3))
    found = pair_errors(drawn, sets.members, counted, records.x)
    for c, i, j in itertools.product(range(3), range(8), range(8)):
        nearest = math.inf
        for member in sets.members[j].tolist():
            if int(records.y[member]) == c:
                gap = drawn[i, c].double() - records.x[member].double()
                error = float(gap.square().mean())
                nearest = min(nearest, math.inf if math.isnan(error) else error)
        assert found.values[c, i, j] == pytest.approx(nearest, rel=1e-6, abs=1e-15)
    assert found.shared is None
    assert np.isinf(found.own[2, 1])


def test_large_studies_use_a_file_and_equal_drawings_have_equal_errors(monkeypatch):
    records = draws(60, 5)
    sets = ClassCounts((1, 1, 1)).draw(records.y, 20, disjoint=True, generator=stream(0, "sets"))
    counted = members_of_classes(sets, records.y, torch.arange(3))
    drawn = torch.rand((1, 3, *records.space.shape), generator=stream(1, "drawn"))
    drawn = drawn.expand(20, -1, -1, -1, -1)
    within = pair_errors(drawn, sets.members, counted, records.x)
    # A constant drawing has one error to a record, whichever head it is of, its own included.
    assert (within.values == within.values[:, :1]).all()
    monkeypatch.setattr(pair_module, "IN_MEMORY", 0)
    outside = pair_errors(drawn, sets.members, counted, records.x)
    assert isinstance(outside.values, np.memmap)
    assert (outside.values == within.values).all()
    assert HeadCounts.of(outside, np.ones(3), 0.1, 0.95).counts[0].passed.value <= 0.1 + 1 / 60


def test_sets_that_share_a_record_are_no_pair():
    members = torch.tensor([[0, 1], [2, 3], [3, 4]])
    shared = overlapping_sets(members)
    assert shared is not None
    assert (shared & ~np.eye(3, dtype=bool)).nonzero()[0].tolist() == [1, 2]
    pairs = PairErrors(np.random.default_rng(0).random((2, 3, 3)).astype(np.float32), shared=shared)
    assert pairs.count == len(naive_nulls(pairs)) == 8
    drawings, by_records = pairs.passing(2.0)
    assert drawings.tolist() == by_records.tolist() == [4, 2, 2]
    assert sorted(pairs.sample(10**6)) == sorted(naive_nulls(pairs))


@given(
    st.integers(0, 10_000),
    st.integers(2, 9),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0.01, 0.1, 0.3, 0.9]),
)
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_a_naive_loop_over_all_pairs(seed, heads, levels, alpha):
    random = np.random.default_rng(seed)
    pairs = errors_of(random, 2, heads, levels)
    pairs.values[random.random(pairs.values.shape) < 0.1] = np.inf
    units = np.array([0.5, 2.0])
    counts = HeadCounts.of(pairs, units, alpha, 0.95)
    pooled, by_class, normalised = counts.counted_rates(0.5)
    scaled = pairs.in_units(units)
    expected = [naive_rate(p.own.ravel(), naive_nulls(p), alpha) for p in (pairs, scaled)]
    assert pooled.operating_point.true_positive_rate == pytest.approx(expected[0])
    assert normalised.operating_point.true_positive_rate == pytest.approx(expected[1])
    each = [pairs.of_class(c) for c in range(2)]
    classes = [naive_rate(p.own.ravel(), naive_nulls(p), alpha) for p in each]
    assert by_class.operating_point.true_positive_rate == pytest.approx(np.mean(classes))
    assert [one.passed.value for one in counts.classes] == pytest.approx(classes)
    hits = sum(null <= 0.5 for null in naive_nulls(pairs))
    assert (pooled.false_positives.hits, pooled.false_positives.trials) == (hits, pairs.count)


def test_order_statistics_are_exact_in_blocks_of_any_size(monkeypatch):
    random = np.random.default_rng(3)
    pairs = errors_of(random, 3, 11).in_units(np.array([0.3, 1.0, 7.0]))
    ordered = np.sort(naive_nulls(pairs))
    every = np.sort(
        np.concatenate([(pairs.values[c] / pairs.divisors[c]).ravel() for c in range(3)])
    )
    for block in (1, 40, 2**22):
        monkeypatch.setattr(head_pairs, "BLOCK", block)
        assert pairs.smallest(range(1, pairs.count + 1)) == ordered.tolist()
        assert pairs.smallest([1, 363], diagonal=True) == [float(every[0]), float(every[-1])]
        drawings, records = pairs.passing(ordered[50])
        assert drawings.sum() == records.sum() == 50


def test_pairs_are_worth_what_the_spread_between_heads_allows():
    random = np.random.default_rng(0)
    alone = errors_of(random, 1, 80)
    assert effective_pairs(alone, *alone.passing(0.1)) > 1500  # half of 6,320, and noise
    column = PairErrors(np.repeat(random.random((1, 1, 80)), 80, axis=1).astype(np.float32))
    # A constant drawing: every record is one trial.
    assert 40 < effective_pairs(column, *column.passing(0.1)) < 110
    nothing = false_positive_rate_at(alone, -1.0, 0.025)
    assert (nothing.hits, nothing.lower) == (0, 0.0)
    assert nothing.upper == pytest.approx(1 - 0.025 ** (1 / 80))


# Limits.


def naive_replicate(pairs: PairErrors, weights: np.ndarray, alpha: float) -> float:
    """TPR at FPR = α of a study in which every head stands as often as its weight says."""
    heads = [i for i, w in enumerate(weights.astype(int)) for _ in range(w)]
    nulls = [
        float(pairs.values[c, i, j])
        for c in range(pairs.classes)
        for i, j in itertools.product(heads, heads)
        if i != j
    ]
    return naive_rate([e for i in heads for e in pairs.own[i]], nulls, alpha)


def test_replicates_are_studies_of_heads_that_were_drawn_again():
    pairs = errors_of(np.random.default_rng(2), 2, 6)
    weights = head_weights(6, pairs.count, 0.2)[:12]
    (found,) = resampled_rates(pairs, 0.2, weights)
    expected = [naive_replicate(pairs, one, 0.2) for one in weights]
    assert found.replicates.tolist() == pytest.approx(expected)


def known_world(random, heads, classes) -> PairErrors:
    """Own errors are one lower than others on the log scale; drawings and records have effects."""
    logs = 0.3 * random.normal(size=(classes, heads, 1)) + 0.3 * random.normal(
        size=(classes, 1, heads)
    )
    logs = logs + 0.3 * random.normal(size=(classes, heads, heads))
    places = np.arange(heads)
    logs[:, places, places] -= 1
    return PairErrors(np.exp(logs).astype(np.float32))


@pytest.mark.slow
def test_limits_cover_the_true_rate():
    # Each limit may miss in 5% of studies; more than 13 of 100 has probability below 1e-3.
    spread = 0.3 * math.sqrt(3)
    truth = norm.cdf(norm.ppf(0.05) + 1 / spread)
    random, below, above = np.random.default_rng(4), 0, 0
    for _ in range(100):
        counts = HeadCounts.of(known_world(random, 40, 3), np.ones(3), 0.05, 0.95)
        limits = counts.counts[0].passed.limits(0.025)
        assert limits is not None
        below, above = below + (limits[0] > truth), above + (limits[1] < truth)
    assert below <= 13
    assert above <= 13


def test_few_nulls_give_no_limit_and_many_heads_do():
    random = np.random.default_rng(5)
    few = HeadCounts.of(known_world(random, 8, 1), np.ones(1), 0.01, 0.95)
    (first, *_) = few.counted_rates(0.1)
    assert (first.operating_point.lower, first.joint_lower, first.redrawn) == (None, None, None)
    assert first.operating_point.needed == 368
    many = HeadCounts.of(known_world(random, 120, 2), np.ones(2), 0.01, 0.95)
    assert all(one.joint_lower is not None for one in many.counted_rates(0.1))


def test_redrawn_are_those_that_pass_and_are_less_than_half_as_far_as_the_guess():
    random = np.random.default_rng(9)
    pairs = errors_of(random, 4, 60)
    places = np.arange(60)
    pairs.values[:, places, places] *= 1e-3
    for share, expected in ((0.49, 0), (0.51, 240)):
        # A share of the way from the guess to the secret leaves (1 − share)² of the error.
        counts = HeadCounts.of(pairs, np.ones(4), 0.05, 0.95, pairs.own / (1 - share) ** 2)
        for one in counts.counted_rates(0.1):
            assert one.redrawn is not None
            assert one.redrawn.hits in range(int(0.95 * expected), expected + 1)


def test_an_easy_class_sets_the_pooled_threshold_but_not_the_others():
    # Class 0 is guessed by anybody, class 1 is leaked: pooled, nulls of class 0 hide the leak.
    random, heads = np.random.default_rng(7), 60
    values = np.stack(
        [random.normal(0.1, 0.01, (heads, heads)), random.normal(1.0, 0.05, (heads, heads))]
    )
    values[1, np.arange(heads), np.arange(heads)] = random.normal(0.3, 0.05, heads)
    pairs, units = PairErrors(values.astype(np.float32)), np.array([0.11, 0.5])
    tests = assignment_tests(pairs, units, 0.01, permutations=999)
    counts = HeadCounts.of(pairs, units, 0.01, 0.95, np.ones((heads, 2)))
    pooled, by_class, _ = counts.counted_rates(0.3, tests[:3])
    assert pooled.operating_point.true_positive_rate < 0.05
    assert by_class.operating_point.true_positive_rate == pytest.approx(0.5, abs=0.03)
    assert by_class.joint_lower is not None
    assert by_class.joint_lower > 0.3
    assert [one.shown for one in counts.class_rates(["easy", "leaked"], tests[3:])] == [False, True]


# The permutation test.


def naive_p_values(pairs: PairErrors, units: np.ndarray, alpha: float) -> list[float]:
    """Share of all assignments whose strongest statement reaches each observed one."""

    def below(values):
        ordered = np.sort(values, axis=None)
        return values < ordered[math.floor(alpha * values.size + 1e-9)]

    scaled = np.stack([one / np.float32(unit) for one, unit in zip(pairs.values, units)])
    each = np.stack([below(one) for one in pairs.values])
    places = np.arange(pairs.heads)

    def statistic(order):
        picked = [one[:, places, order].sum() for one in (below(pairs.values), each, below(scaled))]
        return np.sqrt(np.array([*picked, *each[:, places, order].sum(1)]) + 0.375)

    means = [one.sum() / pairs.heads for one in (below(pairs.values), each, below(scaled))]
    center = np.sqrt(np.array([*means, *(one.sum() / pairs.heads for one in each)]) + 0.375)
    every = [
        (statistic(np.array(order)) - center).max()
        for order in itertools.permutations(range(pairs.heads))
    ]
    observed = statistic(places) - center
    return [float(np.mean(np.array(every) >= one - 1e-9)) for one in observed]


def test_p_values_are_those_of_all_assignments():
    random = np.random.default_rng(11)
    pairs = errors_of(random, 3, 6)
    pairs.values[1, np.arange(6), np.arange(6)] *= 0.2
    units = np.array([0.5, 1.0, 2.0])
    expected = naive_p_values(pairs, units, 0.25)
    found = assignment_tests(pairs, units, 0.25, permutations=20_000)
    # Twenty thousand draws: a standard error of at most .0036.
    assert [one.p_value for one in found] == pytest.approx(expected, abs=0.018)
    assert found[0].by_chance == pytest.approx(27 / 6)
    assert AssignmentTest(hits=3, by_chance=1, permutations=9, as_extreme=0).p_value == 0.1


@pytest.mark.parametrize("kind", ["independent", "constant", "ties"])
def test_nothing_is_shown_where_drawings_do_not_depend_on_the_records(kind):
    # Some statement may be false in 2.5% of studies; more than 13 of 150 has probability below
    # 1e-3 at exactly 2.5%.
    random, false = np.random.default_rng(12), 0
    for _ in range(150):
        pairs = errors_of(random, 3, 20, levels=4 if kind == "ties" else None)
        if kind == "constant":
            pairs = PairErrors(np.repeat(pairs.values[:, :1], 20, axis=1))
        tests = assignment_tests(pairs, np.ones(3), ALPHA, permutations=199)
        false += any(one.p_value <= 0.025 for one in tests)
    assert false <= 13


def test_counts_and_tests_do_not_depend_on_the_order_of_heads():
    random = np.random.default_rng(6)
    pairs, order = known_world(random, 30, 3), random.permutation(30)
    moved = PairErrors(pairs.values[:, order][:, :, order])
    units = np.array([0.5, 1.0, 1.5])
    for one, other in zip(
        *(HeadCounts.of(p, units, ALPHA, 0.95).counted_rates(0.5) for p in (pairs, moved))
    ):
        assert one.true_positives.hits == other.true_positives.hits
        assert one.false_positives.hits == other.false_positives.hits
        assert one.operating_point.true_positive_rate == other.operating_point.true_positive_rate
        assert one.joint_lower == pytest.approx(other.joint_lower, abs=0.05)
