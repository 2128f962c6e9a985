"""Noise for a target, never too little; and what a guarantee buys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from vestige.bounds import (
    DPSGD,
    ApproximateDP,
    Gaussian,
    LocalAggregation,
    Neighbouring,
    PoissonGaussianBound,
    PrivacyLossBound,
    PureDP,
    calibrate,
    protection_of,
)
from vestige.errors import BadInput

REPLACE = Neighbouring.REPLACE_ONE


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize(("kappa", "target"), [(0.1, 0.5), (0.01, 0.011), (1e-9, 0.01)])
def test_gaussian_noise_is_the_closed_form_rounded_up(kappa, target, relation):
    found = calibrate(target, kappa, sampling_rate=1.0, steps=9, relation=relation)
    sensitivity = 2 if relation is REPLACE else 1
    exact = sensitivity * 3 / (norm.isf(kappa) - norm.isf(target))
    assert exact <= found.noise_multiplier <= exact * 1.003
    assert found.success <= target


def test_one_sampled_step_against_the_closed_form():
    def excess(noise):
        return PoissonGaussianBound()(DPSGD(noise, 0.2, 1), 0.01) - 0.03

    exact = brentq(excess, 0.1, 50)
    found = calibrate(0.03, 0.01, sampling_rate=0.2, steps=1)
    assert exact <= found.noise_multiplier <= exact * 1.003


def test_the_target_holds_on_a_finer_grid_and_less_noise_misses_it():
    found = calibrate(0.05, 0.01, sampling_rate=0.01, steps=1000, dataset_size=50_000)
    finer = PrivacyLossBound(1e-7)
    assert finer(found.mechanism, 0.01) <= 0.05
    less = DPSGD(found.noise_multiplier * 0.995, 0.01, 1000)
    assert finer(less, 0.01) > 0.05
    assert found.noise_on_mean == pytest.approx(found.noise_multiplier / 500)
    assert found.epsilon > 0


def test_sampling_alone_can_suffice():
    found = calibrate(0.5, 0.01, sampling_rate=0.001, steps=10)
    assert found.noise_multiplier == pytest.approx(0.1)
    assert found.success <= 0.5


@pytest.mark.parametrize(("target", "kappa"), [(0.01, 0.01), (0.005, 0.01), (1.0, 0.1), (0.5, 0.0)])
def test_targets_out_of_reach_are_refused(target, kappa):
    with pytest.raises(BadInput):
        calibrate(target, kappa, sampling_rate=0.1, steps=10)


def test_what_epsilon_and_delta_buy():
    epsilon, delta = 1.0, 1e-5
    found = protection_of(ApproximateDP(epsilon, delta), candidates=(2, 100))
    advantage = (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
    assert found.membership_advantage == pytest.approx(advantage, abs=1e-9)
    rates = dict(found.membership)
    assert rates[0.01] == pytest.approx(0.01 * math.e + 1e-5)
    assert dict(found.reconstruction)[0.01] == rates[0.01]
    assert dict(found.re_identification)[100] == rates[0.01]


def test_replacement_helps_re_identification_bounds():
    found = protection_of(PureDP(2.0, REPLACE), candidates=(10,))
    assert dict(found.re_identification)[10] == pytest.approx(0.450853, abs=6e-7)
    general = protection_of(PureDP(2.0), candidates=(10,))
    assert dict(general.re_identification)[10] == pytest.approx(0.1 * math.e**2)


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
def test_membership_against_gaussian_noise(noise):
    found = protection_of(Gaussian(noise), false_positive_rates=(0.05,))
    exact = 2 * norm.cdf(1 / (2 * noise)) - 1
    assert exact <= found.membership_advantage <= exact + 1e-5
    assert found.membership[0][1] == pytest.approx(norm.sf(norm.isf(0.05) - 1 / noise))


def test_a_heuristic_buys_nothing():
    found = protection_of(LocalAggregation(2))
    assert found.membership_advantage == 1.0
    assert np.all(np.array([gamma for _, gamma in found.reconstruction]) == 1)
