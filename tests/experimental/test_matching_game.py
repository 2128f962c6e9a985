"""The matching game: scores against formulas, success against closed forms and bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

from vestige.attacks import PriorMatching
from vestige.attacks.prior_matching import dot_product_scores, likelihood_ratio_scores
from vestige.bounds import DPSGD, Neighbouring
from vestige.errors import BadInput
from vestige.experimental.matching_game import (
    matching_game,
    won,
    worst_case_game,
    worst_case_products,
)
from vestige.streams import stream
from vestige.victims import PrivateTraining
from worlds import KNOWN, draws, private_training, sequential

GRID = [
    (n, q, sigma, steps)
    for n in (2, 10, 50)
    for q in (0.02, 0.2, 1.0)
    for sigma in (0.5, 1.0, 3.0)
    for steps in (1, 20)
]
ERROR = 1e-4
"""Probability that any cell of the grid raises a false alarm."""


@pytest.mark.parametrize("q", [0.05, 1.0])
def test_scores_are_the_formulas(q):
    products = torch.randn((2, 7, 3), generator=stream(0), dtype=torch.float64)
    squares = torch.rand((2, 7, 3), generator=stream(1), dtype=torch.float64)
    found = likelihood_ratio_scores(products, squares, sampling_rate=q, noise_multiplier=0.6)
    for trial in range(2):
        for i in range(3):
            ratio = 1.0
            for t in range(7):
                exponent = float(products[trial, t, i] - squares[trial, t, i] / 2) / 0.36
                ratio *= 1 - q + q * math.exp(exponent)
            assert float(found[trial, i]) == pytest.approx(math.log(ratio))
    dots = dot_product_scores(products)
    assert dots.numpy() == pytest.approx(np.einsum("sti->si", products.numpy()))


def test_score_is_the_log_density_ratio():
    """Against the densities themselves, with a gradient that is shorter than the clipping norm."""
    u, q, sigma = np.array([0.3, -0.5]), 0.3, 0.8
    x = np.array([0.9, -1.1])
    absent = norm.pdf(x, 0, sigma).prod()
    held = norm.pdf(x, u, sigma).prod()
    expected = math.log(((1 - q) * absent + q * held) / absent)
    found = likelihood_ratio_scores(
        torch.tensor([[x @ u]]),
        torch.tensor([[u @ u]]),
        sampling_rate=q,
        noise_multiplier=sigma,
    )
    assert float(found[0]) == pytest.approx(expected)


def test_likelihood_ratio_stays_finite_with_little_noise():
    products = torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    found = likelihood_ratio_scores(
        products, torch.ones(()), sampling_rate=0.1, noise_multiplier=0.01
    )
    assert torch.isfinite(found).all()


def test_simulated_products_are_those_of_orthonormal_gradients():
    """Mean and variance within six standard errors: wrong by chance below 1e-7."""
    mechanism = DPSGD(0.5, 0.3, 4)
    products, secrets = worst_case_products(mechanism, 5, 20_000, stream(0))
    own = products.gather(2, secrets[:, None, None].expand(-1, 4, 1)).squeeze(2)
    count = own.numel()
    assert abs(float(own.mean()) - 0.3) < 6 * math.sqrt((0.25 + 0.21) / count)
    others = products.sum() - own.sum()
    assert abs(float(others) / (4 * count)) < 6 * 0.5 / math.sqrt(4 * count)
    assert float(own.var()) == pytest.approx(0.25 + 0.21, rel=0.03)
    assert float(torch.bincount(secrets, minlength=5).min()) > 20_000 / 5 - 6 * math.sqrt(3200)


@pytest.mark.parametrize("score", ["likelihood_ratio", "dot_product"])
def test_success_without_sampling_is_the_closed_form(score):
    """At q = 1 both scores are one, and win when N(T/σ², T/σ²) tops n − 1 of N(0, T/σ²)."""
    mu = math.sqrt(3) / 1.5
    expected, _ = quad(lambda z: norm.pdf(z - mu) * norm.cdf(z) ** 9, -10, 12)
    result = worst_case_game(
        DPSGD(1.5, 1.0, 3), 10, 40_000, stream(1), attack=PriorMatching(score), doubt=1e-6
    )
    assert result.limits[0] <= expected <= result.limits[1]


@pytest.mark.parametrize("score", ["likelihood_ratio", "dot_product"])
def test_no_attack_beats_the_bound(score):
    """All cells at once, Bonferroni: a sound bound fails this with probability ERROR at most."""
    for place, (n, q, sigma, steps) in enumerate(GRID):
        result = worst_case_game(
            DPSGD(sigma, q, steps),
            n,
            1000,
            stream(2, place),
            attack=PriorMatching(score),
            doubt=ERROR / (2 * len(GRID)),
        )
        assert result.sound, (n, q, sigma, steps, result)


def test_a_bound_for_more_noise_is_refuted():
    """The check can fail: the same attack is above what one half more noise would allow."""
    result = worst_case_game(DPSGD(0.5, 0.02, 200), 10, 2000, stream(3), doubt=1e-4)
    claimed = worst_case_game(DPSGD(0.75, 0.02, 200), 10, 1, stream(3)).bound
    assert result.limits[0] > claimed


@pytest.mark.parametrize(
    ("cell", "trials", "share"),
    [((10, 0.02, 0.5, 200), 4000, 0.83), ((10, 0.1, 1.0, 10), 40_000, 0.89)],
)
def test_likelihood_ratio_comes_close_to_the_bound(cell, trials, share):
    """Expected shares are 0.88 and 0.92 with standard errors of 0.016 and 0.010."""
    n, q, sigma, steps = cell
    mechanism = DPSGD(sigma, q, steps)
    found = worst_case_game(mechanism, n, trials, stream(4))
    published = worst_case_game(
        mechanism, n, trials, stream(4), attack=PriorMatching("dot_product")
    )
    assert found.share > share
    assert found.limits[0] > published.rate


def test_game_on_a_victim_is_won_with_little_noise_and_a_guess_with_much():
    """0.02 of noise: lost only if no step held the secret. 1000: 1/6 up to 1e-4 of doubt."""
    victim, candidates = private_training(), draws(6, 31)
    clear = matching_game(victim, candidates, 15, stream(5))
    assert clear.hits >= 14
    loud = type(victim)(victim.model, KNOWN, DPSGD(1000.0, 0.8, 1, 0.5), victim.learning_rate)
    blurred = matching_game(loud, candidates, 60, stream(6), doubt=1e-4)
    assert blurred.limits[0] < 1 / 6 < blurred.limits[1]
    assert blurred.bound == pytest.approx(1 / 6, rel=0.01)


@pytest.mark.parametrize("score", ["likelihood_ratio", "dot_product"])
def test_candidates_with_equal_gradients_are_never_won(score):
    """A linear model without bias that starts at zero: gradients of x and x/3 are parallel."""
    model = sequential(nn.Flatten, lambda: nn.Linear(16, 3, bias=False))
    nn.init.zeros_(model[1].weight)
    victim = PrivateTraining(model, KNOWN, DPSGD(0.02, 1.0, 1, 0.1), learning_rate=0.5)
    some = draws(6, 31)
    darker = replace(some, x=torch.cat([some.x, some.x / 3]), y=some.y.repeat(2))
    attack = PriorMatching(score)
    assert matching_game(victim, darker, 20, stream(8), attack=attack).hits == 0
    assert matching_game(victim, some, 20, stream(8), attack=attack).hits == 20


def test_a_tie_is_lost_wherever_the_secret_stands():
    scores = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert won(scores, torch.tensor([0, 1, 1, 2])).tolist() == [False, False, True, False]


def test_game_is_a_function_of_its_generator():
    victim, candidates = private_training(), draws(4, 31)
    results = [matching_game(victim, candidates, 5, stream(7)) for _ in range(2)]
    assert results[0] == results[1]


def test_says_what_does_not_fit():
    victim = private_training()
    with pytest.raises(BadInput, match="two candidates"):
        matching_game(victim, draws(1, 31), 5, stream(0))
    with pytest.raises(BadInput, match="equal"):
        matching_game(victim, draws(4, 31)[[0, 1, 1]], 5, stream(0))
    with pytest.raises(BadInput, match="equal"):
        matching_game(victim, KNOWN[:3], 5, stream(0))
    with pytest.raises(BadInput, match="doubt"):
        worst_case_game(DPSGD(1.0, 0.1, 1), 3, 5, stream(0), doubt=0.0)
    with pytest.raises(BadInput, match="likelihood_ratio"):
        PriorMatching("sum")  # pyright: ignore


def test_the_worst_case_compares_with_the_record_left_out():
    replaced = DPSGD(1.0, 0.5, 3, relation=Neighbouring.REPLACE_ONE)
    with pytest.raises(BadInput, match="add or remove one"):
        worst_case_game(replaced, 4, 10, stream(0))
