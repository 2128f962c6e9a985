"""Drawings that match copies of a record: a copy must not look closer because it is the own one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vestige.records import ImageSpace, Prior, Records
from vestige.reports.parts import VerdictKind
from vestige.simulation.training_sets import ClassCounts
from vestige.streams import stream
from vestige.studies.heads.counting import rates_of
from vestige.studies.heads.judge import judge_rates
from vestige.studies.heads.measure import DrawnHeads
from vestige.studies.heads.pairs import pair_errors
from vestige.studies.heads.rates import nearest_neighbor_thresholds

HEADS = 30


def pages(side: int, seed: int, dirty: bool) -> Records:
    """Grey pages of two classes; most are blank, and a dirty one differs in a single pixel."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((4 * HEADS, 1, side, side), 240 / 255)
    if dirty:
        x[:, 0, 3, 5] -= 1 / 255
    noise = torch.rand(x.shape, generator=generator)
    kept = torch.rand(len(x), generator=generator) < 0.5
    x = torch.where(kept[:, None, None, None], x, (noise * 255).round() / 255)
    space = ImageSpace(1, side, side, ("a", "b"))
    return Records(x, torch.arange(len(x)) % 2, space)


@pytest.mark.parametrize("side", [8, 16, 28])
@pytest.mark.parametrize("dirty", [False, True])
def test_equal_records_have_equal_errors_in_every_set(side, dirty):
    records = pages(side, 0, dirty)
    sets = ClassCounts((1, 1)).draw(records.y, HEADS, disjoint=True, generator=stream(0, "sets"))
    drawn = torch.full((HEADS, 2, 1, side, side), 240 / 255)
    counted = records.y[sets.members][:, None, :] == torch.arange(2)[None, :, None]
    found = pair_errors(drawn, sets.members, counted, records.x)
    rows = records.x.flatten(1).double()
    for place in range(2):
        for head in range(HEADS):
            own = [
                (drawn[0, 0].flatten().double() - rows[m]).square().mean().item()
                for m in sets.members[head][counted[head, place]]
            ]
            column = np.asarray(found.values[place][:, head])
            assert len(set(column.tolist())) == 1  # the same drawing, the same set
            np.testing.assert_allclose(column[0], min(own), rtol=1e-6, atol=0)


@pytest.mark.parametrize("side", [8, 16, 28])
@pytest.mark.parametrize("dirty", [False, True])
def test_a_constant_drawing_of_a_common_page_demonstrates_nothing(side, dirty):
    for seed in range(4):
        records = pages(side, seed, dirty)
        half = len(records) // 2
        secrets, prior = records[: half + HEADS], Prior(records[half + HEADS :])
        sets = ClassCounts((1, 1)).draw(
            secrets.y, HEADS, disjoint=True, generator=stream(seed, "sets")
        )
        drawn = torch.full((HEADS, 2, 1, side, side), 240 / 255)
        heads = DrawnHeads(secrets, sets, torch.arange(2), drawn, drawn, drawn)
        thresholds = nearest_neighbor_thresholds(secrets, prior.records)
        rates = rates_of(heads, thresholds, 0.1, 0.95, permutations=399)
        assert judge_rates(rates).kind is VerdictKind.NOT_DEMONSTRATED
