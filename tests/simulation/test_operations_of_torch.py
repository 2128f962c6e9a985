"""Layers of torch.nn by which a gradient can be differentiated again, alone and under vmap."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from vestige.simulation.refusals import refusal
from vestige.simulation.second_derivatives import twice_differentiable
from worlds import sequential

IMAGE, SMALL, TOKENS = (2, 4, 6, 6), (2, 2, 4, 4), (2, 5, 4)


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class First(nn.Module):
    """The first output of a layer that has several."""

    def __init__(self, layer, inputs: int = 1, **named) -> None:
        super().__init__()
        self.layer, self.inputs, self.named = layer, inputs, named

    def forward(self, x):
        return self.layer(*[x] * self.inputs, **self.named)[0]


class Tokens(nn.Module):
    """Learned embeddings of fixed tokens, multiplied with the records."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=1)

    def forward(self, x):
        return x * self.table(torch.tensor([0, 1, 2, 2, 5]))


def resized(mode, size, **named):
    return lambda: Call(lambda x: functional.interpolate(x, size=size, mode=mode, **named))


def sampled(mode, padding):
    """Pixels at places that the picture itself chooses."""

    def sample(x):
        places = 0.9 * torch.tanh(x[:, :2].permute(0, 2, 3, 1))
        return functional.grid_sample(
            x, places, mode=mode, padding_mode=padding, align_corners=False
        )

    return lambda: Call(sample)


ACTIVATIONS = {
    f"{kind.__name__}{' in place' if settings.get('inplace') else ''}": (
        lambda kind=kind, settings=settings: kind(**settings)
    )
    for kinds, settings in (
        (
            (nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.ELU),
            {},
        ),
        ((nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.LogSigmoid, nn.PReLU, nn.GLU), {}),
        ((nn.SiLU, nn.Mish, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.ELU), {"inplace": True}),
    )
    for kind in kinds
}
LAYERS = {
    **{name: (made, IMAGE) for name, made in ACTIVATIONS.items()},
    "GELU, tanh": (lambda: nn.GELU("tanh"), IMAGE),
    "adaptive mean": (lambda: nn.AdaptiveAvgPool2d(4), IMAGE),
    "adaptive mean, one": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2d(4), IMAGE),
    "maximum": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "power mean": (lambda: nn.LPPool2d(2, 2), IMAGE),
    "bilinear, larger": (resized("bilinear", 7), SMALL),
    "bilinear, smaller": (resized("bilinear", 3, antialias=True), SMALL),
    "bicubic, larger": (resized("bicubic", 7, align_corners=True), SMALL),
    "bicubic, smaller": (resized("bicubic", 3, antialias=True), SMALL),
    "nearest": (resized("nearest-exact", 7), SMALL),
    "trilinear": (resized("trilinear", 4), (1, 2, 3, 3, 3)),
    "grid sample, bilinear": (sampled("bilinear", "zeros"), SMALL),
    "grid sample, bicubic": (sampled("bicubic", "reflection"), SMALL),
    "grid sample, nearest": (sampled("nearest", "border"), SMALL),
    "batch norm, own statistics": (
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        IMAGE,
    ),
    "batch norm, running statistics": (lambda: nn.BatchNorm2d(4).eval(), IMAGE),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "layer norm": (lambda: nn.LayerNorm(6), IMAGE),
    "RMS norm": (lambda: nn.RMSNorm(6), IMAGE),
    "local response norm": (lambda: nn.LocalResponseNorm(2), IMAGE),
    "embedding": (Tokens, TOKENS),
    "unfold": (lambda: nn.Unfold(2), IMAGE),
    "fold": (lambda: nn.Fold((4, 4), 2), (1, 8, 9)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), IMAGE),
    "depthwise convolution": (lambda: nn.Conv2d(4, 4, 3, dilation=2, groups=4), IMAGE),
    "reflected convolution": (
        lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"),
        IMAGE,
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 3, 3)),
        IMAGE,
    ),
    "attention, fused": (
        lambda: First(nn.MultiheadAttention(4, 2, batch_first=True).eval(), 3, need_weights=False),
        TOKENS,
    ),
    "attention, weights": (
        lambda: First(nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True), 3),
        TOKENS,
    ),
    "attention, causal": (
        lambda: Call(lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True)),
        TOKENS,
    ),
    "encoder, fast path": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, activation="gelu", batch_first=True), 2
        ).eval(),
        TOKENS,
    ),
    "LSTM": (lambda: First(nn.LSTM(4, 3, num_layers=2, batch_first=True)), TOKENS),
    "GRU": (lambda: First(nn.GRU(4, 3, bidirectional=True, batch_first=True)), TOKENS),
}


