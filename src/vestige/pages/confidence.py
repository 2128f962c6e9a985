"""The confidence of a reconstruction in words, where it is a rate of hits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from vestige.reports import numbers
from vestige.reports.parts import AttackDescription, RehearsedHits
from vestige.statistics.rates import lower_limit

FEWEST = 5
"""Rehearsed candidates below which no rate is written."""


def rehearsed_words(
    attacks: Iterable[AttackDescription],
    attack: str,
    confidence: float | None,
    rehearsed: RehearsedHits | None,
    level: float,
) -> str:
    """What a confidence from rehearsals says, with a lower limit at a confidence ``level``.

    Empty for an attack's own score, which is no rate.
    """
    known = any(one.rehearsed for one in attacks if one.name == attack)
    if not known or confidence is None or not 0 <= confidence <= 1:
        return ""
    if rehearsed is None:
        return f"rehearsed confidence {confidence:.2f}, from an unknown number of rehearsals"
    hits, total = rehearsed.hits, rehearsed.candidates
    if total < FEWEST:
        count = numbers.count_word(total)
        return (
            f"no rehearsed confidence: {count} rehearsed candidate{'' if total == 1 else 's'} at "
            "most as sure, too few for a rate"
        )
    limit = math.floor(100 * lower_limit(hits, total, 1 - level) + 1e-9)
    shown = f"at least {limit} in 100 ({numbers.share(level)} confidence)"
    return (
        f"rehearsed confidence {min(confidence, 0.99):.2f}: {hits} of {total} such candidates hit "
        f"in rehearsals: {shown if limit else 'too few to show a rate above zero'}; a rehearsed "
        f"hit is closer to its record than {numbers.plural(rehearsed.decoys, 'decoy')}"
    )
