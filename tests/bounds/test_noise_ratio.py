"""μ to ε and back: closed form without sampling, dp-accounting and Opacus with it."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from vestige.bounds import DPSGD, Description, Gaussian, Neighbouring, ratio_for_epsilon, ratio_of
from vestige.bounds.noise_ratio import LARGEST_RATIO, epsilon_of_ratio, mechanism_of_ratio
from vestige.errors import BadInput

# (μ, sampling rate, steps, δ): among them appendix C's CIFAR-10 and ImageNet trainings.
TRAININGS = [
    (1.0, 0.01, 1000, 1e-5),
    (0.5, 0.1, 100, 1e-6),
    (2.0, 0.05, 20, 1e-5),
    (1.0, 1024 / 50_000, 2400, 1e-5),
    (0.5, 262_144 / 1_281_167, 1000, 8e-7),
]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a μ-Gaussian-private release (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return brentq(excess, 0, mu**2 / 2 + 12 * mu, xtol=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("steps", [1, 25])
def test_closed_form_without_sampling(mu, steps):
    exact = gaussian_epsilon(mu * math.sqrt(steps), 1e-5)
    found = epsilon_of_ratio(mu, sampling_rate=1.0, steps=steps)
    assert exact - 1e-9 <= found <= exact * (1 + 1e-3) + 1e-4


def test_replacing_a_record_doubles_the_ratio():
    replaced = epsilon_of_ratio(1.0, sampling_rate=1.0, steps=1, relation=Neighbouring.REPLACE_ONE)
    assert replaced == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=1e-3)


@pytest.mark.parametrize("training", TRAININGS)
def test_epsilon_is_that_of_other_accountants(training):
    pytest.importorskip("opacus")
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant
    from opacus.accountants import PRVAccountant, RDPAccountant

    mu, rate, steps, delta = training
    ours = epsilon_of_ratio(mu, sampling_rate=rate, steps=steps, delta=delta)
    theirs = {}
    for accountant in (RDPAccountant(), PRVAccountant()):
        accountant.history = [(1 / mu, rate, steps)]
        theirs[accountant.mechanism()] = accountant.get_epsilon(delta)
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(1 / mu))
    composed = PLDAccountant(value_discretization_interval=1e-4).compose(event, steps)
    assert ours <= theirs["rdp"]
    assert ours == pytest.approx(theirs["prv"], rel=0.02, abs=0.01)
    assert ours == pytest.approx(composed.get_epsilon(delta), rel=2e-3)


@pytest.mark.parametrize("training", TRAININGS)
def test_there_and_back(training):
    mu, rate, steps, delta = training
    epsilon = epsilon_of_ratio(mu, sampling_rate=rate, steps=steps, delta=delta)
    found = ratio_for_epsilon(epsilon, sampling_rate=rate, steps=steps, delta=delta)
    assert mu * (1 - 2e-3) <= found <= mu * (1 + 1e-9)
    assert epsilon_of_ratio(found, sampling_rate=rate, steps=steps, delta=delta) <= epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 100.0])
def test_a_ratio_keeps_its_epsilon_and_hardly_a_larger_one_does(epsilon):
    found = ratio_for_epsilon(epsilon, sampling_rate=1.0, steps=1)
    assert gaussian_epsilon(found, 1e-5) <= epsilon
    assert gaussian_epsilon(found * 1.002, 1e-5) > epsilon


@pytest.mark.slow
def test_sampling_alone_keeps_an_epsilon():
    # One step looks at a record with probability 1e-6, which δ = 1e-5 forgives.
    assert ratio_for_epsilon(0.5, sampling_rate=1e-6, steps=1) == LARGEST_RATIO


def test_the_clipping_norm_cancels():
    assert ratio_of(0.5, 2.0 * 0.5) == ratio_of(4.0, 2.0 * 4.0) == 0.5
    assert mechanism_of_ratio(0.5, sampling_rate=0.1, steps=3) == DPSGD(2.0, 0.1, 3)


def test_what_is_no_ratio_is_refused():
    for wrong in (0.0, -1.0, math.nan, math.inf, 1e9):
        with pytest.raises(BadInput, match="μ lies from"):
            epsilon_of_ratio(wrong, sampling_rate=0.1, steps=1)
    for wrong in ((0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(BadInput, match="positive and finite"):
            ratio_of(*wrong)
    for wrong in (0.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="ε is positive"):
            ratio_for_epsilon(wrong, sampling_rate=0.1, steps=1)
    with pytest.raises(BadInput, match="No μ"):
        ratio_for_epsilon(1e-12, sampling_rate=1.0, steps=10_000, delta=1e-12)


def test_mu_describes_a_mechanism():
    assert Description(mu=0.5).mechanism == Gaussian(2.0, 1)
    assert Description(mu=2.0, sampling_rate=0.1, steps=5).mechanism == DPSGD(0.5, 0.1, 5)
    with pytest.raises(BadInput, match="--noise-multiplier and --mu"):
        _ = Description(mu=1.0, noise_multiplier=1.0).mechanism
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="--mu is positive"):
            _ = Description(mu=wrong).mechanism
