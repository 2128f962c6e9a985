"""Mechanisms: refused numbers, JSON, Opacus histories, dp-accounting events, ε at δ."""

from __future__ import annotations

import math
import subprocess
import sys

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from pydantic import BaseModel
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from vestige.bounds import (
    DPSGD,
    ApproximateDP,
    Composition,
    Gaussian,
    Laplace,
    LocalAggregation,
    Mechanism,
    Neighbouring,
    NonPrivate,
    PrivacyProfile,
    PureDP,
    RenyiDP,
    TradeOff,
    ZeroConcentratedDP,
    epsilon_by_privacy_loss,
    epsilon_by_renyi,
    from_dp_event,
    from_opacus_history,
    mechanism_from_json,
    mechanism_to_json,
    tightest,
    to_approximate_dp,
    to_dp_event,
    to_renyi_dp,
)
from vestige.errors import BadInput

REPLACE = Neighbouring.REPLACE_ONE
NAN = float("nan")


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: PureDP(-1), "ε"),
        (lambda: PureDP(NAN), "ε"),
        (lambda: PureDP(math.inf), "ε"),
        (lambda: ApproximateDP(1, 1.0), "δ"),
        (lambda: ApproximateDP(1, -1e-9), "δ"),
        (lambda: PrivacyProfile((1.0,), (0.1, 0.2)), "profile"),
        (lambda: PrivacyProfile((1.0,), (1.5,)), "profile"),
        (lambda: TradeOff((0.1, 0.2), (0.5, 0.9)), "trade-off"),
        (lambda: TradeOff((0.2, 0.1), (0.5, 0.6)), "increase"),
        (lambda: RenyiDP((1.0,), (1.0,)), "orders"),
        (lambda: RenyiDP((), ()), "order"),
        (lambda: RenyiDP((2.0,), (NAN,)), "ε"),
        (lambda: ZeroConcentratedDP(-0.1), "ρ"),
        (lambda: Gaussian(0.0), "NonPrivate"),
        (lambda: Gaussian(1.0, 0), "Steps"),
        (lambda: Gaussian(1.0, True), "Steps"),
        (lambda: Laplace(0.0), "Laplace"),
        (lambda: DPSGD(1.0, 1.5, 10), "sampling rate"),
        (lambda: DPSGD(1.0, 0.0, 10), "sampling rate"),
        (lambda: DPSGD(NAN, 0.1, 10), "noise multiplier"),
        (lambda: DPSGD(1.0, 0.1, 10, -1.0), "clipping norm"),
        (lambda: Composition(()), "part"),
        (lambda: Composition((Gaussian(1.0), Gaussian(1.0, relation=REPLACE))), "relation"),
        (lambda: LocalAggregation(0), "Steps"),
        (lambda: NonPrivate(" "), "reason"),
        (lambda: Gaussian(1e200), "noise multiplier"),
        (lambda: Laplace(1e-300), "Laplace"),
        (lambda: ZeroConcentratedDP(1e300), "ρ"),
        (lambda: PureDP(1.0, relation="swap"), "neighbouring relation"),  # pyright: ignore
    ],
)
def test_refuses_bad_numbers_in_one_sentence(build, word):
    with pytest.raises(BadInput) as refused:
        build()
    assert word in str(refused.value)
    assert str(refused.value).endswith(".")


EVERY = (
    PureDP(1.0, REPLACE),
    ApproximateDP(1.0, 1e-5),
    PrivacyProfile((-1.0, 1.0), (0.6, 0.1)),
    TradeOff((0.0, 0.5), (1.0, 0.2)),
    RenyiDP((2.0, 4.0), (0.5, 1.0)),
    ZeroConcentratedDP(0.5),
    Gaussian(2.0, 3),
    Laplace(0.5, 2),
    DPSGD(1.0, 0.1, 7, 1.5, REPLACE),
    Composition((DPSGD(1.0, 0.1, 7), Gaussian(3.0), Laplace(0.1))),
    LocalAggregation(2),
    NonPrivate("gradients are sent as they are"),
)


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda mechanism: mechanism.kind)
def test_json_round_trip(mechanism):
    assert mechanism_from_json(mechanism_to_json(mechanism)) == mechanism


def test_mechanisms_are_fields_of_documents():
    class Page(BaseModel):
        mechanism: Mechanism

    for mechanism in EVERY:
        page = Page(mechanism=mechanism)
        assert Page.model_validate_json(page.model_dump_json()).mechanism == mechanism


@pytest.mark.parametrize("text", ["{}", '{"kind": "magic"}', '{"kind": "pure DP"}', "nonsense"])
def test_foreign_json_is_refused(text):
    with pytest.raises(BadInput, match="not a mechanism"):
        mechanism_from_json(text)


def test_numbers_in_json_are_checked():
    with pytest.raises(BadInput, match="δ"):
        mechanism_from_json('{"kind": "approximate DP", "epsilon": 1, "delta": 2}')