def slope_of(layer, x):
    """Slope of ‖gradient‖² in x, by plain autograd; the gradient is that of x and of the layer."""
    leaf = x.clone().requires_grad_()
    weights = [leaf, *layer.parameters()]
    with twice_differentiable():
        loss = torch.sin(layer(leaf * 1)).sum()
    gradient = torch.autograd.grad(loss, weights, create_graph=True, materialize_grads=True)
    energy = sum(part.square().sum() for part in gradient)
    return energy.detach(), torch.autograd.grad(energy, leaf)[0]


def stacked_slopes(layer, stack):
    """The same for each entry of a stack, under vmap."""

    def energy(x):
        def loss(weights, x):
            with twice_differentiable():
                return torch.sin(torch.func.functional_call(layer, weights, (x * 1,))).sum()

        weights = {name: weight.detach() for name, weight in layer.named_parameters()}
        parts, own = torch.func.grad(loss, argnums=(0, 1))(weights, x)
        return sum(part.square().sum() for part in (*parts.values(), own))

    leaf = stack.clone().requires_grad_()
    return torch.autograd.grad(torch.func.vmap(energy)(leaf).sum(), leaf)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_alone_and_stacked(name, generator):
    made, shape = LAYERS[name]
    layer = sequential(made)[0].double()
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    direction = torch.randn(shape, generator=generator, dtype=torch.float64)
    _, slope = slope_of(layer, x)
    ends = [slope_of(layer, x + sign * 1e-6 * direction)[0] for sign in (1, -1)]
    measured = float(ends[0] - ends[1]) / 2e-6
    assert float((slope * direction).sum()) == pytest.approx(measured, rel=1e-4, abs=1e-5)
    stacked = stacked_slopes(layer, torch.stack([x, 0.9 * x]))
    assert torch.allclose(stacked[0], slope, rtol=1e-7, atol=1e-9)
    assert torch.allclose(stacked[1], slope_of(layer, 0.9 * x)[1], rtol=1e-7, atol=1e-9)


LABELS, LENGTHS = torch.tensor([0, 1]), torch.tensor([2, 2])
REFUSED = {
    "segment_reduce": lambda x: torch.segment_reduce(x.flatten(), "sum", lengths=10 * LENGTHS),
    "multi_margin_loss": lambda x: functional.multi_margin_loss(x[:, :, 0], LABELS),
    "multilabel_margin_loss": lambda x: functional.multilabel_margin_loss(
        x[:, :4, 0], torch.tensor([[0, 1, -1, -1], [2, -1, -1, -1]])
    ),
    "ctc_loss": lambda x: functional.ctc_loss(
        x.transpose(0, 1).log_softmax(-1), torch.tensor([[1, 2], [1, 2]]), LENGTHS + 3, LENGTHS
    ),
    "embedding_bag": lambda x: functional.embedding_bag(
        torch.tensor([[0, 1], [1, 1]]), x[0], scale_grad_by_freq=True
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_second_derivative_is_refused_in_a_sentence(name, generator):
    x = torch.randn(TOKENS, generator=generator, dtype=torch.float64)
    with pytest.raises(RuntimeError) as caught:
        slope_of(Call(REFUSED[name]), x)
    sentence = refusal(caught.value)
    assert sentence is not None
    assert sentence.startswith(f"There is no second derivative of the operation {name!r}")
