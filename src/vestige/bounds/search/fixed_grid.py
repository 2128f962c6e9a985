"""Choosing the best of a fixed list of runs: all of them are spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vestige.bounds.success.renyi_dp import to_renyi_dp
from vestige.errors import BadInput
from vestige.mechanisms import Mechanism, RenyiDP


def fixed_search(runs: Sequence[Mechanism]) -> RenyiDP:
    """The Rényi guarantee of all runs of a list: their sum (Mironov 2017, Proposition 1).

    The list and its order may depend on earlier results. Looking at any of the results, accuracy
    included, is covered.
    """
    return _joined(runs, np.sum)


def any_of(runs: Sequence[Mechanism]) -> RenyiDP:
    """The Rényi guarantee of one run that chance takes from a list: at most the largest.

    The exponential of (λ − 1) times a divergence is jointly convex (van Erven and Harremoës 2014),
    so a mixture diverges no more than the worst of its parts.
    """
    return _joined(runs, np.max)


def _joined(runs: Sequence[Mechanism], of: Callable[..., np.ndarray]) -> RenyiDP:
    guarantees = [to_renyi_dp(one) for one in runs]
    if not guarantees or len({(g.orders, g.relation) for g in guarantees}) > 1:
        raise BadInput(
            "A search needs at least one run, and all of them under one relation and on the same "
            "orders."
        )
    total = of(np.array([g.epsilons for g in guarantees]), axis=0)
    return RenyiDP(guarantees[0].orders, tuple(map(float, total)), guarantees[0].relation)
