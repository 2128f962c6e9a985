"""Choosing the best of a random number of runs under pure differential privacy."""

from __future__ import annotations

from vestige.mechanisms import PureDP, require


def search_under_pure_dp(base: PureDP, shape: float = 1.0) -> PureDP:
    """(2 + η)ε of a search whose number of runs is truncated negative binomial of shape η.

    η = 1 is a geometric number of runs: 3ε (Liu and Talwar 2019, random stopping). The general form
    is Papernot and Steinke 2022, Theorem 2 with both orders at infinity. It does not depend on how
    many runs are expected. Only the best run may be looked at.
    """
    require(-1 < shape < float("inf"), f"The shape η is greater than -1 and finite, not {shape!r}.")
    return PureDP((2 + shape) * base.epsilon, base.relation)
