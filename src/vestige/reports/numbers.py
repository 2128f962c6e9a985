"""Numbers as sentences and the page write them; limits are rounded outwards and stay limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vestige.reports.audit import Outcome, PooledRate
    from vestige.reports.parts import Rate

MINUS = "\N{MINUS SIGN}"
EN_DASH = "\N{EN DASH}"
NO_BREAK = "\N{NO-BREAK SPACE}"
# Not from strftime, which writes them in the language of the machine.
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
# Absorbs the error of a product such as 0.29 * 100 before it is rounded outwards.
ROUNDING_SLACK = 1e-9


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def count_word(number: int) -> str:
    """Write a small whole number as a word."""
    return WORDS[number] if number < len(WORDS) else count(number)


def count(value: int) -> str:
    """Write a whole number with thousands commas and a true minus."""
    return f"{value:,}".replace("-", MINUS)


def defended(release: str, defense: str) -> str:
    """Name a release with what was done to it before it left, if anything."""
    return f"{release} with {defense}" if defense else release


def plural(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 trial``, ``2,000 trials``."""
    return f"{count(number)}{NO_BREAK}{noun if number == 1 else plural_noun(noun)}"


def plural_noun(noun: str) -> str:
    """Write a noun for several: ``trials``, ``patches``, ``copies``, ``days``."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def some_of(number: int, total: int, noun: str) -> str:
    """Write how many of some: ``3 of 40 secrets``, ``none of 40 secrets``, ``both secrets``."""
    if number in (0, total) and total == 2:
        return f"both {plural_noun(noun)}" if number else f"neither {noun}"
    if number in (0, total) and total > 2:
        several = f"{count(total)} {plural_noun(noun)}"
        return f"all {several}" if number else f"none of {several}"
    named = noun if total == 1 else plural_noun(noun)
    return f"{count(number) if number else 'none'} of {count(total)} {named}"


def level(value: float) -> str:
    """Write a confidence or an error rate, which rounding must not raise: ``97.5%``."""
    return f"{100 * value:.4g}%"


def percent(value: float) -> str:
    """Write a share: whole from 10%, one decimal below and above 99%, then ``<0.1%``."""
    if value <= 0:
        return "0%"
    if value >= 1:
        return "100%"
    if value < 0.001:
        return "<0.1%"
    if value < 0.0995:
        return f"{100 * value:.1f}%"
    if value < 0.985:
        return f"{100 * value:.0f}%"
    return f"{100 * value:.1f}%" if value < 0.9995 else ">99.9%"


def at_least(lower: float, above: float | None = None) -> str:
    """Write a lower limit, rounded down.

    With more digits where it exceeds ``above`` and would read as equal to it: ``10.3%`` beside 10%.
    """
    hundredfold = 100 * lower + ROUNDING_SLACK
    if above is not None and lower > above:
        for digits in range(4):
            text = f"{math.floor(10**digits * hundredfold) / 10**digits:.{digits}f}"
            if float(text) > 100 * above + ROUNDING_SLACK:
                plain = at_least(lower)
                return plain if float(plain[:-1]) > 100 * above + ROUNDING_SLACK else f"{text}%"
    if hundredfold < 0.1:
        return "0%"
    if 10 <= hundredfold < 99:
        return f"{math.floor(hundredfold)}%"
    text = f"{math.floor(10 * hundredfold) / 10:.1f}"
    return "100%" if lower >= 1 else f"{text}%"


def at_most(upper: float) -> str:
    """Write an upper limit, rounded up."""
    hundredfold = 100 * upper - ROUNDING_SLACK
    if hundredfold <= 9.9:
        return f"{max(math.ceil(10 * hundredfold), 0) / 10:.1f}%"
    if hundredfold <= 99:
        return f"{math.ceil(hundredfold)}%"
    tenths = math.ceil(10 * hundredfold)
    return "100%" if tenths >= 1000 else f"{tenths / 10:.1f}%"


def p_value(value: float) -> str:
    """Write a p-value with two digits, rounded up: ``0.0003``, ``0.026``, ``1``."""
    if value >= 1:
        return "1"
    places = 1 - math.floor(math.log10(value))
    text = f"{math.ceil(value * 10**places - ROUNDING_SLACK) / 10**places:.{places}f}"
    return text.rstrip("0").rstrip(".")


def limits(lower: float, upper: float, above: float | None = None) -> str:
    """Write a range with one percent sign: ``76–85%``."""
    return f"{at_least(lower, above).removesuffix('%')}{EN_DASH}{at_most(upper)}"


def grown(earlier: Sequence[int], now: int) -> str:
    """Write how a study grew: ``planned with 10, grown to 14, and has 20 now``."""
    first, *rest = earlier
    then = f", grown to {', then to '.join(map(count, rest))}," if rest else ""
    return f"planned with {count(first)}{then} and has {count(now)} now"


def planned_and_added(earlier: Sequence[int], now: int) -> str:
    """Write what was planned and what was added to it: ``4 planned, 2 added``."""
    if not earlier:
        return f"{count(now)} planned"
    sizes = [*earlier, now]
    added = [count(after - before) for before, after in pairwise(sizes)]
    return f"{count(earlier[0])} planned, {' and then '.join(added)} added"


def rate_with_limits(rate: Rate) -> str:
    """Write a rate: ``81% (76–85%)``, ``none (at most 1.8%)``, ``20 of 20 (at least 83%)``."""
    if rate.hits == 0:
        return f"none (at most {at_most(rate.upper)})"
    if rate.hits == rate.trials:
        return f"{hits_of(rate)} (at least {at_least(rate.lower)})"
    return f"{percent(rate.value)} ({limits(rate.lower, rate.upper)})"


def hits_of(rate: Rate) -> str:
    """Write ``1,629 of 2,000``."""
    return f"{count(rate.hits)} of {count(rate.trials)}"


def pooled_rate(pooled: PooledRate | None) -> str:
    """Write the rate with one threshold for all trials, or what it would take to have one."""
    if pooled is None:
        return EN_DASH
    value = pooled.true_positive_rate
    if value is None or pooled.lower is None or pooled.upper is None:
        return f"needs {plural(pooled.needed, 'trial')}"
    if value <= 0:
        return f"none (at most {at_most(pooled.upper)})"
    if value >= 1:
        return f"all (at least {at_least(pooled.lower)})"
    return f"{percent(value)} ({limits(pooled.lower, pooled.upper)})"


def share(value: float) -> str:
    """Write a chosen share such as a false positive rate: ``1%``, ``0.5%``, ``33.3%``."""
    return f"{100 * value:.3g}%"


def chance(value: float) -> str:
    """Write a probability of any size: ``1%``, ``0.01%``, ``1.0 × 10⁻⁶``."""
    return share(value) if value == 0 or value >= 1e-5 else quantity(value)


def allowed(value: float) -> str:
    """Write an upper bound on a probability of any size, three digits, rounded up: ``2.92%``."""
    if value <= 0 or value >= 1:
        return "0%" if value <= 0 else "100%"
    unit = 10.0 ** (math.floor(math.log10(value)) - (2 if value >= 1e-5 else 1))
    return chance(min(math.ceil(value / unit - ROUNDING_SLACK) * unit, 1.0))


def epsilon(value: float) -> str:
    """Write ε: whole from 100, one decimal from 1, two digits below; rounded up."""
    if value >= 1e7:
        return quantity(value)
    decimals = 0 if value >= 100 else 1 if value >= 1 else 2
    return f"{math.ceil(value * 10**decimals - ROUNDING_SLACK) / 10**decimals:,.{decimals}f}"


def one_in(value: float) -> str:
    """Write a chosen share in words: ``1 in 100``, or a percentage where that is not whole."""
    whole = round(1 / value) if value > 0 else 0
    if whole >= 2 and math.isclose(whole * value, 1, rel_tol=1e-6):
        return f"1 in {count(whole)}"
    return share(value)


def by_chance(value: float) -> str:
    """Write a false positive rate as what chance gives: ``1% (1 in 100 candidates)``."""
    said = one_in(value)
    return f"{share(value)} ({said} candidates)" if said != share(value) else said


def points(difference: float) -> str:
    """Write a difference of two rates: ``+80 points``, ``−0.4 points``."""
    hundredfold = 100 * difference
    digits = 0 if abs(hundredfold) >= 9.95 else 1
    text = f"{abs(hundredfold):.{digits}f}"
    sign = "" if float(text) == 0 else "+" if hundredfold > 0 else MINUS
    return f"{sign}{text} points"


def quantity(value: float) -> str:
    """Write a number with three significant digits, a true minus and thousands commas."""
    size = abs(value)
    sign = MINUS if value < 0 else ""
    if size == 0:
        return "0"
    if size >= 1e7 or size < 1e-4:
        mantissa, exponent = f"{size:.1e}".split("e")
        power = str(int(exponent)).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
        return f"{sign}{mantissa} × 10{power}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    text = f"{size:,.{decimals}f}"
    # 0.09996 rounds to 0.1000: one digit too many.
    if decimals and float(text.replace(",", "")) >= 10 ** (3 - decimals):
        text = f"{size:,.{decimals - 1}f}"
    return sign + text


def distance(value: float | None) -> str:
    """Write a distance with two significant digits at least; a dash where there is none."""
    if value is None:
        return EN_DASH
    if 0.1 <= abs(value) < 10:
        return f"{value:.2f}".replace("-", MINUS)
    if 0.001 <= abs(value) < 0.1:
        return f"{value:.{1 - math.floor(math.log10(abs(value)))}f}".replace("-", MINUS)
    return quantity(value)


QUARTILE_DIGITS = {"PSNR": 1, "RMSE": 2, "SSIM": 2, "tokens": 2, "ROUGE-L": 2}
"""Decimals with which pages write medians and quartiles of what is measured in a trial."""


def measured(outcomes: Sequence[Outcome], name: str) -> list[float]:
    """What is known of PSNR, RMSE, SSIM, right tokens or ROUGE-L over the trials of an attack."""
    if name == "RMSE":
        return [o.mse**0.5 for o in outcomes if o.mse is not None]
    fields = {"PSNR": "psnr", "SSIM": "ssim", "tokens": "token_accuracy", "ROUGE-L": "rouge_l"}
    found = [getattr(o, fields[name]) for o in outcomes]
    return [value for value in found if value is not None]


def quartiles(values: Sequence[float]) -> tuple[float, ...]:
    """The quartiles of values, a single value alone, nothing of none."""
    if len(values) < 2:
        return tuple(values)
    return tuple(float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))


def written_quartiles(found: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """Write what :func:`quartiles` returns."""
    if not found:
        return EN_DASH
    texts = [f"{quartile:.{digits}f}".replace("-", MINUS) for quartile in found]
    unit = f" {unit}" if unit else ""
    if len(texts) == 1:
        return f"{texts[0]}{unit}"
    low, middle, high = texts
    separator = " to " if MINUS in low + high else EN_DASH
    return f"{middle}{unit} ({low}{separator}{high})"


def seconds(value: float | None) -> str:
    """Write a duration: ``<0.01 s``, ``0.06 s``, ``2.1 s``, ``3 min 12 s``, ``1 h 52 min``."""
    if value is None:
        return EN_DASH
    if value < 0.01:
        return "<0.01 s"
    if value < 0.995:
        return f"{value:.2f} s"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(value / 60)
    return f"{count(minutes // 60)} h {minutes % 60} min"


def date(moment: str) -> str:
    """Write the day of an ISO 8601 moment: ``2 March 2026``. Leave anything else as it is."""
    try:
        day = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