def test_bounds_need_neither_torch_nor_an_accountant():
    code = (
        "import sys, vestige.bounds; "
        "print([name for name in ('torch', 'dp_accounting', 'opacus') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_opacus_history_becomes_dp_sgd():
    assert from_opacus_history([(1.1, 0.01, 100)], clipping_norm=1.0) == DPSGD(1.1, 0.01, 100, 1.0)
    both = from_opacus_history([(1.1, 0.01, 100), (0.8, 0.02, 50)])
    assert both == Composition((DPSGD(1.1, 0.01, 100), DPSGD(0.8, 0.02, 50)))


@pytest.mark.parametrize(
    "history",
    [
        *([], [(1.0, 0.1)], [(0.0, 0.1, 5)], [(1.0, 0.1, 2.5)]),
        *([(1.0, 0.1, NAN)], [(1.0, 0.1, math.inf)], [("a", 0.1, 1)], [(None, 0.1, 1)], 3),
    ],
)
def test_odd_opacus_histories_are_refused(history):
    with pytest.raises(BadInput):
        from_opacus_history(history)


@pytest.mark.slow
def test_history_of_a_real_opacus_accountant():
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    for noise, steps in ((1.0, 300), (0.8, 200)):
        for _ in range(steps):
            accountant.step(noise_multiplier=noise, sample_rate=0.01)
    ours = epsilon_by_privacy_loss(from_opacus_history(accountant.history), 1e-5)
    # Opacus adds its error of 0.01 to ε; ours must lie below that and near.
    assert 0 <= accountant.get_epsilon(1e-5) - ours < 0.03


def test_events_become_mechanisms_and_back():
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.5))
    training = dp_accounting.SelfComposedDpEvent(step, 200)
    assert from_dp_event(training) == DPSGD(1.5, 0.01, 200)
    assert from_dp_event(dp_accounting.LaplaceDpEvent(2.0)) == Laplace(0.5)
    whole = dp_accounting.ComposedDpEvent([training, dp_accounting.GaussianDpEvent(4.0)])
    assert from_dp_event(dp_accounting.SelfComposedDpEvent(whole, 2)) == Composition(
        (DPSGD(1.5, 0.01, 400), Gaussian(4.0, 2))
    )
    for mechanism in (DPSGD(1.5, 0.01, 200), Gaussian(2.0, 3), Laplace(0.5, 4), EVERY[9]):
        assert from_dp_event(to_dp_event(mechanism)) == mechanism


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.NoOpDpEvent(),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.ComposedDpEvent([]),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        dp_accounting.SampledWithoutReplacementDpEvent(10, 1, dp_accounting.GaussianDpEvent(1.0)),
        dp_accounting.ComposedDpEvent(
            [dp_accounting.GaussianDpEvent(1.0), dp_accounting.ZCDpEvent(0.1)]
        ),
        dp_accounting.GaussianDpEvent(0.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_unknown_events_are_refused(event):
    with pytest.raises(BadInput):
        from_dp_event(event)


def test_laplace_event_under_replacement_is_refused():
    with pytest.raises(BadInput, match="replace one"):
        from_dp_event(dp_accounting.LaplaceDpEvent(1.0), relation=REPLACE)


@pytest.mark.parametrize("mechanism", [PureDP(1.0), NonPrivate("none"), RenyiDP((2.0,), (1.0,))])
def test_guarantees_without_noise_have_no_event(mechanism):
    with pytest.raises(BadInput, match="noise"):
        to_dp_event(mechanism)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "by_loss", "by_renyi"),
    [
        (1, 1, 1, 4.377, 4.729),
        (1, 1, 10, 17.857, 19.054),
        (1, 0.01, 1000, 1.828, 2.101),
        (2, 0.01, 1000, 0.622, 0.686),
    ],
)
def test_epsilon_of_dp_sgd(noise, rate, steps, by_loss, by_renyi):
    mechanism = DPSGD(noise, rate, steps)
    assert epsilon_by_privacy_loss(mechanism, 1e-5) == pytest.approx(by_loss, abs=6e-4)
    assert epsilon_by_renyi(mechanism, 1e-5) == pytest.approx(by_renyi, abs=6e-4)


@pytest.mark.parametrize("steps", [1, 10, 40])
def test_epsilon_of_gaussian_noise_is_never_below_the_closed_form(steps):
    # Balle and Wang 2018: δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ).
    mu = math.sqrt(steps) / 3

    def excess(epsilon):
        first, second = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        return first - math.exp(epsilon) * second - 1e-5

    exact = brentq(excess, 1e-6, 60)
    assert 0 <= epsilon_by_privacy_loss(Gaussian(3.0, steps), 1e-5) - exact < 2e-3


@pytest.mark.slow
def test_epsilon_grows_with_steps_where_probabilities_underflow():
    # Losses near 1,500: e^−1500 is no float.
    few, many = (epsilon_by_privacy_loss(DPSGD(0.1, 0.1, steps), 1e-5) for steps in (30, 300))
    assert 2 * few < many < math.inf


