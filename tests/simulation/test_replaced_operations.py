"""Operations that a replay computes in another way: same values, right second derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from vestige.simulation.second_derivatives import twice_differentiable
from worlds import sequential

BAGS = torch.tensor([[0, 1, 2], [1, 1, 4]])
FLAT, STARTS = torch.tensor([0, 1, 1, 3, 4]), torch.tensor([0, 2, 2])


# Each takes tensors of these shapes.
OPERATIONS = {
    "hard sigmoid": (functional.hardsigmoid, [(3, 4)]),
    "hard swish": (functional.hardswish, [(3, 4)]),
    "cdist": (torch.cdist, [(3, 4), (2, 4)]),
    "cdist, p=1": (lambda x, y: torch.cdist(x, y, p=1.0), [(3, 4), (2, 4)]),
    "pdist": (functional.pdist, [(4, 3)]),
    "pdist, p=3": (lambda x: functional.pdist(x, 3.0), [(4, 3)]),
    "bag, sum": (lambda w: functional.embedding_bag(BAGS, w, mode="sum"), [(5, 3)]),
    "bag, mean": (lambda w: functional.embedding_bag(BAGS, w, padding_idx=1), [(5, 3)]),
    "bag, max": (lambda w: functional.embedding_bag(BAGS, w, mode="max"), [(5, 3)]),
    "bag, offsets": (lambda w: functional.embedding_bag(FLAT, w, STARTS), [(5, 3)]),
    "bag, weighted": (
        lambda w, s: functional.embedding_bag(BAGS, w, mode="sum", per_sample_weights=s),
        [(5, 3), (2, 3)],
    ),
    "layer norm": (lambda x, w, b: functional.layer_norm(x, (4,), w, b), [(2, 3, 4), (4,), (4,)]),
    "batch norm": (
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        [(3, 2, 4), (2,), (2,)],
    ),
    "batch norm, kernel": (
        lambda x, w, b: torch.batch_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
        [(3, 2, 4), (2,), (2,)],
    ),
    "instance norm": (
        lambda x, w, b: functional.instance_norm(x, weight=w, bias=b),
        [(2, 3, 4), (3,), (3,)],
    ),
    "mean of rows": (lambda x: functional.adaptive_avg_pool1d(x, 1), [(2, 3, 4)]),
    "means of rows": (lambda x: functional.adaptive_avg_pool1d(x, 3), [(2, 3, 4)]),
    "attention": (functional.scaled_dot_product_attention, [(2, 3, 4)] * 3),
    "LSTM cell": (
        lambda x, h, c, w, u, a, b: torch.lstm_cell(x, (h, c), w, u, a, b)[1],
        [(2, 3), (2, 2), (2, 2), (8, 3), (8, 2), (8,), (8,)],
    ),
    "GRU cell": (torch.gru_cell, [(2, 3), (2, 2), (6, 3), (6, 2), (6,), (6,)]),
}


def drawn(shapes, generator):
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_both_derivatives(name, generator):
    operation, shapes = OPERATIONS[name]
    inputs = drawn(shapes, generator)

    def replaced(*values):
        with twice_differentiable():
            return operation(*values)

    assert torch.allclose(replaced(*inputs), operation(*inputs), rtol=1e-10, atol=1e-12)
    slope = torch.randn(operation(*inputs).shape, generator=generator, dtype=torch.float64)
    wanted, found = (torch.autograd.grad(f(*inputs), inputs, slope) for f in (operation, replaced))
    assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-10) for a, b in zip(wanted, found))
    with torch.random.fork_rng():
        assert gradcheck(replaced, inputs)
        assert gradgradcheck(replaced, inputs)


def energy_of(operation, count):
    """The squared norm of the gradient of a loss in all inputs, as a function of them."""

    def energy(*inputs):
        def loss(*values):
            with twice_differentiable():
                return torch.sin(operation(*values)).sum()

        slopes = torch.func.grad(loss, argnums=tuple(range(count)))(*inputs)
        return sum(slope.square().sum() for slope in slopes)

    return energy


@pytest.mark.parametrize("name", [n for n in OPERATIONS if not n.startswith("bag")])
def test_second_derivatives_under_vmap_are_those_of_a_loop(name, generator):
    operation, shapes = OPERATIONS[name]
    first, *others = (value.detach() for value in drawn(shapes, generator))
    energy = energy_of(operation, len(shapes))
    stack = torch.stack([first, 0.9 * first]).requires_grad_()
    together = torch.func.vmap(lambda one: energy(one, *others))(stack)
    (slopes,) = torch.autograd.grad(together.sum(), stack)
    for one, slope in zip(stack.detach(), slopes):
        leaf = one.clone().requires_grad_()
        weights = [other.clone().requires_grad_() for other in others]
        with twice_differentiable():
            loss = torch.sin(operation(leaf, *weights)).sum()
        gradient = torch.autograd.grad(loss, [leaf, *weights], create_graph=True)
        (wanted,) = torch.autograd.grad(sum(g.square().sum() for g in gradient), leaf)
        assert torch.allclose(slope, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("LSTM", {}),
        ("LSTM", {"bidirectional": True, "num_layers": 2}),
        ("LSTM", {"proj_size": 2, "bias": False}),
        ("GRU", {"num_layers": 2, "dropout": 0.5}),
        ("GRU", {"bidirectional": True, "batch_first": True}),
        ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
        ("RNN", {"bias": False, "batch_first": True}),
    ],
)
def test_recurrent_layers(kind, settings, generator):
    layer = sequential(lambda: getattr(nn, kind)(4, 3, dtype=torch.float64, **settings))[0]
    x = torch.randn((3, 2, 4), generator=generator, dtype=torch.float64)
    with twice_differentiable():
        found, ends = layer(x)
        alone, _ = layer(x[:, 0])
    wanted, wanted_ends = layer.eval()(x)
    assert torch.allclose(found, wanted)
    assert torch.allclose(alone, layer(x[:, 0])[0])
    both = (ends, wanted_ends) if kind == "LSTM" else ((ends,), (wanted_ends,))
    assert all(torch.allclose(a, b) for a, b in zip(*both))

    def output(one):
        with twice_differentiable():
            return layer(one)[0]

    with torch.random.fork_rng():
        assert gradgradcheck(output, x.requires_grad_())
    stacked = torch.func.vmap(output)(torch.stack([x, x + 1]).detach())
    assert torch.allclose(stacked[0], wanted)


def test_packed_sequences_stay_with_torch(generator):
    layer = sequential(lambda: nn.LSTM(4, 3, batch_first=True))[0]
    x = torch.randn((2, 3, 4), generator=generator)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    with twice_differentiable():
        found = layer(packed)[0].data
    assert torch.equal(found, layer(packed)[0].data)


def test_nothing_random_is_left(generator):
    x = torch.randn((2, 3, 4, 4), generator=generator)
    tokens = x.flatten(2)[:, :, :4]
    heads = sequential(lambda: nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True))[0]
    before = torch.get_rng_state()
    with twice_differentiable():
        for drop in (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout):
            assert torch.equal(drop(0.5)(x), x)
        assert torch.equal(nn.RReLU()(x), nn.RReLU().eval()(x))
        found = heads(tokens, tokens, tokens)[0]
        functional.scaled_dot_product_attention(x, x, x, None, 0.5)
        functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.allclose(found, heads.eval()(tokens, tokens, tokens)[0], atol=1e-6)
