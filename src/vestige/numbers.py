"""How numbers are written, in sentences and on the page."""

from __future__ import annotations

COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def percent(share: float) -> str:
    """Write a share: whole from 10%, one decimal below, then <0.1%."""
    if share <= 0:
        return "0%"
    if share < 0.001:
        return "<0.1%"
    if share < 0.0995:
        return f"{share * 100:.1f}%".replace(".0%", "%")
    return f"{share * 100:.0f}%"


def count_word(count: int) -> str:
    """Write a small count as a word."""
    return COUNTS[count] if count < len(COUNTS) else f"{count:,}"


def one_in(share: float) -> str:
    """Write a share as odds: 0.01 → 1 in 100."""
    if share <= 0:
        return "none"
    denominator = 1 / share
    if abs(denominator - round(denominator)) < 1e-6 * denominator:
        return f"1 in {round(denominator):,}"
    return f"{share * 100:.3g} in 100"