@pytest.mark.parametrize(
    ("mechanism", "relation"),
    [
        (DPSGD(0.8, 0.05, 300), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        (DPSGD(0.8, 0.05, 300, None, REPLACE), dp_accounting.NeighboringRelation.REPLACE_ONE),
        (Gaussian(2.0, 4, REPLACE), dp_accounting.NeighboringRelation.REPLACE_ONE),
        (Laplace(0.3, 5), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        (
            Composition((DPSGD(1.0, 0.1, 20), Gaussian(3.0, 2), Laplace(0.2))),
            dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
    ],
    ids=["DP-SGD", "DP-SGD replaced", "Gaussian replaced", "Laplace", "composition"],
)
def test_epsilon_agrees_with_dp_accounting(mechanism, relation):
    accountant = PLDAccountant(relation)
    accountant.compose(to_dp_event(mechanism))
    for delta in (1e-3, 1e-6):
        assert epsilon_by_privacy_loss(mechanism, delta) == pytest.approx(
            accountant.get_epsilon(delta), abs=2e-3
        )


def test_renyi_divergences_agree_with_dp_accounting():
    # Whole orders only: for fractional ones its series stops short of convergence.
    mechanism = Composition((DPSGD(0.7, 0.03, 100), Gaussian(3.0, 2), Laplace(0.2, 3)))
    orders = (2.0, 5.0, 16.0, 63.0)
    accountant = RdpAccountant(orders)
    accountant.compose(to_dp_event(mechanism))
    assert to_renyi_dp(mechanism, orders).epsilons == pytest.approx(
        tuple(accountant._rdp), rel=1e-6
    )


@pytest.mark.parametrize("order", [1.1, 1.5, 2.7])
def test_renyi_divergences_of_fractional_order_agree_with_quadrature(order):
    noise, rate = 0.7, 0.03

    def integrand(outcome):
        ratio = 1 - rate + rate * math.exp((2 * outcome - 1) / (2 * noise**2))
        return ratio**order * norm.pdf(outcome, scale=noise)

    moment = quad(integrand, -9, 12, points=(0, 1, order), limit=500, epsabs=1e-14)[0]
    found = to_renyi_dp(DPSGD(noise, rate, 1), (order,)).epsilons[0]
    assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)


def test_replacement_doubles_the_sensitivity_of_gaussian_noise():
    assert to_renyi_dp(Gaussian(2.0, 3, REPLACE), (2.0,)).epsilons == pytest.approx((4 * 3 / 4,))
    with pytest.raises(BadInput, match="Rényi"):
        to_renyi_dp(DPSGD(1.0, 0.1, 10, None, REPLACE))


def test_approximate_dp_of_other_guarantees():
    assert to_approximate_dp(PureDP(2.0, REPLACE), 1e-6) == ApproximateDP(2.0, 1e-6, REPLACE)
    concentrated = to_approximate_dp(ZeroConcentratedDP(0.5), 1e-5)
    assert concentrated.epsilon == pytest.approx(epsilon_by_renyi(Gaussian(1.0), 1e-5))
    with pytest.raises(BadInput):
        to_approximate_dp(NonPrivate("nothing was done"), 1e-5)


@pytest.mark.parametrize(
    "build",
    [
        lambda relation: PureDP(1.0, relation),
        lambda relation: ApproximateDP(1.0, 1e-5, relation),
        lambda relation: PrivacyProfile((1.0,), (0.1,), relation),
        lambda relation: TradeOff((0.1,), (0.5,), relation),
        lambda relation: RenyiDP((2.0,), (0.5,), relation),
        lambda relation: ZeroConcentratedDP(0.5, relation),
        lambda relation: Gaussian(1.0, 2, relation),
        lambda relation: Laplace(1.0, 2, relation),
        lambda relation: DPSGD(1.0, 1.0, 2, None, relation),
    ],
)
def test_a_relation_may_be_given_by_its_words(build):
    """Text equals the enum but is not it: read as neither relation, it halved the sensitivity."""
    by_words, by_name = build("replace one"), build(REPLACE)
    assert by_words.relation is REPLACE
    assert tightest(by_words, 0.1).success == tightest(by_name, 0.1).success


def test_words_for_a_relation_keep_the_doubled_sensitivity():
    found = tightest(Gaussian(1.0, relation="replace one"), 0.1)  # pyright: ignore
    assert found.success[0] == pytest.approx(norm.cdf(norm.ppf(0.1) + 2), rel=1e-6)


@pytest.mark.parametrize("mechanism", [NonPrivate("none"), PureDP(1.0)])
@pytest.mark.parametrize("kappa", [-0.1, 1.1, NAN])
def test_a_prior_success_is_checked_even_where_no_bound_applies(mechanism, kappa):
    with pytest.raises(BadInput, match="probability"):
        tightest(mechanism, kappa)


def test_an_infinite_epsilon_is_no_guarantee():
    with pytest.raises(BadInput, match="larger δ"):
        to_approximate_dp(DPSGD(1.0, 0.1, 10), 1e-200)


def test_tiny_laplace_noise_has_no_negative_divergence():
    assert min(to_renyi_dp(Laplace(1e-9, 3)).epsilons) >= 0
