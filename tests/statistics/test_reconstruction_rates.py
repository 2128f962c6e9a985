"""Rates and curves of reconstructions: against naive loops, closed forms and simulated truth."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ncx2, norm

from vestige.errors import BadInput
from vestige.reports.heads import NormalFit
from vestige.simulation.training_sets import ClassCounts, OneAgainstRest, TrainingSets
from vestige.statistics.head_rates import (
    clustered_rate,
    effective_trials,
    honest_rank,
    operating_point,
    point_by_class,
)
from vestige.statistics.head_roc import (
    counted_rate,
    cumulative_rate,
    histogram,
    neyman_pearson_rate,
    normal_fit,
    roc_curves,
    transform_errors,
)
from vestige.statistics.rates import clopper_pearson, pooled_rate
from vestige.streams import stream
from vestige.studies.heads.rates import (
    members_of_classes,
    minimum_errors,
    nearest_neighbor_errors,
    nearest_neighbor_thresholds,
    other_heads,
    positive_members,
)
from worlds import draws


def everyone(sets: TrainingSets) -> torch.Tensor:
    """Every member (s, 1, n), for a reconstruction of no class."""
    return torch.ones_like(sets.members, dtype=torch.bool)[:, None, :]


# μ0, σ0, μ1, σ1, FPR, cumulative (equation 6), Neyman–Pearson.
ANCHORS = [
    (0, 1.5, 1, 1, 0.01, 0.188286, 0.188505),
    (0, 1.5, 1, 1, 0.5, 0.747507, 0.759019),
    (0, 0.5, 1, 1, 0.001, 0.000015, 0.003895),
    (0, 0.5, 1, 1, 0.01, 0.003993, 0.038937),
    (0, 0.5, 1, 1, 0.1, 0.286682, 0.372404),
    (0, 2, 0.5, 1, 0.01, 0.180576, 0.216148),
    (0, 2, 0.5, 1, 0.5, 0.598706, 0.746309),
]


@pytest.mark.parametrize(("m0", "s0", "m1", "s1", "alpha", "cumulative", "best"), ANCHORS)
def test_closed_forms_have_the_digits_of_the_anchor_table(m0, s0, m1, s1, alpha, cumulative, best):
    own, null = NormalFit(mean=m0, deviation=s0), NormalFit(mean=m1, deviation=s1)
    assert cumulative_rate(own, null, alpha) == pytest.approx(cumulative, abs=5.1e-7)
    assert neyman_pearson_rate(own, null, alpha) == pytest.approx(best, abs=5.1e-7)


@pytest.mark.parametrize(("m0", "s0", "m1", "s1"), {a[:4] for a in ANCHORS})
def test_neyman_pearson_is_the_non_central_chi_square_form(m0, s0, m1, s1):
    alpha = np.array([1e-4, 0.02, 0.3, 0.9])
    center = (m1 * s0**2 - m0 * s1**2) / (s0**2 - s1**2)
    own_shift, null_shift = ((m0 - center) / s0) ** 2, ((m1 - center) / s1) ** 2
    if s0 > s1:
        limit = s1**2 * ncx2.isf(alpha, 1, null_shift)
        expected = ncx2.sf(limit / s0**2, 1, own_shift)
    else:
        limit = s1**2 * ncx2.ppf(alpha, 1, null_shift)
        expected = ncx2.cdf(limit / s0**2, 1, own_shift)
    found = neyman_pearson_rate(
        NormalFit(mean=m0, deviation=s0), NormalFit(mean=m1, deviation=s1), alpha
    )
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_neyman_pearson_is_what_the_best_of_many_samples_reaches():
    # The likelihood ratio on 400,000 draws: standard error at most .0008.
    own, null = NormalFit(mean=0.0, deviation=0.5), NormalFit(mean=1.0, deviation=1.0)
    world = np.random.default_rng(3)
    first, second = world.normal(0, 0.5, 400_000), world.normal(1, 1, 400_000)

    def ratio(phi):
        return norm.logpdf(phi, 1, 1) - norm.logpdf(phi, 0, 0.5)

    for alpha in (0.01, 0.1, 0.5):
        threshold = np.quantile(ratio(second), alpha)
        reached = (ratio(first) <= threshold).mean()
        assert neyman_pearson_rate(own, null, alpha) == pytest.approx(reached, abs=0.004)


means = st.floats(-3, 3)
deviations = st.floats(0.05, 4)


@given(means, deviations, means, deviations)
@settings(max_examples=150, deadline=None)
def test_neyman_pearson_is_monotone_and_never_below_chance_or_the_threshold(m0, s0, m1, s1):
    own, null = NormalFit(mean=m0, deviation=s0), NormalFit(mean=m1, deviation=s1)
    alpha = np.append(np.geomspace(1e-5, 1, 60), 0.0)
    best = neyman_pearson_rate(own, null, alpha)
    assert (best >= alpha).all()
    assert (best <= 1).all()
    assert (np.diff(best[:-1]) >= -1e-9).all()
    assert best[-1] == 0
    assert (best >= cumulative_rate(own, null, alpha) - 1e-7).all()


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=60),
    st.lists(st.floats(0, 1), min_size=3, max_size=60),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_counted_curves_are_monotone_and_do_not_depend_on_the_order(own, null, order):
    curves = roc_curves(own, null)
    for curve in curves:
        rates = [p.true_positive_rate for p in curve.points]
        assert all(a <= b + 1e-12 for a, b in pairwise(rates))
        assert curve.points[-1].false_positive_rate == pytest.approx(1)
        assert rates[-1] == pytest.approx(1)
    mixed, others = order.sample(own, len(own)), order.sample(null, len(null))
    for curve, again in zip(curves, roc_curves(mixed, others)):
        assert [p.true_positive_rate for p in curve.points] == pytest.approx(
            [p.true_positive_rate for p in again.points], abs=1e-6
        )


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=40),
    st.lists(st.integers(0, 9), min_size=2, max_size=40),
    st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_the_counted_rate_is_the_best_threshold_that_few_enough_nulls_pass(own, null, alpha):
    best = 0.0
    for threshold in [-1, *own, *null, 10]:  # ties abound
        if sum(n <= threshold for n in null) <= alpha * len(null) + 1e-9:
            best = max(best, sum(o <= threshold for o in own) / len(own))
    assert counted_rate(own, null, alpha) == pytest.approx(best)


def test_phi_is_the_logit_of_a_quarter_of_the_error_between_minus_one_and_one():
    error = 0.0696  # the paper's τ for MNIST, images in [−1, 1]
    assert transform_errors([error / 4])[0] == pytest.approx(
        math.log((error / 4) / (1 - error / 4))
    )
    assert len(transform_errors([0.1, math.inf, math.nan])) == 1
    assert np.isfinite(transform_errors([0.0, 1.0])).all()


def test_normal_fits_and_histograms_describe_the_sample():
    sample = np.random.default_rng(0).normal(2, 0.3, 4000)
    errors = 1 / (1 + np.exp(-sample))
    fit = normal_fit(transform_errors(errors))
    assert (fit.mean, fit.deviation) == (
        pytest.approx(sample.mean()),
        pytest.approx(sample.std()),
    )
    shown = histogram(errors, errors[:100])
    assert [sum(counts) for counts in shown.counts] == [4000, 100]
    inside = (sample >= shown.edges[10]) & (sample < shown.edges[11])
    assert abs(shown.counts[0][10] - inside.sum()) <= 1
    assert normal_fit([1.0, 1.0]) is None
    assert histogram([math.inf], [0.1]) is None


# ℓ_min-MSE, Algorithms 2 and 3, as printed: one loop inside another.


def naive_rates(drawn, fakes, sets, records, tau, classes):
    true = false = 0
    for k in range(len(sets)):
        for place, c in enumerate(classes):
            for images, which in ((drawn, "true"), (fakes, "false")):
                nearest = math.inf
                for member in sets.members[k].tolist():
                    if c is not None and int(records.y[member]) != c:
                        continue
                    gap = images[k, place].double() - records.x[member].double()
                    nearest = min(nearest, float(gap.pow(2).mean()))
                if which == "true":
                    true += nearest <= tau
                else:
                    false += nearest <= tau
    return true, false


@pytest.mark.parametrize("conditional", [True, False])
def test_rates_are_those_of_the_printed_algorithms(conditional):
    records = draws(90, 5)
    sets = ClassCounts((2, 1, 3)).draw(records.y, 8, disjoint=True, generator=stream(0, "sets"))
    slots = 3 if conditional else 1
    world = stream(1, "drawn")
    drawn = torch.rand((8, slots, *records.space.shape), generator=world) * 0.4 + 0.3
    fakes = torch.rand((8, slots, *records.space.shape), generator=world)
    counted = members_of_classes(sets, records.y, torch.arange(3))
    counted = counted if conditional else everyone(sets)
    own = minimum_errors(drawn, sets.members, counted, records.x).numpy()
    surrogate = minimum_errors(fakes, sets.members, counted, records.x).numpy()
    tau = float(np.median(own))
    expected = naive_rates(drawn, fakes, sets, records, tau, range(3) if conditional else [None])
    assert (int((own <= tau).sum()), int((surrogate <= tau).sum())) == expected
    assert 0 < expected[0] < own.size


def test_one_class_against_the_rest_counts_its_positives_only():
    records = draws(90, 6)
    sets = OneAgainstRest(2, 4).draw(records.y, 5, disjoint=True, generator=stream(0, "sets"))
    drawn = records.x[sets.members[:, 3]][:, None]  # exactly a negative of each set
    own = minimum_errors(drawn, sets.members, positive_members(sets), records.x)
    assert (own > 1e-4).all()
    near = (records.x[sets.members[:, :2]] - drawn).square().flatten(2).mean(2).min(1).values
    assert torch.allclose(own[:, 0].float(), near)
    nearest = minimum_errors(drawn, sets.members, everyone(sets), records.x)
    assert (nearest == 0).all()


def test_what_is_not_finite_is_a_miss_and_an_absent_class_is_refused():
    records = draws(30, 1)
    sets = TrainingSets(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    drawn = torch.full((1, 1, *records.space.shape), float("nan"))
    assert minimum_errors(drawn, sets.members, everyone(sets), records.x) == math.inf
    absent = members_of_classes(sets, records.y, torch.tensor([2]))
    with pytest.raises(BadInput, match="no image of a class"):
        minimum_errors(drawn, sets.members, absent, records.x)


# Definition 1: the set of another head.


def test_disjoint_sets_take_the_next_one():
    assert other_heads(torch.arange(12).reshape(4, 3)).tolist() == [1, 2, 3, 0]


@given(st.integers(0, 10_000), st.integers(3, 12))
@settings(max_examples=60, deadline=None)
def test_no_head_is_its_own_decoy_or_shares_an_image_with_it(seed, heads):
    members = torch.randint(30, (heads, 3), generator=stream(seed, "members"))
    held = [set(row) for row in members.tolist()]
    try:
        others = other_heads(members).tolist()
    except BadInput:
        # Hall: some group of heads has too few strangers between them.
        neighbours = [
            {j for j in range(heads) if held[i].isdisjoint(held[j])} for i in range(heads)
        ]
        assert any(
            len(set().union(*(neighbours[i] for i in group))) < size
            for size in range(1, heads + 1)
            for group in combinations(range(heads), size)
        )
        return
    assert sorted(others) == list(range(heads))
    assert all(held[i].isdisjoint(held[j]) for i, j in enumerate(others))


def test_sets_without_a_stranger_are_refused():
    with pytest.raises(BadInput, match="disjoint=True"):
        other_heads(torch.tensor([[0, 1], [1, 2], [2, 0]]))


# Thresholds.


def test_nearest_neighbours_are_those_of_a_naive_search():
    validation, train = draws(40, 1), draws(70, 2)
    expected = [min(float((v - t).double().pow(2).mean()) for t in train.x) for v in validation.x]
    found = nearest_neighbor_errors(validation.x, train.x)
    assert found.tolist() == pytest.approx(expected)
    thresholds = nearest_neighbor_thresholds(validation, train)
    assert thresholds.pooled == pytest.approx(np.mean(expected))
    of_first = [e for e, y in zip(expected, validation.y.tolist()) if y == 0]
    assert thresholds.by_class[0] == pytest.approx(np.mean(of_first))
    some = nearest_neighbor_thresholds(validation[validation.y > 0], train)
    assert some.by_class[0] == some.pooled
    with pytest.raises(BadInput, match="validation and training images"):
        nearest_neighbor_thresholds(validation, train[:0])


# Limits.


def test_one_image_a_head_gives_the_limits_of_independent_trials():
    world = np.random.default_rng(0)
    own, nulls = world.normal(-1.5, 1, (500, 1)), world.normal(0, 1, (500, 1))
    expected = pooled_rate(own[:, 0], nulls[:, 0], 0.05, 0.95)
    point = operating_point(own, nulls, 0.05, 0.95)
    assert (point.lower, point.upper) == (
        pytest.approx(expected.lower),
        pytest.approx(expected.upper),
    )
    assert point.true_positive_rate >= expected.true_positive_rate
    hits = own < -1
    assert clustered_rate(hits, 0.025).lower == pytest.approx(
        clopper_pearson(int(hits.sum()), 500)[0]
    )
    few = operating_point(own[:50], nulls[:50], 0.01, 0.95)
    assert (few.lower, few.upper, few.needed) == (None, None, 368)
    class_point = point_by_class(own, nulls, 0.05, 0.95)
    assert class_point.lower == pytest.approx(expected.lower)


def test_nothing_finite_passes_no_threshold():
    nothing = np.full((500, 2), math.inf)
    assert operating_point(nothing, nothing, 0.05, 0.95).lower == 0
    assert point_by_class(nothing, nothing, 0.05, 0.95).lower == 0


def test_heads_whose_images_share_a_fate_count_once():
    alike = np.repeat(np.random.default_rng(1).random((200, 1)) < 0.3, 10, axis=1)
    assert effective_trials(alike) == pytest.approx(200, rel=0.02)
    apart = np.random.default_rng(1).random((200, 10)) < 0.3
    assert 1500 < effective_trials(apart) <= 2000
    assert effective_trials(np.zeros((7, 10), dtype=bool)) == 7


def test_limits_cover_where_heads_are_easy_or_hard():
    # The truth is .3; 600 runs at 95%: fewer than 550 covered has probability below 1e-4 if the
    # limits hold, and treating all images as independent covers far fewer.
    world = np.random.default_rng(2)
    covered = naive = 0
    for _ in range(600):
        chance = world.beta(0.9, 2.1, (80, 1))
        hits = world.random((80, 10)) < chance
        rate = clustered_rate(hits, 0.025)
        covered += rate.lower <= 0.3 <= rate.upper
        low, high = clopper_pearson(int(hits.sum()), hits.size)
        naive += low <= 0.3 <= high
    assert covered >= 550
    assert naive < 480


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_nothing_is_demonstrated_where_own_and_other_errors_have_one_law(spread):
    # Heads trained on other data: TPR = FPR. The lower limit may exceed α in 5% of runs; more than
    # 34 of 400 has probability below 1e-3 at exactly 5%.
    world = np.random.default_rng(4)
    above = 0
    for _ in range(400):
        own = world.normal(0, 1, (120, 5)) + spread * world.normal(0, 1, (120, 1))
        nulls = world.normal(0, 1, (120, 5)) + spread * world.normal(0, 1, (120, 1))
        lower = operating_point(own, nulls, 0.05, 0.95).lower
        above += lower is not None and lower > 0.05
    assert above <= 34


def test_ties_with_the_threshold_do_not_pass():
    """Errors with three values, own and others of one law: the limits may not exceed α.

    At most 5% of 200 runs may; more than 25 has probability below 1e-4.
    """
    world, above = np.random.default_rng(8), 0
    for _ in range(200):
        own, nulls = (world.choice([0.1, 0.2, 0.3], (60, 3)) for _ in range(2))
        for point in (
            operating_point(own, nulls, 0.1, 0.95),
            point_by_class(own, nulls, 0.1, 0.95),
        ):
            above += point.lower is not None and point.lower > 0.1
        pooled = pooled_rate(own.ravel(), nulls.ravel(), 0.1, 0.95)
        above += pooled.lower is not None and pooled.lower > 0.1
    assert above <= 25


def test_honest_thresholds_rarely_pass_too_many_nulls():
    # Normal nulls in clusters: the share beyond a threshold is known. At most 2.5% of runs may
    # exceed α; more than 24 of 400 has probability below 1e-4.
    world, worse = np.random.default_rng(5), 0
    for _ in range(400):
        nulls = world.normal(0, 1, (150, 6)) + world.normal(0, 1, (150, 1))
        place = honest_rank(nulls, 0.05, 0.025)
        if place:
            worse += norm.cdf(np.sort(nulls, axis=None)[place - 1] / math.sqrt(2)) > 0.05
    assert worse <= 24
