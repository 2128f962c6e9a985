"""What defences do not take is refused in one sentence that says what to do."""

from __future__ import annotations

import math

import pytest
import torch
from defended_worlds import EARLIER, gradient_client, update_client
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from vestige.defenses import (
    BatchSize,
    ClientAggregation,
    Combined,
    GradientClipping,
    GradientDropout,
    GradientNoise,
    GradientPruning,
    GradientQuantization,
    HalfPrecision,
    LocalAggregation,
    PrivateGradients,
    RecordClipping,
    TopKSparsification,
    Undefended,
)
from vestige.errors import BadInput
from vestige.streams import stream
from vestige.victims import FederatedUpdate, SharedGradient
from worlds import convex_model, draws, linear_network, released_network, sequential

SENTENCE = r"^[A-Z].+\.$"

ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(value=ANY.filter(lambda v: not 0 <= v < 1))
def test_rates_outside_their_range(value):
    for defense in (GradientPruning, GradientDropout):
        with pytest.raises(BadInput, match=SENTENCE):
            defense(value)


@given(value=ANY.filter(lambda v: not 0 < v <= 1))
def test_shares_outside_their_range(value):
    with pytest.raises(BadInput, match=SENTENCE):
        TopKSparsification(value)


@given(value=ANY.filter(lambda v: not 0 < v < math.inf))
def test_sizes_outside_their_range(value):
    for refused in (
        lambda: GradientNoise(value),
        lambda: GradientClipping(value),
        lambda: RecordClipping(value),
        lambda: PrivateGradients(value, 1.0),
        lambda: PrivateGradients(1.0, value),
    ):
        with pytest.raises(BadInput, match=SENTENCE):
            refused()


@given(value=st.one_of(st.integers(max_value=0), st.floats(), st.none(), st.text(max_size=3)))
def test_numbers_that_are_not_whole_and_positive(value):
    for defense in (LocalAggregation, ClientAggregation, BatchSize):
        with pytest.raises(BadInput, match=SENTENCE):
            defense(value)


@given(value=st.one_of(st.integers().filter(lambda v: not 2 <= v <= 16), st.floats()))
def test_bits_outside_their_range(value):
    with pytest.raises(BadInput, match=r"GradientSign\(\) for one"):
        GradientQuantization(value)


def test_what_does_not_fit_the_victim():
    batch_norm = sequential(nn.Flatten, lambda: nn.Linear(16, 3), lambda: nn.BatchNorm1d(3))
    fits = {
        "FederatedUpdate of one step": lambda: LocalAggregation(3)(gradient_client()),
        "mode='eval'": lambda: RecordClipping(1.0)(SharedGradient(batch_norm)),
        "say mode='eval'": lambda: PrivateGradients(1.0, 1.0)(
            FederatedUpdate(linear_network(), update_client().local)
        ),
        "give the defence once": lambda: ClientAggregation(2)(
            ClientAggregation(2)(gradient_client())
        ),
        "clips its records already": lambda: RecordClipping(1.0)(
            PrivateGradients(1.0, 1.0)(gradient_client())
        ),
        "audit what its clients send": lambda: GradientPruning(0.5)(released_network()),
        "clients that send gradients": lambda: ClientAggregation(2)(released_network()),
        "use SharedGradient": lambda: RecordClipping(1.0)(convex_model()),
        "earlier together": lambda: TopKSparsification(0.1, rounds=2),
        "or neither": lambda: TopKSparsification(0.1, earlier=EARLIER),
        "'all' or 'tensor'": lambda: GradientPruning(0.5, "layer"),  # pyright: ignore
        "at least two": lambda: Combined((Undefended(),)),
        "by its place": lambda: Combined((Undefended(), Undefended()), varied=2),
    }
    for words, refused in fits.items():
        with pytest.raises(BadInput, match=SENTENCE) as error:
            refused()
        assert words in str(error.value), str(error.value)


def test_what_does_not_fit_the_batch():
    victim = ClientAggregation(2)(gradient_client())
    with pytest.raises(BadInput, match="that 2 divides"):
        victim.release(draws(3, 1), generator=stream(0))
    simulator = victim.simulator
    with pytest.raises(BadInput, match="that 2 divides"):
        simulator(draws(3, 1).x, torch.eye(3))
    loud = sequential(nn.Flatten, lambda: nn.Linear(16, 3))
    for parameter in loud.parameters():
        parameter.data = parameter.data * 1e6

    def steep(outputs, targets):
        return 1e8 * (outputs * targets).sum(-1)

    victim = HalfPrecision()(SharedGradient(loud, loss=steep, mode="eval"))
    with pytest.raises(BadInput, match="scale the loss down"):
        victim.release(draws(3, 1), generator=stream(0))


def test_a_model_in_place_of_a_victim_is_one_sentence():
    with pytest.raises(BadInput, match="takes a victim, such as SharedGradient"):
        GradientPruning(0.9)(linear_network())
