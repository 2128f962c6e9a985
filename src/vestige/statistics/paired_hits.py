"""Two audits of the same secrets: the exact paired test of McNemar, and limits on the difference.

Of n pairs of trials only those count in which one run hit and the other did not: b in the new run
alone, c in the old run alone. Given b + c, and if both runs are equally likely to be the one that
hits, b is binomial with probability 1/2 (McNemar 1947; the exact form is the sign test). Limits of
that probability θ by Clopper and Pearson give limits of the expected difference of hits,
(b + c)(2θ − 1), conditional on b + c (Agresti 2013, Categorical Data Analysis, § 11.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom

from vestige.statistics.rates import clopper_pearson


@dataclass(frozen=True)
class PairedHits:
    """Pairs of trials by who hit, the exact two-sided p-value, and limits of the difference.

    ``lower`` and ``upper`` limit the expected number of hits that the new run has more than the
    old one, in so many pairs, given the number of pairs that differ.
    """

    both: int
    new_only: int
    old_only: int
    neither: int
    p_value: float
    lower: float
    upper: float

    @property
    def pairs(self) -> int:
        """All pairs."""
        return self.both + self.new_only + self.old_only + self.neither

    @property
    def difference(self) -> int:
        """Hits that the new run has more."""
        return self.new_only - self.old_only


def mcnemar(new_only: int, old_only: int) -> float:
    """Exact two-sided p-value: twice the smaller binomial tail, at most 1."""
    differ = new_only + old_only
    return min(1.0, 2 * float(binom.cdf(min(new_only, old_only), differ, 0.5))) if differ else 1.0


def paired_hits(old: Sequence[bool], new: Sequence[bool], confidence: float) -> PairedHits:
    """Compare hits pair by pair; the limits are two-sided at this confidence."""
    if len(old) != len(new):
        raise ValueError("paired hits come in pairs")
    new_only = sum(b and not a for a, b in zip(old, new))
    old_only = sum(a and not b for a, b in zip(old, new))
    both = sum(a and b for a, b in zip(old, new))
    differ = new_only + old_only
    low, high = clopper_pearson(new_only, differ, confidence) if differ else (0.5, 0.5)
    return PairedHits(
        both,
        new_only,
        old_only,
        len(old) - both - differ,
        mcnemar(new_only, old_only),
        differ * (2 * low - 1),
        differ * (2 * high - 1),
    )


def unpaired_difference(
    old: tuple[int, int], new: tuple[int, int], confidence: float
) -> tuple[float, float]:
    """Limits of the difference of two independent rates, new minus old, from (hits, trials).

    Each rate has Clopper–Pearson limits at half the doubt, so that both hold with this confidence;
    the limits hold for any number of trials and are wider than approximate ones.
    """
    each = 1 - (1 - confidence) / 2
    a, b = clopper_pearson(*old, each), clopper_pearson(*new, each)
    return b[0] - a[1], b[1] - a[0]
