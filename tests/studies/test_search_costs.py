"""What a comparison says about choosing among private trainings."""

from __future__ import annotations

import pytest

from vestige.bounds import Gaussian, NonPrivate, PureDP, epsilon_by_renyi
from vestige.reports.comparison_words import search_sentences
from vestige.studies.comparison.search_cost import DELTA, search_cost


def test_a_list_of_trainings_spends_more_than_a_random_search_and_than_one() -> None:
    settings = [Gaussian(4.0), Gaussian(8.0), Gaussian(16.0)]
    cost = search_cost(settings, 20)
    assert cost is not None
    assert cost.trainings == 60
    assert cost.single == pytest.approx(epsilon_by_renyi(Gaussian(4.0), DELTA))
    # ρ = 1/(2σ²) adds up: sixty trainings are one with the summed ρ.
    rho = 20 * sum(1 / (2 * s.noise_multiplier**2) for s in settings)
    assert cost.composed == pytest.approx(epsilon_by_renyi(Gaussian((2 * rho) ** -0.5), DELTA))
    assert cost.single is not None
    assert cost.random is not None
    assert cost.composed is not None
    assert cost.single < cost.random < cost.composed
    said = " ".join(search_sentences(cost))
    assert "60" in said
    assert "Theorem 2" in said


def test_nothing_to_choose_and_unknown_divergences() -> None:
    assert search_cost([], 5) is None
    assert search_cost([Gaussian(1.0)], 1) is None
    assert search_sentences(None) == ()
    for unknown in (PureDP(1.0), NonPrivate("nothing")):
        cost = search_cost([unknown, Gaussian(1.0)], 2)
        assert cost is not None
        assert (cost.trainings, cost.composed, cost.random) == (4, None, None)
        assert "cannot be computed" in " ".join(search_sentences(cost))
