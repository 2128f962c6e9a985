"""ε shown by the ranks of an audit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm

from vestige.bounds.hits import bounds_on_hits
from vestige.bounds.noise_ratio import epsilon_of_ratio
from vestige.bounds.shown import (
    epsilon_shown,
    gaussian_epsilon,
    later_doubt,
    mu_shown,
    places,
    shown_by_ranks,
)
from vestige.bounds.success.approximate_dp import ApproximateDPBound
from vestige.bounds.success.gaussian import GaussianBound
from vestige.errors import BadInput
from vestige.mechanisms import ApproximateDP, Gaussian, Neighbouring, NonPrivate, PureDP
from vestige.reports.shown import ShownByRank, ShownPrivacy, rounded_down, shown_sentence

DELTA = 1e-5


@given(st.floats(0.001, 0.9), st.floats(0.01, 8), st.floats(1e-9, 1e-3), st.floats(0.01, 1))
def test_the_smallest_epsilon_is_where_the_bound_reaches_the_success(
    alpha: float, epsilon: float, delta: float, share: float
) -> None:
    """The inverse of the bound: γ(ε shown) is the success, and less ε would forbid it."""
    highest = ApproximateDPBound()(ApproximateDP(epsilon, delta), alpha)
    success = alpha + share * (highest - alpha)
    shown = epsilon_shown(success, alpha, delta)
    assert 0 <= shown <= epsilon + 1e-6
    assert ApproximateDPBound()(ApproximateDP(shown, delta), alpha) >= success - 1e-9
    if shown > 1e-3:
        less = ApproximateDP(shown * 0.999, delta)
        assert ApproximateDPBound()(less, alpha) < success


@given(st.floats(0.001, 0.9), st.floats(0.05, 4))
def test_the_smallest_mu_is_where_the_gaussian_bound_reaches_the_success(
    alpha: float, mu: float
) -> None:
    success = GaussianBound()(Gaussian(1 / mu, 1), alpha)
    assert mu_shown(success, alpha) == pytest.approx(mu, rel=1e-4)
    assert mu_shown(alpha, alpha) == 0


def test_certain_success_and_no_success() -> None:
    assert epsilon_shown(0.0, 0.01, DELTA) == mu_shown(0.0, 0.01) == 0
    assert epsilon_shown(1.0, 0.01, DELTA) > 100


@pytest.mark.parametrize(("mu", "delta"), [(0.3, 1e-5), (1.0, 1e-5), (2.5, 1e-9), (6.0, 1e-3)])
def test_epsilon_of_mu_agrees_with_the_accountant(mu: float, delta: float) -> None:
    by_accountant = epsilon_of_ratio(mu, sampling_rate=1.0, steps=1, delta=delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(by_accountant, rel=1e-3)
    assert gaussian_epsilon(mu, delta) <= by_accountant
    assert gaussian_epsilon(0.0, delta) == gaussian_epsilon(1e-9, delta) == 0


def test_places_are_few_and_never_all() -> None:
    assert places(100) == (1, 5, 25)
    assert places(10) == (1, 2)
    assert places(2) == (1,)
    assert all(max(places(m)) < m for m in range(2, 400))
    with pytest.raises(BadInput, match="two candidates"):
        places(1)


def test_ranks_show_what_their_limits_show() -> None:
    """Against a naive computation, threshold by threshold."""
    random = np.random.default_rng(3)
    ranks = np.minimum(random.integers(1, 101, 80), random.integers(1, 101, 80)).tolist()
    epsilon, mu = shown_by_ranks(ranks, 100, doubt=0.06, delta=DELTA)
    best, largest = 0.0, 0.0
    for place in (1, 5, 25):
        hits = sum(rank <= place for rank in ranks)
        # The limit by its definition: P(at least as many hits) is the doubt of one threshold.
        grid = np.linspace(0, 1, 200_001)[1:-1]
        allowed = grid[binom.sf(hits - 1, 80, grid) <= 0.02]
        p, alpha = (allowed.max() if len(allowed) else 0.0), place / 100
        best = max(best, math.log(max(p - DELTA, 1e-300) / alpha))
        best = max(best, math.log((1 - alpha - DELTA) / (1 - p)))
        largest = max(largest, norm.ppf(p) - norm.ppf(alpha))
    assert (epsilon, mu) == pytest.approx((best, largest), abs=1e-3)
    assert shown_by_ranks([], 100, doubt=0.05, delta=DELTA) == (0.0, 0.0)


@pytest.mark.parametrize("anytime", [False, True])
def test_more_doubt_and_better_ranks_show_more(anytime: bool) -> None:
    good, poor = [1] * 30 + [50] * 10, [1] * 10 + [50] * 30
    shown = shown_by_ranks(good, 100, doubt=0.05, delta=DELTA, anytime=anytime)
    assert shown > shown_by_ranks(poor, 100, doubt=0.05, delta=DELTA, anytime=anytime)
    assert shown > shown_by_ranks(good, 100, doubt=0.001, delta=DELTA, anytime=anytime)
    if anytime:
        fixed = shown_by_ranks(good, 100, doubt=0.05, delta=DELTA)
        assert all(a < b for a, b in zip(shown, fixed))


@pytest.mark.parametrize("candidates", [2, 10, 100])
@pytest.mark.parametrize("anytime", [False, True])
def test_nulls_show_nothing(candidates: int, anytime: bool) -> None:
    random, audits = np.random.default_rng(12), 400
    failed = 0
    for number in range(audits):
        ranks = random.integers(1, candidates + 1, 60)
        if number % 2:  # ties count against the secret
            ranks = np.maximum(ranks, random.integers(1, candidates + 1, 60))
        shown = shown_by_ranks(ranks.tolist(), candidates, doubt=0.05, delta=DELTA, anytime=anytime)
        failed += max(shown) > 0
    assert failed / audits <= 0.05


def test_the_true_mu_is_seldom_exceeded_and_mostly_reached() -> None:
    """Simulated truth: a secret's score is N(μ, 1), those of its decoys N(0, 1)."""
    random, mu, audits = np.random.default_rng(4), 1.3, 300
    found = []
    for _ in range(audits):
        ranks = 1 + random.binomial(99, norm.sf(random.standard_normal(200) + mu))
        found.append(shown_by_ranks(ranks.tolist(), 100, doubt=0.05, delta=DELTA))
    epsilons, mus = np.array(found).T
    assert (mus > mu).mean() <= 0.05
    assert (epsilons > gaussian_epsilon(mu, DELTA)).mean() <= 0.05
    assert np.median(mus) > 0.8 * mu


