from __future__ import annotations

import pytest

from vestige.reports import numbers
from vestige.reports.audit import PooledRate
from vestige.reports.parts import Rate


def rate(hits: int, trials: int, lower: float, upper: float) -> Rate:
    return Rate(hits=hits, trials=trials, lower=lower, upper=upper)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rate(1629, 2000, 0.7604, 0.8499), "81% (76–85%)"),
        (rate(0, 200, 0.0, 0.0179), "none (at most 1.8%)"),
        (rate(2000, 2000, 0.99816, 1.0), "2,000 of 2,000 (at least 99.8%)"),
        (rate(110, 2000, 0.0172, 0.0995), "5.5% (1.7–10%)"),
        (rate(18, 2000, 0.00304, 0.0249), "0.9% (0.3–2.5%)"),
        (rate(1, 5000, 0.00001, 0.0014), "<0.1% (0–0.2%)"),
        (rate(1999, 2000, 0.9972, 0.99999), ">99.9% (99.7–100%)"),
    ],
)
def test_rates_carry_their_limits(given: Rate, expected: str) -> None:
    assert numbers.rate_with_limits(given) == expected


def test_limits_are_rounded_outwards() -> None:
    assert numbers.at_least(0.7599) == "75%"
    assert numbers.at_least(0.29) == "29%"
    assert numbers.at_least(0.9949) == "99.4%"
    assert numbers.at_most(0.8401) == "85%"
    assert numbers.at_most(0.29) == "29%"
    assert numbers.at_most(0.0181) == "1.9%"
    assert numbers.at_most(0.9999) == "100%"


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0, "0%"), (0.0004, "<0.1%"), (0.012, "1.2%"), (0.0994, "9.9%"), (0.0996, "10%"),
     (0.814, "81%"), (0.994, "99.4%"), (0.9996, ">99.9%"), (1, "100%")],
)  # fmt: skip
def test_percent(given: float, expected: str) -> None:
    assert numbers.percent(given) == expected


def test_pooled_rate_says_what_it_needs() -> None:
    few = PooledRate(
        false_positive_rate=0.01,
        threshold=None,
        true_positive_rate=None,
        lower=None,
        upper=None,
        needed=368,
    )
    assert numbers.pooled_rate(few).replace("\N{NO-BREAK SPACE}", " ") == "needs 368 trials"
    known = few.model_copy(
        update={"threshold": 0.5, "true_positive_rate": 0.76, "lower": 0.701, "upper": 0.819}
    )
    assert numbers.pooled_rate(known) == "76% (70–82%)"
    assert numbers.pooled_rate(None) == "–"


def test_points_have_a_true_minus() -> None:
    assert numbers.points(0.801) == "+80 points"
    assert numbers.points(-0.004) == "−0.4 points"
    assert numbers.points(-0.0001) == "0.0 points"


@pytest.mark.parametrize(
    ("given", "expected"),
    [(14.2345, "14.2"), (0.0961, "0.0961"), (-3.5, "−3.50"), (12345.6, "12,346"), (0, "0"),
     (0.09996, "0.100"), (9.999, "10.0"), (0.0000123, "1.2 × 10⁻⁵"), (2.5e8, "2.5 × 10⁸")],
)  # fmt: skip
def test_quantities_have_three_digits(given: float, expected: str) -> None:
    assert numbers.quantity(given) == expected


def test_distances() -> None:
    assert [numbers.distance(v) for v in (0.1834, 0.0207, 12.34, None, 0.09996)] == [
        "0.18",
        "0.021",
        "12.3",
        "–",
        "0.100",
    ]


def test_medians_and_quartiles() -> None:
    found = numbers.quartiles([18.8, 20.1, 21.2])
    assert numbers.written_quartiles(found, "dB") == "20.1 dB (19.5–20.6)"
    assert numbers.written_quartiles(numbers.quartiles([-3, -2, -1])) == "−2.0 (−2.5 to −1.5)"
    assert numbers.written_quartiles(numbers.quartiles([])) == "–"


def test_times_and_dates() -> None:
    given = (0.004, 0.06, 2.13, 48, 192, 6720, None)
    expected = ["<0.01 s", "0.06 s", "2.1 s", "48 s", "3 min 12 s", "1 h 52 min", "–"]
    assert [numbers.seconds(v) for v in given] == expected
    assert numbers.date("2026-03-02T10:52:00+00:00") == "2 March 2026"
    assert numbers.date("yesterday") == "yesterday"


def test_shares_in_words() -> None:
    assert numbers.one_in(0.01) == "1 in 100"
    assert numbers.one_in(0.001) == "1 in 1,000"
    assert numbers.one_in(0.03) == "3%"
    assert numbers.share(0.005) == "0.5%"


@pytest.mark.parametrize(
    ("lower", "above", "said"),
    [
        (0.1034, 0.1, "10.3%"),
        (0.10034, 0.1, "10.03%"),
        (0.16, 0.1, "16%"),
        (0.0999, 0.1, "9.9%"),
        (0.1 + 1e-9, 0.1, "10%"),
        (0.013, 0.01, "1.3%"),
        (0.0104, 0.01, "1.04%"),
    ],
)
def test_a_limit_above_a_share_is_written_apart_from_it(lower, above, said):
    assert numbers.at_least(lower, above) == said


@pytest.mark.parametrize("value", [0.991, 0.996, 0.9999, 1.0])
def test_p_values_end_with_a_digit(value):
    assert numbers.p_value(value)[-1].isdigit()


def test_growth_is_written_in_order():
    assert numbers.grown([10], 20) == "planned with 10 and has 20 now"
    assert numbers.grown([10, 14], 20) == "planned with 10, grown to 14, and has 20 now"
    said = numbers.grown([10, 14, 1500], 2000)
    assert said == "planned with 10, grown to 14, then to 1,500, and has 2,000 now"
