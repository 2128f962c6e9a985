"""What choosing among private trainings spends, against closed forms and dp-accounting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vestige.bounds import DPSGD, Gaussian, PureDP, RenyiDP
from vestige.bounds.search.fixed_grid import any_of, fixed_search
from vestige.bounds.search.poisson import poisson_search
from vestige.bounds.search.pure_dp import search_under_pure_dp
from vestige.bounds.search.truncated_negative_binomial import (
    TruncatedNegativeBinomial,
    random_search,
)
from vestige.bounds.success.renyi_dp import epsilon_of_renyi, to_renyi_dp
from vestige.errors import BadInput

ORDERS = (1.5, 2.0, 3.0, 8.0, 32.0, 256.0)
BASES = [Gaussian(2.0), DPSGD(1.0, 0.01, 200), Gaussian(0.7, 3)]


def at_orders(base):
    return to_renyi_dp(base, ORDERS)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("gamma", [0.02, 0.3, 0.95, 1.0])
def test_the_law_of_runs_sums_to_one_and_has_its_mean(shape: float, gamma: float) -> None:
    law = TruncatedNegativeBinomial(shape, gamma)
    runs = range(1, 2500)
    chances = [law.probability(k) for k in runs]
    assert sum(chances) == pytest.approx(1, abs=1e-9)
    assert sum(k * p for k, p in zip(runs, chances)) == pytest.approx(law.mean, rel=1e-6)


def test_a_geometric_number_of_runs() -> None:
    law = TruncatedNegativeBinomial(1.0, 0.2)
    assert law.mean == pytest.approx(5)
    assert [law.probability(k) for k in (1, 2, 3)] == pytest.approx([0.2, 0.16, 0.128])


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("mean", [1, 1.5, 10, 400])
def test_a_law_is_found_by_its_mean(shape: float, mean: float) -> None:
    found = TruncatedNegativeBinomial.with_mean(mean, shape).mean
    assert found == pytest.approx(mean, rel=1e-6)
    assert found >= mean * (1 - 1e-12)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("shape", [0.0, 1.0, 2.5])
def test_one_run_gives_back_the_base(base, shape: float) -> None:
    once = TruncatedNegativeBinomial.with_mean(1, shape)
    assert random_search(at_orders(base), once).epsilons == pytest.approx(at_orders(base).epsilons)


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.0])
def test_pure_dp_is_the_limit_of_large_orders(shape: float) -> None:
    """At order ∞ the theorem is (2 + η)ε, 3ε for a geometric number of runs."""
    epsilon, orders = 0.4, (2.0, 1e3, 1e7)
    base = RenyiDP(orders, (epsilon,) * 3)
    found = random_search(base, TruncatedNegativeBinomial.with_mean(20, shape))
    pure = search_under_pure_dp(PureDP(epsilon), shape)
    assert pure.epsilon == pytest.approx((2 + shape) * epsilon)
    assert found.epsilons[-1] == pytest.approx(pure.epsilon, rel=1e-5)
    assert search_under_pure_dp(PureDP(1.0)).epsilon == 3.0


def naive_search(base: RenyiDP, law: TruncatedNegativeBinomial) -> list[float]:
    """Theorem 2 written out order by order, without the bound of smaller orders by larger ones."""
    pairs = list(zip(base.orders, base.epsilons))
    eta, gamma = law.shape, law.gamma
    other = [(1 + eta) * (1 - 1 / o) * e + (1 + eta) * math.log(1 / gamma) / o for o, e in pairs]
    other.append((1 + eta) * math.log(1 / gamma))
    return [e + min(other) + math.log(law.mean) / (o - 1) for o, e in pairs]


@pytest.mark.parametrize("base", BASES)
def test_the_theorem_written_out(base) -> None:
    law = TruncatedNegativeBinomial.with_mean(12, 0.5)
    wanted = naive_search(at_orders(base), law)
    found = random_search(at_orders(base), law).epsilons
    assert found == pytest.approx([min(wanted[place:]) for place in range(len(wanted))])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("mean", [1.0, 4.0, 100.0])
@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_searches_agree_with_dp_accounting(base, mean: float, shape: float) -> None:
    accountant = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    one = at_orders(base)
    # λ' = 1 needs no divergence and is allowed by the theorem; there it is an order of the list.
    orders, epsilons = np.array((1.0, *one.orders)), np.array((0.0, *one.epsilons))
    if math.isinf(shape):
        orders, epsilons = orders[1:], epsilons[1:]
    wanted = accountant._compute_rdp_repeat_and_select(orders, epsilons, mean, shape)
    if math.isinf(shape):
        found = np.array(poisson_search(one, mean).epsilons)
        # dp-accounting has one more bound on δ, which matters only where δ is large.
        assert np.all(found >= wanted * (1 - 1e-9))
        assert np.all(found <= wanted * 1.02 + 1e-9)
        return
    found = random_search(one, TruncatedNegativeBinomial.with_mean(mean, shape))
    assert found.epsilons == pytest.approx(list(wanted[1:]), rel=1e-6)


@pytest.mark.parametrize("search", ["random", "poisson"])
def test_more_runs_and_less_noise_spend_more(search: str) -> None:
    def spent(noise: float, mean: float) -> float:
        base = Gaussian(noise)
        law = TruncatedNegativeBinomial.with_mean(mean)
        found = random_search(base, law) if search == "random" else poisson_search(base, mean)
        return epsilon_of_renyi(found, 1e-5)

    by_runs = [spent(2.0, mean) for mean in (1, 2, 5, 20, 100)]
    assert by_runs == sorted(by_runs)
    by_noise = [spent(noise, 10) for noise in (8, 4, 2, 1)]
    assert by_noise == sorted(by_noise)
    assert by_runs[0] >= epsilon_of_renyi(to_renyi_dp(Gaussian(2.0)), 1e-5) - 1e-12


def test_a_fixed_grid_is_composition_and_a_random_member_the_worst() -> None:
    runs = [Gaussian(1.0), Gaussian(2.0), Gaussian(2.0)]
    # Gaussian noise is αρ with ρ = 1/(2σ²), and ρ adds up.
    rho = 0.5 + 0.125 + 0.125
    total = fixed_search(runs)
    assert total.epsilons == pytest.approx([rho * order for order in total.orders])
    worst = any_of(runs)
    assert worst.epsilons == pytest.approx([0.5 * order for order in worst.orders])


def test_impossible_searches_are_refused_in_one_sentence() -> None:
    for shape, gamma in ((-1.0, 0.5), (math.nan, 0.5), (1.0, 0.0), (1.0, 1.5)):
        with pytest.raises(BadInput):
            TruncatedNegativeBinomial(shape, gamma)
    with pytest.raises(BadInput, match="at least one run"):
        TruncatedNegativeBinomial.with_mean(0.5)
    with pytest.raises(BadInput, match="positive number of runs"):
        poisson_search(Gaussian(1.0), 0.0)
    with pytest.raises(BadInput, match="at least one run"):
        fixed_search([])
    with pytest.raises(BadInput, match="greater than -1"):
        search_under_pure_dp(PureDP(1.0), -1.0)
