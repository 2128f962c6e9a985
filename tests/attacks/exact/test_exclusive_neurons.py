"""The exclusivity condition against a brute-force count, and its rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vestige.attacks.exact_inversion.exclusive_neurons import (
    condition_holds,
    exclusive_counts,
    exclusivity,
)
from vestige.attacks.exact_inversion.layers import DenseHead, DenseLayer
from vestige.errors import BadInput
from vestige.networks import mlp
from vestige.records import Column, Records, TableSpace
from vestige.simulation.gradient import GradientSimulator
from vestige.studies.diagnostics.exclusivity import exclusivity_rate, hidden_activity


def brute_force(masks: list[np.ndarray]) -> bool:
    """Definition 1 and §8.4 of Pan et al. 2020, one neuron and one record at a time."""
    for layer, mask in enumerate(masks):
        needed = 2 if layer == len(masks) - 1 else 1
        for record in range(mask.shape[0]):
            own = 0
            for neuron in range(mask.shape[1]):
                others = [mask[m, neuron] for m in range(mask.shape[0]) if m != record]
                own += bool(mask[record, neuron]) and not any(others)
            if own < needed:
                return False
    return True


def test_condition_agrees_with_brute_force():
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(200):
        b = int(rng.integers(1, 5))
        masks = [rng.random((b, units)) < 0.3 for units in rng.integers(4, 14, rng.integers(1, 3))]
        outcomes.append(condition_holds(masks))
        assert outcomes[-1] == brute_force(masks)
    assert 0 < sum(outcomes) < len(outcomes)


def test_counts():
    masks = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], bool)
    assert exclusive_counts(masks).tolist() == [2, 1]
    assert not condition_holds([masks])
    assert condition_holds([masks, np.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool)])
    assert not condition_holds([])


def world(hidden: tuple[int, ...]) -> tuple[nn.Module, Records]:
    generator = torch.Generator().manual_seed(0)
    space = TableSpace(tuple(Column(str(n)) for n in range(12)), ("a", "b", "c"))
    x = torch.rand(50, 12, generator=generator) - 0.5
    return mlp(space, hidden, generator=generator), Records(
        x, torch.randint(3, (50,), generator=generator), space
    )


@pytest.mark.parametrize("hidden", [(40,), (60, 40)])
def test_rate_counts_batches_that_meet_the_condition(hidden):
    model, records = world(hidden)
    rates = exclusivity_rate(
        model,
        records,
        batch_sizes=(1, 3, 20),
        batches=30,
        generator=torch.Generator().manual_seed(1),
    )
    assert [rate.batch_size for rate in rates] == [1, 3, 20]
    assert rates[0].value == 1.0
    assert rates[2].value < rates[1].value + 1e-9
    assert all(rate.lower <= rate.value <= rate.upper for rate in rates)
    stream = torch.Generator().manual_seed(1)
    linear = [module for module in model if isinstance(module, nn.Linear)]
    head = DenseHead(
        tuple(
            DenseLayer(la.weight.detach(), la.bias.detach(), la.weight * 0, la.bias * 0)
            for la in linear
        )
    )
    for rate in rates:
        batches = [torch.randperm(50, generator=stream)[: rate.batch_size] for _ in range(30)]
        assert rate.held == sum(exclusivity(head, records.x[chosen]) for chosen in batches)


def test_activity_is_that_of_the_network():
    model, records = world((30, 20))
    first, second = hidden_activity(GradientSimulator(model), records.x)
    assert torch.equal(torch.from_numpy(first), model[1](records.x) > 0)
    assert torch.equal(torch.from_numpy(second), model[:4](records.x) > 0)


def test_what_cannot_be_counted_is_refused(generator):
    model, records = world((10,))
    with pytest.raises(BadInput, match="batch sizes"):
        exclusivity_rate(model, records, batch_sizes=(51,), generator=generator)
    with pytest.raises(BadInput, match="hidden"):
        exclusivity_rate(mlp(records.space, ()), records, generator=generator)
