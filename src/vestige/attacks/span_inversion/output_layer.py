"""The layer of a language model that makes logits of all tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class OutputLayer:
    """The layer that makes logits of all tokens: its module, and its parameter if it is released.

    ``shared`` says that its weight is also the embedding.
    """

    module: str
    weight: Tensor
    bias: Tensor | None
    released: str | None
    shared: bool

    @classmethod
    def of(cls, network: nn.Module, trainable: Mapping[str, Tensor], vocabulary: int):
        """The last linear layer with an output for every token; None if there is none."""
        found = [
            (name, module)
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear) and module.out_features == vocabulary
        ]
        if not found:
            return None
        name, module = found[-1]
        own = {id(p): n for n, p in network.named_parameters()}
        parameter = own.get(id(module.weight))
        shared = any(
            isinstance(m, nn.Embedding) and m.weight is module.weight for m in network.modules()
        )
        released = parameter if parameter in trainable else None
        bias = None if module.bias is None else module.bias.detach()
        return cls(name, module.weight.detach(), bias, released, shared)
