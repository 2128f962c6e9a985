"""Which tokens stood in one text: those that attended to each other.

Once the tokens of a batch are known, so are the inputs X of the first attention, and the gradient
Xᵀ·Δ of its query and key layers tells the slopes Δ of every token's query and key. With S the
scores of one head and M = ∂L/∂S, these are ∂L/∂Q = M·K/√d and ∂L/∂K = Mᵀ·Q/√d, linear in M. M is
zero between tokens of different texts, so it names the texts. Both equations together determine M
while a batch has fewer than about 2d tokens. Petrov et al. 2024 (DAGER) do not use this; their
search over whole texts (Section 4.4) is exponential in their length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from vestige.attacks.span_inversion.projections import Projection, inputs_of

Text = tuple[int, ...]

HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads")
"""What modules call the number of their attention heads."""

ATTENDED = 0.05
"""Share of a token's strongest tie below which another token is not of its text."""

TINY = 1e-10
"""Squared singular values of queries or keys below this share are zero."""


def attending_texts(
    network: nn.Module,
    layer: Projection,
    tensors: Mapping[str, Tensor],
    sets: Sequence[Sequence[int]],
) -> list[Text]:
    """Texts by the ties of their tokens, one for each token of the first position; may be wrong."""
    heads = _heads(network, layer.modules[0])
    if heads is None or not sets or not sets[0]:
        return []
    pairs = [(place, token) for place, tokens in enumerate(sets) for token in tokens]
    if len(pairs) > layer.width:
        return []
    read = _read(network, layer, sets, pairs)
    found = _query_and_key(network, layer, tensors, read)
    if found is None:
        return []
    outputs, gradients = found
    slopes = [torch.linalg.lstsq(read.mT, gradient).solution for gradient in gradients]
    if outputs[0].shape != outputs[1].shape or outputs[0].shape[1] % heads:
        return []
    ties = _ties(outputs[0], outputs[1], slopes[0], slopes[1], heads)
    return _grouped(ties, pairs, sets)


def _ties(query: Tensor, key: Tensor, of_query: Tensor, of_key: Tensor, heads: int) -> Tensor:
    """Strength of the ties between tokens (n, n): |M| of all heads, each on its own scale.

    The least squares solution of M·K = ∂Q and Mᵀ·Q = ∂K solves (QQᵀ)M + M(KKᵀ) = Q∂Kᵀ + ∂QKᵀ,
    a Sylvester equation, which the eigenvectors of both sides make diagonal.
    """
    total = query.new_zeros((len(query), len(query)))
    for q, k, dq, dk in zip(*(one.chunk(heads, 1) for one in (query, key, of_query, of_key))):
        a, left = torch.linalg.eigh(q @ q.mT)
        b, right = torch.linalg.eigh(k @ k.mT)
        sums = a[:, None] + b
        inner = left.mT @ (q @ dk.mT + dq @ k.mT) @ right
        solved = torch.where(sums > TINY * sums.max(), inner / sums.clamp_min(1e-300), 0.0)
        found = (left @ solved @ right.mT).abs()
        total += found / found.mean().clamp_min(1e-300)
    return total + total.mT


def _grouped(ties: Tensor, pairs: Sequence[tuple[int, int]], sets: Sequence) -> list[Text]:
    """For each token of the first position the text of its strongest ties, one at each position."""
    texts: list[Text] = []
    for start, (place, token) in enumerate(pairs):
        if place != 0:
            continue
        members, text = [start], [token]
        for position in range(1, len(sets)):
            here = [n for n, pair in enumerate(pairs) if pair[0] == position]
            if not here:
                break
            strength = ties[members][:, here].mean(0)
            best = int(strength.argmax())
            usual = float(ties[members][:, members].sum()) / max(
                len(members) ** 2 - len(members), 1
            )
            if len(members) > 1 and float(strength[best]) < ATTENDED * usual:
                break
            members.append(here[best])
            text.append(pairs[here[best]][1])
        texts.append(tuple(text))
    return texts


def _read(
    network: nn.Module, layer: Projection, sets: Sequence, pairs: Sequence[tuple[int, int]]
) -> Tensor:
    """What the layer reads of tokens at their positions (n, width)."""
    device = next(network.parameters()).device
    tokens = torch.tensor([float(token) for _, token in pairs], device=device)
    rows = tokens[:, None].expand(-1, len(sets)).contiguous()
    places = torch.tensor([place for place, _ in pairs], device=device)
    read = inputs_of(network, layer.modules[0], rows)
    return read[torch.arange(len(pairs), device=device), places].double()


def _heads(network: nn.Module, name: str) -> int | None:
    """The number of heads that a layer or a module around it has, the nearest first."""
    parts = name.split(".")
    for count in range(len(parts), -1, -1):
        module = network.get_submodule(".".join(parts[:count]))
        for owner in (module, getattr(module, "config", None)):
            for attribute in HEADS:
                value = getattr(owner, attribute, None)
                if isinstance(value, int) and value > 0:
                    return value
    return None


def _query_and_key(
    network: nn.Module, layer: Projection, tensors: Mapping[str, Tensor], read: Tensor
) -> tuple[list[Tensor], list[Tensor]] | None:
    """Queries and keys of inputs, and the gradients (width, outputs) of the layers behind them."""
    whole = network.get_submodule(layer.modules[0])
    if isinstance(whole, nn.MultiheadAttention):  # one weight for query, key and value
        weights = whole.in_proj_weight.detach().double().chunk(3)[:2]
        bias = whole.in_proj_bias
        added = [0.0, 0.0] if bias is None else bias.detach().double().chunk(3)[:2]
        made = [read @ weight.mT + more for weight, more in zip(weights, added)]
        return made, [one.mT for one in tensors[layer.weights[0]].double().chunk(3)[:2]]
    named = _named_query_and_key(layer.modules)
    if named is None:
        return None
    outputs, gradients = [], []
    for name in named:
        which = layer.modules.index(name)
        gradient = tensors[layer.weights[which]]
        with torch.no_grad():
            outputs.append(network.get_submodule(name)(read.to(gradient.dtype)).double())
        gradients.append(gradient.double() if layer.by_rows[which] else gradient.double().mT)
    return outputs, gradients


def _named_query_and_key(modules: Sequence[str]) -> tuple[str, str] | None:
    """The query and the key layer among those that read one input; both may be called anything."""
    last = {name: name.rpartition(".")[2].lower() for name in modules}
    query = [name for name in modules if last[name].startswith("q")]
    key = [name for name in modules if last[name].startswith("k")]
    if len(query) == 1 and len(key) == 1:
        return query[0], key[0]
    return (modules[0], modules[1]) if len(modules) == 3 else None
