"""Small fully connected networks, batches, and their gradients as exact methods read them."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from vestige.attacks.exact_inversion.layers import DenseHead, DenseLayer, Recovered


def network(sizes: tuple[int, ...], *, bias: bool, seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        with torch.device("meta"):
            layer = nn.Linear(before, after, bias=bias)
        layer.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-(before**-0.5), before**-0.5, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def head_of(model: nn.Sequential, x: Tensor, y: Tensor) -> DenseHead:
    model = model.to(x.dtype)
    model.zero_grad()
    logits = model(x)
    if logits.shape[1] == 1:
        loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits))
    else:
        loss = nn.functional.cross_entropy(logits, y)
    loss.backward()

    def pair(parameter: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if parameter is None else (parameter.detach(), parameter.grad)

    return DenseHead(
        tuple(
            DenseLayer(
                layer.weight.detach(), pair(layer.bias)[0], layer.weight.grad, pair(layer.bias)[1]
            )
            for layer in model
            if isinstance(layer, nn.Linear)
        )
    )


def batch(
    size: int, width: int, classes: int, seed: int, dtype=torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, width, generator=generator, dtype=dtype)
    return x, torch.randint(classes, (size,), generator=generator)


def worst(found: Recovered, x: Tensor) -> float:
    """Largest distance of a record to its nearest candidate, relative to its size."""
    known = found.inputs[torch.isfinite(found.inputs).all(1)]
    if not len(known):
        return float("inf")
    distance = torch.cdist(x.double(), known, compute_mode="donot_use_mm_for_euclid_dist")
    return float((distance.min(1).values / x.double().norm(dim=1)).max())