def test_a_first_look_leaves_what_its_places_did_not_spend() -> None:
    """By enumeration of counts at each place, where nothing leaks and where ε is as stated."""
    first, candidates, doubt = 50, 100, 0.05
    nothing = ShownPrivacy(delta=DELTA, confidence=0.95, anytime=True)

    def left(successes: list[float]) -> float:
        share = doubt / len(successes)
        return doubt - sum(
            max(
                tail
                for hits in range(first + 1)
                if (tail := float(binom.sf(hits - 1, first, p))) < share
            )
            for p in successes
        )

    alphas = [place / candidates for place in places(candidates)]
    quiet = left(alphas)
    assert 0 < quiet < doubt
    assert later_doubt(first, candidates, doubt, nothing) == pytest.approx(quiet)
    for gaussian in (False, True):
        stated = nothing.model_copy(update={"stated_epsilon": 2.0, "gaussian": gaussian})
        mechanism = ApproximateDP(2.0, DELTA)
        successes = [ApproximateDPBound()(mechanism, a) for a in alphas]
        if gaussian:
            mu = brentq(lambda mu: gaussian_epsilon(mu, DELTA) - 2.0, 0.1, 3)
            successes = [float(norm.cdf(norm.ppf(a) + mu)) for a in alphas]
        expected = min(quiet, left(successes))
        assert later_doubt(first, candidates, doubt, stated) == pytest.approx(expected, abs=1e-6)


def test_a_stated_mechanism_is_stated_at_its_own_delta() -> None:
    stated = bounds_on_hits(ApproximateDP(3.0, 1e-6), 0.1, 9)
    assert (stated.epsilon, stated.delta, stated.gaussian) == (3.0, 1e-6, False)
    pure = bounds_on_hits(PureDP(2.0), 0.1, 9)
    assert (pure.epsilon, pure.delta) == (2.0, 1e-5)
    noise = bounds_on_hits(Gaussian(2.0, 4), 0.1, 9)
    assert noise.gaussian
    assert noise.epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    replaced = bounds_on_hits(Gaussian(2.0, 4, Neighbouring.REPLACE_ONE), 0.1, 9)
    assert replaced.epsilon == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert bounds_on_hits(NonPrivate("nothing"), 0.1, 9).epsilon is None


def _shown(epsilon: float, mu: float, **changes: object) -> ShownPrivacy:
    rank = ShownByRank(
        attack="A",
        by="distance",
        trials=9,
        candidates=10,
        places=(1, 2),
        hits=(3, 4),
        epsilon=epsilon,
        mu=mu,
        gaussian_epsilon=gaussian_epsilon(mu, DELTA),
    )
    return ShownPrivacy(**{"delta": DELTA, "confidence": 0.95, "ranks": (rank,), **changes})  # pyright: ignore[reportArgumentType]


def test_sentences() -> None:
    said = shown_sentence(_shown(2.19, 1.0, stated_epsilon=8.0))
    assert "at least ε = 2.1 on a record (δ = 1e-5, with 95% confidence)" in said
    assert said.endswith("The stated mechanism says ε = 8.")
    assert "no ε above 0" in shown_sentence(_shown(0.0, 0.0))
    own = shown_sentence(_shown(2.19, 1.0, stated_epsilon=3.0, gaussian=True))
    assert "Of Gaussian noise, as stated, they show ε = 4.3." in own
    assert own.endswith("more is shown, so the release is not what it is said to be.")
    assert "Gaussian" not in shown_sentence(_shown(2.19, 1.0, stated_epsilon=3.0))
    assert shown_sentence(_shown(0, 0, ranks=(), refusal="no attack ran.")).endswith(
        "no attack ran."
    )
    assert [rounded_down(x) for x in (0.019, 0.999, 2.19, 10.0)] == ["0.01", "0.99", "2.1", "10.0"]
