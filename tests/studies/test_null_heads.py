"""Whole counts of heads that no attack reads: statements are false as rarely as they may be."""

from __future__ import annotations

import pytest
import torch

from vestige.records import Prior
from vestige.reports.parts import VerdictKind
from vestige.streams import stream
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.judge import judge_rates
from vestige.studies.heads.measure import DrawnHeads
from vestige.studies.heads.rates import nearest_neighbor_thresholds
from vestige.victims import ClassCounts
from worlds import draws

HEADS = 16


def blind_heads(seed: int, kind: str, counts: tuple[int, ...]) -> DrawnHeads:
    """Heads whose drawings are means of the prior's classes, or records of the prior."""
    generator = stream(seed, "blind")
    records, prior = draws(3 * HEADS * max(counts), 2 * seed), Prior(draws(60, 2 * seed + 1))
    sets = ClassCounts(counts).draw(records.y, HEADS, disjoint=True, generator=generator)
    means = torch.stack([prior.mean(label) for label in range(3)]).expand(HEADS, -1, -1, -1, -1)
    members = [prior.members(label) for label in range(3)]
    random = torch.stack(
        [
            prior.records.x[one[torch.randint(len(one), (HEADS,), generator=generator)]]
            for one in members
        ],
        1,
    )
    images = means if kind == "means" else random
    return DrawnHeads(records, sets, torch.arange(3), images, random, means)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "counts"), [("means", (1, 1, 1)), ("records", (1, 2, 3))])
def test_blind_attacks_are_rarely_believed(kind, counts):
    """A verdict or class is false in at most 2.5% of studies.

    More than 9 of 100 has probability below 3e-4 at exactly 2.5%.
    """
    false = 0
    for seed in range(100):
        drawn = blind_heads(seed, kind, counts)
        thresholds = nearest_neighbor_thresholds(drawn.records, Prior(draws(60, 999)).records)
        rates = rates_of(drawn, thresholds, 0.1, 0.95, permutations=199)
        shown = judge_rates(rates).kind is VerdictKind.DEMONSTRATED
        false += shown or any(one.shown for one in rates.classes)
    assert false <= 9
