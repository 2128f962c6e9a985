"""A small transformer over token numbers, as a reference network of texts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vestige.choices import check_whole
from vestige.errors import BadInput
from vestige.networks.token_model import Task, TokenModel
from vestige.records import Space, TextSpace


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017), causal where told, written out in full."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Mixed values (n, length, width); ``real`` (n, length) are positions that hold a token."""
        parts = (one(x).unflatten(-1, (self.heads, -1)) for one in (self.query, self.key))
        query, key = (part.transpose(1, 2) for part in parts)
        value = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        allowed = real[:, None, None, :]
        if self.causal:
            length = x.shape[1]
            allowed = allowed & torch.ones(length, length, device=x.device).tril().bool()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two fully connected layers, normalised before and added after."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.widen, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """What the block makes of its inputs (n, length, width)."""
        x = x + self.attention(self.first_norm(x), real)
        return x + self.narrow(nn.functional.gelu(self.widen(self.second_norm(x))))


class Transformer(nn.Module):
    """Embeddings of tokens and positions, blocks, and an output layer that is not tied.

    With one output for each token it is a causal language model; with fewer a classifier, which
    reads the mean of what the last block makes of a text.
    """

    def __init__(
        self, space: TextSpace, width: int, layers: int, heads: int, outputs: int, *, causal: bool
    ) -> None:
        super().__init__()
        self.padding, self.causal = space.padding, causal
        self.tokens = nn.Embedding(space.vocabulary, width)
        self.positions = nn.Embedding(space.length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=causal) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, length, vocabulary), or (n, classes)."""
        real = (tokens != self.padding).flip(1).long().cumsum(1).flip(1) > 0
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, real)
        x = self.norm(x)
        if not self.causal:
            counted = real.to(x.dtype).unsqueeze(-1)
            x = (x * counted).sum(1) / counted.sum(1).clamp_min(1)
        return self.output(x)


def transformer(
    space: Space,
    task: Task = "classification",
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    generator: torch.Generator | None = None,
) -> TokenModel:
    """Small transformer over texts: a classifier, or a causal language model.

    Weights are normal with deviation 0.02 times √(768 / width), as GPT-2 has it at its own width
    (Radford et al. 2019); biases are zero.
    """
    if not isinstance(space, TextSpace):
        raise BadInput("The transformer reads texts: give the space of a TextSpace's records.")
    for name, value in (("width", width), ("layers", layers), ("heads", heads)):
        check_whole(f"{name} of transformer", value, 1)
    if width % heads:
        raise BadInput(f"A width of {width} is not shared evenly by {heads} heads: choose others.")
    causal = task == "language modelling"
    outputs = space.vocabulary if causal else len(space.class_names)
    generator = generator or torch.Generator().manual_seed(0)
    with torch.device("meta"):
        network = Transformer(space, width, layers, heads, outputs, causal=causal)
    network.to_empty(device=generator.device)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                deviation = 0.02 * math.sqrt(768 / width)
                module.weight.normal_(0, deviation, generator=generator)
            if isinstance(module, nn.Linear):
                module.bias.zero_()
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
    return TokenModel(network, task, padding=space.padding)
