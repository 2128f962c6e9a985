"""A training that diverges is told as such, whatever reads the heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from head_worlds import digits, victim
from vestige.errors import BadInput
from vestige.shadows.heads.factory import HeadFactory
from vestige.simulation.backbone_features import features_of


@pytest.mark.parametrize(("rate", "diverges"), [(0.05, False), (1e20, True), (1e38, True)])
def test_simulated_heads_that_diverge_are_refused(rate, diverges):
    records = digits().prior.records
    one = victim()
    one = replace(one, training=replace(one.training, learning_rate=rate))
    factory = HeadFactory(one.simulator, features_of(one.simulator, records), records.y)
    generator = torch.Generator().manual_seed(0)
    if not diverges:
        assert len(factory.draw(6, generator=generator)) == 6
        return
    with pytest.raises(BadInput, match=r"simulated heads diverges.*learning rate is 1e\+"):
        factory.draw(6, generator=generator)
