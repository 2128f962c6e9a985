"""The linear layers of a network that are joined by ReLU (or the like) and end in its logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Call:
    """One use of a linear layer: what it read and what it gave."""

    module: nn.Linear
    read: Tensor
    gave: Tensor


def relu_chain(
    network: nn.Module,
    run: Callable[[], Tensor],
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> list[nn.Linear]:
    """Layers from the first of the chain to the one that gives the logits; none if none does.

    ``run`` passes some records through the network and returns their logits. A layer belongs to the
    chain if the ReLU (or another ``activation``) of its output is what the next one reads, whatever
    code is between them, and if it is used once, on one vector of each record.
    """
    calls: list[_Call] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            # Copies: an in-place activation would change what the layer gave.
            calls.append(_Call(module, inputs[0].detach().clone(), output.detach().clone()))

    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    hooks = [module.register_forward_hook(note) for module in linear]
    try:
        wanted = run()  # what the layer at hand should have passed on
    finally:
        for hook in hooks:
            hook.remove()
    chain: list[nn.Linear] = []
    for call in reversed(calls):
        passed = activation(call.gave) if chain else call.gave
        if call.module in chain or not _same(passed, wanted, call.module.out_features):
            break
        chain.insert(0, call.module)
        wanted = call.read
    return chain


def _same(one: Tensor, other: Tensor, size: int) -> bool:
    """Whether two tensors hold the same ``size`` values of each record, in any arrangement."""
    if one.dim() < 2 or other.dim() < 2 or len(one) != len(other):
        return False
    flat = one.flatten(1)
    return flat.shape[1] == size and torch.equal(flat, other.flatten(1))
